// SPDX-License-Identifier: Apache-2.0

package diffprocessor

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor/processortest"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/delta/deadband"
	"github.com/gpu-collector/gpu-collector/internal/delta/resync"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor/internal/metadata"
)

// seriesName is one series of the fleet in TestReceiverFollowsSender.
type seriesName struct {
	node, metric string
	gpu          int
}

// reading is what a series says: a number, and where a sum starts.
type reading struct {
	value float64
	start pcommon.Timestamp
}

// The metrics of that fleet, one of each kind; "banded" has a deadband.
var kinds = []string{"banded", "integer", "sum", "histogram"}

var band = deadband.Rule{Metric: "band*", Absolute: 1.5, Relative: 0.1}

// encodeReport writes readings as one report, in the order of the names.
func encodeReport(node string, at time.Duration, names []seriesName, state map[seriesName]reading) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr(gpusemconv.AttrHostName, node)
	sm := rm.ScopeMetrics().AppendEmpty()
	for _, name := range names {
		r, stamp := state[name], pcommon.Timestamp(946_684_800*time.Second+at)
		m := sm.Metrics().AppendEmpty()
		m.SetName(name.metric)
		switch name.metric {
		case "banded":
			dp := m.SetEmptyGauge().DataPoints().AppendEmpty()
			dp.SetTimestamp(stamp)
			dp.SetDoubleValue(r.value)
			dp.Attributes().PutInt("gpu", int64(name.gpu))
		case "integer":
			dp := m.SetEmptyGauge().DataPoints().AppendEmpty()
			dp.SetTimestamp(stamp)
			dp.SetIntValue(int64(r.value))
			dp.Attributes().PutInt("gpu", int64(name.gpu))
		case "sum":
			m.SetEmptySum().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
			m.Sum().SetIsMonotonic(true)
			dp := m.Sum().DataPoints().AppendEmpty()
			dp.SetTimestamp(stamp)
			dp.SetStartTimestamp(r.start)
			dp.SetDoubleValue(r.value)
			dp.Attributes().PutInt("gpu", int64(name.gpu))
		case "histogram":
			m.SetEmptyHistogram().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
			dp := m.Histogram().DataPoints().AppendEmpty()
			dp.SetTimestamp(stamp)
			dp.SetCount(uint64(max(0, r.value)))
			dp.SetSum(r.value)
			dp.Attributes().PutInt("gpu", int64(name.gpu))
		}
	}
	return md
}

// receiver is the next hop: what it was told last of each series. It is as odd as
// prometheusexporter, which skips what comes after a point without a value in the
// same metric.
type receiver map[seriesName]reading

func (r receiver) apply(md pmetric.Metrics, points int) {
	// take reports whether the rest of the metric is read.
	take := func(name seriesName, gone bool, to reading) bool {
		if points--; points < 0 {
			return false
		}
		if gone {
			delete(r, name)
			return false
		}
		r[name] = to
		return true
	}
	for _, rm := range md.ResourceMetrics().All() {
		node, _ := rm.Resource().Attributes().Get(gpusemconv.AttrHostName)
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				name := func(attrs pcommon.Map) seriesName {
					gpu, _ := attrs.Get("gpu")
					return seriesName{node.Str(), m.Name(), int(gpu.Int())}
				}
				switch {
				case m.Name() == gpusemconv.MetricNodeHeartbeat:
				case m.Type() == pmetric.MetricTypeHistogram:
					for _, dp := range m.Histogram().DataPoints().All() {
						if !take(name(dp.Attributes()), dp.Flags().NoRecordedValue(), reading{value: dp.Sum()}) {
							break
						}
					}
				default:
					var points pmetric.NumberDataPointSlice
					if m.Type() == pmetric.MetricTypeSum {
						points = m.Sum().DataPoints()
					} else {
						points = m.Gauge().DataPoints()
					}
					for _, dp := range points.All() {
						to := reading{dp.DoubleValue(), dp.StartTimestamp()}
						if dp.ValueType() == pmetric.NumberDataPointValueTypeInt {
							to.value = float64(dp.IntValue())
						}
						if !take(name(dp.Attributes()), dp.Flags().NoRecordedValue(), to) {
							break
						}
					}
				}
			}
		}
	}
}

// agrees reports whether what the receiver has of a series will do for the truth.
func agrees(name seriesName, has, truth reading) bool {
	if name.metric != "banded" {
		return has == truth
	}
	return math.Abs(has.value-truth.value) <= max(band.Absolute, band.Relative*math.Abs(truth.value)) &&
		(has.value == 0) == (truth.value == 0)
}

// fleet is the world of TestReceiverFollowsSender.
type fleet struct {
	p        *diffProcessor
	cfg      *Config
	now      time.Duration
	truth    map[seriesName]reading
	sent     map[seriesName]reading // as of the last report of each node that was taken
	next     receiver
	informed bool                // the next hop has not restarted since it was last asked to be told all
	known    map[seriesName]bool // to the processor; what else vanishes is for the next hop to expire
	outcome  string              // of the next call of the next hop
	nodes    []string
}

