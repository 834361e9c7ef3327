// SPDX-License-Identifier: Apache-2.0

package fleetclient_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetapi"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gateway is the real API over a store of its own.
type gateway struct {
	*httptest.Server
	store *fleetstate.Store
	away  atomic.Bool
	token string // wanted when it is not empty
	asked atomic.Int32
}

func newGateway(nodes int) *gateway {
	g := &gateway{store: fleetstate.New(fleetstate.DefaultConfig())}
	api := fleetapi.New(fleetapi.Options{Store: g.store, Feed: fleetstate.NewFeed(g.store), Clients: 1, Version: "v1"})
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.asked.Add(1)
		switch {
		case g.away.Load():
			w.WriteHeader(http.StatusBadGateway)
			_, _ = fmt.Fprintln(w, "<html>no upstream</html>")
		case g.token != "" && r.Header.Get("Authorization") != "Bearer "+g.token:
			w.WriteHeader(http.StatusUnauthorized)
		default:
			api.ServeHTTP(w, r)
		}
	}))
	for i := range nodes {
		g.put("c1", fmt.Sprintf("n%04d", i), 0)
	}
	return g
}

func (g *gateway) put(cluster, node string, suspicion float64) {
	u, _ := g.store.Begin(fleetstate.Key{Cluster: cluster, Node: node}, time.Now())
	u.SetGroup("g")
	u.SetState("active", true)
	u.Set(reading.NodeSuspicion, suspicion)
	u.Set(reading.NodeStraggler, map[bool]float64{true: 1}[suspicion >= 1])
	u.SetHealth(u.GPU("GPU-"+node), fleetstate.Healthy, true)
	u.Commit(time.Now())
}

func newCache(t *testing.T, g *gateway, o ...fleetclient.ClientOption) *fleetclient.Cache {
	t.Helper()
	t.Cleanup(g.Close)
	o = append(o, fleetclient.WithHTTPClient(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}))
	client, err := fleetclient.NewClientWithResponses(g.URL, o...)
	require.NoError(t, err)
	return fleetclient.NewCache(client)
}

