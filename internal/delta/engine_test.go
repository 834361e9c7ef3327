// SPDX-License-Identifier: Apache-2.0

package delta

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/clientidentity"
	"github.com/gpu-collector/gpu-collector/internal/delta/deadband"
	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
)

// sink is a Downstream that keeps what it was handed.
type sink struct {
	testT
	got    [][]byte
	counts Counts
	refuse error
	miss   bool // the first node finds no room
	engine *Engine
}

func (s *sink) Deliver(_ context.Context, md pmetric.Metrics, counts Counts) (Missed, error) {
	if counts.Bytes > 0 {
		require.LessOrEqual(s, len(encode(s, md)), 2*counts.Bytes+2, "pdata writes parts that are left out as empty ones")
		counts.Bytes = 0
	}
	s.counts = counts
	if md.ResourceMetrics().Len() == 0 {
		return nil, s.refuse
	}
	s.got = append(s.got, encode(s, md))
	if s.miss {
		var id identity
		return Missed{id.node(md.ResourceMetrics().At(0).Resource().Attributes()): {}}, s.refuse
	}
	return nil, s.refuse
}

func (*sink) Outdated(context.Context, []statetable.NodeKey) {}

func newSink(t testT, now *time.Duration, edit ...func(*statetable.Settings)) *sink {
	s := &sink{testT: t}
	set := statetable.Settings{
		MaxNodes: 8, MaxSeries: 1000, TTL: time.Hour, VanishedAfter: time.Minute,
		ResyncInterval: 100 * time.Second, HeartbeatInterval: 15 * time.Second,
		Rand: func(n int64) int64 { return n / 3 },
	}
	for _, e := range edit {
		e(&set)
	}
	s.engine = NewEngine(set, []deadband.Rule{{Metric: "hw.temp*", Absolute: 1}}, s)
	s.engine.Epoch = time.Unix(0, int64(testEpoch))
	s.engine.Now = func() time.Time { return s.engine.Epoch.Add(*now) }
	return s
}

func (s *sink) decoded(t testT, msg []byte) {
	t.Helper()
	md, err := decode(msg)
	if err == nil && md.DataPointCount() > 0 {
		_ = s.engine.Consume(t.(interface{ Context() context.Context }).Context(), md)
	}
}

// Any pushes that are compared by bytes, accepted, refused before or behind the engine, or
// without room: the next hop gets what it gets where they are decoded first, and the
// table has the same.
func TestCompareDecidesAsConsume(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawn{t}
		var now time.Duration
		limits := drawLimits(t)
		plain, front := newSink(t, &now, limits), newSink(t, &now, limits)
		var sent []part
		for range rapid.IntRange(1, 8).Draw(t, "pushes") {
			if len(sent) == 0 || d.some(2, "new request") {
				sent = append(sent, d.request())
			}
			msg := rapid.SampledFrom(sent).Draw(t, "request")
			outcome := rapid.SampledFrom([]string{"accepted", "accepted", "refused before", "refused behind", "no room"}).Draw(t, "outcome")
			for _, s := range []*sink{plain, front} {
				s.refuse, s.miss = nil, outcome == "no room"
				if outcome == "refused behind" {
					s.refuse = errors.New("no")
				}
			}
			if outcome != "refused before" {
				plain.decoded(t, msg)
			}
			push, out := front.engine.Compare(clientidentity.Identity{}, msg, nil)
			switch {
			case push == nil && outcome != "refused before":
				front.decoded(t, msg)
			case push == nil:
			case outcome == "refused before":
				push.Discard()
			default:
				md, err := decode(out)
				require.NoError(t, err)
				require.EqualValues(t, push.Points(), md.DataPointCount())
				require.ErrorIs(t, push.Consume(t.Context(), md, front.engine.Consume), front.refuse)
			}
			require.Equal(t, plain.got, front.got)
			require.Equal(t, plain.counts, front.counts)
			require.Equal(t, plain.engine.Table.Stats(), front.engine.Table.Stats())
			now += rapid.SampledFrom([]time.Duration{time.Second, 20 * time.Second, 50 * time.Second, 2 * time.Hour}).Draw(t, "passes")
			plain.engine.Table.Sweep(now)
			front.engine.Table.Sweep(now)
		}
	})
}

// A push that no diff came to changes nothing: its report counts for nobody.
func TestAPushThatGoesElsewhere(t *testing.T) {
	var now time.Duration
	s := newSink(t, &now)
	msg := encode(t, nodeReport())
	elsewhere := func(context.Context, pmetric.Metrics) error { return nil }
	for range 2 {
		push, out := s.engine.Compare(clientidentity.Identity{}, msg, nil)
		md, err := decode(out)
		require.NoError(t, err)
		assert.Equal(t, 321, md.DataPointCount())
		require.NoError(t, push.Consume(t.Context(), md, elsewhere))
	}
	assert.Empty(t, s.got)
	assert.Zero(t, s.engine.Table.Stats().Nodes)
}

// A resource of another client, or one that lacks the client's name, is left to Settle.
func TestOnlyTheClientsOwnIsCompared(t *testing.T) {
	var now time.Duration
	s := newSink(t, &now)
	msg := encode(t, nodeReport())
	for _, tc := range []struct {
		client clientidentity.Identity
		own    bool
	}{
		{clientidentity.Identity{Cluster: "research-west", Node: "n"}, true},
		{clientidentity.Identity{Cluster: clientidentity.Any, Node: clientidentity.Any}, true},
		{clientidentity.Identity{Cluster: "research-east", Node: "n"}, false},
		{clientidentity.Identity{Cluster: "research-west", Node: "m"}, false},
	} {
		push, _ := s.engine.Compare(tc.client, msg, nil)
		if assert.Equal(t, tc.own, push != nil, "%v", tc.client) && push != nil {
			push.Discard()
		}
		md, err := decode(msg)
		require.NoError(t, err)
		assert.Equal(t, tc.own, tc.client.Settle(md.ResourceMetrics().At(0).Resource().Attributes()) == nil)
	}
}
