// SPDX-License-Identifier: Apache-2.0

package diffprocessor

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor/processortest"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor/internal/metadata"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor/internal/metadatatest"
)

func conflating(c *Config) { c.FlushInterval, c.ResyncInterval = time.Second, 0 }

// byHand is conflating for tests that flush themselves and not by synctest's clock:
// a flusher that ran as well would take some of what they look for.
func byHand(c *Config) { conflating(c); c.FlushInterval = time.Hour }

func TestFlushSendsLastValuesOfAllNodesTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := &hop{}
		p := newTestProcessor(t, next, conflating)
		for i := range 3 {
			for _, node := range []string{"a", "b"} {
				require.NoError(t, p.ConsumeMetrics(t.Context(), report(node, time.Duration(i)*time.Second, 1, float64(i))))
			}
		}
		assert.Zero(t, next.called())
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		assert.Equal(t, 1, next.called())
		assert.Equal(t, 4, next.took(), "the last values alone")
		assert.Equal(t, map[string]float64{"a/m/GPU-0": 1, "a/m/GPU-1": 2, "b/m/GPU-0": 1, "b/m/GPU-1": 2}, next.state)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		assert.Equal(t, 1, next.called(), "nothing changed, nothing is sent")
		require.NoError(t, p.Shutdown(t.Context()))
	})
}

// The next hop hangs and then refuses for an hour: no push waits for it, what is
// held never exceeds the state, and then it has the last state.
func TestNextHopAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes = 20
		next := &hop{}
		hang := make(chan struct{})
		inner := hopFunc(func(ctx context.Context, md pmetric.Metrics) error {
			<-hang
			return next.ConsumeMetrics(ctx, md)
		})
		p := newTestProcessor(t, inner, conflating)
		next.refuse = func() error { return errors.New("away") }
		for i := range 360 {
			if i == 100 {
				close(hang)
			}
			for n := range nodes {
				began := time.Now()
				require.NoError(t, p.ConsumeMetrics(t.Context(), report(strconv.Itoa(n), time.Duration(i)*10*time.Second, float64(i), float64(n))))
				require.Zero(t, time.Since(began))
			}
			require.LessOrEqual(t, p.buffer.Points(), int64(2*nodes*3), "two values and a heartbeat, and as many being sent")
			time.Sleep(10 * time.Second)
		}
		next.mu.Lock()
		next.refuse = nil
		next.mu.Unlock()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		for n := range nodes {
			assert.InDelta(t, 359, next.state[fmt.Sprintf("%d/m/GPU-0", n)], 0)
		}
		assert.Zero(t, p.buffer.Points())
		require.NoError(t, p.Shutdown(t.Context()))
	})
}

func TestShutdownDeliversWhatIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := &hop{}
		p := newTestProcessor(t, next, conflating)
		require.NoError(t, p.ConsumeMetrics(t.Context(), report("a", 0, 1)))
		require.NoError(t, p.Shutdown(t.Context()))
		assert.Equal(t, map[string]float64{"a/m/GPU-0": 1}, next.state)
	})
}

// A next hop that answers only when it is told to stop holds up neither the
// Collector's end nor, with a deadline, longer than that.
func TestShutdownEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct{ wait, deadline, want time.Duration }{
			{0, time.Hour, shutdownTimeout},
			{0, 3 * time.Second, 3 * time.Second},
			{2 * time.Second, 3 * time.Second, 3 * time.Second}, // a flush is under way
		} {
			p := newTestProcessor(t, hopFunc(func(ctx context.Context, _ pmetric.Metrics) error {
				<-ctx.Done()
				return ctx.Err()
			}), conflating)
			require.NoError(t, p.ConsumeMetrics(t.Context(), report("a", 0, 1)))
			time.Sleep(tt.wait)
			ctx, done := context.WithTimeout(t.Context(), tt.deadline)
			began := time.Now()
			require.NoError(t, p.Shutdown(ctx))
			assert.Equal(t, tt.want, time.Since(began))
			assert.EqualValues(t, 2, p.buffer.Points(), "held to the end")
			done()
		}
	})
}

func TestDeltasAreNotHeld(t *testing.T) {
	delta := func() pmetric.Metrics {
		md := report("a", 0, 1)
		m := md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().AppendEmpty()
		m.SetEmptySum().SetAggregationTemporality(pmetric.AggregationTemporalityDelta)
		m.Sum().DataPoints().AppendEmpty().SetIntValue(5)
		return md
	}
	var got []int
	var answer error
	p := newTestProcessor(t, hopFunc(func(_ context.Context, md pmetric.Metrics) error {
		got = append(got, md.DataPointCount())
		return answer
	}), byHand)
	require.NoError(t, p.ConsumeMetrics(t.Context(), delta()))
	assert.Equal(t, []int{1}, got, "here and now")
	answer = errors.New("away")
	require.ErrorIs(t, p.ConsumeMetrics(t.Context(), delta()), answer, "its sender is to know")
	assert.EqualValues(t, 2, p.buffer.Points(), "a value and a heartbeat, once")
}

