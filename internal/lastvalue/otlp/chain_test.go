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
	"github.com/gpu-collector/gpu-collector/test/property"
)

const (
	repeatEvery = 120 * time.Second
	repeatPoll  = 10 * time.Second
	// shardResync is when the gateway has again whatever it forgot or had no room for.
	shardResync = 10 * time.Minute
)

// seriesName is one series of a world of nodes.
type seriesName struct {
	node, metric string
	gpu          int
}

// stated is what a series has: a number, and where a sum starts.
type stated struct {
	value float64
	start pcommon.Timestamp
}

// The metrics of that world, one of each kind; "banded" has a deadband.
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

// encodeReport writes the values of series as one report, in the order of the names.
func encodeReport(node string, at time.Duration, names []seriesName, state map[seriesName]stated) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr(gpusemconv.AttrHostName, node)
	sm := rm.ScopeMetrics().AppendEmpty()
	for _, name := range names {
		sent := state[name]
		m := sm.Metrics().AppendEmpty()
		m.SetName(name.metric)
		var point dataPoint
		switch name.metric {
		case "banded":
			dp := m.SetEmptyGauge().DataPoints().AppendEmpty()
			dp.SetDoubleValue(sent.value)
			point = dp
		case "integer":
			dp := m.SetEmptyGauge().DataPoints().AppendEmpty()
			dp.SetIntValue(int64(sent.value))
			point = dp
		case "sum":
			m.SetEmptySum().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
			m.Sum().SetIsMonotonic(true)
			dp := m.Sum().DataPoints().AppendEmpty()
			dp.SetStartTimestamp(sent.start)
			dp.SetDoubleValue(sent.value)
			point = dp
		case "histogram":
			m.SetEmptyHistogram().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
			dp := m.Histogram().DataPoints().AppendEmpty()
			dp.SetCount(uint64(max(0, sent.value)))
			dp.SetSum(sent.value)
			point = dp
		}
		point.SetTimestamp(nodesEpoch + pcommon.Timestamp(at))
		point.Attributes().PutInt("gpu", int64(name.gpu))
	}
	return md
}

// eachPoint yields the points of those metrics, and whether they end their series. The
// rest of a metric is skipped where yield returns false.
func eachPoint(md pmetric.Metrics, yield func(name seriesName, sent stated, at time.Duration, end bool) bool) {
	for _, rm := range md.ResourceMetrics().All() {
		node, _ := rm.Resource().Attributes().Get(gpusemconv.AttrHostName)
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				if !slices.Contains(kinds, m.Name()) {
					continue
				}
				point := func(dp dataPoint, sent stated) bool {
					gpu, _ := dp.Attributes().Get("gpu")
					name := seriesName{node.Str(), m.Name(), int(gpu.Int())}
					return yield(name, sent, time.Duration(dp.Timestamp()-nodesEpoch), dp.Flags().NoRecordedValue())
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
					sent := stated{dp.DoubleValue(), dp.StartTimestamp()}
					if dp.ValueType() == pmetric.NumberDataPointValueTypeInt {
						sent.value = float64(dp.IntValue())
					}
					if !point(dp, sent) {
						break
					}
				}
			}
		}
	}
}

