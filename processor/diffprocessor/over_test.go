// SPDX-License-Identifier: Apache-2.0

package diffprocessor

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor/processortest"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/memorybudget"
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
	assert.Len(t, got.Data.(metricdata.Sum[int64]).DataPoints, memorybudget.MaxClusters+1)
	assert.Equal(t, memorybudget.MaxClusters+1-2, told.Len())
	now = now.Add(memorybudget.Silence)
	told.TakeAll()
	push("west", "b", 30*time.Second, 1)
	assert.Equal(t, 1, told.Len(), "again after an hour")
	require.NoError(t, p.Shutdown(t.Context()))
}

// greed is what a cluster pushes that wants more than its share: so many nodes, with so
// many points each, and long texts in the names of nodes, metrics and points.
type greed struct {
	nodes, points                 int
	ofNode, ofMetric, ofAttribute int
}

func (g greed) push(cluster string, node int) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr(gpusemconv.AttrClusterName, cluster)
	rm.Resource().Attributes().PutStr(gpusemconv.AttrHostName, fmt.Sprint(cluster, node))
	rm.Resource().Attributes().PutStr("more", strings.Repeat("x", g.ofNode))
	metrics := rm.ScopeMetrics().AppendEmpty().Metrics()
	for i := range g.points {
		m := metrics.AppendEmpty()
		m.SetName(fmt.Sprint("m", i%20, strings.Repeat("x", g.ofMetric)))
		if g.ofMetric > 0 {
			m.SetName(fmt.Sprint(node, "-", i, m.Name()))
		}
		dp := m.SetEmptyGauge().DataPoints().AppendEmpty()
		dp.SetTimestamp(946_684_800e9)
		dp.SetIntValue(1)
		dp.Attributes().PutStr("hw.id", fmt.Sprint(node, "-", i, strings.Repeat("x", g.ofAttribute)))
	}
	return md
}

// Ten times a cluster's share of the table, in one go: the next component gets no more
// than the share, all that was dropped is counted, and the other cluster loses nothing.
func TestAGreedyClusterReachesNobody(t *testing.T) {
	const share = minBytes / 2
	for name, g := range map[string]greed{
		"series":           {nodes: 10, points: 10_000},
		"nodes":            {nodes: 8000, points: 1},
		"names of nodes":   {nodes: 3500, points: 1, ofNode: 1000},
		"names of metrics": {nodes: 60, points: 100, ofMetric: 800},
		"attribute values": {nodes: 60, points: 100, ofAttribute: 800},
	} {
		t.Run(name, func(t *testing.T) {
			tel := componenttest.NewTelemetry()
			defer func() { require.NoError(t, tel.Shutdown(context.Background())) }()
			set := processortest.NewNopSettings(metadata.Type)
			set.TelemetrySettings = tel.NewTelemetrySettings()
			cfg := createDefaultConfig().(*Config)
			cfg.MaxBytes, cfg.ResyncInterval = minBytes, 0 // nobody tells all anew meanwhile
			got := map[string]int{}
			p, err := newProcessor(cfg, set, hopFunc(func(_ context.Context, md pmetric.Metrics) error {
				for _, rm := range md.ResourceMetrics().All() {
					cluster, _ := rm.Resource().Attributes().Get(gpusemconv.AttrClusterName)
					got[cluster.Str()] += pointsWithoutBeats(rm)
				}
				return nil
			}))
			require.NoError(t, err)
			defer func() { require.NoError(t, p.Shutdown(context.Background())) }()
			honest := greed{nodes: 10, points: 100} // twice that is a third of a share
			pushes := func(g greed, cluster string, from int) {
				for i := range g.nodes {
					require.NoError(t, p.ConsumeMetrics(t.Context(), g.push(cluster, from+i)))
				}
			}
			pushes(honest, "honest", 0)
			pushes(g, "greedy", 0)
			pushes(honest, "honest", 1000)
			pushes(honest, "honest", 0)

			assert.Equal(t, 2*honest.nodes*honest.points, got["honest"], "all of it once: it is known then")
			all := g.nodes * g.points
			assert.Less(t, got["greedy"], all/4)
			assert.Positive(t, got["greedy"])
			assert.Less(t, got["greedy"]*(g.ofAttribute+36), share)
			over, err := tel.GetMetric("otelcol_processor_diff_over_limit_points")
			require.NoError(t, err)
			dropped := 0
			for _, dp := range over.Data.(metricdata.Sum[int64]).DataPoints {
				cluster, _ := dp.Attributes.Value("cluster")
				assert.Equal(t, "greedy", cluster.AsString())
				dropped += int(dp.Value)
			}
			assert.Equal(t, all, got["greedy"]+dropped)
			bytes, err := tel.GetMetric("otelcol_processor_diff_bytes")
			require.NoError(t, err)
			took := bytes.Data.(metricdata.Gauge[int64]).DataPoints[0].Value
			assert.LessOrEqual(t, took, int64(minBytes*3/4), "two shares")
			assert.Greater(t, took, int64(share/2))
		})
	}
}

// pointsWithoutBeats are the points of a resource, without its heartbeat.
func pointsWithoutBeats(rm pmetric.ResourceMetrics) (points int) {
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			if m.Name() != gpusemconv.MetricNodeHeartbeat {
				points += m.Gauge().DataPoints().Len()
			}
		}
	}
	return points
}
