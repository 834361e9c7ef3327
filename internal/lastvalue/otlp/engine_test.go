// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var epoch = time.Unix(1_700_000_000, 0).UTC()

// tier is an engine with its next hop.
type tier struct {
	*Engine
	at, off time.Duration // of its clock, and by how much that is wrong
	answer  func(pmetric.Metrics) error
	got     []Message // copies
}

func newTier(edit ...func(*lastvalue.Settings)) *tier {
	set := lastvalue.Settings{
		MaxNodes: 100, MaxSeries: 1000, TTL: time.Hour, VanishedAfter: time.Minute, ResyncInterval: 100 * time.Second,
		Rand: func(n int64) int64 { return n / 3 },
	}
	for _, e := range edit {
		e(&set)
	}
	s := &tier{Engine: NewEngine(set), at: time.Minute}
	s.Epoch = epoch
	s.Now = func() time.Time { return epoch.Add(s.at + s.off) }
	return s
}

func collecting(s *lastvalue.Settings) { s.Collect = true }

func (s *tier) send(_ context.Context, m Message) error {
	md := pmetric.NewMetrics()
	m.Metrics.CopyTo(md)
	m.Metrics = md
	s.got = append(s.got, m)
	if s.answer != nil {
		return s.answer(md)
	}
	return nil
}

// push takes a report in, of which nothing is refused, and returns what goes on at once.
func (s *tier) push(t require.TestingT, md pmetric.Metrics) (pmetric.Metrics, Counts) {
	s.got = nil
	counts, err := s.Consume(context.Background(), md, s.send)
	require.NoError(t, err)
	if len(s.got) == 0 {
		return pmetric.NewMetrics(), counts
	}
	return s.got[0].Metrics, counts
}

func (s *tier) flush(maxBytes int, enough func() bool) Flushed {
	s.got = nil
	return s.Flush(context.Background(), maxBytes, enough, s.send)
}

// report is of one node: so many points of one gauge.
func report(cluster, node string, at time.Time, values ...float64) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr(gpusemconv.AttrClusterName, cluster)
	rm.Resource().Attributes().PutStr(gpusemconv.AttrHostName, node)
	m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName("m1")
	points := m.SetEmptyGauge().DataPoints()
	for i, v := range values {
		dp := points.AppendEmpty()
		dp.SetTimestamp(pcommon.NewTimestampFromTime(at))
		dp.SetDoubleValue(v)
		dp.Attributes().PutInt("i", int64(i))
	}
	return md
}

// mixed is a report with a point of each type: gauge, cumulative and delta sum, both
// histograms with either temporality, summary, and the end of a series.
func mixed(cluster, node string) pmetric.Metrics {
	md := report(cluster, node, epoch, 1)
	metrics := md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics()
	add := func() pmetric.Metric {
		m := metrics.AppendEmpty()
		m.SetName(fmt.Sprint("m", metrics.Len()))
		return m
	}
	for _, of := range []pmetric.AggregationTemporality{pmetric.AggregationTemporalityCumulative, pmetric.AggregationTemporalityDelta} {
		s := add().SetEmptySum()
		s.SetAggregationTemporality(of)
		s.DataPoints().AppendEmpty().SetDoubleValue(2)
		h := add().SetEmptyHistogram()
		h.SetAggregationTemporality(of)
		h.DataPoints().AppendEmpty()
		e := add().SetEmptyExponentialHistogram()
		e.SetAggregationTemporality(of)
		e.DataPoints().AppendEmpty()
	}
	add() // of a type that pdata does not know
	add().SetEmptySummary().DataPoints().AppendEmpty()
	add().SetEmptyGauge().DataPoints().AppendEmpty().SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
	return md
}

