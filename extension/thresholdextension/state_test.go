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
	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/lastvalue/resync"
	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
)

// requests keeps what a subscriber received, within a push.
type requests []resync.Request

func (r *requests) add(q resync.Request) { *r = append(*r, q) }

// take returns what came since the last call.
func (r *requests) take() []resync.Request {
	seen := *r
	*r = nil
	return seen
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
			var reported requests
			cancel := node.Subscribe(reported.add)

			g := &gateway{}
			pushFirst := pusher(t, node, transport, serve(t, first, g, transport))
			pushSecond := pusher(t, node, transport, serve(t, second, g, transport))
			require.NoError(t, pushFirst())
			require.NoError(t, pushFirst())
			assert.Empty(t, reported.take(), "the first epoch has all that was sent")

			g.err = status.Error(codes.Unavailable, "overloaded")
			_ = pushSecond()
			assert.Equal(t, []resync.Request{{Cluster: "prod", Node: "n1"}}, reported.take(), "a refusal carries the epoch too")
			g.err = nil
			require.NoError(t, pushSecond())
			assert.Empty(t, reported.take())

			node.SetClaim(pushheaders.Claim{Cluster: "prod"})
			require.NoError(t, pushFirst())
			assert.Equal(t, []resync.Request{{}}, reported.take(), "a push without a node may be any node's")

			metadatatest.AssertEqualExtensionStragglerThresholdResyncs(t, tel, []metricdata.DataPoint[int64]{
				{Value: 2},
			}, metricdatatest.IgnoreTimestamp())
			cancel()
			node.SetClaim(pushheaders.Claim{Cluster: "prod", Node: "n1"})
			require.NoError(t, pushFirst())
			assert.Empty(t, reported.take())
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
	var reported requests
	defer node.Subscribe(reported.add)()
	for _, away := range []struct {
		pause time.Duration
		want  []resync.Request
	}{{0, nil}, {time.Minute, nil}, {5 * time.Minute, []resync.Request{{}}}, {time.Second, nil}} {
		now = now.Add(away.pause)
		require.NoError(t, push())
		assert.Equal(t, away.want, reported.take(), away.pause)
	}
	// A server that restarted meanwhile gets all once.
	now = now.Add(5 * time.Minute)
	server.renewEpoch()
	require.NoError(t, push())
	require.NoError(t, push())
	assert.Len(t, reported.take(), 1)
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
			var reported [2]requests
			for i := range agents {
				agents[i], _ = newTestExtension(t, nil)
				agents[i].SetClaim(pushheaders.Claim{Cluster: "prod", Node: []string{"n0", "n1"}[i]})
				defer agents[i].Subscribe(reported[i].add)()
				pushes[i] = pusher(t, agents[i], transport, addr)
				require.NoError(t, pushes[i]())
				require.Empty(t, reported[i].take())
			}

			top.renewEpoch() // as a restart does
			for i, name := range []string{"n0", "n1"} {
				require.NoError(t, pushes[i]())
				assert.Equal(t, []resync.Request{{Cluster: "prod", Node: name}}, reported[i].take(), "with the very answer")
				require.NoError(t, pushes[i]())
				assert.Empty(t, reported[i].take())
			}
		})
	}
}

// TestOneNodeIsNotAll: a middle tier has that node's state, and a new epoch makes
// all tiers below send everything.
func TestOneNodeIsNotAll(t *testing.T) {
	e, _ := newTestExtension(t, nil)
	before := e.epoch.Load()
	e.resync(t.Context(), resync.Request{})
	assert.Same(t, before, e.epoch.Load(), "an agent wants nothing from itself")
	e.isServer.Store(true)
	var reported requests
	defer e.Subscribe(reported.add)()
	e.resync(t.Context(), resync.Request{Cluster: "prod", Node: "n1"})
	assert.Same(t, before, e.epoch.Load())
	assert.Equal(t, []resync.Request{{Cluster: "prod", Node: "n1"}}, reported.take())
	e.resync(t.Context(), resync.Request{})
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

// TestANodeAsksHowItStands: a gateway answers that, a shard does not.
func TestANodeAsksHowItStands(t *testing.T) {
	gw, _ := newTestExtension(t, nil)
	node, _ := newTestExtension(t, nil)
	node.SetClaim(pushheaders.Claim{Cluster: "prod", Node: "n1", Standing: true})
	push := pusher(t, node, "grpc", serve(t, gw, &gateway{}, "grpc"))
	require.NoError(t, push())
	assert.Nil(t, node.Standing(), "no gateway has published: as at a shard")

	known := threshold.Standing{Node: "n1", Group: "g", Active: 2, Needed: 3, Why: unjudged.FewPeers}
	gw.Publish(&threshold.Snapshot{At: time.Now(), TTL: time.Minute, Standing: func(cluster, node string) threshold.Standing {
		if cluster == "prod" && node == "n1" {
			return known
		}
		return threshold.Standing{}
	}})
	require.NoError(t, push())
	assert.Equal(t, &known, node.Standing())
	node.SetClaim(pushheaders.Claim{Cluster: "prod", Node: "n2", Standing: true})
	require.NoError(t, push())
	assert.Equal(t, &threshold.Standing{}, node.Standing(), "the gateway does not know it")
}
