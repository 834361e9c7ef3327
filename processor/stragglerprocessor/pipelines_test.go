// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/processortest"
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

		require.NoError(t, logs.ConsumeLogs(t.Context(), record("passes")))
		assert.Equal(t, []string{"passes"}, bodies(&store))

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

func TestAPipelineOfEitherKindIsEnough(t *testing.T) {
	f, cfg := NewFactory(), createDefaultConfig().(*Config)
	cfg.Mode = modeGateway
	set := processortest.NewNopSettings(f.Type())
	metrics, err := f.CreateMetrics(t.Context(), set, cfg, consumertest.NewNop())
	require.NoError(t, err)
	require.NoError(t, metrics.Start(t.Context(), componenttest.NewNopHost()))
	require.NoError(t, metrics.Shutdown(t.Context()))
	logs, err := f.CreateLogs(t.Context(), set, cfg, consumertest.NewNop())
	require.NoError(t, err)
	require.NoError(t, logs.Start(t.Context(), componenttest.NewNopHost()))
	require.NoError(t, logs.ConsumeLogs(t.Context(), record("a")))
	require.NoError(t, logs.Shutdown(t.Context()))
}

func TestAnAgentHasNothingToSayInLogs(t *testing.T) {
	f, cfg := NewFactory(), createDefaultConfig().(*Config)
	cfg.Mode = modeAgent
	_, err := f.CreateLogs(t.Context(), processortest.NewNopSettings(f.Type()), cfg, consumertest.NewNop())
	require.ErrorContains(t, err, "`mode` is \"agent\"")
}