// heartbeatOf is the zero time where there is none.
func heartbeatOf(t require.TestingT, md pmetric.Metrics) time.Time {
	if md.DataPointCount() == 0 {
		return time.Time{}
	}
	scopes := md.ResourceMetrics().At(0).ScopeMetrics()
	m := scopes.At(scopes.Len() - 1).Metrics().At(0)
	if m.Name() != gpusemconv.MetricNodeHeartbeat {
		return time.Time{}
	}
	dp := m.Gauge().DataPoints().At(0)
	require.Equal(t, dp.IntValue(), dp.Timestamp().AsTime().Unix())
	return dp.Timestamp().AsTime()
}

// first is the first point of the first metric.
func first(md pmetric.Metrics) pmetric.NumberDataPoint {
	return md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints().At(0)
}

// A point of the table is that of the report, in all that a receiver can see.
func TestWhatIsMadeOfTheTable(t *testing.T) {
	s := newTier(collecting)
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr(gpusemconv.AttrHostName, "n")
	finish := func(dp dataPoint, flags pmetric.DataPointFlags, i int64) {
		dp.SetTimestamp(pcommon.NewTimestampFromTime(s.Now()))
		dp.SetFlags(flags)
		dp.Attributes().PutStr("s", "x")
		dp.Attributes().PutInt("i", i)
		dp.Attributes().PutDouble("d", 1.5)
		dp.Attributes().PutBool("b", true)
	}
	const cumulative = pmetric.AggregationTemporalityCumulative
	end := pmetric.DefaultDataPointFlags.WithNoRecordedValue(true)
	for i := range 2 {
		sm := rm.ScopeMetrics().AppendEmpty()
		sm.Scope().SetName(fmt.Sprint("scope", i))
		sm.Scope().SetVersion("1")
		metric := func() pmetric.Metric {
			m := sm.Metrics().AppendEmpty()
			m.SetName(fmt.Sprint("m", sm.Metrics().Len()))
			m.SetUnit("J")
			m.SetDescription("text")
			return m
		}
		sum := metric().SetEmptySum()
		sum.SetIsMonotonic(i == 0)
		sum.SetAggregationTemporality(cumulative)
		for j := range int64(2) {
			dp := sum.DataPoints().AppendEmpty()
			dp.SetStartTimestamp(77)
			dp.SetIntValue(j)
			finish(dp, 2, j)
		}
		// The ends of all types, each in a metric of its own.
		ended, histogram, exponential := metric().SetEmptySum(), metric().SetEmptyHistogram(), metric().SetEmptyExponentialHistogram()
		ended.SetAggregationTemporality(cumulative)
		histogram.SetAggregationTemporality(cumulative)
		exponential.SetAggregationTemporality(cumulative)
		for _, dp := range []dataPoint{
			ended.DataPoints().AppendEmpty(), histogram.DataPoints().AppendEmpty(), exponential.DataPoints().AppendEmpty(),
			metric().SetEmptySummary().DataPoints().AppendEmpty(), metric().SetEmptyGauge().DataPoints().AppendEmpty(),
		} {
			finish(dp, end, 7)
		}
		// Receivers skip what follows such a point in its metric.
		for j, flags := range []pmetric.DataPointFlags{0, end, 0} {
			m := metric()
			m.SetName("parted")
			dp := m.SetEmptyGauge().DataPoints().AppendEmpty()
			if finish(dp, flags, int64(j)); flags != end {
				dp.SetIntValue(5)
			}
		}
	}
	json := func(md pmetric.Metrics) string {
		text, err := new(pmetric.JSONMarshaler).MarshalMetrics(md)
		require.NoError(t, err)
		return string(text)
	}
	want := json(md)
	s.push(t, md)
	require.NoError(t, s.flush(1<<20, nil).Failed)
	s.got[0].Metrics.ResourceMetrics().At(0).ScopeMetrics().RemoveIf(func(sm pmetric.ScopeMetrics) bool { return sm.Scope().Name() == ScopeName })
	assert.JSONEq(t, want, json(s.got[0].Metrics))
}

