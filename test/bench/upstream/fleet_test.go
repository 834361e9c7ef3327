// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.yaml.in/yaml/v3"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
)

// golden is what the nvml receiver reports of a node with one H100.
const golden = "../../../sim/fleetpush/h100.yaml"

const gpusPerNode = 8

// fleet is a number of simulated nodes, each with a full report of its own
// into which the readings of each poll are written.
type fleet struct {
	nodes   []*fleetsim.Node
	reports []pmetric.Metrics
	writers [][]writer
}

// writer puts a reading into one point of a report.
type writer struct {
	gpu   int
	point pmetric.NumberDataPoint
	value func(fleetsim.Reading) float64
}

func newFleet(t *testing.T, nodes int, load fleetsim.Load, now time.Time) *fleet {
	t.Helper()
	template := readGolden(t)
	multiply(template)
	f := &fleet{}
	for i := range nodes {
		report := pmetric.NewMetrics()
		template.CopyTo(report)
		f.nodes = append(f.nodes, fleetsim.NewNode(&fleetsim.H100, gpusPerNode, load, uint64(i+1)))
		f.reports = append(f.reports, report)
		f.writers = append(f.writers, personalize(report, i, now))
	}
	return f
}

// multiply gives each point of the report's GPU a twin for each other GPU.
func multiply(report pmetric.Metrics) {
	for _, rm := range report.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				all := points(m)
				for i := range all.Len() {
					if _, ok := all.At(i).Attributes().Get(gpusemconv.AttrHWID); !ok {
						continue
					}
					for gpu := range gpusPerNode - 1 {
						twin := all.AppendEmpty()
						all.At(i).CopyTo(twin)
						twin.Attributes().PutStr(gpusemconv.AttrHWID, fmt.Sprintf("twin-%d", gpu))
					}
				}
			}
		}
	}
}

// personalize makes the report node i's: its names, its GPUs' UUIDs.
func personalize(report pmetric.Metrics, node int, now time.Time) []writer {
	gpus := map[string]int{}
	var writers []writer
	for _, rm := range report.ResourceMetrics().All() {
		for _, name := range []string{gpusemconv.AttrHostName, gpusemconv.AttrHostID, gpusemconv.AttrK8sNodeName} {
			rm.Resource().Attributes().PutStr(name, fmt.Sprintf("node-%04d", node))
		}
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				for _, p := range points(m).All() {
					p.SetStartTimestamp(pcommon.NewTimestampFromTime(now))
					uuid, ok := p.Attributes().Get(gpusemconv.AttrHWID)
					if !ok {
						continue
					}
					gpu, ok := gpus[uuid.Str()]
					if !ok {
						gpu = len(gpus)
						gpus[uuid.Str()] = gpu
					}
					uuid.SetStr(fmt.Sprintf("GPU-%08x-0000-4000-8000-%012x", node, gpu))
					if value := source(m.Name(), p.Attributes()); value != nil {
						writers = append(writers, writer{gpu, p, value})
					}
				}
			}
		}
	}
	return writers
}

// source tells which reading moves a series. It is nil for a steady series, as
// most series of a healthy node are.
func source(metric string, attrs pcommon.Map) func(fleetsim.Reading) float64 {
	is := func(name, value string) bool {
		v, ok := attrs.Get(name)
		return ok && v.Str() == value
	}
	switch metric {
	case "hw.temperature":
		if is("hw.sensor_location", "memory") {
			return func(r fleetsim.Reading) float64 { return r.MemoryCelsius }
		}
		return func(r fleetsim.Reading) float64 { return r.Celsius }
	case "hw.gpu.temperature.margin":
		// To the slowdown temperature, 87 °C on an H100.
		return func(r fleetsim.Reading) float64 { return 87 - r.Celsius }
	case "hw.power":
		return func(r fleetsim.Reading) float64 { return r.Watts }
	case "hw.energy":
		return func(r fleetsim.Reading) float64 { return r.Joules }
	case "hw.gpu.clock.frequency":
		if is("clock", "sm") {
			return func(r fleetsim.Reading) float64 { return r.ClockHertz }
		}
	case "hw.gpu.utilization":
		if is("hw.gpu.task", "general") {
			return func(r fleetsim.Reading) float64 { return r.Utilization }
		}
	case "hw.gpu.memory.usage":
		return func(r fleetsim.Reading) float64 { return r.MemoryUsed }
	case "hw.gpu.memory.utilization":
		return func(r fleetsim.Reading) float64 { return r.MemoryUsed / fleetsim.H100.MemoryBytes }
	case "hw.gpu.io":
		if is("gpu.link", "pcie") {
			return func(r fleetsim.Reading) float64 { return r.PCIeBytes }
		}
		return func(r fleetsim.Reading) float64 { return r.NVLinkBytes }
	case "hw.gpu.throttle.active":
		if is("reason", "power_cap") {
			return func(r fleetsim.Reading) float64 {
				if r.Throttled[fleetsim.PowerCap] {
					return 1
				}
				return 0
			}
		}
	case "hw.gpu.throttle.time":
		if is("reason", "power") {
			return func(r fleetsim.Reading) float64 { return r.ThrottledSeconds[fleetsim.PowerCap] }
		}
	}
	return nil
}

// poll returns node i's full report of now. It is the fleet's: a consumer gets
// a copy.
func (f *fleet) poll(i int, now time.Time) pmetric.Metrics {
	for _, w := range f.writers[i] {
		v := w.value(f.nodes[i].Reading(w.gpu))
		if w.point.ValueType() == pmetric.NumberDataPointValueTypeInt {
			w.point.SetIntValue(int64(v))
		} else {
			w.point.SetDoubleValue(v)
		}
	}
	at := pcommon.NewTimestampFromTime(now)
	for _, rm := range f.reports[i].ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				for _, p := range points(m).All() {
					p.SetTimestamp(at)
				}
			}
		}
	}
	return f.reports[i]
}

func points(m pmetric.Metric) pmetric.NumberDataPointSlice {
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		return m.Gauge().DataPoints()
	case pmetric.MetricTypeSum:
		return m.Sum().DataPoints()
	default:
		return pmetric.NewNumberDataPointSlice()
	}
}

func readGolden(t *testing.T) pmetric.Metrics {
	t.Helper()
	text, err := os.ReadFile(golden)
	require.NoError(t, err)
	var tree any
	require.NoError(t, yaml.Unmarshal(text, &tree))
	text, err = json.Marshal(tree)
	require.NoError(t, err)
	md, err := (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics(text)
	require.NoError(t, err)
	return md
}