// TestNamesWithCommas: whatever a node is called, it can be asked for.
func TestNamesWithCommas(t *testing.T) {
	g := newGateway(3)
	odd := []string{`a,b`, `a\`, `\,`}
	for _, name := range odd {
		g.put("c1", name, 0)
	}
	c := newCache(t, g)
	require.NoError(t, c.Refresh(t.Context(), fleetclient.Query{Names: odd}))
	assert.Len(t, c.Nodes(nil), 3)
	for _, name := range odd {
		_, ok := c.Node(name)
		assert.True(t, ok, name)
	}
}

func TestCacheReadsWithoutTheServer(t *testing.T) {
	g := newGateway(2500)
	g.put("c1", "slow", 1.2)
	g.put("c1", "slower", 1.9)
	g.put("c2", "n0001", 0.4)
	c := newCache(t, g)
	assert.True(t, c.Stale(time.Hour))
	assert.Empty(t, c.Nodes(nil))
	assert.Empty(t, c.Stragglers())

	require.NoError(t, c.Refresh(t.Context(), fleetclient.Query{}))
	assert.EqualValues(t, 3, g.asked.Load(), "three pages")
	g.Close()
	assert.Len(t, c.Nodes(nil), 2503)
	n, ok := c.Node("n2499")
	require.True(t, ok)
	assert.Equal(t, "c1", n.Cluster)
	assert.Nil(t, n.Gpus, "not asked for")
	_, ok = c.Node("nobody")
	assert.False(t, ok)
	_, ok = c.Node("n0001")
	assert.False(t, ok, "two clusters have one")
	n, ok = c.NodeIn("c2", "n0001")
	require.True(t, ok)
	assert.InDelta(t, 0.4, *n.Suspicion, 1e-9)
	var slow []string
	for _, n := range c.Stragglers() {
		slow = append(slow, n.Node)
	}
	assert.Equal(t, []string{"slower", "slow"}, slow)
	assert.Len(t, c.Nodes(func(n *fleetclient.Node) bool { return n.Cluster == "c2" }), 1)
	assert.False(t, c.Stale(time.Minute))
}

func TestCacheAsksForWhatTheQuerySelects(t *testing.T) {
	g := newGateway(20)
	g.put("c2", "n0001", 0)
	c := newCache(t, g)
	require.NoError(t, c.Refresh(t.Context(), fleetclient.Query{Clusters: []string{"c1"}, Names: []string{"n000*", "n0011"}, Groups: []string{"g"}, GPUs: true}))
	nodes := c.Nodes(nil)
	require.Len(t, nodes, 11)
	require.NotNil(t, nodes[3].Gpus)
	assert.Equal(t, "GPU-n0003", (*nodes[3].Gpus)[0].UUID)
}

// TestCacheKeepsWhatItHasWhenARefreshFails and says how old that is.
func TestCacheKeepsWhatItHasWhenARefreshFails(t *testing.T) {
	g := newGateway(3)
	c := newCache(t, g)
	now := time.Unix(1000, 0)
	c.Now = func() time.Time { return now }

	g.away.Store(true)
	err := c.Refresh(t.Context(), fleetclient.Query{})
	require.EqualError(t, err, "the fleet view was not refreshed and is empty: status 502 Bad Gateway")
	var answer *fleetclient.Error
	require.ErrorAs(t, err, &answer)
	assert.Equal(t, http.StatusBadGateway, answer.Status)

	g.away.Store(false)
	require.NoError(t, c.Refresh(t.Context(), fleetclient.Query{}))
	n, _ := c.Node("n0000")
	g.away.Store(true)
	now = now.Add(90 * time.Second)
	assert.InDelta(t, 90, c.NodeAge(n).Seconds(), 5)
	err = c.Refresh(t.Context(), fleetclient.Query{})
	require.ErrorContains(t, err, "is 1m30s old: status 502")
	assert.Len(t, c.Nodes(nil), 3)
	age, ok := c.Age()
	assert.True(t, ok)
	assert.Equal(t, 90*time.Second, age)
	assert.True(t, c.Stale(time.Minute))
	assert.False(t, c.Stale(2*time.Minute))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, c.Refresh(ctx, fleetclient.Query{}), context.Canceled)
	g.away.Store(false)
	require.NoError(t, c.Refresh(t.Context(), fleetclient.Query{}))
	assert.False(t, c.Stale(time.Second))
}

func TestErrorsSayWhatWouldBeRight(t *testing.T) {
	g := newGateway(0)
	t.Cleanup(g.Close)
	client, err := fleetclient.NewClientWithResponses(g.URL)
	require.NoError(t, err)
	size := int64(5000)
	resp, err := client.ListNodesWithResponse(t.Context(), &fleetclient.ListNodesParams{Limit: &size})
	require.NoError(t, err)
	require.NotNil(t, resp.ApplicationProblemJSON422)
	assert.Equal(t, "status 422 Unprocessable Entity: validation failed; `query.limit`: expected number <= 1000",
		(&fleetclient.Error{Status: resp.StatusCode(), Problem: *resp.ApplicationProblemJSON422}).Error())
	http.DefaultClient.CloseIdleConnections()
}

func TestBearerToken(t *testing.T) {
	g := newGateway(1)
	g.token = "secret"
	token, failed := "old", error(nil)
	c := newCache(t, g, fleetclient.WithBearerToken(func() (string, error) { return token, failed }))
	require.ErrorContains(t, c.Refresh(t.Context(), fleetclient.Query{}), "status 401")
	token = "secret\n" // as a file ends
	require.NoError(t, c.Refresh(t.Context(), fleetclient.Query{}))
	failed = errors.New("no such file")
	require.ErrorIs(t, c.Refresh(t.Context(), fleetclient.Query{}), failed)
}

// TestCacheIsSafeForConcurrentUse is for the race detector.
func TestCacheIsSafeForConcurrentUse(t *testing.T) {
	g := newGateway(50)
	c := newCache(t, g)
	require.NoError(t, c.Refresh(t.Context(), fleetclient.Query{}))
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 5 {
				assert.NoError(t, c.Refresh(t.Context(), fleetclient.Query{}))
			}
		})
		all.Go(func() {
			for range 200 {
				assert.Len(t, c.Nodes(nil), 50)
				_, ok := c.Node("n0007")
				assert.True(t, ok)
				c.Stragglers()
				c.Stale(time.Second)
			}
		})
	}
	all.Wait()
}
