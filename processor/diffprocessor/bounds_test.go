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

// A series without room at a gateway that forwards it comes with the shard's resync.
func TestWhatIsOverTheGatewaysBoundsComesWithTheResync(t *testing.T) {
	for name, bound := range map[string]func(*Config){
		"none":                unbounded,
		"max_nodes":           func(c *Config) { c.MaxNodes, c.ClusterShare = 2, 1 },
		"max_series":          func(c *Config) { c.MaxSeries, c.ClusterShare = 12, 1 },
		"max_series_per_node": func(c *Config) { c.MaxSeriesPerNode = 5 },
	} {
		t.Run(name, func(t *testing.T) {
			eachFlush(t, func(t *testing.T, flush time.Duration) {
				c := newChain(t, flush, func(cfg *Config) { cfg.OverLimit = OverLimitForward; bound(cfg) })
				c.bounded = name != "none"
				c.polls(40)
				for range 120 {
					c.poll()
					c.check(t)
				}
			})
		})
	}
}

// A gateway that drops what is over its limits has it with the first resync of the shard
// that finds room.
func TestWhatWasDroppedComesWhenItFits(t *testing.T) {
	eachFlush(t, func(t *testing.T, flush time.Duration) {
		c := newChain(t, flush, func(cfg *Config) { cfg.MaxSeries, cfg.ClusterShare = 25, 1 })
		c.polls(100)
		assert.Less(t, len(c.exporter), len(c.truth))
		for name := range c.truth {
			if name.node == "a" && name.metric != "integer" {
				delete(c.truth, name)
			}
		}
		c.polls(80 + int(shardResync/repeatPoll)) // what ended keeps its room for a while
		c.check(t)
		c.polls(100)
		c.check(t)
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
