// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"cmp"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// seriesName is one series of the fleet in TestReceiverFollowsSender.
type seriesName struct {
	node, metric string
	gpu          int
}

// stated is what a series says: a number, and where a sum starts.
type stated struct {
	value float64
	start pcommon.Timestamp
}

// The metrics of that fleet, one of each kind; "banded" has a deadband.
var kinds = []string{"banded", "integer", "sum", "histogram"}

var band = lastvalue.Band{Metric: "band*", Absolute: 1.5, Relative: 0.1}

// nodesEpoch is the nodes' own: their clocks are so far behind the tiers' that a point with a
// tier's time instead of theirs is seen at once.
const nodesEpoch = pcommon.Timestamp(1_700_000_000*time.Second - 30*24*time.Hour)

// dataPoint is a point of any type.
type dataPoint interface {
	Timestamp() pcommon.Timestamp
	SetTimestamp(pcommon.Timestamp)
	Flags() pmetric.DataPointFlags
	SetFlags(pmetric.DataPointFlags)
	Attributes() pcommon.Map
}

// encodeReport writes what series say as one report, in the order of the names.
func encodeReport(node string, at time.Duration, names []seriesName, state map[seriesName]stated) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr(gpusemconv.AttrHostName, node)
	sm := rm.ScopeMetrics().AppendEmpty()
	for _, name := range names {
		said := state[name]
		m := sm.Metrics().AppendEmpty()
		m.SetName(name.metric)
		var point dataPoint
		switch name.metric {
		case "banded":
			dp := m.SetEmptyGauge().DataPoints().AppendEmpty()
			dp.SetDoubleValue(said.value)
			point = dp
		case "integer":
			dp := m.SetEmptyGauge().DataPoints().AppendEmpty()
			dp.SetIntValue(int64(said.value))
			point = dp
		case "sum":
			m.SetEmptySum().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
			m.Sum().SetIsMonotonic(true)
			dp := m.Sum().DataPoints().AppendEmpty()
			dp.SetStartTimestamp(said.start)
			dp.SetDoubleValue(said.value)
			point = dp
		case "histogram":
			m.SetEmptyHistogram().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
			dp := m.Histogram().DataPoints().AppendEmpty()
			dp.SetCount(uint64(max(0, said.value)))
			dp.SetSum(said.value)
			point = dp
		}
		point.SetTimestamp(nodesEpoch + pcommon.Timestamp(at))
		point.Attributes().PutInt("gpu", int64(name.gpu))
	}
	return md
}

// eachPoint yields the points of the fleet's metrics, and whether they end their series. The
// rest of a metric is skipped where yield returns false.
func eachPoint(md pmetric.Metrics, yield func(name seriesName, says stated, at time.Duration, end bool) bool) {
	for _, rm := range md.ResourceMetrics().All() {
		node, _ := rm.Resource().Attributes().Get(gpusemconv.AttrHostName)
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				if !slices.Contains(kinds, m.Name()) {
					continue
				}
				point := func(dp dataPoint, says stated) bool {
					gpu, _ := dp.Attributes().Get("gpu")
					name := seriesName{node.Str(), m.Name(), int(gpu.Int())}
					return yield(name, says, time.Duration(dp.Timestamp()-nodesEpoch), dp.Flags().NoRecordedValue())
				}
				if m.Type() == pmetric.MetricTypeHistogram {
					for _, dp := range m.Histogram().DataPoints().All() {
						if !point(dp, stated{value: dp.Sum()}) {
							break
						}
					}
					continue
				}
				var points pmetric.NumberDataPointSlice
				if m.Type() == pmetric.MetricTypeSum {
					points = m.Sum().DataPoints()
				} else {
					points = m.Gauge().DataPoints()
				}
				for _, dp := range points.All() {
					says := stated{dp.DoubleValue(), dp.StartTimestamp()}
					if dp.ValueType() == pmetric.NumberDataPointValueTypeInt {
						says.value = float64(dp.IntValue())
					}
					if !point(dp, says) {
						break
					}
				}
			}
		}
	}
}

