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