// TestTimesToComeBecomeTheTimeOfReceipt: a reader that keeps the newest point of a
// series would otherwise show it until its time has come.
func TestTimesToComeBecomeTheTimeOfReceipt(t *testing.T) {
	for ahead, want := range map[time.Duration]time.Duration{
		-time.Second: -time.Second, time.Minute: time.Minute, // clocks differ
		time.Minute + 1: 0, 4 * time.Minute: 0, 365 * 24 * time.Hour: 0,
	} {
		t.Run(ahead.String(), func(t *testing.T) {
			s := newTier()
			now := s.Now()
			md, counts := s.push(t, report("", "n", now.Add(ahead), 1))
			assert.Equal(t, now.Add(want), first(md).Timestamp().AsTime())
			assert.Equal(t, now, heartbeatOf(t, md))
			assert.Equal(t, ahead > time.Minute, counts.Ahead == 1)

			// The clock is set right: nothing is older than what went before.
			s.at += 61 * time.Second
			md, _ = s.push(t, report("", "n", s.Now(), 2))
			assert.Equal(t, s.Now(), first(md).Timestamp().AsTime())
			assert.Zero(t, s.Table.Stats().Stale)
		})
	}
}

// TestTimesOfAClockThatWasSetBackBecomeTheTimeOfReceipt, for as long as the
// sender's clock is behind its former time, by all that a retry may be late.
func TestTimesOfAClockThatWasSetBackBecomeTheTimeOfReceipt(t *testing.T) {
	s := newTier()
	s.push(t, report("", "n", s.Now().Add(50*time.Second), 9))
	for i, clock := range []time.Duration{-time.Hour, -time.Hour, -9 * time.Minute, 0} {
		s.at += time.Minute
		md, _ := s.push(t, report("", "n", s.Now().Add(clock), float64(i)))
		assert.Equal(t, s.Now(), first(md).Timestamp().AsTime(), i)
		assert.Equal(t, s.Now(), heartbeatOf(t, md), i)
	}
	assert.Zero(t, s.Table.Stats().Stale)
}

// byTier is a report of the node "n" from a tier that received it at a time.
func byTier(at time.Time, values ...float64) pmetric.Metrics {
	md := report("", "n", at, values...)
	appendHeartbeat(md.ResourceMetrics().At(0), pcommon.NewTimestampFromTime(at))
	return md
}

// A heartbeat that waited at a tier whose clock agreed before keeps its time. One of a tier
// whose clock is off gets the time of receipt.
func TestALateHeartbeatIsNotOfAWrongClock(t *testing.T) {
	const late = 5 * time.Minute
	for name, tt := range map[string]struct{ behind, want []time.Duration }{
		"it waited":             {[]time.Duration{0, late, 0}, []time.Duration{0, late, 0}},
		"the clock is off":      {[]time.Duration{late, late, late}, []time.Duration{late, 0, 0}}, // the first is not comparable
		"the clock is ahead":    {[]time.Duration{-late, -late}, []time.Duration{0, 0}},
		"the clock was set off": {[]time.Duration{0, late, late}, []time.Duration{0, late, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTier()
			for i, behind := range tt.behind {
				s.at += 10 * time.Minute
				md, _ := s.push(t, byTier(s.Now().Add(-behind)))
				assert.Equal(t, tt.want[i], s.Now().Sub(heartbeatOf(t, md)), "report %d", i)
			}
		})
	}
}

// A tier whose message is refused sends the same heartbeat again and again, which does not keep
// its state of the node fresh: what is missing when the node is back after half a TTL is not repeated.
func TestAnOldHeartbeatKeepsNothingFresh(t *testing.T) {
	for again, want := range map[bool]int{true: 1, false: 2} {
		s := newTier()
		first := s.Now()
		s.push(t, byTier(first, 1, 2))
		for range 3 {
			s.at += 10 * time.Minute
			beat := s.Now()
			if again {
				beat = first
			}
			s.push(t, byTier(beat))
		}
		s.at += 10 * time.Minute
		md, _ := s.push(t, byTier(s.Now(), 1))
		assert.Equal(t, want+1, md.DataPointCount(), "with the heartbeat")
	}
}

