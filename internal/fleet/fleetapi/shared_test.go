// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// fastClient takes whatever it is sent, at once.
type fastClient struct {
	header http.Header
	text   bytes.Buffer
	keep   bool
}

func (c *fastClient) Header() http.Header              { return c.header }
func (c *fastClient) WriteHeader(int)                  {}
func (c *fastClient) Flush()                           {}
func (c *fastClient) SetWriteDeadline(time.Time) error { return nil }
func (c *fastClient) Write(text []byte) (int, error) {
	if c.keep {
		c.text.Write(text)
	}
	return len(text), nil
}

func follow(tb testing.TB, a *API, f fleetstate.Filter, gpus bool) (*stream, *fastClient) {
	tb.Helper()
	w := a.o.Feed.Watch(f)
	tb.Cleanup(w.Close)
	c := &fastClient{header: http.Header{}}
	s := &stream{a: a, w: w, gpus: gpus, writer: c, control: http.NewResponseController(c)}
	require.NoError(tb, s.snapshot())
	return s, c
}

// TestFurtherClientsCostNothing: what one client was sent is not encoded again
// for the others, filtered or not.
func TestFurtherClientsCostNothing(t *testing.T) {
	const nodes = 500
	clock := t0
	a := newAPI(func(o *Options) { o.Now = func() time.Time { return clock } })
	largeFleet(a, nodes)
	var streams []*stream
	var last *fastClient // of those that are measured
	for i := range 20 {
		f := fleetstate.Filter{}
		if i%2 == 1 {
			f.States = []string{"active"}
		}
		s, c := follow(t, a, f, i%4 > 1)
		streams = append(streams, s)
		if i == 15 {
			last = c
		}
	}
	a.o.Feed.Advance(clock)
	for _, s := range streams {
		require.NoError(t, s.changes())
	}
	clock = clock.Add(time.Second)
	for i := range nodes {
		report(a, i, 1)
	}
	a.o.Feed.Advance(clock)
	first := len(streams) - 4 // of each kind
	for _, s := range streams[first:] {
		require.NoError(t, s.changes())
	}
	i := 0
	last.keep = true
	last.text.Grow(10 << 20)
	allocs := testing.AllocsPerRun(first-1, func() { // it runs once more to warm up
		require.NoError(t, streams[i].changes())
		i++
	})
	assert.Less(t, allocs, 100.0, "for 500 nodes")
	assert.Equal(t, nodes, strings.Count(last.text.String(), `"node":`))
}

// TestSharedIsWhatEachWouldGet has clients that look before and after a change
// and a sign of life, while the encoded nodes are shared.
func TestSharedIsWhatEachWouldGet(t *testing.T) {
	a := newAPI(nil)
	fleet(a)
	read := func(s *stream, c *fastClient) (d Diff) {
		t.Helper()
		c.keep = true
		c.text.Reset()
		require.NoError(t, s.changes())
		for line := range strings.Lines(c.text.String()) {
			if text, ok := strings.CutPrefix(line, "data: "); ok && strings.Contains(line, "changed") {
				require.NoError(t, json.Unmarshal([]byte(text), &d))
			}
		}
		return d
	}
	plain, p := follow(t, a, fleetstate.Filter{}, false)
	detailed, q := follow(t, a, fleetstate.Filter{}, true)
	late, l := follow(t, a, fleetstate.Filter{}, false)
	a.o.Feed.Advance(t0)
	one, two := read(plain, p), read(detailed, q)
	require.Len(t, one.Changed, 3)
	assert.Nil(t, one.Changed[0].GPUs)
	assert.Len(t, two.Changed[0].GPUs, 2)
	assert.InDelta(t, 2, one.Changed[0].AgeSeconds, 0)
	put(a, "c1", "n1", t0.Add(-time.Second), nil)
	put(a, "c1", "n2", t0.Add(-time.Second), func(u *fleetstate.Update) { u.Set(reading.NodeHealthScore, 0.25) })
	three := read(late, l)
	assert.InDelta(t, 1, three.Changed[0].AgeSeconds, 0, "the sign of life is newer")
	assert.InDelta(t, 0.25, *three.Changed[1].Score, 0, "and so is the view")
	assert.Equal(t, get200[NodePage](t, a, "/api/v1/nodes").Nodes, three.Changed)
}

