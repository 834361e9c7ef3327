// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// nodesOf are the names of a message's nodes.
func nodesOf(md pmetric.Metrics) (names []string) {
	for _, rm := range md.ResourceMetrics().All() {
		name, _ := rm.Resource().Attributes().Get(gpusemconv.AttrHostName)
		names = append(names, name.Str())
	}
	return names
}

// waiting is a tier in whose table so many nodes wait, of so many points each.
func waiting(t *testing.T, nodes, points int) *tier {
	s := newTier(collecting)
	for i := range nodes {
		md, _ := s.push(t, report("c", strconv.Itoa(i), s.Now(), make([]float64, points)...))
		require.Zero(t, md.DataPointCount())
		s.at += time.Millisecond
	}
	return s
}

func (s *tier) pending() int { return len(s.Table.Pending()) }

// Messages are about as large as asked for, whatever the nodes' size is, and all together are
// all points, once.
func TestMessagesHoldAsManyNodesAsFit(t *testing.T) {
	for _, points := range []int{1, 7, 200} {
		const most = 4096
		s := waiting(t, 5, points)
		require.Equal(t, Flushed{}, s.flush(most, nil))
		var proto pmetric.ProtoMarshaler
		seen := map[string]bool{}
		total := 0
		for i, m := range s.got {
			size := proto.MetricsSize(m.Metrics)
			assert.LessOrEqual(t, size, most+most/4)
			if i < len(s.got)-1 {
				assert.Greater(t, size, most/4)
			}
			total += m.Metrics.DataPointCount()
			if points == 200 && i < 2 { // a node takes several messages
				assert.Equal(t, i == 0, m.Heartbeats == 1, "with the first piece")
			}
			for _, rm := range m.Metrics.ResourceMetrics().All() {
				for _, dp := range rm.ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints().All() {
					seen[fmt.Sprint(rm.Resource().Attributes().AsRaw(), dp.Attributes().AsRaw())] = true
				}
			}
		}
		assert.Equal(t, 5*(points+1), total)
		assert.GreaterOrEqual(t, len(seen), 5*points)
		assert.Zero(t, s.pending())
	}
}

// A flush ends with the first failure, and a refused node is behind the others then.
func TestARefusedNodeHoldsUpNoOther(t *testing.T) {
	s := waiting(t, 10, 1)
	s.answer = func(md pmetric.Metrics) error {
		if nodesOf(md)[0] == "0" {
			return errors.New("busy")
		}
		return nil
	}
	require.Error(t, s.flush(1, nil).Failed)
	assert.Len(t, s.got, 1)
	s.at += time.Second
	require.Error(t, s.flush(1, nil).Failed)
	assert.Len(t, s.got, 10)
	assert.Equal(t, 1, s.pending())
	s.answer = nil
	require.NoError(t, s.flush(1, nil).Failed)
	assert.Zero(t, s.pending())
}

func TestAFlushEndsBetweenTwoMessages(t *testing.T) {
	s := waiting(t, 10, 1)
	s.flush(1, func() bool { return len(s.got) == 4 })
	assert.Len(t, s.got, 4)
	assert.Equal(t, 6, s.pending())
	s.flush(1, func() bool { return true })
	assert.Len(t, s.got, 1, "one goes always")
}

// Nodes that were forgotten, or have nothing to send any more, do not end a flush.
func TestAnEmptyMessageIsNotTheLast(t *testing.T) {
	s := waiting(t, 3, 1)
	s.answer = func(pmetric.Metrics) error {
		if len(s.got) == 1 { // while the first node is under way
			s.at += 2 * time.Hour
			s.Table.Sweep(s.Time())
			(&tier{Engine: s.Engine}).push(t, report("c", "2", s.Now(), 5))
		}
		return nil
	}
	require.Equal(t, Flushed{}, s.flush(1, nil))
	require.Len(t, s.got, 2, "the second node is gone, and costs no call")
	assert.Equal(t, []string{"2"}, nodesOf(s.got[1].Metrics))
}

var errForGood = consumererror.NewPermanent(errors.New("for good"))