// agrees reports whether what the exporter has of a series will do for the truth.
func agrees(name seriesName, has, truth stated) bool {
	if name.metric != "banded" {
		return has == truth
	}
	return math.Abs(has.value-truth.value) <= max(band.Absolute, band.Relative*math.Abs(truth.value)) &&
		(has.value == 0) == (truth.value == 0)
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

// served is a series as an exporter has it: of the newest point that it got.
type served struct {
	stated
	at time.Duration // the point's time, as the world counts it
}

// exporter keeps the newest point of each series, as prometheusexporter and Prometheus do, and
// takes an equal time for no change of the value. Like prometheusexporter it skips what comes
// after a point without a value in the same metric.
type exporter map[seriesName]served

func (e exporter) apply(md pmetric.Metrics, points int) {
	eachPoint(md, func(name seriesName, sent stated, at time.Duration, end bool) bool {
		if points--; points < 0 {
			return false
		}
		if has, ok := e[name]; ok && at < has.at {
			return true
		}
		if e[name] = (served{sent, at}); end {
			delete(e, name)
		}
		return !end
	})
}

// chain is nodes, a shard, a gateway and what exports.
type chain struct {
	now            time.Duration
	truth          map[seriesName]stated
	missing        map[string]time.Duration // nodes that died, and their last report
	shard, gateway *Engine
	exporter       exporter
	link, hop      string        // what becomes of a message to the gateway, to the exporter
	newLife        bool          // of the gateway, which the shard does not know
	collect        bool          // the shard
	ttl            time.Duration // the gateway's
	phases         *rand.Rand    // of resyncs: a failure is to come again
}

func newChain(collect bool, ttl time.Duration, seed uint64) *chain {
	c := &chain{
		phases: rand.New(rand.NewPCG(seed, 0)), truth: map[seriesName]stated{}, missing: map[string]time.Duration{},
		exporter: exporter{}, collect: collect, ttl: ttl,
	}
	for _, node := range chainNodes {
		for _, metric := range kinds {
			for gpu := range 2 {
				c.truth[seriesName{node, metric, gpu}] = stated{value: 1}
			}
		}
	}
	c.startGateway()
	c.startShard()
	return c
}

func (c *chain) newEngine(edit func(*lastvalue.Settings)) *Engine {
	e := newTier(func(s *lastvalue.Settings) {
		s.MaxNodes, s.MaxSeries, s.ClusterShare, s.DropOver, s.TTL = 1000, 100_000, 0.5, true, 10*time.Minute
		s.OpaqueInterval, s.Bands, s.Rand = OpaqueInterval, []lastvalue.Band{band}, c.phases.Int64N
	}, edit).Engine
	e.Epoch = epoch.Add(c.now)
	e.Now = func() time.Time { return epoch.Add(c.now) }
	return e
}

func (c *chain) startShard() {
	c.newLife = false // it knows of no other
	c.shard = c.newEngine(func(s *lastvalue.Settings) { s.Collect, s.ResyncInterval = c.collect, shardResync })
}

// toGateway is the shard's Send, and toExporter the gateway's.
func (c *chain) toGateway(ctx context.Context, m Message) error {
	if c.link == "refused" {
		return errors.New("away")
	}
	own := pmetric.NewMetrics() // a hop leaves a batch as it is
	m.Metrics.CopyTo(own)
	_, err := c.gateway.Consume(ctx, own, c.toExporter)
	if c.link == "answer lost" {
		return errors.New("answer lost")
	}
	if c.newLife && err == nil {
		c.newLife = false
		c.shard.Table.Resync()
	}
	return err
}

func (c *chain) toExporter(_ context.Context, m Message) error {
	switch c.hop {
	case "refused":
		return errRefused
	case "half taken":
		c.exporter.apply(m.Metrics, m.Metrics.DataPointCount()/2)
		return errors.New("half taken")
	}
	c.exporter.apply(m.Metrics, m.Metrics.DataPointCount())
	return nil
}

func (c *chain) startGateway() {
	c.gateway = c.newEngine(func(s *lastvalue.Settings) {
		s.ResyncInterval, s.TTL = repeatEvery, c.ttl
	})
	c.newLife = c.shard != nil
}

var chainNodes = []string{"a", "b", "c"}

// poll has every node that lives report once.
func (c *chain) poll() {
	c.now += repeatPoll
	for _, node := range chainNodes {
		if _, dead := c.missing[node]; dead {
			continue
		}
		_, _ = c.shard.Consume(context.Background(), encodeReport(node, c.now, namesOf(c.truth, node), c.truth), c.toGateway)
	}
	if c.collect {
		c.shard.Flush(context.Background(), 300, nil, c.toGateway)
	}
	// The gateway's own figures of all nodes, dead or not.
	for _, node := range chainNodes {
		md := encodeReport(node, c.now, []seriesName{{node, "integer", 0}}, nil)
		md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0).SetName(gpusemconv.MetricNodeStraggler)
		_, _ = c.gateway.Consume(context.Background(), md, c.toExporter)
	}
	for _, e := range []*Engine{c.shard, c.gateway} {
		e.Table.Sweep(e.Time())
	}
}