// Nodes and shards with clocks that are off, drift, or are set: the heartbeat that leaves
// the gateway is by the gateway's clock, and stops when the node does, also where the
// shard repeats what it holds of a missing node.
func TestAHeartbeatIsOfTheTimeOfReceipt(t *testing.T) {
	offsets := rapid.SampledFrom([]time.Duration{
		0, -20 * time.Second, -70 * time.Second, -150 * time.Second, -time.Hour, -87_600 * time.Hour,
		20 * time.Second, 5 * time.Minute, time.Hour, 87_600 * time.Hour,
	})
	rapid.Check(t, func(t *rapid.T) {
		shard, gateway := newTier(), newTier()
		relayed := rapid.Bool().Draw(t, "relayed")
		now := time.Minute
		for range rapid.IntRange(1, 4).Draw(t, "steps") {
			node, off := offsets.Draw(t, "node"), offsets.Draw(t, "shard")
			if off < shard.off { // it has restarted, or its time had gone on
				shard = newTier()
			}
			shard.off, shard.Epoch = off, epoch.Add(off)
			drift := time.Duration(rapid.IntRange(-2, 2).Draw(t, "drift")) * time.Second
			for i := range 20 {
				now, node = now+10*time.Second, node+drift
				shard.at, gateway.at = now, now
				at := epoch.Add(now + node)
				if rapid.IntRange(0, 9).Draw(t, "no time") == 0 {
					at = time.Unix(0, 0)
				}
				md := report("", "n", at, 1)
				if relayed {
					md, _ = shard.push(t, md)
				}
				md, _ = gateway.push(t, md)
				// A clock of a shard that was just set counts from its second report on. Up to
				// a minute is a heartbeat's own, and may be older than one before.
				if beat := heartbeatOf(t, md); i > 6 && (!relayed || !beat.IsZero()) {
					assert.WithinDuration(t, epoch.Add(now), beat, MaxAhead, "report %d", i)
				}
			}
		}
		if !relayed {
			return
		}
		// What a shard repeats may be minutes ahead: the gateway takes that for now, once.
		last := epoch.Add(now + MaxAhead + min(max(shard.off, 0), 5*time.Minute))
		for range 3 {
			now += 4 * time.Minute
			shard.at, gateway.at = now, now
			shard.again(t, report("", "n", epoch))
			require.Len(t, shard.got, 1)
			md := shard.got[0].Metrics
			require.False(t, heartbeatOf(t, md).IsZero())
			md, _ = gateway.push(t, md)
			assert.False(t, heartbeatOf(t, md).After(last), "the node has not reported since")
		}
	})
}

// again has the tier send all that it holds of the nodes of a report, as after the next hop's
// restart.
func (s *tier) again(t require.TestingT, of pmetric.Metrics) {
	var nodes []lastvalue.NodeKey
	for _, rm := range of.ResourceMetrics().All() {
		if key := nodeKey(rm.Resource().Attributes()); !slices.Contains(nodes, key) {
			nodes = append(nodes, key)
		}
	}
	s.Table.Resync()
	s.got, s.answer = nil, nil
	f := flusher{Engine: s.Engine, maxBytes: unbounded, send: s.send, epoch: s.Table.Epoch()}
	require.NoError(t, f.nodes(context.Background(), nodes))
}

// Of an unchanged report the next hop gets what is not compared, deltas and a type that pdata
// does not know, and a heartbeat.
func TestAnUnchangedReport(t *testing.T) {
	s := newTier()
	s.push(t, mixed("c", "n"))
	md, _ := s.push(t, mixed("c", "n"))
	var names []string
	for _, sm := range md.ResourceMetrics().At(0).ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			names = append(names, m.Name())
		}
	}
	assert.Equal(t, []string{"m5", "m6", "m7", "m8", gpusemconv.MetricNodeHeartbeat}, names)
	s.push(t, pmetric.NewMetrics())
	assert.Empty(t, s.got, "the next hop is not called for nothing")
}

