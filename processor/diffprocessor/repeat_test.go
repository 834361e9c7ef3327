// SPDX-License-Identifier: Apache-2.0

package diffprocessor

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor/processortest"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/delta/deadband"
	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor/internal/metadata"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor/internal/metadatatest"
	"github.com/gpu-collector/gpu-collector/test/property"
)

const (
	repeatEvery = 120 * time.Second
	repeatPoll  = 10 * time.Second
	// shardResync is when the gateway has again whatever it forgot or had no room for.
	shardResync = 10 * time.Minute
)

// served is a series as an exporter has it: of the newest point that it got.
type served struct {
	reading
	at time.Duration // the point's time, as the world counts it
}

// exporter keeps the newest point of each series, as prometheusexporter and
// Prometheus do, and takes an equal time for no news of another value.
type exporter map[seriesName]served

func (e exporter) apply(md pmetric.Metrics, points int) {
	single := receiver{}
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				if !slices.Contains(kinds, m.Name()) {
					continue
				}
				for i := range pointCount(m) {
					if points--; points < 0 {
						return
					}
					one, at := onlyPoint(rm, m, i)
					clear(single)
					single.apply(one, 1)
					if len(single) == 0 {
						var name seriesName
						host, _ := rm.Resource().Attributes().Get(gpusemconv.AttrHostName)
						gpu, _ := attributesOf(m, i).Get("gpu")
						name = seriesName{host.Str(), m.Name(), int(gpu.Int())}
						if at >= e[name].at {
							delete(e, name)
						}
					}
					for name, r := range single {
						if has, ok := e[name]; !ok || at >= has.at {
							e[name] = served{r, at}
						}
					}
				}
			}
		}
	}
}

func pointCount(m pmetric.Metric) int {
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		return m.Gauge().DataPoints().Len()
	case pmetric.MetricTypeSum:
		return m.Sum().DataPoints().Len()
	default:
		return m.Histogram().DataPoints().Len()
	}
}

func attributesOf(m pmetric.Metric, i int) pcommon.Map {
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		return m.Gauge().DataPoints().At(i).Attributes()
	case pmetric.MetricTypeSum:
		return m.Sum().DataPoints().At(i).Attributes()
	default:
		return m.Histogram().DataPoints().At(i).Attributes()
	}
}

// onlyPoint is a message of one point, and that point's time.
func onlyPoint(rm pmetric.ResourceMetrics, m pmetric.Metric, i int) (pmetric.Metrics, time.Duration) {
	md := pmetric.NewMetrics()
	to := md.ResourceMetrics().AppendEmpty()
	rm.Resource().CopyTo(to.Resource())
	own := to.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.CopyTo(own)
	at, n := pcommon.Timestamp(0), -1
	drop := func(t pcommon.Timestamp) bool {
		if n++; n == i {
			at = t
		}
		return n != i
	}
	switch own.Type() {
	case pmetric.MetricTypeGauge:
		own.Gauge().DataPoints().RemoveIf(func(p pmetric.NumberDataPoint) bool { return drop(p.Timestamp()) })
	case pmetric.MetricTypeSum:
		own.Sum().DataPoints().RemoveIf(func(p pmetric.NumberDataPoint) bool { return drop(p.Timestamp()) })
	default:
		own.Histogram().DataPoints().RemoveIf(func(p pmetric.HistogramDataPoint) bool { return drop(p.Timestamp()) })
	}
	return md, time.Duration(at) - 946_684_800*time.Second
}

// chain is nodes, a shard, a gateway and what exports.
type chain struct {
	now            time.Duration
	truth          map[seriesName]reading
	silent         map[string]time.Duration // nodes that died, and their last report
	known          map[seriesName]bool      // to the shard of now
	shard, gateway *diffProcessor
	exporter       exporter
	link, hop      string          // what becomes of a message to the gateway, to the exporter
	refused        map[string]bool // nodes whose messages the gateway refuses
	newLife        bool            // of the gateway, which the shard has not heard of
	flush          time.Duration
	ttl            time.Duration
	bound          func(*Config) // the gateway
	bounded        bool          // it has no room for all
	batch          int           // bytes that the shard sends at once
	phases         *rand.Rand    // of resyncs: a failure is to come again
	start          time.Time
}

// aboutANode is how many bytes the shard sends at once.
const aboutANode = 1500

func newChain(t require.TestingT, flush time.Duration, bound func(*Config)) *chain {
	return newChainIn(t, flush, aboutANode, 0, bound)
}