func TestOfSeveralErrorsAllArePermanent(t *testing.T) {
	busy := errors.New("busy")
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{busy, false},
		{errForGood, true},
		{fmt.Errorf("x: %w", errForGood), true},
		{errors.Join(errForGood, busy), false},
		{fmt.Errorf("x: %w", errors.Join(errForGood, busy)), false},
		{errors.Join(busy, errForGood), false},
		{errors.Join(errForGood, errForGood), true},
		{errors.Join(errForGood, errors.Join(errForGood, busy)), false},
	} {
		assert.Equal(t, tt.want, isPermanent(tt.err), "%v", tt.err)
	}
}

// A message that is refused for good is sent once more node by node, and only what is refused
// then is given up. Where nothing at all is taken, the rest of the message is given up untried.
func TestARefusalForGood(t *testing.T) {
	type answer = func(s *tier, nodes []string) error
	always := func(*tier, []string) error { return errForGood }
	for name, tt := range map[string]struct {
		nodes, points, maxBytes int
		answer                  answer
		taken, gaveUp           int64 // points
		calls, pending          int   // calls of 0 are any number
		busy                    bool
	}{
		"one bad node among many": {20, 3, 1 << 20, func(_ *tier, nodes []string) error {
			if slices.Contains(nodes, "11") {
				return errForGood
			}
			return nil
		}, 19 * 4, 4, 1 + 20, 0, false},
		"a node in pieces": {1, 100, 500, always, 0, 101, 0, 0, false},
		"nodes in pieces, together": {4, 30, 3000, func(_ *tier, nodes []string) error {
			if len(nodes) > 1 {
				return errForGood
			}
			return nil
		}, 4 * 31, 0, 0, 0, false},
		"everything": {100, 2, 1 << 20, always, 0, 300, 1 + maxAlone, 0, false},
		"and then it fails": {20, 2, 1 << 20, func(s *tier, _ []string) error {
			if len(s.got) > 3 {
				return errors.New("busy")
			}
			return errForGood
		}, 0, 2 * 3, 4, 18, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := waiting(t, tt.nodes, tt.points)
			var taken int64
			s.answer = func(md pmetric.Metrics) error {
				err := tt.answer(s, nodesOf(md))
				if err == nil {
					taken += int64(md.DataPointCount())
				}
				return err
			}
			f := s.flush(tt.maxBytes, nil)
			assert.Equal(t, tt.busy, f.Failed != nil)
			assert.Equal(t, tt.gaveUp, f.Points)
			if tt.gaveUp > 0 {
				require.ErrorIs(t, f.GaveUp, errForGood)
			}
			assert.Equal(t, tt.taken, taken, "each once")
			if tt.calls > 0 {
				assert.Len(t, s.got, tt.calls)
			}
			require.Equal(t, tt.pending, s.pending())
			if tt.pending == 0 {
				require.Equal(t, Flushed{}, s.flush(tt.maxBytes, nil))
				assert.Empty(t, s.got, "it does not go on and on")
			}
		})
	}
}

// The next hop may lose its state during a flush: it has the nodes of the message once more,
// also where the last one went in pieces.
func TestTheNextHopRestartsBetweenPieces(t *testing.T) {
	s := waiting(t, 3, 30)
	s.answer = func(pmetric.Metrics) error {
		if len(s.got) == 1 {
			s.Table.Resync()
		}
		return nil
	}
	s.flush(3000, nil)
	require.Equal(t, []string{"0", "1"}, nodesOf(s.got[0].Metrics))
	require.Less(t, s.got[0].Points, int64(62))
	points := 0
	for _, m := range s.got[1:] {
		points += m.Metrics.DataPointCount()
	}
	assert.Equal(t, 93, points, "and what comes after it")
	assert.Zero(t, s.pending())
}

// A message that never ends would keep its nodes.
func TestAPanicOfTheNextConsumerIsARefusal(t *testing.T) {
	s := waiting(t, 1, 1)
	assert.Panics(t, func() {
		s.Flush(context.Background(), 1, nil, func(context.Context, Message) error { panic("x") })
	})
	require.NoError(t, s.flush(1, nil).Failed)
	assert.NotEmpty(t, s.got)
	s.at += 2 * time.Hour
	s.Table.Sweep(s.Time())
	assert.Zero(t, s.Table.Stats().Nodes)
}
