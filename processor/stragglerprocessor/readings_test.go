// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"
	"go.yaml.in/yaml/v3"

	"github.com/gpu-collector/gpu-collector/internal/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
)

// receiverGolden is what the nvml receiver writes for a machine.
func receiverGolden(t testing.TB, name string) pmetric.Metrics {
	text, err := os.ReadFile(filepath.Join("..", "..", "receiver", "nvmlreceiver", "testdata", name))
	require.NoError(t, err)
	var tree any
	require.NoError(t, yaml.Unmarshal(text, &tree))
	text, err = json.Marshal(tree)
	require.NoError(t, err)
	md, err := new(pmetric.JSONUnmarshaler).UnmarshalMetrics(text)
	require.NoError(t, err)
	return md
}

// TestSignalsFromWhatTheReceiverWrites holds the default sources to the
// receiver's golden files: a metric that is renamed is a signal that is lost.
func TestSignalsFromWhatTheReceiverWrites(t *testing.T) {
	cfg := nodescore.DefaultConfig()
	plan := nodescore.NewPlan(&cfg.Measures)
	all := []nodesignal.Signal{nodesignal.Throughput, nodesignal.Compute, nodesignal.Interconnect, nodesignal.CPU, nodesignal.Power, nodesignal.Memory}
	for name, want := range map[string][]nodesignal.Signal{
		"../../../sim/fleetpush/h100.yaml": all, // which the simulator writes too
		"b200.yaml":                        all,
		// Its library knows no links.
		"eight_gpus.yaml": {nodesignal.Throughput, nodesignal.Compute, nodesignal.CPU, nodesignal.Power, nodesignal.Memory},
		"t4.yaml":         all,
	} {
		t.Run(name, func(t *testing.T) {
			md, reader := receiverGolden(t, name), metricreading.New(zap.NewNop(), nil)
			node := nodescore.NewNode(&cfg, plan)
			now := time.Unix(1_700_000_000, 0)
			var r nodescore.Reading
			var res nodescore.Result
			for range 2 { // a rate takes two
				r.Reset()
				for _, rm := range md.ResourceMetrics().All() {
					var from metricreading.Resource
					from.Begin(reader, rm.Resource().Attributes(), "", "")
					collectReading(&r, plan, rm, &from)
				}
				node.Observe(&r, now)
				res = node.Evaluate(now, threshold.Received{}, false)
				now = now.Add(cfg.Interval)
			}
			var got []nodesignal.Signal
			for s := range nodesignal.Count {
				if res.Signals.Known[s] {
					got = append(got, s)
				}
			}
			assert.Equal(t, want, got)
			assert.InDelta(t, 1, res.Signals.V[nodesignal.Compute], 0)
			if res.Signals.Known[nodesignal.Interconnect] {
				assert.InDelta(t, 1, res.Signals.V[nodesignal.Interconnect], 0, "healthy links")
			}
		})
	}
}

func TestASliceIsNoGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newAgentRig(t, nil)
		md := pmetric.NewMetrics()
		rm := resource(md, map[string]any{"host.name": "n1"})
		gauge(rm, "hw.gpu.utilization", 0.9, "hw.id", "GPU-0", "hw.gpu.task", "general")
		gauge(rm, "hw.power", 500, "hw.id", "GPU-0", "hw.type", "gpu")
		gauge(rm, "hw.power", 70, "hw.id", "MIG-0", "hw.parent", "GPU-0", "hw.type", "gpu")
		assert.InDelta(t, 500, r.push(md)["n1 gpu.node.signal power"], 0)
	})
}
