// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/processortest"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	zapobserver "go.uber.org/zap/zaptest/observer"

	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

// TestOneGatewayForAllPipelines has a gateway in two metrics pipelines and a
// logs pipeline: nodes of both are compared with each other, and both get what
// was found, each its own copy.
func TestOneGatewayForAllPipelines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, cfg := NewFactory(), createDefaultConfig().(*Config)
		cfg.Mode = modeGateway
		set := processortest.NewNopSettings(f.Type())
		var sinks [2]consumertest.MetricsSink
		var parts []interface {
			Shutdown(context.Context) error
		}
		var in [2]processor.Metrics
		for i := range sinks {
			p, err := f.CreateMetrics(t.Context(), set, cfg, &sinks[i])
			require.NoError(t, err)
			in[i], parts = p, append(parts, p)
		}
		var store consumertest.LogsSink
		logs, err := f.CreateLogs(t.Context(), set, cfg, &store)
		require.NoError(t, err)
		parts = append(parts, logs)
		for _, p := range in {
			require.NoError(t, p.Start(t.Context(), componenttest.NewNopHost()))
		}
		require.NoError(t, logs.Start(t.Context(), componenttest.NewNopHost()))

		passes := plog.NewLogs()
		passes.ResourceLogs().AppendEmpty().ScopeLogs().AppendEmpty().LogRecords().AppendEmpty()
		require.NoError(t, logs.ConsumeLogs(t.Context(), passes))
		assert.Equal(t, 1, store.LogRecordCount())

		six := fleet(1, 1, 1, 1, 1, 1)
		three := fleet()
		six.ResourceMetrics().At(5).MoveTo(three.ResourceMetrics().AppendEmpty())
		require.NoError(t, in[0].ConsumeMetrics(t.Context(), six))
		require.NoError(t, in[1].ConsumeMetrics(t.Context(), three))
		for i := range sinks {
			sinks[i].Reset()
		}
		time.Sleep(cfg.PushInterval)
		synctest.Wait()
		for i := range sinks {
			require.Len(t, sinks[i].AllMetrics(), 1)
			assert.InDelta(t, 6, values(sinks[i].AllMetrics()[0])[" gpu.straggler.nodes active J/stage-0"], 0)
		}
		sinks[0].AllMetrics()[0].ResourceMetrics().RemoveIf(func(pmetric.ResourceMetrics) bool { return true })
		assert.NotZero(t, sinks[1].AllMetrics()[0].DataPointCount(), "each has its own")

		require.NoError(t, parts[0].Shutdown(t.Context()))
		sinks[1].Reset()
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Empty(t, sinks[1].AllMetrics(), "what lies behind the first may be gone already")
		require.NoError(t, in[1].ConsumeMetrics(t.Context(), fleet(1)), "data passes to the end")
		for _, p := range parts[1:] {
			require.NoError(t, p.Shutdown(t.Context()))
		}
	})
}

func TestAgentHasNoLogsPipeline(t *testing.T) {
	f, cfg := NewFactory(), createDefaultConfig().(*Config)
	cfg.Mode = modeAgent
	_, err := f.CreateLogs(t.Context(), processortest.NewNopSettings(f.Type()), cfg, consumertest.NewNop())
	require.ErrorContains(t, err, "`mode` is \"agent\"")
}

// TestEpisodesReachTheLogsPipelines from the pushes of a slow node on: one
// record each at two pipelines, the line in the own log, and the counts.
func TestEpisodesReachTheLogsPipelines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tel := componenttest.NewTelemetry()
		cfg := createDefaultConfig().(*Config)
		cfg.Mode = modeGateway
		set := processor.Settings{ID: component.NewID(metadata.Type), TelemetrySettings: tel.NewTelemetrySettings()}
		set.BuildInfo.Version = "1.2.3"
		core, lines := zapobserver.New(zapcore.WarnLevel)
		set.Logger = zap.New(core)
		f := NewFactory()
		view, exporter := newFleetView(t)
		cfg.FleetViewExtension = &viewID
		metrics, err := f.CreateMetrics(t.Context(), set, cfg, exporter)
		require.NoError(t, err)
		var stores [2]consumertest.LogsSink
		parts := []component.Component{metrics}
		for i := range stores {
			p, err := f.CreateLogs(t.Context(), set, cfg, &stores[i])
			require.NoError(t, err)
			parts = append(parts, p)
		}
		for _, p := range parts {
			require.NoError(t, p.Start(t.Context(), host{map[component.ID]component.Component{viewID: view}}))
		}
		for range 30 {
			require.NoError(t, metrics.ConsumeMetrics(t.Context(), hardware(8, "n2")))
			require.NoError(t, metrics.ConsumeMetrics(t.Context(), fleet(1, 1, 0.7, 1, 1, 1, 1, 1)))
			time.Sleep(cfg.PushInterval)
		}
		synctest.Wait()
		for i := range stores {
			require.Equal(t, 1, stores[i].LogRecordCount())
			rl := stores[i].AllLogs()[0].ResourceLogs().At(0)
			assert.Equal(t, map[string]any{
				"k8s.cluster.name": "prod", "host.name": "n2", "gpu.job.id": "J", "gpu.job.role": "stage-0",
			}, rl.Resource().Attributes().AsRaw(), "the node's, with the labels of its group")
			assert.Equal(t, "1.2.3", rl.ScopeLogs().At(0).Scope().Version())
			a := rl.ScopeLogs().At(0).LogRecords().At(0).Attributes().AsRaw()
			assert.Equal(t, "onset", a["gpu.straggler.phase"])
			assert.Equal(t, "critical", a["gpu.straggler.severity"])
			assert.Equal(t, "GPU-2-0", a["hw.id"])
			assert.Equal(t, "hw_thermal", a["gpu.straggler.reason"])
			assert.Equal(t, []any{"job=12"}, a["gpu.straggler.allocations"])
			assert.InDelta(t, 0.3*64, a["gpu.straggler.gpu_hours_lost_per_hour"], 1)
			assert.NotContains(t, a, "gpu.straggler.since", "it was slow from its first value on")
		}
		logged := lines.FilterMessageSnippet("Straggler n2").All()
		require.Len(t, logged, 1)
		assert.Equal(t, "GPU-2-0", logged[0].ContextMap()["gpu"])
		m, err := tel.GetMetric("otelcol_processor_straggler_episodes")
		require.NoError(t, err)
		sum, ok := m.Data.(metricdata.Sum[int64])
		require.True(t, ok)
		require.Len(t, sum.DataPoints, 1)
		assert.EqualValues(t, 1, sum.DataPoints[0].Value)
		phase, _ := sum.DataPoints[0].Attributes.Value("phase")
		assert.Equal(t, "onset", phase.AsString())
		for _, p := range parts {
			require.NoError(t, p.Shutdown(t.Context()))
		}
		require.NoError(t, tel.Shutdown(context.WithoutCancel(t.Context())))
	})
}