func newChainIn(t require.TestingT, flush time.Duration, batch int, seed uint64, bound func(*Config)) *chain {
	c := &chain{
		batch: batch, phases: rand.New(rand.NewPCG(seed, 0)),
		truth: map[seriesName]reading{}, silent: map[string]time.Duration{}, known: map[seriesName]bool{},
		exporter: exporter{}, refused: map[string]bool{}, flush: flush, ttl: 10 * time.Minute, bound: bound, start: time.Now(),
	}
	for _, node := range chainNodes {
		for _, metric := range kinds {
			for gpu := range 2 {
				c.truth[seriesName{node, metric, gpu}] = reading{value: 1}
			}
		}
	}
	c.startGateway(t)
	c.startShard(t)
	return c
}

func (c *chain) newTier(t require.TestingT, next hopFunc, edit func(*Config)) *diffProcessor {
	cfg := createDefaultConfig().(*Config)
	cfg.TTL, cfg.VanishedAfter = c.ttl, 60*time.Second
	cfg.MaxBatchBytes = c.batch
	cfg.Deadbands = []deadband.Rule{band}
	edit(cfg)
	p, err := newProcessor(cfg, processortest.NewNopSettings(metadata.Type), next)
	require.NoError(t, err)
	set := cfg.table()
	set.Rand = c.phases.Int64N
	p.engine.Table = statetable.New(set)
	p.engine.Epoch = c.start.Add(c.now)
	p.engine.Now = func() time.Time { return c.start.Add(c.now) }
	return p
}

// refuses reports whether the gateway is out of reach for a message.
func (c *chain) refuses(md pmetric.Metrics) bool {
	for _, rm := range md.ResourceMetrics().All() {
		host, _ := rm.Resource().Attributes().Get(gpusemconv.AttrHostName)
		if c.refused[host.Str()] {
			return true
		}
	}
	return c.link == "refused"
}

func (c *chain) startShard(t require.TestingT) {
	clear(c.known)
	c.newLife = false // it knows of no other
	c.shard = c.newTier(t, func(ctx context.Context, md pmetric.Metrics) error {
		if c.refuses(md) {
			return errors.New("away")
		}
		own := pmetric.NewMetrics() // a hop leaves a batch as it is
		md.CopyTo(own)
		err := c.gateway.ConsumeMetrics(ctx, own)
		if c.link == "answer lost" {
			return errors.New("answer lost")
		}
		if c.newLife && err == nil {
			c.newLife = false
			c.shard.engine.Table.Resync("", "")
		}
		return err
	}, func(cfg *Config) { cfg.FlushInterval, cfg.ResyncInterval = c.flush, shardResync })
}

func (c *chain) startGateway(t require.TestingT) {
	c.gateway = c.newTier(t, func(_ context.Context, md pmetric.Metrics) error {
		switch c.hop {
		case "refused":
			return errors.New("refused")
		case "half taken":
			c.exporter.apply(md, md.DataPointCount()/2)
			return errors.New("half taken")
		}
		c.exporter.apply(md, md.DataPointCount())
		return nil
	}, func(cfg *Config) {
		cfg.ResyncInterval = repeatEvery
		c.bound(cfg)
	})
	c.newLife = c.shard != nil
}

var chainNodes = []string{"a", "b", "c"}

// poll has every node that lives report once.
func (c *chain) poll() {
	c.now += repeatPoll
	for _, node := range chainNodes {
		if _, dead := c.silent[node]; dead {
			continue
		}
		var names []seriesName
		for name := range c.truth {
			if name.node == node {
				names = append(names, name)
			}
		}
		slices.SortFunc(names, func(a, b seriesName) int {
			return cmp.Or(cmp.Compare(a.metric, b.metric), cmp.Compare(a.gpu, b.gpu))
		})
		if c.shard.ConsumeMetrics(context.Background(), encodeReport(node, c.now, names, c.truth)) == nil {
			for _, name := range names {
				c.known[name] = true
			}
		}
	}
	if c.shard.buffer != nil {
		c.shard.flush(context.Background(), nil)
	}
	// The gateway's own figures of all nodes, dead or not.
	for _, node := range chainNodes {
		md := encodeReport(node, c.now, []seriesName{{node, "integer", 0}}, nil)
		md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0).SetName(gpusemconv.MetricNodeStraggler)
		_ = c.gateway.ConsumeMetrics(context.Background(), md)
	}
	for _, p := range []*diffProcessor{c.shard, c.gateway} {
		p.engine.Table.Sweep(p.engine.Now().Sub(p.engine.Epoch))
	}
}

