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

// Any pushes by the front door, accepted, refused before or behind the engine, or
// without room: the next hop gets what it gets where they are decoded first, and the
// table has the same.
func TestTheFrontDoorDecidesAsTheEngine(t *testing.T) {
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
			push, out := front.engine.Judge(t.Context(), msg, nil)
			if push == nil {
				if outcome != "refused before" {
					front.decoded(t, msg)
				}
			} else {
				md, err := decode(out)
				require.NoError(t, err)
				require.Positive(t, md.DataPointCount(), "the receiver calls the pipeline")
				if outcome != "refused before" {
					require.ErrorIs(t, front.engine.Consume(push, md), front.refuse)
					require.True(t, push.claimed)
				}
				push.End(outcome == "accepted" || outcome == "no room")
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

// A push is claimed once, and not after its end: a queue may hold its context.
func TestAClaimIsOnceAndInTime(t *testing.T) {
	var now time.Duration
	s := newSink(t, &now)
	msg := encode(t, nodeReport())
	judge := func() (*Push, func() error) {
		push, out := s.engine.Judge(t.Context(), msg, nil)
		require.NotNil(t, push)
		return push, func() error {
			md, err := decode(out)
			require.NoError(t, err)
			return s.engine.Consume(push, md)
		}
	}
	push, consume := judge()
	require.NoError(t, consume())
	require.NoError(t, consume(), "judged as any other")
	assert.True(t, push.End(true))
	push, consume = judge()
	assert.False(t, push.End(true), "nobody came for it")
	points := s.counts.Received
	require.NoError(t, consume())
	assert.Less(t, s.counts.Received, points, "judged as it came")
}
