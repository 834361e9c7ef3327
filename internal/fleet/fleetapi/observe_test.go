// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// serve runs the API until the test ends.
func serve(t *testing.T, a *API) *httptest.Server {
	srv := httptest.NewServer(a)
	t.Cleanup(func() {
		a.Close()
		srv.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return srv
}

// watch is a client of the stream.
type watch struct {
	t     *testing.T
	resp  *http.Response
	lines *bufio.Scanner
}

func startWatch(t *testing.T, srv *httptest.Server, query string) *watch {
	resp, err := http.Get(srv.URL + "/api/v1/observe" + query)
	require.NoError(t, err)
	t.Cleanup(func() { _ = resp.Body.Close() })
	require.Equal(t, http.StatusOK, resp.StatusCode)
	assert.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	return &watch{t, resp, lines}
}

// next returns the next event and reads its data into an address.
func (w *watch) next(event string, into any) {
	w.t.Helper()
	name := ""
	for w.lines.Scan() {
		line := w.lines.Text()
		if s, ok := strings.CutPrefix(line, "event: "); ok {
			name = s
		}
		if s, ok := strings.CutPrefix(line, "data: "); ok {
			require.Equal(w.t, event, name, s)
			require.NoError(w.t, json.Unmarshal([]byte(s), into))
			return
		}
	}
	require.NoError(w.t, w.lines.Err())
	require.Fail(w.t, "the stream has ended")
}

func TestObserve(t *testing.T) {
	a := newAPI(func(o *Options) { o.Stream.NodesPerEvent = 2 })
	fleet(a)
	srv := serve(t, a)
	w := startWatch(t, srv, "?gpus=true")
	var s Snapshot
	w.next(EventSnapshot, &s)
	assert.Equal(t, []bool{true, false}, []bool{s.First, s.Last})
	require.Len(t, s.Nodes, 2)
	assert.Len(t, s.Nodes[0].GPUs, 2)
	w.next(EventSnapshot, &s)
	assert.Equal(t, []bool{false, true}, []bool{s.First, s.Last})
	require.Len(t, s.Nodes, 1)
	var e EpisodeList
	w.next(EventEpisodes, &e)
	require.Len(t, e.Episodes, 1)
	assert.Equal(t, "e1", e.Episodes[0].ID)

	a.o.Feed.Advance(t0) // the nodes from before the watch
	var d Diff
	w.next(EventDiff, &d)
	w.next(EventDiff, &d)

	put(a, "c1", "n1", t0.Add(-time.Second), func(u *fleetstate.Update) { u.Set(reading.NodeStraggler, 0) })
	put(a, "c1", "n2", t0, nil)
	a.o.Feed.Advance(t0)
	d = Diff{}
	w.next(EventDiff, &d)
	require.Len(t, d.Changed, 1)
	assert.Equal(t, "n1", d.Changed[0].Node)
	assert.False(t, d.Changed[0].Straggler)
	assert.InDelta(t, 1, d.Changed[0].AgeSeconds, 1e-9)
	require.Len(t, d.Seen, 1)
	assert.Equal(t, Seen{fleetstate.Key{Cluster: "c1", Node: "n2"}, Sighting{t0, 0}, "active"}, d.Seen[0])
	a.o.Store.PutEpisode(&episode.Episode{ID: "e1", Subject: "node", Cluster: "c1", Node: "n1", Since: t0, Updated: t0, Ended: t0})
	a.o.Feed.Advance(t0)
	w.next(EventEpisodes, &e)
	assert.Empty(t, e.Episodes)

	a.Close()
	for w.lines.Scan() { // until the server ends the stream
		assert.Empty(t, w.lines.Text(), "the end of the last event")
	}
	require.NoError(t, w.lines.Err())
	require.Eventually(t, func() bool { return a.streams.Taken() == 0 }, time.Minute, time.Millisecond)
}

// The page takes the whole fleet in brief: a node of eight GPUs in 250 bytes.
func TestObserveInBrief(t *testing.T) {
	a := newAPI(nil)
	put(a, "production", "node-0001", t0.Add(time.Millisecond), func(u *fleetstate.Update) {
		u.SetGroup("NVIDIA-H100-80GB-HBM3")
		u.SetState("active", true)
		u.Set(reading.NodeSuspicion, 0.01234)
		u.Set(reading.NodeHealthScore, 0.98765)
		for i := range 8 {
			g := u.GPU(fmt.Sprint("GPU-", 7-i))
			u.SetInfo(g, fleetstate.Info{Index: 7 - i, Model: "H100"})
			u.SetHealth(g, fleetstate.Healthy, true)
			u.SetUp(g, min(float64(i), 1), "lost")
			u.SetGPU(g, reading.Temperature, 40.4)
		}
		slice := u.GPU("MIG-a")
		u.SetParent(slice, "GPU-0")
	})
	w := startWatch(t, serve(t, a), "?brief=true")
	var s struct{ Brief []json.RawMessage }
	w.next(EventSnapshot, &s)
	require.Len(t, s.Brief, 1)
	assert.LessOrEqual(t, len(s.Brief[0]), 250)
	assert.Equal(t, `{"cluster":"production","node":"node-0001","group":"NVIDIA-H100-80GB-HBM3","state":"active","last_seen":"`+t0.UTC().Format(time.RFC3339)+
		`","suspicion":0.012,"score":0.988,"gpus":[[0,1,40],[1,1,40],[2,1,40],[3,1,40],[4,1,40],[5,1,40],[6,1,40],[7,4,null]]}`, string(s.Brief[0]))
	w.next(EventEpisodes, &EpisodeList{})
	a.o.Feed.Advance(t0)
	var d Diff
	w.next(EventDiff, &d)
	require.Len(t, d.Brief, 1)
	assert.Empty(t, d.Changed)
}

func TestObserveSelection(t *testing.T) {
	a := newAPI(nil)
	fleet(a)
	w := startWatch(t, serve(t, a), "?straggler=true")
	var s Snapshot
	w.next(EventSnapshot, &s)
	require.Len(t, s.Nodes, 1)
	w.next(EventEpisodes, &EpisodeList{})
	put(a, "c1", "n1", t0, func(u *fleetstate.Update) { u.Set(reading.NodeStraggler, 0) })
	put(a, "c1", "n2", t0, func(u *fleetstate.Update) { u.Set(reading.NodeStraggler, 1) })
	a.o.Feed.Advance(t0)
	var d Diff
	w.next(EventDiff, &d)
	assert.Equal(t, []fleetstate.Key{{Cluster: "c1", Node: "n1"}}, d.Removed)
	require.Len(t, d.Changed, 1)
	assert.Equal(t, "n2", d.Changed[0].Node)
}

func TestTooManyClients(t *testing.T) {
	a := newAPI(func(o *Options) { o.Clients = 1 })
	srv := serve(t, a)
	first := startWatch(t, srv, "")
	first.next(EventSnapshot, &Snapshot{})
	w := ask(a, "/api/v1/observe")
	assert.Equal(t, http.StatusTooManyRequests, w.Code)
	assert.Equal(t, "10", w.Header().Get("Retry-After"))
	assert.Contains(t, w.Body.String(), "come back later")
	assert.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))

	w = httptest.NewRecorder()
	a.ServeHTTP(w, httptest.NewRequest(http.MethodHead, observePath, http.NoBody))
	assert.Equal(t, http.StatusOK, w.Code, "HEAD takes no stream")
	assert.Equal(t, "text/event-stream", w.Header().Get("Content-Type"))
}