// check that what the exporter has is the truth, and no older than the gateway's
// interval. A series that the gateway has only as a hash comes from the shard, which has an
// interval of its own, and so does one that the gateway has no room for.
func (c *chain) check(t require.TestingT) {
	for name, truth := range c.truth {
		if _, dead := c.silent[name.node]; dead {
			continue
		}
		has, ok := c.exporter[name]
		require.True(t, ok, "%v is missing", name)
		require.True(t, agrees(name, has.reading, truth), "%v: has %v, is %v", name, has, truth)
		oldest := c.now - repeatEvery - repeatPoll
		if name.metric == "histogram" {
			oldest -= repeatEvery
		}
		if c.bounded {
			oldest -= shardResync
		}
		require.GreaterOrEqual(t, has.at, oldest, "%v is stale", name)
	}
}

// For any sequence of changes, series that come and go, nodes that die and come
// back, messages that are lost before or after the gateway, of all nodes or of some,
// bounds of the gateway, pauses, and restarts of the shard, the gateway and the
// exporter: after a resync of the shard, the exporter has of each living node's series
// the last value, no older than the interval at which the gateway repeats; nothing of a
// node that died is newer than its last word, and what vanished is gone.
func TestGatewayRepeatsForItsExporters(t *testing.T) {
	property.Checks(t, 15)
	for name, flush := range map[string]time.Duration{"inline shard": 0, "conflating shard": time.Second} {
		t.Run(name, func(t *testing.T) { rapid.Check(t, func(t *rapid.T) { repeats(t, flush) }) })
	}
}

func repeats(t *rapid.T, flush time.Duration) {
	bounds := Config{
		MaxNodes:         rapid.SampledFrom([]int{1000, 1000, 2}).Draw(t, "max_nodes"),
		MaxSeries:        rapid.SampledFrom([]int{1000, 1000, 15}).Draw(t, "max_series"),
		MaxSeriesPerNode: rapid.SampledFrom([]int{1000, 1000, 5}).Draw(t, "max_series_per_node"),
		TTL:              rapid.SampledFrom([]time.Duration{10 * time.Minute, 4 * time.Minute}).Draw(t, "ttl"),
	}
	batch := rapid.SampledFrom([]int{aboutANode, aboutANode, aboutANode / 5}).Draw(t, "max_batch_bytes")
	seed := rapid.Uint64().Draw(t, "phases")
	bounded := bounds.MaxNodes < 1000 || bounds.MaxSeries < 1000 || bounds.MaxSeriesPerNode < 1000
	c := newChainIn(t, flush, batch, seed, func(cfg *Config) {
		cfg.MaxNodes, cfg.MaxSeries, cfg.MaxSeriesPerNode, cfg.TTL = bounds.MaxNodes, bounds.MaxSeries, bounds.MaxSeriesPerNode, bounds.TTL
		if bounded {
			cfg.OverLimit = OverLimitForward
		}
	})
	c.bounded = bounded
	anyNode := func(t *rapid.T) string { return rapid.SampledFrom(chainNodes).Draw(t, "node") }
	anyName := func(t *rapid.T) seriesName {
		return seriesName{anyNode(t), rapid.SampledFrom(kinds).Draw(t, "metric"), rapid.IntRange(0, 3).Draw(t, "gpu")}
	}
	unheard := map[seriesName]bool{} // vanished while nobody knew them
	// untold is for a node that is silent while the gateway is out of its reach: the
	// shard may forget what ended before it can tell of it.
	untold := func(node string) {
		for name := range c.known {
			if name.node == node && (c.link == "refused" || c.refused[node]) {
				unheard[name] = true
			}
		}
	}
	settle := func(t *rapid.T) {
		c.link, c.hop = "", ""
		clear(c.refused)
		// A pause puts the first repetition off by an interval.
		for range (shardResync+2*repeatEvery)/repeatPoll + 2 {
			c.poll()
		}
		c.check(t)
		for name, has := range c.exporter {
			if last, dead := c.silent[name.node]; dead {
				require.LessOrEqual(t, has.at, last, "%v of a dead node", name)
			} else if _, is := c.truth[name]; !is {
				expired := has.at < c.now-5*time.Minute
				require.True(t, expired || unheard[name], "%v vanished but is served", name)
			}
		}
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
				delete(unheard, name)
			}
		},
		"vanish": func(t *rapid.T) {
			name := anyName(t)
			if _, ok := c.truth[name]; ok && len(c.truth) > 1 && (name.gpu > 0 || name.metric != "integer") {
				delete(c.truth, name)
				unheard[name] = unheard[name] || !c.known[name]
			}
		},
		"churn": func(t *rapid.T) {
			node := anyNode(t)
			for i := range rapid.IntRange(1, 40).Draw(t, "polls") {
				name := seriesName{node, "integer", 10 + i}
				c.truth[name] = reading{value: 1}
				c.poll()
				delete(c.truth, name)
				unheard[name] = unheard[name] || !c.known[name]
			}
		},
		"refuse some": func(t *rapid.T) { c.refused[anyNode(t)] = true },
		"refuse none": func(*rapid.T) { clear(c.refused) },
		"pauses": func(t *rapid.T) {
			c.link, c.hop = "", ""
			node := anyNode(t)
			for range rapid.IntRange(1, 4).Draw(t, "pauses") {
				c.silent[node] = c.now
				for range rapid.IntRange(10, 50).Draw(t, "silent") {
					c.poll()
				}
				untold(node)
				for name := range c.known {
					// Pauses count for no series; it may expire before it is declared gone.
					if _, is := c.truth[name]; !is && name.node == node {
						unheard[name] = true
					}
				}
				delete(c.silent, node)
				for range rapid.IntRange(1, 15).Draw(t, "polls") {
					c.poll()
				}
			}
		},
		"die":    func(t *rapid.T) { c.silent[anyNode(t)] = c.now },
		"revive": func(t *rapid.T) { delete(c.silent, anyNode(t)) },
		"polls": func(t *rapid.T) {
			for range rapid.IntRange(1, 15).Draw(t, "polls") {
				c.link = rapid.SampledFrom([]string{"", "", "", "refused", "answer lost"}).Draw(t, "link")
				c.hop = rapid.SampledFrom([]string{"", "", "", "refused", "half taken"}).Draw(t, "hop")
				c.poll()
			}
		},
		"long silence": func(t *rapid.T) {
			c.hop = ""
			c.link = rapid.SampledFrom([]string{"", "refused"}).Draw(t, "link")
			for range rapid.IntRange(20, 100).Draw(t, "polls") {
				c.poll()
			}
			for node := range c.silent {
				untold(node)
			}
		},
		"shard restarts": func(t *rapid.T) {
			for name := range c.exporter {
				if _, is := c.truth[name]; !is {
					unheard[name] = true // its marker may never come
				}
			}
			for name := range c.known {
				if _, is := c.truth[name]; !is {
					unheard[name] = true
				}
			}
			c.startShard(t)
		},
		"gateway restarts":  func(t *rapid.T) { c.startGateway(t) },
		"exporter restarts": func(*rapid.T) { clear(c.exporter) },
		"settle":            settle,
	})
	settle(t)
}