// check that what the exporter has is the truth, and no older than the gateway's
// interval. A series that the gateway has only as a hash comes from the shard, which has an
// interval of its own. Nothing of a node that died is newer than its last report.
func (c *chain) check(t require.TestingT) {
	for name, truth := range c.truth {
		if _, dead := c.missing[name.node]; dead {
			continue
		}
		has, ok := c.exporter[name]
		require.True(t, ok, "%v is missing", name)
		require.True(t, agrees(name, has.stated, truth), "%v: has %v, is %v", name, has, truth)
		oldest := c.now - repeatEvery - repeatPoll
		if name.metric == "histogram" {
			oldest -= repeatEvery
		}
		require.GreaterOrEqual(t, has.at, oldest, "%v is stale", name)
	}
	for name, has := range c.exporter {
		if last, dead := c.missing[name.node]; dead {
			require.LessOrEqual(t, has.at, last, "%v of a dead node", name)
		}
	}
}

// For any sequence of changes, series that come and go, nodes that die and come back, messages
// that are lost before or after the gateway, pauses, and restarts of the shard, the gateway and
// the exporter: after a resync of the shard the exporter has what check asks for.
func TestGatewayRepeatsForItsExporters(t *testing.T) {
	property.Checks(t, 15)
	t.Run("inline shard", func(t *testing.T) { rapid.Check(t, func(t *rapid.T) { repeats(t, false) }) })
	t.Run("conflating shard", func(t *testing.T) { rapid.Check(t, func(t *rapid.T) { repeats(t, true) }) })
}

func repeats(t *rapid.T, collect bool) {
	ttl := rapid.SampledFrom([]time.Duration{10 * time.Minute, 4 * time.Minute}).Draw(t, "ttl")
	c := newChain(collect, ttl, rapid.Uint64().Draw(t, "phases"))
	anyNode := func(t *rapid.T) string { return rapid.SampledFrom(chainNodes).Draw(t, "node") }
	anyName := func(t *rapid.T) seriesName {
		return seriesName{anyNode(t), rapid.SampledFrom(kinds).Draw(t, "metric"), rapid.IntRange(0, 3).Draw(t, "gpu")}
	}
	polls := func(t *rapid.T, least, most int) {
		for range rapid.IntRange(least, most).Draw(t, "polls") {
			c.poll()
		}
	}
	settle := func(t *rapid.T) {
		c.link, c.hop = "", ""
		// A pause puts the first repetition off by an interval.
		for range (shardResync+2*repeatEvery)/repeatPoll + 2 {
			c.poll()
		}
		c.check(t)
	}
	t.Repeat(map[string]func(*rapid.T){
		"change": func(t *rapid.T) {
			for range rapid.IntRange(1, 6).Draw(t, "changes") {
				name := anyName(t)
				r := c.truth[name]
				if r.value = float64(rapid.IntRange(0, 2).Draw(t, "value")); name.metric == "sum" {
					r.start = pcommon.Timestamp(rapid.IntRange(0, 3).Draw(t, "start"))
				}
				c.truth[name] = r
			}
		},
		"vanish": func(t *rapid.T) {
			if name := anyName(t); name.gpu > 0 || name.metric != "integer" {
				delete(c.truth, name)
			}
		},
		"pauses": func(t *rapid.T) {
			c.link, c.hop = "", ""
			node := anyNode(t)
			for range rapid.IntRange(1, 4).Draw(t, "pauses") {
				c.missing[node] = c.now
				polls(t, 10, 50)
				delete(c.missing, node)
				polls(t, 1, 15)
			}
		},
		"die":    func(t *rapid.T) { c.missing[anyNode(t)] = c.now },
		"revive": func(t *rapid.T) { delete(c.missing, anyNode(t)) },
		"polls": func(t *rapid.T) {
			for range rapid.IntRange(1, 15).Draw(t, "polls") {
				c.link = rapid.SampledFrom([]string{"", "", "", "refused", "answer lost"}).Draw(t, "link")
				c.hop = rapid.SampledFrom([]string{"", "", "", "refused", "half taken"}).Draw(t, "hop")
				c.poll()
			}
		},
		"long gap": func(t *rapid.T) {
			c.hop = ""
			c.link = rapid.SampledFrom([]string{"", "refused"}).Draw(t, "link")
			polls(t, 20, 100)
		},
		"shard restarts":    func(*rapid.T) { c.startShard() },
		"gateway restarts":  func(*rapid.T) { c.startGateway() },
		"exporter restarts": func(*rapid.T) { clear(c.exporter) },
		"settle":            settle,
	})
	settle(t)
}
