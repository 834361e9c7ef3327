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

	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
)

// In lockstep the slow GPU's rank waits least, and the catalogue takes each point of a rank.
func TestRanksOfAJob(t *testing.T) {
	f := newFleet(t, Config{Nodes: 4, GPUs: 2, Jobs: 2, Load: fleetsim.Training, Seed: 5, Raw: true, Ranks: true, Faults: []Fault{
		{Target: fleetsim.Target{Node: 3}, Fault: fleetsim.Fault{Kind: fleetsim.Neighbour, GPU: 1, Severity: 0.3}},
	}})
	var from metricreading.Resource
	from.Begin(metricreading.New(zap.NewNop(), nil), pcommon.NewMap(), "", "")
	seen, shares := map[string]int{}, make([]float64, 4)
	for i := range 4 {
		b, err := f.Next(i, 6, start.Add(time.Minute), nil)
		require.NoError(t, err)
		md := decode(t, b)
		for _, m := range md.ResourceMetrics().At(2).ScopeMetrics().At(0).Metrics().All() {
			known := reading.ByName(m.Name())
			list, ok := from.Open(known, m)
			require.True(t, ok, m.Name())
			for _, p := range list.All() {
				seen[m.Name()]++
				a := p.Attributes().AsRaw()
				rank := i%2*2 + slices.Index(gpuIDs(md), fmt.Sprint(a[gpusemconv.AttrHWID]))
				assert.Equal(t, []any{fmt.Sprintf("job-%05d", i/2), int64(rank)}, []any{a[gpusemconv.AttrJobID], a[gpusemconv.AttrJobRank]})
				assert.True(t, known.Unread != "" || from.Read(p, new(metricreading.Point)) == reading.Accepted, m.Name())
				if m.Name() == gpusemconv.MetricCollectiveTimeShare {
					shares[rank] = p.DoubleValue()
				}
			}
		}
	}
	assert.Greater(t, slices.Min(shares[:3]), shares[3]+0.1)
	assert.Equal(t, map[string]int{
		"gpu.collective.time_share": 8, "gpu.collective.stalled": 8,
		"gpu.communicator.bandwidth": 24, "gpu.communicator.latency": 24, "gpu.communicator.operations": 24,
	}, seen)
}