// The counters: points that were repeated, and those that could not be.
func TestRepeatedPointsAreCounted(t *testing.T) {
	tel := componenttest.NewTelemetry()
	defer func() { require.NoError(t, tel.Shutdown(context.Background())) }()
	cfg := createDefaultConfig().(*Config)
	p, err := newProcessor(cfg, metadatatest.NewSettings(tel), hopFunc(func(context.Context, pmetric.Metrics) error { return nil }))
	require.NoError(t, err)
	start, at := time.Now(), time.Duration(0)
	p.engine.Epoch, p.engine.Now = start, func() time.Time { return start.Add(at) }
	shard := newTestProcessor(t, p, func(c *Config) { c.ResyncInterval = 0 })
	shard.engine.Epoch, shard.engine.Now = start, p.engine.Now
	names := []seriesName{{"a", "banded", 0}, {"a", "histogram", 0}, {"a", "sum", 0}}
	truth := map[seriesName]reading{names[0]: {value: 5}, names[1]: {value: 5}, names[2]: {value: 5, start: 3}}
	for ; at <= repeatEvery; at += repeatPoll {
		require.NoError(t, shard.ConsumeMetrics(t.Context(), encodeReport("a", at, names, truth)))
	}
	counted := func(n int64) []metricdata.DataPoint[int64] { return []metricdata.DataPoint[int64]{{Value: n}} }
	opt := metricdatatest.IgnoreTimestamp()
	metadatatest.AssertEqualProcessorDiffRepeatedPoints(t, tel, counted(2), opt)
	metadatatest.AssertEqualProcessorDiffUnrepeatablePoints(t, tel, counted(1), opt)
}