// One node that the next hop will not have takes no other with it.
func TestOneBadNodeAmongMany(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	next := &hop{}
	calls := 0
	poison := true
	p := newTestProcessor(t, hopFunc(func(ctx context.Context, md pmetric.Metrics) error {
		calls++
		for _, rm := range md.ResourceMetrics().All() {
			node, _ := rm.Resource().Attributes().Get("host.name")
			for _, sm := range rm.ScopeMetrics().All() {
				for _, m := range sm.Metrics().All() {
					for _, dp := range m.Gauge().DataPoints().All() {
						if poison && node.Str() == "17" && dp.DoubleValue() == 4 {
							return consumererror.NewPermanent(errors.New("larger than max"))
						}
					}
				}
			}
		}
		return next.ConsumeMetrics(ctx, md)
	}), byHand)
	p.logger = zap.New(core)
	const nodes = 100
	want := map[string]float64{}
	for n := range nodes {
		require.NoError(t, p.ConsumeMetrics(t.Context(), report(strconv.Itoa(n), 0, 1, 2, 3, 4)))
		for g := range 4 {
			want[fmt.Sprintf("%d/m/GPU-%d", n, g)] = float64(g + 1)
		}
	}
	delete(want, "17/m/GPU-3")
	p.flush(t.Context(), nil)
	assert.Equal(t, want, next.state)
	assert.LessOrEqual(t, calls, 2*12, "found by halving")
	assert.EqualValues(t, 1, p.buffer.Dropped())
	assert.Zero(t, p.buffer.Points())
	require.Len(t, logs.All(), 1)
	assert.Contains(t, logs.All()[0].Message, "dropped")
	poison = false
	require.NoError(t, p.ConsumeMetrics(t.Context(), report("17", time.Second, 1, 2, 3, 4)))
	p.flush(t.Context(), nil)
	assert.InDelta(t, 4, next.state["17/m/GPU-3"], 0, "and comes with the next report")
}

// Where the next hop will have nothing at all, it is not asked for each node.
func TestEverythingIsRefusedForGood(t *testing.T) {
	calls := 0
	p := newTestProcessor(t, hopFunc(func(context.Context, pmetric.Metrics) error {
		calls++
		return consumererror.NewPermanent(errors.New("no such service"))
	}), byHand)
	for n := range 1000 {
		require.NoError(t, p.ConsumeMetrics(t.Context(), report(strconv.Itoa(n), 0, 1)))
	}
	p.flush(t.Context(), nil)
	assert.Less(t, calls, 64)
	assert.Zero(t, p.buffer.Points())
	assert.EqualValues(t, 2000, p.buffer.Dropped())
}

// A node with endless attribute values keeps neither another's points from the
// next hop, nor its own heartbeat.
func TestOneNodeLeavesRoomForOthers(t *testing.T) {
	next := &hop{}
	beats := 0
	p := newTestProcessor(t, hopFunc(func(ctx context.Context, md pmetric.Metrics) error {
		for _, rm := range md.ResourceMetrics().All() {
			if node, _ := rm.Resource().Attributes().Get("host.name"); node.Str() == "endless" {
				last := rm.ScopeMetrics().At(rm.ScopeMetrics().Len() - 1)
				if last.Metrics().At(0).Name() == gpusemconv.MetricNodeHeartbeat {
					beats++
				}
			}
		}
		return next.ConsumeMetrics(ctx, md)
	}), func(c *Config) {
		byHand(c)
		c.MaxSeriesPerNode, c.MaxPendingPoints, c.ClusterShare, c.OverLimit = 50, 200, 1, OverLimitForward
	})
	for i := range 3 {
		at := time.Duration(i) * time.Second
		require.NoError(t, p.ConsumeMetrics(t.Context(), report("endless", at, make([]float64, 1000)...)))
		require.NoError(t, p.ConsumeMetrics(t.Context(), report("other", at, 1, 2, float64(i))))
		assert.EqualValues(t, 101, p.buffer.Points()-map[int]int64{0: 4, 1: 2, 2: 2}[i])
		p.flush(t.Context(), nil)
		assert.InDelta(t, i, next.state["other/m/GPU-2"], 0)
		assert.Equal(t, i+1, beats)
	}
	assert.Len(t, next.state, 100+3)
	assert.EqualValues(t, 3*900, p.buffer.Dropped())
}

func TestFlushTelemetry(t *testing.T) {
	tel := componenttest.NewTelemetry()
	defer func() { require.NoError(t, tel.Shutdown(context.Background())) }()
	cfg := createDefaultConfig().(*Config)
	byHand(cfg)
	cfg.MaxPendingPoints, cfg.ClusterShare = 4, 1
	set := processortest.NewNopSettings(metadata.Type)
	set.TelemetrySettings = tel.NewTelemetrySettings()
	next := &hop{refuse: func() error { return errors.New("no") }}
	p, err := newProcessor(cfg, set, next)
	require.NoError(t, err)
	require.NoError(t, p.ConsumeMetrics(t.Context(), report("a", 0, 1, 2)))
	require.NoError(t, p.ConsumeMetrics(t.Context(), report("a", time.Second, 1, 3)))
	require.NoError(t, p.ConsumeMetrics(t.Context(), report("b", time.Second, 1, 3)), "all of it finds room, or nothing")
	p.flush(t.Context(), nil)
	point := func(v int64) []metricdata.DataPoint[int64] { return []metricdata.DataPoint[int64]{{Value: v}} }
	opt := metricdatatest.IgnoreTimestamp()
	metadatatest.AssertEqualProcessorDiffPendingPoints(t, tel, point(3), opt)
	metadatatest.AssertEqualProcessorDiffReplacedPoints(t, tel, point(2), opt)
	metadatatest.AssertEqualProcessorDiffDroppedPoints(t, tel, point(3), opt)
	metadatatest.AssertEqualProcessorDiffFailedFlushes(t, tel, point(1), opt)
	next.refuse = nil
	p.flush(t.Context(), nil)
	metadatatest.AssertEqualProcessorDiffPendingPoints(t, tel, point(0), opt)
	metadatatest.AssertEqualProcessorDiffForwardedPoints(t, tel, point(2), opt)
	metadatatest.AssertEqualProcessorDiffHeartbeats(t, tel, point(1), opt)
	require.NoError(t, p.Shutdown(t.Context()))
}
