// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvmlreceiver

import (
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/nvml"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
)

// impossible are some of the values that no GPU can have (gpuhealth tests the ranges of all), each with the field that is
// rejected, and the points that are absent. NVML's mark of a missing value is
// impossible too when the call claims success.
var impossible = []struct {
	key        string
	value      any
	field      string
	metric     string
	attributes map[string]string
}{
	{"memory.used", uint64(81) << 30, "memory.used", "hw.gpu.memory.usage", nil},
	{"temperature", 300, "temperature.gpu", "hw.temperature", map[string]string{"hw.sensor_location": "gpu"}},
	{"temperature.margin", -300, "temperature.margin", "hw.gpu.temperature.margin", nil},
	{"pcie.width", 0, "pcie.width", "hw.gpu.pcie.link.width", map[string]string{"kind": "current"}},
	{"power.limit", 200_000_000, "power.limit.enforced", "hw.gpu.power.limit", map[string]string{"limit": "enforced"}},
	{"utilization.gpu", 101, "utilization.general", "hw.gpu.utilization", map[string]string{"hw.gpu.task": "general"}},
	{"throttle", "0xFFFFFFFF", "throttle", "hw.gpu.throttle.active", nil},
	{"energy", -1, "energy", "hw.energy", nil},
	{"gpm.2", "nan", "activity", "hw.gpu.activity", map[string]string{"unit": "sm"}},
	{"processes.compute", uint32(1<<32 - 1), "processes", "hw.gpu.processes", map[string]string{"type": "compute"}},
	{"remapped.failed", uint32(1<<32 - 1), "remapped_rows", "hw.gpu.memory.remap.failed", nil},
	{"mode.ecc", -1, "mode", "hw.gpu.mode", map[string]string{"mode": "ecc"}},
	{"field.230", "0xFFFFFFFF", "recovery_action", "hw.gpu.recovery_action", nil},
	{"fabric.state", 99, "fabric", "hw.gpu.fabric.state", nil},
	{"field.186", "0xFFFFFFFF", "power", "hw.power", nil},
	{"clock.memory", "0xFFFFFFFF", "clock", "hw.gpu.clock.frequency", map[string]string{"clock": "memory"}},
	{"field.161.7", "0xFFFFFFFF", "nvlink.errors", "hw.gpu.nvlink.errors", map[string]string{"error.type": "replay"}},
	{"ecc.uncorrected.volatile", "0xFFFFFFFE", "ecc", "hw.errors", map[string]string{"error.type": "uncorrected", "gpu.ecc.counter": "volatile", "gpu.memory.location": "all"}},
}

// of are the points of the GPU, but for those that say how it is or are
// calculated from others, by metric and attributes.
func of(md pmetric.Metrics, uuid string) map[string]pmetric.NumberDataPoint {
	out := map[string]pmetric.NumberDataPoint{}
	for _, m := range all(md) {
		for _, p := range pointsOf(m) {
			if id, ok := p.Attributes().Get("hw.id"); !ok || id.Str() != uuid {
				continue
			}
			kept := p.Attributes().AsRaw()
			delete(kept, "hw.id")
			delete(kept, "hw.parent")
			out[fmt.Sprint(m.Name(), kept)] = p
		}
	}
	return out
}

func (n *node) rejected() map[string]int64 {
	n.Helper()
	m, err := n.telemetry.GetMetric("otelcol_receiver_nvml_rejected_fields")
	require.NoError(n, err)
	out := map[string]int64{}
	for _, dp := range m.Data.(metricdata.Sum[int64]).DataPoints {
		field, _ := dp.Attributes.Value(attribute.Key("field"))
		out[field.AsString()] = dp.Value
	}
	return out
}

