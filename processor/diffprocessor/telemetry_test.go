// SPDX-License-Identifier: Apache-2.0

package diffprocessor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"

	"github.com/gpu-collector/gpu-collector/internal/platform/memorybudget"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor/internal/metadatatest"
)

// figures has the processor's metrics of these names be these.
func (s *stage) figures(want map[string]int64) {
	s.t.Helper()
	got := map[string]int64{}
	for name := range want {
		m, err := s.tel.GetMetric("otelcol_processor_diff_" + name)
		require.NoError(s.t, err)
		var points []metricdata.DataPoint[int64]
		if sum, ok := m.Data.(metricdata.Sum[int64]); ok {
			points = sum.DataPoints
		} else {
			points = m.Data.(metricdata.Gauge[int64]).DataPoints
		}
		for _, dp := range points {
			got[name] += dp.Value
		}
	}
	assert.Equal(s.t, want, got)
}

// clock sets the processor's clock, and returns it.
func (s *stage) clock() *time.Time {
	now := time.Unix(946_684_800, 0)
	s.engine.Epoch, s.engine.Now = now, func() time.Time { return now }
	return &now
}

// bounded is one that runs, with a table of one node of two series.
func bounded(t *testing.T, edit func(*Config)) *stage {
	t.Helper()
	s := newStage(t, edit)
	require.NoError(t, s.Start(t.Context(), host{ownerID: &owner{nodes: 1}}))
	return s
}

func TestFiguresOfReports(t *testing.T) {
	s := bounded(t, func(c *Config) { c.OverLimit = OverLimitForward })
	s.push("a", 10*time.Second, 1, 2)
	s.push("a", 20*time.Second, 1, 3)
	s.push("a", 0, 1, 9)                 // two stale points and a heartbeat: it was received
	s.push("b", 0, 1)                    // no room for a second node
	s.push("a", 30*time.Second, 1, 3, 4) // no room for a third series
	s.answers(func(context.Context) error { return errors.New("no") })
	require.Error(t, s.ConsumeMetrics(t.Context(), report("a", 40*time.Second, 5, 3)))
	s.figures(map[string]int64{
		"received_points": 12, "forwarded_points": 2 + 1 + 1 + 1, "heartbeats": 5, "vanished_series": 0, "stale_points": 2,
		"untracked_points": 2, "nodes": 1, "series": 2, "resyncs": 0, "evicted_nodes": 0, "bytes": s.engine.Table.Bytes(),
	})
	s.engine.Table.Sweep(math.MaxInt64)
	s.figures(map[string]int64{"nodes": 0, "evicted_nodes": 1})

	s = started(t, func(*Config) {})
	now := s.clock()
	s.push("b", time.Hour, 1, 2, 3, 4) // a time to come
	s.push("a", 0, 1, 2, 3)
	s.engine.Table.Resync()
	s.push("a", 0, 1) // and two that it does not have
	*now = now.Add(2 * time.Minute)
	md := report("a", 2*time.Minute, 1, 2, 3)
	points := md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints()
	points.At(1).SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
	points.At(2).Attributes().PutEmptyBytes("odd")
	refused := pmetric.NewMetrics()
	md.CopyTo(refused)
	s.answers(func(context.Context) error { return errors.New("no") })
	require.Error(t, s.ConsumeMetrics(t.Context(), refused))
	s.answers(nil)
	require.NoError(t, s.ConsumeMetrics(t.Context(), md))
	s.figures(map[string]int64{
		"ahead_points": 4, "resyncs": 1, "repeated_points": 2, "vanished_series": 1, "unnamed_series": 1,
		"nodes": 2, "nodes_reporting": 1, "nodes_pending": 0,
	})
}

func TestAWrongClockIsLogged(t *testing.T) {
	const none = 946_684_800 * time.Second // before the first report: its points have no time
	for off, want := range map[time.Duration][]string{40 * time.Second: {"a 40s behind"}, -40 * time.Second: {"a 40s ahead"}, none: nil} {
		s := started(t, func(*Config) {})
		now := s.clock()
		for at := time.Duration(0); at < 30*time.Second; at += 10 * time.Second {
			if off == none {
				s.push("a", -none, 1)
			} else {
				s.push("a", at-off, 1)
			}
			*now = now.Add(10 * time.Second)
		}
		var got []string
		for _, line := range s.logged.TakeAll() {
			got = append(got, fmt.Sprint(line.ContextMap()["node"], " ", line.ContextMap()["clock"]))
		}
		assert.Equal(t, want, got)
	}
}

