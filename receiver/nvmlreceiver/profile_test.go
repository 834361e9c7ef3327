// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvmlreceiver

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/processor/processortest"

	"github.com/gpu-collector/gpu-collector/processor/diffprocessor" //nolint:depguard // of this test alone: what follows the receiver
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
)

func TestModels(t *testing.T) {
	library := fakenvml.Library(t)
	for model, state := range map[string]*fakenvml.State{
		"h100": fakenvml.NewH100(1), "b200": fakenvml.NewB200(1), "a100_mig": fakenvml.NewA100MIG(1), "t4": fakenvml.NewT4(1),
	} {
		t.Run(model, func(t *testing.T) {
			state.Install(t)
			n := startNode(t, func(cfg *Config) { cfg.LibraryPath = library })
			md := n.first()
			n.scrape()
			n.shutdown()
			file := model + ".yaml"
			if model == "h100" {
				file = "../../../sim/fleetpush/h100.yaml" // the simulator's nodes report it
			}
			compareGolden(t, file, md)
			_, err := n.telemetry.GetMetric("otelcol_receiver_nvml_rejected_fields")
			require.Error(t, err, "nothing is rejected")
			_, err = n.telemetry.GetMetric("otelcol_receiver_nvml_call_failures")
			require.Error(t, err, "no call failed")
		})
	}
}

// TestQuietModelsForwardTheHeartbeatOnly asks for everything that there is.
func TestQuietModelsForwardTheHeartbeatOnly(t *testing.T) {
	library := fakenvml.Library(t)
	for model, state := range map[string]*fakenvml.State{
		"h100": fakenvml.NewH100(8), "b200": fakenvml.NewB200(8), "a100_mig": fakenvml.NewA100MIG(8), "t4": fakenvml.NewT4(8),
	} {
		t.Run(model, func(t *testing.T) {
			factory := diffprocessor.NewFactory()
			cfg := factory.CreateDefaultConfig().(*diffprocessor.Config)
			cfg.ResyncInterval = 0 // a resend is due at a random time
			sink := &consumertest.MetricsSink{}
			diff, err := factory.CreateMetrics(t.Context(), processortest.NewNopSettings(factory.Type()), cfg, sink)
			require.NoError(t, err)
			require.NoError(t, diff.Start(t.Context(), componenttest.NewNopHost()))
			t.Cleanup(func() { require.NoError(t, diff.Shutdown(context.Background())) })

			state.Install(t)
			n := startNode(t, func(cfg *Config) {
				cfg.LibraryPath, cfg.Detail = library, DetailFull
				cfg.Metrics.HwGpuNvlinkLinkErrors.Enabled, cfg.Metrics.HwGpuNvlinkLinkUp.Enabled = true, true
				cfg.Metrics.HwGpuMemoryReserved.Enabled, cfg.Metrics.HwGpuNvlinkBitErrorRate.Enabled = true, true
			})
			require.NoError(t, diff.ConsumeMetrics(t.Context(), n.first()))
			for range 3 {
				sink.Reset()
				require.NoError(t, diff.ConsumeMetrics(t.Context(), n.scrape()))
				assert.Equal(t, 1, sink.DataPointCount())
			}
			n.shutdown()
		})
	}
}

// TestXidOfALostGPU: the GPU falls off the bus and says so with Xid 79, which
// has to carry its UUID; then it comes back with another driver session.
func TestXidOfALostGPU(t *testing.T) {
	state := fakenvml.NewH100(2)
	n, rewrite := startFake(t, state)
	assert.Equal(t, map[string]float64{fakenvml.UUID(0): 100, fakenvml.UUID(1): 100}, values(n.first(), "hw.gpu.health.score", nil))

	state.SetGPU(1, "present", 0).XID(1, 79)
	rewrite()
	lost := map[string]string{"gpu.xid.class": "node"}
	assert.Eventually(t, func() bool { return len(find(n.scrape(), "hw.gpu.xid.events", lost)) == 1 }, time.Minute, time.Millisecond)
	md := n.scrape()
	assert.Equal(t, map[string]float64{fakenvml.UUID(1): 1}, values(md, "hw.gpu.xid.events", lost))
	assert.Equal(t, map[string]float64{fakenvml.UUID(0): 100, fakenvml.UUID(1): 0}, values(md, "hw.gpu.health.score", nil))
	assert.NotEmpty(t, find(md, "hw.gpu.health.reason", map[string]string{"reason": "xid_79", "action": "reboot"}))

	state.SetGPU(1, "present", 1)
	rewrite()
	assert.Eventually(t, func() bool { return values(n.scrape(), "hw.gpu.health.score", nil)[fakenvml.UUID(1)] == 100 }, time.Minute, time.Millisecond)
	n.shutdown()
	records := n.logRecords("hw.gpu.xid")
	require.Len(t, records, 1)
	assert.Equal(t, fakenvml.UUID(1), records[0].Attributes().AsRaw()["hw.id"])
	assert.Equal(t, []string{"healthy>unhealthy", "unhealthy>healthy"}, n.healthChanges(fakenvml.UUID(1)))
	assert.Empty(t, n.healthChanges(fakenvml.UUID(0)))
}
