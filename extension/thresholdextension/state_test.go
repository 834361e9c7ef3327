// SPDX-License-Identifier: Apache-2.0

package thresholdextension

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/extension/thresholdextension/internal/metadatatest"
	"github.com/gpu-collector/gpu-collector/internal/lastvalue/resync"
	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
)

// losses are how often a subscriber was called, within a push.
type losses int

func (l *losses) add() { *l++ }

// take returns how often since the last call.
func (l *losses) take() int {
	seen := *l
	*l = 0
	return int(seen)
}

// TestEpochCrossesTheWire lets a node push to a gateway that restarts, also
// while it refuses.
func TestEpochCrossesTheWire(t *testing.T) {
	for _, transport := range []string{"grpc", "http"} {
		t.Run(transport, func(t *testing.T) {
			first, _ := newTestExtension(t, nil)
			second, _ := newTestExtension(t, nil)
			require.NotEqual(t, *first.epoch.Load(), *second.epoch.Load())
			require.True(t, resync.ValidEpoch(*first.epoch.Load()))
			node, tel := newTestExtension(t, nil)
			node.SetClaim(pushheaders.Claim{Cluster: "prod", Node: "n1"})
			var reported losses
			cancel := node.Subscribe(reported.add)

			g := &gateway{}
			pushFirst := pusher(t, node, transport, serve(t, first, g, transport))
			pushSecond := pusher(t, node, transport, serve(t, second, g, transport))
			require.NoError(t, pushFirst())
			require.NoError(t, pushFirst())
			assert.Zero(t, reported.take(), "the first epoch has all that was sent")

			g.err = status.Error(codes.Unavailable, "overloaded")
			_ = pushSecond()
			assert.Equal(t, 1, reported.take(), "a refusal carries the epoch too")
			g.err = nil
			require.NoError(t, pushSecond())
			assert.Zero(t, reported.take())

			require.NoError(t, pushFirst())
			assert.Equal(t, 1, reported.take(), "it missed what the second one got")
			node.SetClaim(pushheaders.Claim{Cluster: "prod"})
			require.NoError(t, pushSecond())
			assert.Zero(t, reported.take(), "servers may take turns with pushes without a node")

			metadatatest.AssertEqualExtensionStragglerThresholdResyncs(t, tel, []metricdata.DataPoint[int64]{
				{Value: 2},
			}, metricdatatest.IgnoreTimestamp())
			cancel()
			node.SetClaim(pushheaders.Claim{Cluster: "prod", Node: "n1"})
			require.NoError(t, pushFirst())
			assert.Zero(t, reported.take())
		})
	}
}

// TestANextHopThatWasOutOfReach for minutes may have taken series for ended: it gets all.
func TestANextHopThatWasOutOfReach(t *testing.T) {
	server, _ := newTestExtension(t, nil)
	node, _ := newTestExtension(t, nil)
	now := time.Now()
	node.now = func() time.Time { return now }
	push := pusher(t, node, "grpc", serve(t, server, &gateway{}, "grpc"))
	var reported losses
	defer node.Subscribe(reported.add)()
	for _, away := range []struct {
		pause time.Duration
		want  int
	}{{0, 0}, {time.Minute, 0}, {5 * time.Minute, 1}, {time.Second, 0}} {
		now = now.Add(away.pause)
		require.NoError(t, push())
		assert.Equal(t, away.want, reported.take(), away.pause)
	}
	// A server that restarted meanwhile gets all once.
	now = now.Add(5 * time.Minute)
	server.renewEpoch()
	require.NoError(t, push())
	require.NoError(t, push())
	assert.Equal(t, 1, reported.take())
}

// TestEpochsTravelHopByHop has a gateway restart above a shard: senders of differences
// below the shard have to resync.
func TestEpochsTravelHopByHop(t *testing.T) {
	for _, transport := range []string{"grpc", "http"} {
		t.Run(transport, func(t *testing.T) {
			top, _ := newTestExtension(t, nil)
			shard, _ := newTestExtension(t, nil)
			// The shard forwards within the push, as diff does without a queue.
			var up func() error
			addr := serve(t, shard, &gateway{next: func() error { return up() }}, transport)
			up = pusher(t, shard, transport, serve(t, top, &gateway{}, transport))
			var agents [2]*thresholdExtension
			var pushes [2]func() error
			var reported [2]losses
			for i := range agents {
				agents[i], _ = newTestExtension(t, nil)
				agents[i].SetClaim(pushheaders.Claim{Cluster: "prod", Node: []string{"n0", "n1"}[i]})
				defer agents[i].Subscribe(reported[i].add)()
				pushes[i] = pusher(t, agents[i], transport, addr)
				require.NoError(t, pushes[i]())
				require.Zero(t, reported[i].take())
			}

			top.renewEpoch() // as a restart does
			for i := range agents {
				require.NoError(t, pushes[i]())
				assert.Equal(t, 1, reported[i].take(), "with the very answer")
				require.NoError(t, pushes[i]())
				assert.Zero(t, reported[i].take())
			}
		})
	}
}

// TestOneNodeIsNotAll: a middle tier has that node's state, and a new epoch makes
// all tiers below send everything.
func TestOneNodeIsNotAll(t *testing.T) {
	e, _ := newTestExtension(t, nil)
	before := e.epoch.Load()
	e.resync(t.Context(), &pushheaders.Claim{Cluster: "prod"})
	assert.Same(t, before, e.epoch.Load(), "an agent wants nothing from itself")
	e.isServer.Store(true)
	var reported losses
	defer e.Subscribe(reported.add)()
	e.resync(t.Context(), &pushheaders.Claim{Cluster: "prod", Node: "n1"})
	assert.Same(t, before, e.epoch.Load())
	assert.Equal(t, 1, reported.take())
	e.resync(t.Context(), &pushheaders.Claim{Cluster: "prod"})
	assert.NotSame(t, before, e.epoch.Load())
}

// TestAnAnswerWriterKeepsWhatTheWriterCan: informational answers do not end
// the headers, and an http.ResponseController finds the writer below.
func TestAnAnswerWriterKeepsWhatTheWriterCan(t *testing.T) {
	rec := httptest.NewRecorder()
	known := false
	w := answerWriter{rec, sync.OnceFunc(func() { rec.Header().Set("known", strconv.FormatBool(known)) })}
	w.WriteHeader(http.StatusEarlyHints)
	known = true
	w.WriteHeader(http.StatusOK)
	known = false
	w.leave()
	assert.Equal(t, "true", rec.Header().Get("known"))
	require.NoError(t, http.NewResponseController(w).Flush())
	assert.True(t, rec.Flushed)
}