func TestAFlushIsCountedAndLogged(t *testing.T) {
	s := started(t, func(c *Config) { c.FlushInterval = time.Hour })
	s.push("a", 0, 1, 2)
	s.push("a", time.Second, 1, 3)
	s.push("b", time.Second, 1, 3)
	logged := func(want ...string) {
		t.Helper()
		s.flush(t.Context(), nil)
		s.flush(t.Context(), nil)
		var got []string
		for _, line := range s.logged.TakeAll() {
			got = append(got, fmt.Sprint(line.Level, " ", line.ContextMap()["error"], ": ", line.Message))
		}
		assert.Equal(t, want, got)
	}
	s.answers(func(context.Context) error { return errors.New("busy") })
	logged("warn busy: the next component refuses; last values wait until it takes them")
	s.figures(map[string]int64{"nodes_pending": 2, "failed_flushes": 2})
	s.answers(nil)
	logged("info <nil>: the next component takes values again")
	s.figures(map[string]int64{"nodes_pending": 0, "failed_flushes": 2, "forwarded_points": 4, "heartbeats": 2})
	s.push("a", 2*time.Second, 1, 4)
	s.answers(func(context.Context) error { return consumererror.NewPermanent(errors.New("too large")) })
	logged("warn Permanent error: too large: the next component refuses some values for good, which are dropped; all of their nodes is sent again after a minute",
		"info <nil>: the next component takes values again")
	s.figures(map[string]int64{"dropped_points": 2, "failed_flushes": 3})
}

// Pushes over a limit succeed; what was dropped is counted and logged, in few lines
// however many clusters there are.
func TestDroppedPointsAreCountedAndLogged(t *testing.T) {
	s := bounded(t, func(*Config) {})
	now := s.clock()
	push := func(cluster, node string, at time.Duration, values ...float64) (calls, points int) {
		t.Helper()
		md := report(node, at, values...)
		md.ResourceMetrics().At(0).Resource().Attributes().PutStr(gpusemconv.AttrClusterName, cluster)
		require.NoError(t, s.ConsumeMetrics(t.Context(), md))
		return s.took()
	}
	_, points := push("east", "a", 10*time.Second, 1, 2, 3)
	assert.Equal(t, 2+1, points, "no room for the third series")
	_, points = push("east", "a", 20*time.Second, 4, 5, 6)
	assert.Equal(t, 2+1, points, "a known series goes on")
	calls, _ := push("west", "b", 20*time.Second, 1)
	assert.Zero(t, calls, "no room for the node")

	point := func(cluster, limit string, v int64) metricdata.DataPoint[int64] {
		return metricdata.DataPoint[int64]{Value: v, Attributes: attribute.NewSet(attribute.String("cluster", cluster), attribute.String("limit", limit))}
	}
	metadatatest.AssertEqualProcessorDiffOverLimitPoints(t, s.tel, []metricdata.DataPoint[int64]{
		point("east", "max_series_per_node", 2), point("west", "max_nodes", 1),
	}, metricdatatest.IgnoreTimestamp())
	s.figures(map[string]int64{"untracked_points": 0})
	lines := s.logged.TakeAll()
	require.Len(t, lines, 2, "one of each cluster")
	assert.Equal(t, map[string]any{"cluster": "east", "node": "a", "metric": "m", "limit": "max_series_per_node", "max_series_per_node": int64(2)}, lines[0].ContextMap())
	assert.Equal(t, map[string]any{"cluster": "west", "node": "b", "metric": "m", "limit": "max_nodes", "max_nodes": int64(1)}, lines[1].ContextMap())

	for i := range 500 {
		push(fmt.Sprint("made-up-", i), "b", 20*time.Second, 1)
	}
	got, err := s.tel.GetMetric("otelcol_processor_diff_over_limit_points")
	require.NoError(t, err)
	assert.Len(t, got.Data.(metricdata.Sum[int64]).DataPoints, memorybudget.MaxClusters+1)
	assert.Equal(t, memorybudget.MaxClusters+1-2, s.logged.Len())
	*now = now.Add(memorybudget.LogInterval)
	s.logged.TakeAll()
	push("west", "b", 30*time.Second, 1)
	assert.Equal(t, 1, s.logged.Len(), "again after an hour")
}