// TestMissingSinceTheFrame: a client that comes right after a node went missing
// is told so, though ages are shared since before.
func TestMissingSinceTheFrame(t *testing.T) {
	clock := t0
	a := newAPI(func(o *Options) { o.Now = func() time.Time { return clock } })
	put(a, "c", "n", t0, nil)
	first, _ := follow(t, a, fleetstate.Filter{}, false)
	clock = t0.Add(fleetstate.DefaultConfig().MissingAfter)
	require.NoError(t, first.snapshot())
	a.o.Feed.Advance(clock.Add(sharedFor / 2))
	second, c := follow(t, a, fleetstate.Filter{}, false)
	c.keep = true
	require.NoError(t, second.snapshot())
	assert.Contains(t, c.text.String(), `"state":"missing"`)
}

// TestWhatIsSharedIsBounded: nothing is kept beyond the bound, and nothing after
// the last client.
func TestWhatIsSharedIsBounded(t *testing.T) {
	a := newAPI(nil)
	fleet(a)
	s, _ := follow(t, a, fleetstate.Filter{}, false)
	sh := a.sharing()
	assert.Positive(t, sh.bytes)
	sh.bytes = sharedBytes
	put(a, "c1", "n3", t0, nil)
	require.NoError(t, s.snapshot())
	n := 0
	sh.nodes[formNode].Range(func(any, any) bool {
		n++
		return true
	})
	assert.Equal(t, 3, n)
	other := a.o.Feed.Watch(fleetstate.Filter{})
	a.unwatch(other)
	assert.NotNil(t, a.shared.Load())
	a.unwatch(s.w)
	assert.Nil(t, a.shared.Load())
}

// TestEventsAreBounded: nodes with many GPUs make smaller events.
func TestEventsAreBounded(t *testing.T) {
	a := newAPI(nil)
	for i := range 20 {
		put(a, "c", fmt.Sprintf("n%02d", i), t0, func(u *fleetstate.Update) {
			for g := range 64 {
				u.SetGPU(u.GPU(fmt.Sprintf("GPU-%d-%d", i, g)), reading.Power, 1)
			}
		})
	}
	s, c := follow(t, a, fleetstate.Filter{}, true)
	c.keep = true
	require.NoError(t, s.snapshot())
	a.o.Feed.Advance(t0)
	require.NoError(t, s.changes())
	events := strings.Split(strings.TrimSuffix(c.text.String(), "\n\n"), "\n\n")
	one, err := json.Marshal(get200[Node](t, a, "/api/v1/nodes/n00"))
	require.NoError(t, err)
	assert.Greater(t, len(events), 6)
	for _, e := range events {
		assert.Less(t, len(e), maxEventBytes+len(one)+200)
	}
}

// largeFleet has nodes of 8 GPUs, one in a thousand of them a straggler.
func largeFleet(a *API, nodes int) {
	for i := range nodes {
		report(a, i, 0)
	}
}

// report is what a node of 8 GPUs says at a tick.
func report(a *API, i, tick int) {
	put(a, fmt.Sprint("cluster-", i%4), fmt.Sprintf("node-%05d", i), t0, func(u *fleetstate.Update) {
		u.SetGroup(fmt.Sprint("group-", i%500))
		u.SetState("active", true)
		u.Set(reading.NodeHealthScore, 0.95+float64(tick%10)/1000)
		u.Set(reading.NodeSuspicion, float64(i%100)/200)
		if i%1000 == 0 {
			u.Set(reading.NodeStraggler, 1)
		}
		u.SetSignal(nodesignal.Throughput, 1)
		for g := range 8 {
			j := u.GPU(uuids[g])
			u.SetHealth(j, fleetstate.Healthy, true)
			u.SetGPU(j, reading.Utilization, float64(i%100)/100)
			u.SetGPU(j, reading.Temperature, float64(50+(tick+g)%30))
			u.SetGPU(j, reading.Power, 600)
		}
	})
}

var uuids = [8]string{"GPU-0", "GPU-1", "GPU-2", "GPU-3", "GPU-4", "GPU-5", "GPU-6", "GPU-7"}