// receiver is the next hop: what it was told last of each series. It is as odd as
// prometheusexporter, which skips what comes after a point without a value in the
// same metric.
type receiver map[seriesName]stated

func (r receiver) apply(md pmetric.Metrics, points int) {
	eachPoint(md, func(name seriesName, says stated, _ time.Duration, end bool) bool {
		if points--; points < 0 {
			return false
		}
		if end {
			delete(r, name)
			return false
		}
		r[name] = says
		return true
	})
}

// agrees reports whether what the receiver has of a series will do for the truth.
func agrees(name seriesName, has, truth stated) bool {
	if name.metric != "banded" {
		return has == truth
	}
	return math.Abs(has.value-truth.value) <= max(band.Absolute, band.Relative*math.Abs(truth.value)) &&
		(has.value == 0) == (truth.value == 0)
}

// fleet is the world of TestReceiverFollowsSender.
type fleet struct {
	engine   *Engine
	set      lastvalue.Settings
	maxBytes int
	now      time.Duration
	truth    map[seriesName]stated
	sent     map[seriesName]stated // as of the last report of each node that was taken
	next     receiver
	informed bool                // the next hop has not restarted since it was last asked to be told all
	known    map[seriesName]bool // to the processor; what else vanishes is for the next hop to expire
	outcome  string              // of the next call of the next hop
	nodes    []string
}

func (f *fleet) restart() {
	clear(f.known)
	f.engine = NewEngine(f.set)
	f.engine.Epoch = epoch
	f.engine.Now = func() time.Time { return epoch.Add(f.now) }
}

func (f *fleet) consume(_ context.Context, m Message) error {
	md, points := m.Metrics, m.Metrics.DataPointCount()
	switch f.outcome {
	case "refused":
		return errRefused
	case "refused for good":
		return errForGood
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
		f.engine.Table.Resync("")
		return nil
	}
	f.next.apply(md, points)
	// Whoever takes the data may change it.
	md.ResourceMetrics().RemoveIf(func(pmetric.ResourceMetrics) bool { return true })
	return nil
}

// namesOf are those of a node's series.
func namesOf(truth map[seriesName]stated, node string) []seriesName {
	var out []seriesName
	for name := range truth {
		if name.node == node {
			out = append(out, name)
		}
	}
	slices.SortFunc(out, func(a, b seriesName) int {
		return cmp.Or(cmp.Compare(a.metric, b.metric), cmp.Compare(a.gpu, b.gpu))
	})
	return out
}

func (f *fleet) names(node string) []seriesName { return namesOf(f.truth, node) }

func (f *fleet) report(md pmetric.Metrics) error {
	_, err := f.engine.Consume(context.Background(), md, f.consume)
	return err
}

// push sends a node's full report, in one piece or two, and reports whether all
// of it was taken.
func (f *fleet) push(node string, names []seriesName, cut int) bool {
	f.now += time.Second
	taken := true
	for _, part := range [][]seriesName{names[:cut], names[cut:]} {
		taken = f.report(encodeReport(node, f.now, part, f.truth)) == nil && taken
	}
	for name := range f.sent {
		if name.node == node && (taken || f.waits(name) || f.set.Collect) {
			delete(f.sent, name)
		}
	}
	for _, name := range names {
		if taken || f.waits(name) {
			f.sent[name] = f.truth[name]
			f.known[name] = true
		}
	}
	return taken
}

// waits reports whether the values of a series wait for a flush, whatever becomes of the
// push: they are true.
func (f *fleet) waits(name seriesName) bool {
	return f.set.Collect && name.metric != "histogram"
}

func (f *fleet) flush() {
	if f.set.Collect {
		f.engine.Flush(context.Background(), f.maxBytes, nil, f.consume)
	}
}

