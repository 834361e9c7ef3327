// SPDX-License-Identifier: Apache-2.0

package diffprocessor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func unbounded(*Config) {}

func eachFlush(t *testing.T, test func(t *testing.T, flush time.Duration)) {
	t.Helper()
	for name, flush := range map[string]time.Duration{"inline shard": 0, "conflating shard": time.Second} {
		t.Run(name, func(t *testing.T) { test(t, flush) })
	}
}

func (c *chain) polls(n int) {
	for range n {
		c.poll()
	}
}

// The gateway refuses one node's messages, for less and for more than it takes
// to forget the node, and takes the others'.
func TestNodesThatAreRefusedForLongAreAskedFor(t *testing.T) {
	eachFlush(t, func(t *testing.T, flush time.Duration) {
		for _, polls := range []int{29, 45, 80, 200} {
			c := newChain(t, flush, unbounded)
			c.polls(100)
			c.refused["a"] = true
			c.polls(polls)
			clear(c.refused)
			c.polls(14)
			c.check(t)
		}
	})
}

// A gateway that is stopped for most of a short ttl, and one whose ttl is far
// below what the shard's resync would need.
func TestAShortTTLIsMadeUpForByAsking(t *testing.T) {
	eachFlush(t, func(t *testing.T, flush time.Duration) {
		c := newChain(t, flush, func(cfg *Config) { cfg.TTL, cfg.VanishedAfter = 100*time.Second, 60*time.Second })
		c.polls(30)
		c.link = "refused"
		c.polls(8)
		c.link = ""
		c.polls(14)
		for range 200 {
			c.poll()
			c.check(t)
		}
	})
}

// A series without room at the gateway comes as often as the gateway repeats the
// rest, and the nodes that have room are not asked for.
func TestWhatIsOverTheGatewaysBoundsIsAskedFor(t *testing.T) {
	for name, tt := range map[string]struct {
		bound func(*Config)
		asked int64 // in each interval, at most
	}{
		"none":                {unbounded, 0},
		"max_nodes":           {func(c *Config) { c.MaxNodes, c.ClusterShare = 2, 1 }, 1},
		"max_series":          {func(c *Config) { c.MaxSeries, c.ClusterShare = 12, 1 }, 3},
		"max_series_per_node": {func(c *Config) { c.MaxSeriesPerNode = 5 }, 3},
	} {
		t.Run(name, func(t *testing.T) {
			eachFlush(t, func(t *testing.T, flush time.Duration) {
				c := newChain(t, flush, func(cfg *Config) { cfg.OverLimit = OverLimitForward; tt.bound(cfg) })
				c.polls(40)
				before := c.gateway.engine.Table.Stats().Asked
				for range 120 {
					c.poll()
					c.check(t)
				}
				asked := c.gateway.engine.Table.Stats().Asked - before
				assert.LessOrEqual(t, asked, 10*tt.asked+tt.asked)
				assert.GreaterOrEqual(t, asked, 9*min(tt.asked, 1))
			})
		})
	}
}

// A gateway that drops what is over its limits asks for it when there is room, and not
// before.
func TestWhatWasDroppedIsAskedForWhenItFits(t *testing.T) {
	eachFlush(t, func(t *testing.T, flush time.Duration) {
		c := newChain(t, flush, func(cfg *Config) { cfg.MaxSeries, cfg.ClusterShare = 25, 1 })
		c.polls(100)
		asked := func() int64 { return c.gateway.engine.Table.Stats().Asked }
		assert.Zero(t, asked())
		assert.Less(t, len(c.exporter), len(c.truth))
		for name := range c.truth {
			if name.node == "a" && name.metric != "integer" {
				delete(c.truth, name)
			}
		}
		c.polls(100)
		c.check(t)
		c.polls(100)
		c.check(t)
		assert.EqualValues(t, 3*4, asked(), "of each node four times, for an answer may be lost")
	})
}

// A node that pauses again and again has all its series back each time.
func TestANodeThatPausesAgainAndAgainIsWhole(t *testing.T) {
	eachFlush(t, func(t *testing.T, flush time.Duration) {
		c := newChain(t, flush, unbounded)
		c.polls(100)
		for range 6 {
			c.silent["b"] = c.now
			c.polls(45)
			delete(c.silent, "b")
			c.polls(3)
			c.check(t)
			c.polls(20)
		}
	})
}

// Series that come and go for good take no more room at the gateway than at the
// shard, so that what the one has room for the other has, too.
func TestEndedSeriesLeaveTheGatewayAsTheyLeaveTheShard(t *testing.T) {
	eachFlush(t, func(t *testing.T, flush time.Duration) {
		c := newChain(t, flush, unbounded)
		for i := range 500 {
			name := seriesName{"a", "integer", 10 + i}
			c.truth[name] = reading{value: 1}
			c.poll()
			delete(c.truth, name)
			shard, gateway := c.shard.engine.Table.Stats(), c.gateway.engine.Table.Stats()
			// The straggler's own, of each node, and what the sweep counts in ticks.
			require.LessOrEqual(t, gateway.Series, shard.Series+6, "at poll %d", i)
		}
		assert.LessOrEqual(t, c.shard.engine.Table.Stats().Series, int64(140))
	})
}

// A node that pauses over and over never reports for long enough to show what it
// lacks. An ended series is not repeated for longer than the shard remembers it.
func TestWhatEndsOnANodeThatPausesIsNotRepeatedForLong(t *testing.T) {
	eachFlush(t, func(t *testing.T, flush time.Duration) {
		c := newChain(t, flush, unbounded)
		c.polls(40)
		ended := seriesName{"b", "integer", 1}
		delete(c.truth, ended)
		for range 10 { // of 100 s, with a ttl of 600 s
			c.silent["b"] = c.now
			c.polls(9)
			delete(c.silent, "b")
			c.poll()
		}
		c.check(t)
		require.NotContains(t, c.exporter, ended)
		before := c.now
		for range 10 {
			c.silent["b"] = c.now
			c.polls(9)
			delete(c.silent, "b")
			c.poll()
		}
		assert.LessOrEqual(t, c.exporter[ended].at, before)
	})
}
