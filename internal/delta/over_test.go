// SPDX-License-Identifier: Apache-2.0

package delta

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

// mixed is a report with a point of each type: gauge, cumulative and delta sum, both
// histograms with either temporality, summary, and the end of a series; unless regular,
// since bytes are compared of gauges and sums alone.
func mixed(cluster, node string, regular bool) pmetric.Metrics {
	return mixedAt(cluster, node, regular, testTime)
}

func mixedAt(cluster, node string, regular bool, when time.Time) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr(gpusemconv.AttrClusterName, cluster)
	rm.Resource().Attributes().PutStr(gpusemconv.AttrHostName, node)
	metrics := rm.ScopeMetrics().AppendEmpty().Metrics()
	add := func() pmetric.Metric {
		m := metrics.AppendEmpty()
		m.SetName(fmt.Sprint("m", metrics.Len()))
		return m
	}
	at := pcommon.NewTimestampFromTime(when)
	add().SetEmptyGauge().DataPoints().AppendEmpty().SetTimestamp(at)
	metrics.At(0).Gauge().DataPoints().At(0).SetIntValue(1)
	for _, of := range []pmetric.AggregationTemporality{pmetric.AggregationTemporalityCumulative, pmetric.AggregationTemporalityDelta} {
		s := add().SetEmptySum()
		s.SetAggregationTemporality(of)
		dp := s.DataPoints().AppendEmpty()
		dp.SetTimestamp(at)
		dp.SetDoubleValue(2)
		if regular {
			continue
		}
		h := add().SetEmptyHistogram()
		h.SetAggregationTemporality(of)
		h.DataPoints().AppendEmpty().SetTimestamp(at)
		e := add().SetEmptyExponentialHistogram()
		e.SetAggregationTemporality(of)
		e.DataPoints().AppendEmpty().SetTimestamp(at)
	}
	if !regular {
		add() // of a type that pdata does not know
		add().SetEmptySummary().DataPoints().AppendEmpty().SetTimestamp(at)
		end := add().SetEmptyGauge().DataPoints().AppendEmpty()
		end.SetTimestamp(at)
		end.SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
	}
	return md
}

// Whatever the type: nothing of a node without room goes on, and of a node with room all
// but what is new.
func TestNothingOverALimitGoesOn(t *testing.T) {
	for regular, passed := range map[bool]int64{true: 1 + 1, false: 1 + 1 + 2} { // the gauge, and the deltas
		var now time.Duration
		points := int64(mixed("", "", regular).DataPointCount())
		s := newSink(t, &now, func(s *statetable.Settings) { s.DropOver, s.MaxNodes = true, 1 })
		require.NoError(t, s.engine.Consume(t.Context(), mixed("east", "a", regular)))
		require.Len(t, s.got, 1)
		assert.Empty(t, s.counts.Over)
		for range 2 {
			require.NoError(t, s.engine.Consume(t.Context(), mixed("west", "b", regular)))
			assert.Len(t, s.got, 1, "no point, no heartbeat, no call")
			assert.Equal(t, []Over{{"west", statetable.LimitNodes, points}}, s.counts.Over)
			assert.Equal(t, points, s.counts.Received)
			assert.Zero(t, s.counts.Forwarded)
		}

		s = newSink(t, &now, func(s *statetable.Settings) { s.DropOver, s.MaxSeries = true, 1 })
		require.NoError(t, s.engine.Consume(t.Context(), mixed("east", "a", regular)))
		assert.Equal(t, passed, s.counts.Forwarded)
		assert.EqualValues(t, 1, s.counts.Heartbeats)
		assert.Equal(t, []Over{{"east", statetable.LimitSeries, points - passed}}, s.counts.Over)
		out, err := decode(s.got[0])
		require.NoError(t, err)
		assert.EqualValues(t, passed+1, out.DataPointCount())
	}
}

// Names take room, too: points without go.
func TestPointsWithoutRoomForTheirNames(t *testing.T) {
	var now time.Duration
	s := newSink(t, &now, func(s *statetable.Settings) { s.DropOver, s.MaxBytes = true, 5000 })
	md := mixed("east", "a", true)
	points := md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints()
	for i := range 20 {
		dp := points.AppendEmpty()
		points.At(0).CopyTo(dp)
		dp.Attributes().PutStr("long", fmt.Sprintf("%0800d", i))
	}
	require.NoError(t, s.engine.Consume(t.Context(), md))
	require.Len(t, s.counts.Over, 1)
	over := s.counts.Over[0]
	assert.Equal(t, statetable.LimitBytes, over.Limit)
	assert.Greater(t, over.Points, int64(15))
	assert.EqualValues(t, 20+3, s.counts.Received)
	assert.Equal(t, s.counts.Received, s.counts.Forwarded+over.Points)
	out, err := decode(s.got[0])
	require.NoError(t, err)
	assert.EqualValues(t, s.counts.Forwarded+s.counts.Heartbeats, out.DataPointCount())
	assert.Zero(t, s.engine.Table.Stats().Unnamed)
}

// Resources of several clusters in one push, by limit.
func TestOverIsCountedByCluster(t *testing.T) {
	var now time.Duration
	s := newSink(t, &now, func(s *statetable.Settings) {
		s.DropOver, s.MaxSeries, s.MaxSeriesPerNode, s.ClusterShare = true, 8, 2, 0.5
	})
	md := pmetric.NewMetrics()
	for _, node := range []string{"a", "b", "c"} {
		for _, cluster := range []string{"east", "west"} {
			nodeReport().ResourceMetrics().MoveAndAppendTo(md.ResourceMetrics())
			attrs := md.ResourceMetrics().At(md.ResourceMetrics().Len() - 1).Resource().Attributes()
			attrs.PutStr(gpusemconv.AttrClusterName, cluster)
			attrs.PutStr(gpusemconv.AttrHostName, node)
		}
	}
	require.NoError(t, s.engine.Consume(t.Context(), md))
	var over int64
	seen := map[Over]bool{}
	for _, o := range s.counts.Over {
		over += o.Points
		o.Points = 0
		assert.False(t, seen[o], "one of each")
		seen[o] = true
	}
	assert.Equal(t, map[Over]bool{
		{"east", statetable.LimitNodeSeries, 0}: true, {"east", statetable.LimitSeries, 0}: true,
		{"west", statetable.LimitNodeSeries, 0}: true, {"west", statetable.LimitSeries, 0}: true,
	}, seen)
	assert.Equal(t, s.counts.Received, over+s.counts.Forwarded)
}

// A push of more made-up clusters than have a name.
func TestOverOfManyClustersIsFew(t *testing.T) {
	var now time.Duration
	s := newSink(t, &now, func(s *statetable.Settings) { s.DropOver, s.MaxNodes = true, 1 })
	md := pmetric.NewMetrics()
	const clusters = 1000
	for i := range clusters {
		mixed(fmt.Sprint("c", i), "n", true).ResourceMetrics().MoveAndAppendTo(md.ResourceMetrics())
	}
	points := int64(md.DataPointCount())
	require.NoError(t, s.engine.Consume(t.Context(), md))
	assert.Len(t, s.counts.Over, maxOver+1)
	assert.Equal(t, wire.Overflow, s.counts.Over[maxOver].Cluster)
	over := s.counts.Forwarded
	for _, o := range s.counts.Over {
		over += o.Points
	}
	assert.Equal(t, points, over)
}
