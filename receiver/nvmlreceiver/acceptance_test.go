// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvmlreceiver

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/nvml"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
)

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

// TestAnImpossibleReadingCostsItselfOnly: gpuhealth tests the ranges of all. NVML's mark of
// a missing value is impossible too where the call claims success.
func TestAnImpossibleReadingCostsItselfOnly(t *testing.T) {
	state := fakenvml.NewH100(2).SetGPU(0, "field.186", "0xFFFFFFFF").SetGPU(0, "energy", -1).SetGPU(0, "mode.ecc", -1)
	n, _ := startFake(t, state)
	md := n.first()
	n.scrape()
	n.shutdown()
	assert.Equal(t, upAll(2), up(md))
	var gone []string
	for _, m := range all(md) {
		of := func(gpu int) int { return len(find(md, m.Name(), map[string]string{"hw.id": fakenvml.UUID(gpu)})) }
		if of(0) != of(1) {
			gone = append(gone, m.Name())
		}
	}
	assert.ElementsMatch(t, []string{"hw.power", "hw.energy", "hw.gpu.mode"}, gone)
	assert.Equal(t, map[string]int64{"power": 2, "energy": 2, "mode": 2}, n.rejected())
	assert.Equal(t, 3, n.logs.FilterMessage("a reading that cannot be true is left out").FilterField(zap.String("gpu", fakenvml.UUID(0))).Len(), "once for each field")
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
	assert.Equal(t, map[string]int64{"uuid": 3}, n.rejected(), "a GPU without a handle has no UUID to reject")
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