// TestOneReaderLeavesStreamsToOthers: by name, or by address where there is none.
func TestOneReaderLeavesStreamsToOthers(t *testing.T) {
	for reader, name := range map[string]string{"192.0.2.1": "", "somebody": "somebody"} {
		a := newAPI(func(o *Options) { o.Clients, o.Reader = 4, func(context.Context) string { return name } })
		require.True(t, a.streams.TakeAll(reader, 2))
		w := ask(a, "/api/v1/observe")
		assert.Equal(t, http.StatusTooManyRequests, w.Code, "half of four")
		assert.Contains(t, w.Body.String(), "you have your share of the streams")
	}
}

// TestClientThatDoesNotReadIsCutOff has a client that takes the header and no
// more, until the buffers of the connection are full.
func TestClientThatDoesNotReadIsCutOff(t *testing.T) {
	a := newAPI(func(o *Options) { o.Stream.WriteTimeout = 50 * time.Millisecond })
	for i := range 2000 {
		put(a, "c", fmt.Sprintf("node-%d", i), t0, func(u *fleetstate.Update) { u.SetGroup(strings.Repeat("g", 200)) })
	}
	srv := serve(t, a)
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.(*net.TCPConn).SetReadBuffer(4096))
	_, err = fmt.Fprint(conn, "GET /api/v1/observe HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		// Ingest goes on meanwhile, at once.
		for i := range 2000 {
			put(a, "c", fmt.Sprintf("node-%d", i), t0, func(u *fleetstate.Update) { u.Set(reading.NodeSuspicion, float64(time.Now().UnixNano()%1000)) })
		}
		a.o.Feed.Advance(t0)
		return a.Cut() == 1 && a.o.Feed.Watchers() == 0 // counted, and then let go
	}, time.Minute, 5*time.Millisecond)
}

func TestKeepAlive(t *testing.T) {
	a := newAPI(func(o *Options) { o.Stream.KeepAlive = 10 * time.Millisecond })
	w := startWatch(t, serve(t, a), "")
	w.next(EventSnapshot, &Snapshot{})
	w.next(EventEpisodes, &EpisodeList{})
	for w.lines.Scan() {
		if w.lines.Text() == ": alive" {
			return
		}
	}
	t.Fatal("the stream has ended")
}