func (f *fleet) restart(t *rapid.T) {
	clear(f.known)
	var err error
	f.p, err = newProcessor(f.cfg, processortest.NewNopSettings(metadata.Type), hopFunc(f.consume))
	require.NoError(t, err)
	start := time.Now()
	f.p.engine.Epoch = start
	f.p.engine.Now = func() time.Time { return start.Add(f.now) }
}

func (f *fleet) consume(_ context.Context, md pmetric.Metrics) error {
	points := md.DataPointCount()
	switch f.outcome {
	case "refused":
		return errors.New("refused")
	case "refused for good":
		return consumererror.NewPermanent(errors.New("refused"))
	case "answer lost":
		f.next.apply(md, points)
		return errors.New("answer lost")
	case "half taken":
		f.next.apply(md, points/2)
		return errors.New("half taken")
	case "restarted meanwhile":
		// The answer brings a new epoch.
		f.next = receiver{}
		f.next.apply(md, points)
		f.p.engine.Table.Resync("", "")
		return nil
	}
	f.next.apply(md, points)
	// Whoever takes the data may change it.
	md.ResourceMetrics().RemoveIf(func(pmetric.ResourceMetrics) bool { return true })
	return nil
}

// names are those of a node's series now.
func (f *fleet) names(node string) []seriesName {
	var out []seriesName
	for name := range f.truth {
		if name.node == node {
			out = append(out, name)
		}
	}
	slices.SortFunc(out, func(a, b seriesName) int {
		return cmp.Or(cmp.Compare(a.metric, b.metric), cmp.Compare(a.gpu, b.gpu))
	})
	return out
}

// push sends a node's full report, in one piece or two, and reports whether all
// of it was taken.
func (f *fleet) push(node string, names []seriesName, cut int) bool {
	f.now += time.Second
	taken := true
	for _, part := range [][]seriesName{names[:cut], names[cut:]} {
		taken = f.p.ConsumeMetrics(context.Background(), encodeReport(node, f.now, part, f.truth)) == nil && taken
	}
	if taken {
		for name := range f.sent {
			if name.node == node {
				delete(f.sent, name)
			}
		}
		for _, name := range names {
			f.sent[name] = f.truth[name]
			f.known[name] = true
		}
	}
	return taken
}

func (f *fleet) flush() {
	if f.p.buffer != nil {
		f.p.flush(context.Background(), nil)
	}
}

// For any sequence of full reports in any order and division, refusals, lost
// answers, late reports, series that come and go, and restarts of either side:
// what the next hop has of each series agrees with the last report that was
// accepted, and after a restart of the next hop once its epoch is known and each
// node has reported. A series that vanished is then gone there, too.
func TestReceiverFollowsSender(t *testing.T) {
	for _, mode := range []struct {
		name  string
		flush time.Duration
	}{{"inline", 0}, {"conflating", time.Second}} {
		t.Run(mode.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { followSender(t, mode.flush) })
		})
	}
}

