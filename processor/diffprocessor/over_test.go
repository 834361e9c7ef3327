// SPDX-License-Identifier: Apache-2.0

package diffprocessor

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/processor/processortest"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/shortage"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor/internal/metadata"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor/internal/metadatatest"
)

// Pushes over a limit succeed; what was dropped is counted and told, in few words
// however many clusters there are.
func TestDroppedPointsAreCountedAndTold(t *testing.T) {
	tel := componenttest.NewTelemetry()
	defer func() { require.NoError(t, tel.Shutdown(context.Background())) }()
	logs, told := observer.New(zapcore.InfoLevel)
	set := processortest.NewNopSettings(metadata.Type)
	set.TelemetrySettings = tel.NewTelemetrySettings()
	set.Logger = zap.New(logs)
	cfg := createDefaultConfig().(*Config)
	cfg.MaxNodes, cfg.MaxSeries, cfg.ClusterShare = 1, 2, 1
	next := &hop{}
	p, err := newProcessor(cfg, set, next)
	require.NoError(t, err)
	now := p.engine.Epoch
	p.engine.Now = func() time.Time { return now }
	push := func(cluster, node string, at time.Duration, values ...float64) {
		t.Helper()
		md := report(node, at, values...)
		md.ResourceMetrics().At(0).Resource().Attributes().PutStr(gpusemconv.AttrClusterName, cluster)
		require.NoError(t, p.ConsumeMetrics(t.Context(), md))
	}

	push("east", "a", 10*time.Second, 1, 2, 3)
	assert.Equal(t, 2, next.took(), "no room for the third series")
	push("east", "a", 20*time.Second, 4, 5, 6)
	assert.Equal(t, 2, next.took(), "a known series goes on")
	calls := next.called()
	push("west", "b", 20*time.Second, 1)
	assert.Equal(t, calls, next.called(), "no room for the node")

	point := func(cluster, limit string, v int64) metricdata.DataPoint[int64] {
		return metricdata.DataPoint[int64]{Value: v, Attributes: attribute.NewSet(attribute.String("cluster", cluster), attribute.String("limit", limit))}
	}
	metadatatest.AssertEqualProcessorDiffOverLimitPoints(t, tel, []metricdata.DataPoint[int64]{
		point("east", "max_series", 2), point("west", "max_nodes", 1),
	}, metricdatatest.IgnoreTimestamp())
	metadatatest.AssertEqualProcessorDiffUntrackedPoints(t, tel, []metricdata.DataPoint[int64]{{}}, metricdatatest.IgnoreTimestamp())

	lines := told.TakeAll()
	require.Len(t, lines, 2, "one of each cluster")
	assert.Equal(t, map[string]any{"cluster": "east", "limit": "max_series", "max_series": int64(2)}, lines[0].ContextMap())
	assert.Equal(t, map[string]any{"cluster": "west", "limit": "max_nodes", "max_nodes": int64(1)}, lines[1].ContextMap())

	for i := range 500 {
		push(fmt.Sprint("made-up-", i), "b", 20*time.Second, 1)
	}
	got, err := tel.GetMetric("otelcol_processor_diff_over_limit_points")
	require.NoError(t, err)
	assert.Len(t, got.Data.(metricdata.Sum[int64]).DataPoints, shortage.MaxClusters+1)
	assert.Equal(t, shortage.MaxClusters+1-2, told.Len())
	now = now.Add(shortage.Silence)
	told.TakeAll()
	push("west", "b", 30*time.Second, 1)
	assert.Equal(t, 1, told.Len(), "again after an hour")
	require.NoError(t, p.Shutdown(t.Context()))
}