// TestEveryImpossibleReadingCostsItselfOnly gives each GPU another impossible
// value; the last GPU has none.
func TestEveryImpossibleReadingCostsItselfOnly(t *testing.T) {
	sound := len(impossible)
	state := fakenvml.NewH100(sound + 1)
	for i := range sound + 1 {
		state.SetGPU(i, "memory.used", uint64(60)<<30).SetGPU(i, "retired.sbe", 1).SetGPU(i, "retired.dbe", 1).SetGPU(i, "retired.pending", 0)
	}
	for i, c := range impossible {
		state.SetGPU(i, c.key, c.value)
	}
	state.Install(t)
	library := fakenvml.Library(t)
	n := startNode(t, func(cfg *Config) {
		cfg.LibraryPath, cfg.Detail, cfg.Metrics.HwGpuActivity.Enabled = library, DetailFull, true
	})
	n.first() // GPM's activity takes two samples
	before := map[string]int64{}
	if m, err := n.telemetry.GetMetric("otelcol_receiver_nvml_rejected_fields"); err == nil && len(m.Data.(metricdata.Sum[int64]).DataPoints) > 0 {
		before = n.rejected()
	}
	md := n.scrape()
	assert.Equal(t, upAll(sound+1), up(md))

	whole := len(of(md, fakenvml.UUID(sound)))
	want := map[string]int64{}
	for i, c := range impossible {
		t.Run(fmt.Sprint(c.key, " ", c.value), func(t *testing.T) {
			with := func(gpu int) map[string]string {
				attributes := map[string]string{"hw.id": fakenvml.UUID(gpu)}
				maps.Copy(attributes, c.attributes)
				return attributes
			}
			assert.Empty(t, find(md, c.metric, with(i)))
			gone := len(find(md, c.metric, with(sound)))
			require.Positive(t, gone, "a sound GPU has it")
			// The utilization of the memory is the quotient of two readings.
			assert.InDelta(t, whole-gone, len(of(md, fakenvml.UUID(i))), 3, "the rest goes out")
			if c.field != "" {
				want[c.field]++
				assert.Positive(t, n.logs.FilterMessage("a reading that cannot be true is left out").FilterField(zap.String("gpu", fakenvml.UUID(i))).FilterField(zap.String("field", c.field)).Len())
			}
		})
	}
	got := n.rejected()
	for field := range got {
		got[field] -= before[field]
	}
	assert.Equal(t, want, got)
	n.shutdown()
}

func TestImpossibleUUIDs(t *testing.T) {
	const failing = "call.nvmlDeviceGetHandleByIndex_v2.return"
	state := fakenvml.NewH100(8).SetGPU(1, "uuid", "garbage").SetGPU(3, "uuid", "").SetGPU(6, "uuid", fakenvml.UUID(5)).
		SetGPU(7, failing, int(nvml.Unknown))
	n, rewrite := startFake(t, state)
	md := n.first()
	want := upAll(8)
	for _, i := range []int{1, 3, 6, 7} {
		delete(want, fakenvml.UUID(i))
	}
	assert.Equal(t, want, up(md))
	assert.Equal(t, map[string]int64{"uuid": 3}, n.rejected(), "a GPU without a handle has said nothing")
	assert.InDelta(t, 357.25, values(md, "hw.power", nil)[fakenvml.UUID(5)], 0, "the first of two keeps the name")
	n.scrape()
	why := map[any]any{}
	for _, line := range n.logs.FilterMessage("GPU is not reported, as NVML does not tell its UUID").All() {
		why[line.ContextMap()["index"]] = line.ContextMap()["error"]
	}
	assert.Equal(t, map[any]any{int64(1): "its UUID is malformed", int64(3): "its UUID is empty", int64(6): "its UUID is another GPU's", int64(7): "unknown (999)"}, why)
	assert.Equal(t, 1, n.logs.FilterMessage("a reading that cannot be true is left out").FilterField(zap.String("field", "uuid")).Len())

	for _, i := range []int{1, 3, 6} {
		state.SetGPU(i, "uuid", fakenvml.UUID(i))
	}
	state.Set("driver.epoch", 1).DeleteGPU(7, failing)
	rewrite()
	assert.Equal(t, upAll(8), up(n.scrape()))
	n.shutdown()
}