func followSender(t *rapid.T, flush time.Duration) {
	cfg := createDefaultConfig().(*Config)
	cfg.FlushInterval = flush
	cfg.Deadbands = []deadband.Rule{band}
	cfg.MaxBatchBytes = rapid.IntRange(1, 1000).Draw(t, "max_batch_bytes")
	cfg.ResyncInterval = 0 // or it would heal what else is wrong
	cfg.TTL, cfg.VanishedAfter = 640*time.Second, 60*time.Second
	f := &fleet{
		cfg: cfg, truth: map[seriesName]reading{}, sent: map[seriesName]reading{}, next: receiver{},
		informed: true, known: map[seriesName]bool{}, nodes: []string{"a", "b"},
	}
	for _, node := range f.nodes {
		f.truth[seriesName{node, "integer", 9}] = reading{value: 1} // a node that says nothing is silent
	}
	f.restart(t)
	anyName := func(t *rapid.T) seriesName {
		return seriesName{
			rapid.SampledFrom(f.nodes).Draw(t, "node"),
			rapid.SampledFrom(kinds).Draw(t, "metric"),
			rapid.IntRange(0, 2).Draw(t, "gpu"),
		}
	}
	accepted := func() bool { return f.outcome == "accepted" || f.outcome == "restarted meanwhile" }
	outcomes := []string{"accepted", "accepted", "accepted", "refused", "refused for good", "answer lost", "half taken", "restarted meanwhile"}
	check := func(t *rapid.T, node string) {
		for name, truth := range f.sent {
			if name.node != node {
				continue
			}
			has, ok := f.next[name]
			require.True(t, ok, "%v is missing", name)
			require.True(t, agrees(name, has, truth), "%v: has %v, is %v", name, has, truth)
		}
	}
	push := func(t *rapid.T) {
		node := rapid.SampledFrom(f.nodes).Draw(t, "node")
		names := f.names(node)
		if len(names) > 1 {
			names = rapid.Permutation(names).Draw(t, "order")
		}
		f.outcome = rapid.SampledFrom(outcomes).Draw(t, "outcome")
		if f.outcome == "restarted meanwhile" && f.p.buffer == nil {
			f.informed = false
		}
		taken := f.push(node, names, rapid.IntRange(0, len(names)).Draw(t, "cut"))
		if f.p.buffer == nil && taken && f.informed && f.outcome == "accepted" {
			check(t, node)
		}
	}
	heal := func(t *rapid.T) {
		// Each node reports for longer than a series takes to be declared gone.
		f.outcome = "accepted"
		for range 10 {
			f.now += 10 * time.Second
			for _, node := range f.nodes {
				names := f.names(node)
				require.True(t, f.push(node, names, len(names)))
			}
			f.flush()
		}
		f.informed = true
		for _, node := range f.nodes {
			check(t, node)
		}
		for name := range f.next {
			if _, ok := f.truth[name]; !ok {
				require.False(t, f.known[name], "%v is gone but at the next hop", name)
			}
		}
	}
	t.Repeat(map[string]func(*rapid.T){
		"change": func(t *rapid.T) {
			for range rapid.IntRange(1, 5).Draw(t, "changes") {
				name := anyName(t)
				r := f.truth[name]
				switch name.metric {
				case "banded":
					r.value += rapid.Float64Range(-2, 2).Draw(t, "step")
				default:
					r.value = float64(rapid.IntRange(0, 2).Draw(t, "value"))
				}
				if name.metric == "sum" {
					r.start = pcommon.Timestamp(rapid.IntRange(1, 2).Draw(t, "start"))
				}
				f.truth[name] = r
			}
		},
		"vanish": func(t *rapid.T) { delete(f.truth, anyName(t)) },
		"gpu falls off": func(t *rapid.T) {
			name := anyName(t)
			for _, kind := range kinds {
				delete(f.truth, seriesName{name.node, kind, name.gpu})
			}
		},
		"push": push, "push again": push, "and again": push,
		"late report": func(t *rapid.T) {
			// One that was overtaken: older values, an older timestamp.
			node := rapid.SampledFrom(f.nodes).Draw(t, "node")
			late := encodeReport(node, f.now-time.Second, f.names(node), map[seriesName]reading{})
			if f.informed && len(f.sent) > 0 && f.now > 0 {
				f.outcome = "accepted"
				sent := f.names(node)
				ready := slices.ContainsFunc(sent, func(n seriesName) bool { _, ok := f.sent[n]; return !ok })
				if ready {
					t.Skip() // of a series that was never accepted, it is the newest word
				}
				// Only what was accepted has a time to be older than.
				require.True(t, f.push(node, sent, len(sent)))
				require.NoError(t, f.p.ConsumeMetrics(context.Background(), late))
				f.flush()
				check(t, node)
			}
		},
		"time": func(t *rapid.T) {
			f.now += time.Duration(rapid.IntRange(0, 200).Draw(t, "seconds")) * time.Second
			before := f.p.engine.Table.Stats().Series
			if f.p.engine.Table.Sweep(f.now); f.p.engine.Table.Stats().Series < before {
				clear(f.known)
			}
		},
		"flush": func(t *rapid.T) {
			if f.p.buffer == nil {
				t.Skip()
			}
			f.outcome = rapid.SampledFrom(outcomes).Draw(t, "outcome")
			if f.outcome != "accepted" {
				f.informed = false
			}
			f.flush()
			if accepted() {
				require.Zero(t, f.p.buffer.Points())
			}
			if f.informed {
				for _, node := range f.nodes {
					check(t, node)
				}
			}
			if f.outcome == "accepted" {
				// Refused reports are whole again at the next report of each node,
				// which heal brings about; here what was held is delivered.
				return
			}
		},
		"next hop restarts": func(*rapid.T) {
			f.next, f.informed = receiver{}, false
			f.p.engine.Table.Resync("", "")
		},
		"next hop lacks a node": func(t *rapid.T) {
			node := rapid.SampledFrom(f.nodes).Draw(t, "node")
			for name := range f.next {
				if name.node == node {
					delete(f.next, name)
				}
			}
			f.informed = false
			// A node that the table does not know is new with its next report.
			f.p.engine.Table.Resync(rapid.SampledFrom([]string{"", "any"}).Draw(t, "cluster"), node)
		},
		"processor restarts": func(t *rapid.T) {
			// Points that it held are lost, unless they could be delivered.
			f.informed = f.informed && f.p.buffer == nil
			f.restart(t)
		},
		"heal": heal,
	})
	heal(t)
}

var _ resync.Source = (*ear)(nil)
