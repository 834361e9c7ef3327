// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
)

// In lockstep the slow GPU's rank waits least, and the catalogue takes each point of a rank.
func TestRanksOfAJob(t *testing.T) {
	f := newFleet(t, Config{Nodes: 4, GPUs: 2, Jobs: 2, Load: fleetsim.Training, Seed: 5, Raw: true, Ranks: true, Faults: []Fault{
		{Target: fleetsim.Target{Node: 3}, Fault: fleetsim.Fault{Kind: fleetsim.Neighbour, GPU: 1, Severity: 0.2}},
		{Target: fleetsim.Target{Node: 0}, Fault: fleetsim.Fault{Kind: fleetsim.LostGPU, GPU: 0}},
	}})
	seen := map[string]int{}
	for i := range 4 {
		b, err := f.Next(i, 6, start.Add(time.Minute), nil)
		require.NoError(t, err)
		md := decode(t, b)
		require.Equal(t, 3, md.ResourceMetrics().Len(), "the GPUs', the job's, the ranks'")
		rm := md.ResourceMetrics().At(2)
		assert.NotContains(t, rm.Resource().Attributes().AsRaw(), gpusemconv.AttrJobID)
		gpus := gpuIDs(md)
		for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
			known := reading.ByName(m.Name())
			var from metricreading.Resource
			from.Begin(metricreading.New(zap.NewNop(), nil), pcommon.NewMap(), "", "")
			list, ok := from.Open(known, m)
			require.True(t, ok, m.Name())
			for _, p := range list.All() {
				seen[m.Name()]++
				a := p.Attributes().AsRaw()
				gpu := slices.Index(gpus, fmt.Sprint(a[gpusemconv.AttrHWID]))
				assert.Equal(t, []any{fmt.Sprintf("job-%05d", i/2), int64(i%2*2 + gpu)}, []any{a[gpusemconv.AttrJobID], a[gpusemconv.AttrJobRank]})
				var read metricreading.Point
				if known.Unread == "" {
					require.Equal(t, reading.Accepted, from.Read(p, &read), m.Name())
				}
				switch {
				case m.Name() != gpusemconv.MetricCollectiveTimeShare:
				case i == 3 && gpu == 1:
					assert.InDelta(t, 0.15, p.DoubleValue(), 0.02)
				case i >= 2:
					assert.InDelta(t, 1-0.85*0.8, p.DoubleValue(), 0.03)
				}
			}
		}
	}
	assert.Equal(t, map[string]int{
		"gpu.collective.time_share": 7, "gpu.collective.stalled": 7,
		"gpu.communicator.bandwidth": 14, "gpu.communicator.latency": 14, "gpu.communicator.operations": 14,
	}, seen, "the lost GPU has none")
}
