// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// view is the gateway's API, through the API server: so it goes on when the
// gateway's pod is another one. The API server does not look at certificates.
type view struct {
	*fleetclient.ClientWithResponses
}

func newView(t *testing.T) view {
	t.Helper()
	addr, _ := launch(t, proxyLine, "proxy", "--port", "0")
	client, err := fleetclient.NewClientWithResponses(
		fmt.Sprintf("http://%s/api/v1/namespaces/%s/services/https:%s:8086/proxy", addr, namespace, gatewayName),
		fleetclient.WithHTTPClient(&http.Client{Timeout: 5 * time.Second}))
	require.NoError(t, err)
	return view{client}
}

// nodes returns the cluster's nodes by name.
func (v view) nodes(ctx context.Context) (map[string]fleetclient.Node, error) {
	size := int64(1000)
	resp, err := v.ListNodesWithResponse(ctx, &fleetclient.ListNodesParams{Limit: &size})
	if err != nil {
		return nil, err
	}
	if resp.JSON200 == nil {
		return nil, fleetclient.AnswerError(resp.StatusCode(), resp.Body)
	}
	nodes := map[string]fleetclient.Node{}
	for _, n := range resp.JSON200.Nodes {
		nodes[n.Node] = n
	}
	return nodes, nil
}

// fresh reports whether a node is there and pushed in time: one push may be on its way.
func fresh(n fleetclient.Node) bool {
	return n.Node != "" && text(n.State) != "missing" && n.AgeSeconds <= (2*pushInterval).Seconds()
}

// await waits until all of the nodes push. watch counts the pushes that are lost meanwhile.
func (v view) await(t *testing.T, names ...string) time.Duration {
	t.Helper()
	var stale []string
	defer func() {
		if t.Failed() && len(stale) > 0 {
			t.Log(stale)
		}
	}()
	return process.Eventually(t, fmt.Sprintf("the view has fresh %v", names), func() bool {
		nodes, err := v.nodes(t.Context())
		stale = nil
		for _, name := range names {
			if n := nodes[name]; !fresh(n) {
				stale = append(stale, fmt.Sprintf("%s: %q, %.0f s old", name, text(n.State), n.AgeSeconds))
			}
		}
		return err == nil && len(stale) == 0
	})
}

// health is the gateway's own.
func (v view) health(t *testing.T) *fleetclient.Health {
	t.Helper()
	resp, err := v.GetHealthWithResponse(t.Context())
	require.NoError(t, err)
	require.NotNil(t, resp.JSON200)
	return resp.JSON200
}

// pushed waits until each of the nodes has pushed so long after it did last, by the
// gateway's clock.
func (v view) pushed(t *testing.T, later time.Duration, names []string) {
	t.Helper()
	first := map[string]time.Time{}
	process.Eventually(t, fmt.Sprintf("%v push %s later", names, later), func() bool {
		nodes, err := v.nodes(t.Context())
		late := err == nil
		for _, name := range names {
			seen := nodes[name].LastSeen
			if first[name].IsZero() {
				first[name] = seen
			}
			late = late && seen.Sub(first[name]) >= later
		}
		return late
	})
}

// watch follows the nodes in the view until it is stopped.
type watch struct {
	stop context.CancelFunc
	done chan struct{}

	mu     sync.Mutex
	lost   map[string]time.Duration // the longest time out of a view that answered
	silent time.Duration            // the longest time without an answer
	oldest float64                  // seconds; the greatest age of a node's last report, which a slow machine adds to
	polls  int
}

// watch begins to poll. A node is lost while the API answers and does not have
// it, or has it as missing.
func (v view) watch(t *testing.T, names []string) *watch {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &watch{stop: cancel, done: make(chan struct{}), lost: map[string]time.Duration{}}
	go func() {
		defer close(w.done)
		answered := time.Now()
		since := map[string]time.Time{}
		for ; ctx.Err() == nil; time.Sleep(200 * time.Millisecond) {
			nodes, err := v.nodes(ctx)
			now := time.Now()
			w.mu.Lock()
			if err != nil {
				w.silent = max(w.silent, now.Sub(answered))
				w.mu.Unlock()
				continue
			}
			answered = now
			w.polls++
			for _, name := range names {
				n, ok := nodes[name]
				w.oldest = max(w.oldest, n.AgeSeconds)
				if ok && text(n.State) != "missing" {
					delete(since, name)
					continue
				}
				if _, ok := since[name]; !ok {
					since[name] = now
				}
				w.lost[name] = max(w.lost[name], now.Sub(since[name]))
			}
			w.mu.Unlock()
		}
	}()
	t.Cleanup(w.stop)
	return w
}

// end stops the watch of nodes that are all back. How long a node was lost is a figure,
// and so is how old its last report was at most: one push may be on its way.
func (w *watch) end(t *testing.T, what string) {
	t.Helper()
	polls := func() int { w.mu.Lock(); defer w.mu.Unlock(); return w.polls }
	before := polls()
	process.Eventually(t, "the watch has seen what was awaited", func() bool { return polls() > before+1 })
	w.stop()
	<-w.done
	worst := time.Duration(0)
	var lost []string
	for _, name := range slices.Sorted(maps.Keys(w.lost)) {
		worst = max(worst, w.lost[name])
		lost = append(lost, fmt.Sprintf("%s %.1fs", name, w.lost[name].Seconds()))
	}
	progress("%s: %d views; longest loss of a node %.1fs [%s], longest time without an answer %.1fs",
		what, w.polls, worst.Seconds(), strings.Join(lost, ", "), w.silent.Seconds())
	figure.Print("e2e_"+what+"_node_lost", worst.Seconds(), "s", pushInterval.Seconds(), true)
	figure.Print("e2e_"+what+"_oldest", w.oldest, "s", (2 * pushInterval).Seconds(), true)
}

// metric sums up the series of a metric of a pod's own telemetry; 0 where it has none.
func metric(t *testing.T, pod, name string) float64 {
	t.Helper()
	out, err := command("", "kubectl", "get", "--raw", fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:8888/proxy/metrics", namespace, pod))
	if err != nil {
		return 0 // not up yet
	}
	return process.ParseScrape(t, []byte(out)).Sum(name)
}
