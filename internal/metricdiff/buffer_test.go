// SPDX-License-Identifier: Apache-2.0

package metricdiff

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/statetable"
)

// A next hop that takes a few batches of each flush, and refuses the rest, gets
// every node's in the end, also where all have news each time.
func TestNodesTakeTurnsWhereNotAllAreTaken(t *testing.T) {
	const nodes, taken = 200, 20
	b := NewBuffer(Limits{Points: 1000, NodePoints: 10, BatchBytes: 1})
	got := map[string]int{}
	for flush := range 2 * nodes / taken {
		md := pmetric.NewMetrics()
		for i := range nodes {
			rm := md.ResourceMetrics().AppendEmpty()
			rm.Resource().Attributes().PutInt("host.id", int64(i))
			m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
			m.SetName("m")
			m.SetEmptyGauge().DataPoints().AppendEmpty().SetIntValue(int64(flush))
		}
		require.True(t, b.Take(md))
		left := taken
		_, _ = b.Flush(Hop{
			Send: func(md pmetric.Metrics, _, _ int) error {
				if left--; left < 0 {
					return errors.New("busy")
				}
				for _, rm := range md.ResourceMetrics().All() {
					id, _ := rm.Resource().Attributes().Get("host.id")
					got[id.AsString()]++
				}
				return nil
			},
			Permanent: func(error) bool { return false },
			Forget:    func(statetable.NodeKey) {},
		})
	}
	assert.Len(t, got, nodes)
}

// One node that is always refused holds up the others no longer than until it is
// the first that is tried.
func TestARefusedNodeHoldsUpNoOther(t *testing.T) {
	refused := make([]*bufferNode, 2)
	refused[0] = &bufferNode{key: statetable.NodeKey{Lo: 5}}
	refused[1] = &bufferNode{key: statetable.NodeKey{Lo: 64 + 9}}
	assert.Equal(t, 5, firstAfter(refused, true))
	assert.Equal(t, 10, firstAfter(refused, false))
}

// A tier that repeats what a report lacks goes by the heartbeat, so that comes with
// the last part of a node, although it was there before the other points.
func TestTheHeartbeatComesLast(t *testing.T) {
	b := NewBuffer(Limits{Points: 1000, NodePoints: 100, BatchBytes: 200})
	for range 2 {
		md := pmetric.NewMetrics()
		rm := md.ResourceMetrics().AppendEmpty()
		rm.Resource().Attributes().PutStr("host.name", "a")
		heartbeat(rm, 1)
		require.True(t, b.Take(md))
		md = pmetric.NewMetrics()
		rm = md.ResourceMetrics().AppendEmpty()
		rm.Resource().Attributes().PutStr("host.name", "a")
		points := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty().SetEmptyGauge().DataPoints()
		for i := range 20 {
			points.AppendEmpty().Attributes().PutInt("gpu", int64(i))
		}
		require.True(t, b.Take(md))
	}
	var beats []int
	held, dropped := b.Flush(Hop{
		Send: func(_ pmetric.Metrics, _, heartbeats int) error {
			beats = append(beats, heartbeats)
			return nil
		},
	})
	require.NoError(t, errors.Join(held, dropped))
	require.Greater(t, len(beats), 2)
	assert.Equal(t, 1, beats[len(beats)-1])
	assert.NotContains(t, beats[:len(beats)-1], 1)
}