// For any sequence of full reports in any order and division, refusals, lost
// answers, late reports, series that come and go, and restarts of either side:
// what the next hop has of each series agrees with the last report that was
// accepted, and after a restart of the next hop once its epoch is known and each
// node has reported. A series that vanished is then gone there, too.
func TestReceiverFollowsSender(t *testing.T) {
	t.Run("inline", func(t *testing.T) { rapid.Check(t, func(t *rapid.T) { followSender(t, false) }) })
	t.Run("conflating", func(t *testing.T) { rapid.Check(t, func(t *rapid.T) { followSender(t, true) }) })
}

func followSender(t *rapid.T, collect bool) {
	f := &fleet{
		set: lastvalue.Settings{
			MaxNodes: 1000, MaxSeries: 100_000, ClusterShare: 0.5, DropOver: true, TTL: 640 * time.Second, VanishedAfter: 60 * time.Second,
			OpaqueInterval: OpaqueInterval, Collect: collect, Bands: []lastvalue.Band{band}, Rand: rand.Int64N,
		}, // without resyncs, or they would heal what else is wrong
		maxBytes: rapid.IntRange(1, 1000).Draw(t, "max_batch_bytes"),
		truth:    map[seriesName]stated{}, sent: map[seriesName]stated{}, next: receiver{},
		informed: true, known: map[seriesName]bool{}, nodes: []string{"a", "b"},
	}
	for _, node := range f.nodes {
		f.truth[seriesName{node, "integer", 9}] = stated{value: 1} // a node that says nothing is silent
	}
	f.restart()
	anyName := func(t *rapid.T) seriesName {
		return seriesName{
			rapid.SampledFrom(f.nodes).Draw(t, "node"),
			rapid.SampledFrom(kinds).Draw(t, "metric"),
			rapid.IntRange(0, 2).Draw(t, "gpu"),
		}
	}
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
		if f.outcome == "restarted meanwhile" {
			f.informed = false
		}
		taken := f.push(node, names, rapid.IntRange(0, len(names)).Draw(t, "cut"))
		if !f.set.Collect && taken && f.informed && f.outcome == "accepted" {
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
			late := encodeReport(node, f.now-time.Second, f.names(node), map[seriesName]stated{})
			if f.informed && len(f.sent) > 0 && f.now > 0 {
				f.outcome = "accepted"
				sent := f.names(node)
				ready := slices.ContainsFunc(sent, func(n seriesName) bool { _, ok := f.sent[n]; return !ok })
				if ready {
					t.Skip() // of a series that was never accepted, it is the newest word
				}
				// Only what was accepted has a time to be older than.
				require.True(t, f.push(node, sent, len(sent)))
				require.NoError(t, f.report(late))
				f.flush()
				check(t, node)
			}
		},
		"time": func(t *rapid.T) {
			f.now += time.Duration(rapid.IntRange(0, 200).Draw(t, "seconds")) * time.Second
			before := f.engine.Table.Stats().Series
			if f.engine.Table.Sweep(f.now); f.engine.Table.Stats().Series < before {
				clear(f.known)
			}
		},
		"flush": func(t *rapid.T) {
			if !f.set.Collect {
				t.Skip()
			}
			f.outcome = rapid.SampledFrom(outcomes).Draw(t, "outcome")
			if f.outcome != "accepted" {
				f.informed = false
			}
			f.flush()
			if f.outcome == "accepted" {
				require.Empty(t, f.engine.Table.Pending())
			}
			if f.informed {
				for _, node := range f.nodes {
					check(t, node)
				}
			}
		},
		"next hop restarts": func(*rapid.T) {
			f.next, f.informed = receiver{}, false
			f.engine.Table.Resync("")
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
			f.engine.Table.Resync(node)
		},
		"processor restarts": func(*rapid.T) {
			// Points that it held are lost, unless they could be delivered.
			f.informed = f.informed && !f.set.Collect
			f.restart()
		},
		"heal": heal,
	})
	heal(t)
}
