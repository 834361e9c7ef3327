// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"context"
	"errors"
	"math/rand/v2"
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

// served is a series as an exporter has it: of the newest point that it got.
type served struct {
	stated
	at time.Duration // the point's time, as the world counts it
}

// exporter keeps the newest point of each series, as prometheusexporter and
// Prometheus do, and takes an equal time for no change of the value.
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
		return true
	})
}

// chain is nodes, a shard, a gateway and what exports.
type chain struct {
	now            time.Duration
	truth          map[seriesName]stated
	missing        map[string]time.Duration // nodes that died, and their last report
	known          map[seriesName]bool      // to the shard of now
	shard, gateway *Engine
	exporter       exporter
	link, hop      string                    // what becomes of a message to the gateway, to the exporter
	refused        map[string]bool           // nodes whose messages the gateway refuses
	newLife        bool                      // of the gateway, which the shard does not know
	collect        bool                      // the shard
	bound          func(*lastvalue.Settings) // the gateway
	bounded        bool                      // it has no room for all
	batch          int                       // bytes that the shard sends at once
	phases         *rand.Rand                // of resyncs: a failure is to come again
}

// aboutANode is how many bytes the shard sends at once.
const aboutANode = 1500

func newChain(collect bool, batch int, seed uint64, bound func(*lastvalue.Settings)) *chain {
	c := &chain{
		batch: batch, phases: rand.New(rand.NewPCG(seed, 0)),
		truth: map[seriesName]stated{}, missing: map[string]time.Duration{}, known: map[seriesName]bool{},
		exporter: exporter{}, refused: map[string]bool{}, collect: collect, bound: bound,
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
	set := lastvalue.Settings{
		MaxNodes: 1000, MaxSeries: 100_000, ClusterShare: 0.5, DropOver: true, TTL: 10 * time.Minute, VanishedAfter: 60 * time.Second,
		OpaqueInterval: OpaqueInterval, Bands: []lastvalue.Band{band}, Rand: c.phases.Int64N,
	}
	edit(&set)
	e := NewEngine(set)
	e.Epoch = epoch.Add(c.now)
	e.Now = func() time.Time { return epoch.Add(c.now) }
	return e
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

func (c *chain) startShard() {
	clear(c.known)
	c.newLife = false // it knows of no other
	c.shard = c.newEngine(func(s *lastvalue.Settings) { s.Collect, s.ResyncInterval = c.collect, shardResync })
}

// toGateway is the shard's Send, and toExporter the gateway's.
func (c *chain) toGateway(ctx context.Context, m Message) error {
	if c.refuses(m.Metrics) {
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
		c.shard.Table.Resync("")
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
		s.ResyncInterval = repeatEvery
		c.bound(s)
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
		names := namesOf(c.truth, node)
		if _, err := c.shard.Consume(context.Background(), encodeReport(node, c.now, names, c.truth), c.toGateway); err == nil {
			for _, name := range names {
				c.known[name] = true
			}
		}
	}
	if c.collect {
		c.shard.Flush(context.Background(), c.batch, nil, c.toGateway)
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
// interval of its own, and so does one that the gateway has no room for.
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
	t.Run("inline shard", func(t *testing.T) { rapid.Check(t, func(t *rapid.T) { repeats(t, false) }) })
	t.Run("conflating shard", func(t *testing.T) { rapid.Check(t, func(t *rapid.T) { repeats(t, true) }) })
}

func repeats(t *rapid.T, collect bool) {
	bounds := lastvalue.Settings{
		MaxNodes:         rapid.SampledFrom([]int{1000, 1000, 2}).Draw(t, "max_nodes"),
		MaxSeries:        rapid.SampledFrom([]int{1000, 1000, 15}).Draw(t, "max_series"),
		MaxSeriesPerNode: rapid.SampledFrom([]int{1000, 1000, 5}).Draw(t, "max_series_per_node"),
		TTL:              rapid.SampledFrom([]time.Duration{10 * time.Minute, 4 * time.Minute}).Draw(t, "ttl"),
	}
	batch := rapid.SampledFrom([]int{aboutANode, aboutANode, aboutANode / 5}).Draw(t, "max_batch_bytes")
	seed := rapid.Uint64().Draw(t, "phases")
	bounded := bounds.MaxNodes < 1000 || bounds.MaxSeries < 1000 || bounds.MaxSeriesPerNode < 1000
	c := newChain(collect, batch, seed, func(s *lastvalue.Settings) {
		s.MaxNodes, s.MaxSeries, s.MaxSeriesPerNode, s.TTL = bounds.MaxNodes, bounds.MaxSeries, bounds.MaxSeriesPerNode, bounds.TTL
		s.DropOver = !bounded
	})
	c.bounded = bounded
	anyNode := func(t *rapid.T) string { return rapid.SampledFrom(chainNodes).Draw(t, "node") }
	anyName := func(t *rapid.T) seriesName {
		return seriesName{anyNode(t), rapid.SampledFrom(kinds).Draw(t, "metric"), rapid.IntRange(0, 3).Draw(t, "gpu")}
	}
	unseen := map[seriesName]bool{} // vanished unknown to both
	// unreported is for a node that is missing while the gateway is out of its reach: the
	// shard may forget what ended before it can report it.
	unreported := func(node string) {
		for name := range c.known {
			if name.node == node && (c.link == "refused" || c.refused[node]) {
				unseen[name] = true
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
		for name := range c.known {
			if _, is := c.truth[name]; !is {
				delete(c.known, name) // the shard forgot it meanwhile
			}
		}
		for name, has := range c.exporter {
			if last, dead := c.missing[name.node]; dead {
				require.LessOrEqual(t, has.at, last, "%v of a dead node", name)
			} else if _, is := c.truth[name]; !is {
				expired := has.at < c.now-5*time.Minute
				require.True(t, expired || unseen[name], "%v vanished but is served", name)
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
				delete(unseen, name)
			}
		},
		"vanish": func(t *rapid.T) {
			name := anyName(t)
			if _, ok := c.truth[name]; ok && len(c.truth) > 1 && (name.gpu > 0 || name.metric != "integer") {
				delete(c.truth, name)
				unseen[name] = unseen[name] || !c.known[name]
			}
		},
		"churn": func(t *rapid.T) {
			node := anyNode(t)
			for i := range rapid.IntRange(1, 40).Draw(t, "polls") {
				name := seriesName{node, "integer", 10 + i}
				c.truth[name] = stated{value: 1}
				c.poll()
				delete(c.truth, name)
				unseen[name] = unseen[name] || !c.known[name]
			}
		},
		"refuse some": func(t *rapid.T) { c.refused[anyNode(t)] = true },
		"refuse none": func(*rapid.T) { clear(c.refused) },
		"pauses": func(t *rapid.T) {
			c.link, c.hop = "", ""
			node := anyNode(t)
			for range rapid.IntRange(1, 4).Draw(t, "pauses") {
				c.missing[node] = c.now
				for range rapid.IntRange(10, 50).Draw(t, "missing") {
					c.poll()
				}
				unreported(node)
				for name := range c.known {
					// Pauses count for no series; it may expire before it is declared gone.
					if _, is := c.truth[name]; !is && name.node == node {
						unseen[name] = true
					}
				}
				delete(c.missing, node)
				for range rapid.IntRange(1, 15).Draw(t, "polls") {
					c.poll()
				}
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
			for range rapid.IntRange(20, 100).Draw(t, "polls") {
				c.poll()
			}
			for node := range c.missing {
				unreported(node)
			}
		},
		"shard restarts": func(*rapid.T) {
			for name := range c.exporter {
				if _, is := c.truth[name]; !is {
					unseen[name] = true // its marker may never come
				}
			}
			for name := range c.known {
				if _, is := c.truth[name]; !is {
					unseen[name] = true
				}
			}
			c.startShard()
		},
		"gateway restarts":  func(*rapid.T) { c.startGateway() },
		"exporter restarts": func(*rapid.T) { clear(c.exporter) },
		"settle":            settle,
	})
	settle(t)
}