// Whatever the type: nothing of a node without room goes on, and of a node with room all
// but what is new.
func TestNothingOverALimitGoesOn(t *testing.T) {
	points := int64(mixed("", "").DataPointCount())
	drops := func(s *lastvalue.Settings) { s.DropOver = true }
	s := newTier(drops, func(s *lastvalue.Settings) { s.MaxNodes = 1 })
	_, counts := s.push(t, mixed("east", "a"))
	assert.Empty(t, counts.Over)
	for range 2 {
		md := mixed("west", "b")
		for _, cluster := range []string{"west", "south"} {
			mixed(cluster, "c").ResourceMetrics().MoveAndAppendTo(md.ResourceMetrics())
		}
		_, counts = s.push(t, md)
		assert.Empty(t, s.got, "no point, no heartbeat, no call")
		assert.Equal(t, map[Over]int64{
			{"west", "b", "m10", lastvalue.LimitNodes}: points, {"west", "c", "m10", lastvalue.LimitNodes}: points,
			{"south", "c", "m10", lastvalue.LimitNodes}: points,
		}, counts.Over)
		assert.Equal(t, 3*points, counts.Received)
	}
	s = newTier(drops, func(s *lastvalue.Settings) { s.MaxSeries = 1 })
	_, counts = s.push(t, mixed("east", "a"))
	assert.EqualValues(t, 1+3+1, s.got[0].Points, "the gauge, the deltas, the heartbeat")
	assert.EqualValues(t, 1, s.got[0].Heartbeats)
	assert.Equal(t, map[Over]int64{{"east", "a", "m10", lastvalue.LimitSeries}: points - 1 - 3}, counts.Over)

	s = newTier(func(s *lastvalue.Settings) { s.MaxNodes = 1 })
	for _, node := range []string{"a", "b"} {
		md, _ := s.push(t, mixed("east", node))
		assert.Equal(t, s.Now(), heartbeatOf(t, md), "without room it is forwarded, and lives")
		assert.EqualValues(t, 1, s.got[0].Heartbeats)
	}
	md := mixed("east", "c")
	md.ResourceMetrics().At(0).Resource().Attributes().Remove(gpusemconv.AttrHostName)
	md, _ = s.push(t, md)
	assert.Zero(t, heartbeatOf(t, md), "it is no node")
	md = mixed("east", "d")
	appendHeartbeat(md.ResourceMetrics().At(0), pcommon.NewTimestampFromTime(s.Now()))
	points = int64(md.DataPointCount())
	s.push(t, md)
	assert.Equal(t, points, s.got[0].Points, "it has the other tier's")
}

// The next hop that lost its state shows it in an answer, and has all of the report's node in
// another message at once. What it refuses of that comes with the next report.
func TestTheNextHopIsWholeAtOnce(t *testing.T) {
	s := newTier()
	s.push(t, report("", "n", s.Now(), 1, 2))
	s.answer = func(pmetric.Metrics) error {
		if len(s.got) == 1 {
			s.Table.Resync()
			return nil
		}
		return errors.New("busy")
	}
	s.push(t, report("", "n", s.Now(), 1, 5))
	require.Len(t, s.got, 2)
	assert.EqualValues(t, 3, s.got[1].Points, "with the heartbeat")
	s.answer = nil
	md, _ := s.push(t, report("", "n", s.Now(), 1, 5))
	assert.Equal(t, 3, md.DataPointCount())
}

// Many nodes at once over a next hop that refuses and loses answers now and then, beside
// sweeps, flushes and requests: after one more accepted report of each node it has the state
// of all, and the table's figures come out.
func TestConcurrentNodes(t *testing.T) {
	for name, edit := range map[string]func(*lastvalue.Settings){"inline": func(*lastvalue.Settings) {}, "conflating": collecting} {
		t.Run(name, func(t *testing.T) { concurrentNodes(t, edit) })
	}
}

