// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"
	"go.yaml.in/yaml/v3"

	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/record"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
)

func gpuIDs(md pmetric.Metrics) (ids []string) {
	for _, m := range md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
		if m.Name() == gpusemconv.MetricGPUInfo {
			for _, p := range record.Points(m).All() {
				v, _ := p.Attributes().Get(gpusemconv.AttrHWID)
				ids = append(ids, v.Str())
			}
		}
	}
	return ids
}

// seriesOf are the series of a report of GPUs, without what is a GPU's own.
func seriesOf(md pmetric.Metrics) (all []string) {
	for _, m := range md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
		for _, p := range record.Points(m).All() {
			labels := p.Attributes().AsRaw()
			for _, own := range []string{"hw.id", "hw.serial_number", "gpu.pci.bus_id", "gpu.index"} {
				delete(labels, own)
			}
			all = append(all, fmt.Sprint(m.Name(), labels))
		}
	}
	return all
}

// A node has the series that the nvml receiver reports of such a node.
func TestSeriesAreTheReceivers(t *testing.T) {
	text, err := os.ReadFile("../../receiver/nvmlreceiver/testdata/h100.yaml")
	require.NoError(t, err)
	var tree any
	require.NoError(t, yaml.Unmarshal(text, &tree))
	text, err = json.Marshal(tree)
	require.NoError(t, err)
	want, err := (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics(text)
	require.NoError(t, err)
	f := newFleet(t, Config{GPUs: 1, Raw: true})
	assert.ElementsMatch(t, seriesOf(want), seriesOf(f.metrics(0, 0, start)))
}

// Points show what the simulated hardware reads. What faults do to it is for the tests of fleetsim.
func TestPointsShowTheHardware(t *testing.T) {
	f := newFleet(t, Config{Nodes: 2, GPUs: 4, Clusters: 2, Seed: 5, Raw: true, Faults: []fleetsim.Fault{
		{Node: 1, Kind: fleetsim.ThermalThrottle, GPU: 1, Severity: 0.8},
		{Node: 1, Kind: fleetsim.NVLinkErrors, GPU: 1},
		{Node: 1, Kind: fleetsim.ECC, GPU: 1, Severity: 0.9},
		{Node: 1, Kind: fleetsim.LostGPU, GPU: 3},
	}})
	md := f.metrics(1, 60, start.Add(time.Hour))
	type key struct {
		gpu   string
		field reading.Field
	}
	got := map[key]float64{}
	var from metricreading.Resource
	for _, rm := range md.ResourceMetrics().All() {
		resource := rm.Resource().Attributes().AsRaw()
		assert.Subset(t, resource, map[string]any{
			gpusemconv.AttrHostName: "node-000001", gpusemconv.AttrClusterName: "fleetsim-01", gpusemconv.AttrJobID: "job-00000",
		})
		from.Begin(metricreading.New(zap.NewNop(), nil), rm.Resource().Attributes(), "", "")
		for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
			points, ok := from.Open(reading.ByName(m.Name()), m)
			require.True(t, ok, m.Name())
			for _, dp := range points.All() {
				assert.Equal(t, pcommon.NewTimestampFromTime(start.Add(time.Hour)), dp.Timestamp(), m.Name())
				var p metricreading.Point
				if from.Read(dp, &p) == reading.Accepted {
					got[key{p.ID, p.Field}] += p.Value
				}
			}
		}
	}
	host := f.nodes[1].sim.Host()
	want := map[key]float64{
		{"", reading.CPUPressure}: host.CPUPressure, {"", reading.StepDuration}: host.StepSeconds,
		{"", reading.GPUsExpected}: 4, {"", reading.GPUsFound}: 3, {"", reading.GPUsLost}: 1,
	}
	ids := gpuIDs(md)
	for g, id := range ids[:3] {
		r := f.nodes[1].sim.Reading(g)
		for field, v := range map[reading.Field]float64{
			reading.Temperature: r.Celsius, reading.MemoryTemperature: r.MemoryCelsius, reading.TemperatureMargin: fleetsim.MaxCelsius - r.Celsius,
			reading.Power: r.Watts, reading.PowerLimit: r.LimitWatts, reading.Energy: r.Joules, reading.Utilization: r.Utilization,
			reading.SMClock: r.ClockHertz, reading.SMClockLimit: r.BoostHertz, reading.MemoryUsed: r.MemoryUsed, reading.Processes: float64(r.Processes),
			reading.PCIeBytes: 2 * r.PCIeBytes, reading.NVLinkBytes: 2 * r.NVLinkBytes, reading.PCIeWidth: float64(r.PCIeLanes), reading.PCIeWidthLimit: 16,
			reading.PCIeGeneration: float64(r.PCIeGeneration), reading.NVLinksUp: float64(r.NVLinksUp),
			reading.ECCUncorrected: r.ECCUncorrected, reading.ECCCorrected: r.ECCCorrected, reading.NVLinkReplay: r.NVLinkReplays, reading.NVLinkCRC: r.NVLinkCRC,
		} {
			want[key{id, field}] = v
		}
	}
	want[key{ids[1], reading.Xid}], want[key{ids[0], reading.Health}], want[key{ids[3], reading.Up}] = 15, 100, 0
	for k, v := range want {
		value, there := got[k]
		assert.True(t, there, "%v", k)
		delta := 0.001
		if v > 100 { // counters are whole numbers, some of two directions
			delta = 2
		}
		assert.InDelta(t, v, value, delta, "%v", k)
	}
	assert.Less(t, got[key{ids[1], reading.Health}], 50.0)
	assert.Equal(t, f.nodes[1].sim.Reading(1).Xids, f.nodes[1].xids[1], "each is observed once")
	assert.Positive(t, got[key{ids[1], reading.SWThermalTime}])
}

// In lockstep the slow GPU's rank waits least, and the catalogue takes each point of a rank.
func TestRanksOfAJob(t *testing.T) {
	f := newFleet(t, Config{Nodes: 4, GPUs: 2, Jobs: 2, Seed: 5, Raw: true, Ranks: true, Faults: []fleetsim.Fault{
		{Node: 3, Kind: fleetsim.Neighbour, GPU: 1, Severity: 0.3},
	}})
	var from metricreading.Resource
	from.Begin(metricreading.New(zap.NewNop(), nil), pcommon.NewMap(), "", "")
	seen, shares := map[string]int{}, make([]float64, 4)
	for i := range 4 {
		md := f.metrics(i, 6, start.Add(time.Minute))
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