func concurrentNodes(t *testing.T, edit func(*lastvalue.Settings)) {
	const reports, gpus = 200, 8
	var mu sync.Mutex
	var wg sync.WaitGroup
	asked, has, want := 0, map[seriesName]stated{}, map[seriesName]stated{}
	flaky := func() error {
		if asked++; asked%5 == 0 {
			return errRefused
		}
		return nil
	}
	send := func(_ context.Context, m Message) error {
		mu.Lock()
		defer mu.Unlock()
		if err := flaky(); err != nil {
			return err
		}
		eachPoint(m.Metrics, func(name seriesName, sent stated, _ time.Duration, end bool) bool {
			if has[name] = sent; end { // the last to arrive counts, whatever its time
				delete(has, name)
			}
			return true
		})
		return flaky()
	}
	s := newTier(edit, func(s *lastvalue.Settings) { s.ResyncInterval, s.MaxBytes = time.Millisecond, 1<<20 })
	s.Now = time.Now
	s.Epoch = time.Now()
	for n := range 8 {
		node := strconv.Itoa(n)
		push := func(at int, value func(gpu int) int) error {
			sent := map[seriesName]stated{}
			for gpu := range gpus {
				sent[seriesName{node, "integer", gpu}] = stated{value: float64(value(gpu))}
			}
			_, err := s.Consume(context.Background(), encodeReport(node, time.Duration(at)*time.Second, namesOf(sent, node), sent), send)
			return err
		}
		// Two senders for each node; the last report comes after both.
		var senders sync.WaitGroup
		for sender := range 2 {
			random := rand.New(rand.NewPCG(uint64(n), uint64(sender)))
			senders.Go(func() {
				for i := range reports {
					_ = push(i, func(int) int { return random.IntN(3) })
					if i%20 == n {
						s.Table.Sweep(s.Time())
						s.Flush(context.Background(), 1000, nil, send)
						s.Table.Resync()
						s.Table.Counts(s.Time())
					}
				}
			})
		}
		wg.Go(func() {
			senders.Wait()
			for push(reports, func(gpu int) int { return gpu }) != nil {
			}
		})
		for gpu := range gpus {
			want[seriesName{node, "integer", gpu}] = stated{value: float64(gpu)}
		}
	}
	wg.Wait()
	for s.Flush(context.Background(), 1000, nil, send) != (Flushed{}) {
	}
	assert.Equal(t, want, has)
	assert.EqualValues(t, 8, s.Table.Stats().Nodes)
	assert.EqualValues(t, 8*gpus, s.Table.Stats().Series)
	s.Table.Sweep(s.Time() + 2*time.Hour)
	assert.Zero(t, s.Table.Stats().Nodes)
	assert.Zero(t, s.Table.Stats().Series)
	assert.Zero(t, s.Table.Bytes())
}

func TestAnUnchangedReportAllocatesNothingForItsPoints(t *testing.T) {
	s := newTier(func(s *lastvalue.Settings) { s.HeartbeatInterval, s.ResyncInterval = time.Hour, 0 })
	send := func(context.Context, Message) error { return nil }
	_, err := s.Consume(t.Context(), nodeReport(), send)
	require.NoError(t, err)
	const runs = 100
	stock := make([]pmetric.Metrics, runs+1) // AllocsPerRun warms up with one more
	for i := range stock {
		stock[i] = nodeReport()
	}
	i := 0
	allocs := testing.AllocsPerRun(runs, func() {
		_, _ = s.Consume(t.Context(), stock[i], send)
		i++
	})
	assert.Zero(t, stock[0].DataPointCount(), "was unchanged")
	info, _ := debug.ReadBuildInfo()
	if !slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) { // with it sync.Pool drops items at random
		assert.LessOrEqual(t, allocs, 1.0, "lastvalue.Report")
	}
}
