// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// client keeps the nodes that a watcher receives, as a browser would.
type client struct {
	w     *Watcher
	nodes map[Key]View
}

func (c *client) full(now time.Time) {
	c.nodes = map[Key]View{}
	c.w.Full(now, func(v View) bool { c.nodes[v.Key] = v; return true })
}

// follow takes the changes, or the full view, and counts the changes by kind.
func (c *client) follow(t require.TestingT, now time.Time) (counts [3]int, full bool) {
	full = !c.w.Changes(now, func(ch Change) bool {
		counts[ch.Kind]++
		switch ch.Kind {
		case Changed:
			c.nodes[ch.Key] = ch.View
		case Seen:
			known, ok := c.nodes[ch.Key]
			require.True(t, ok, "a sign of life of a node that was never shown")
			known.Seen, known.State = ch.Seen, ch.State
			c.nodes[ch.Key] = known
		case Removed:
			if c.w.shown != nil {
				require.Contains(t, c.nodes, ch.Key, "removed, but never shown")
			}
			delete(c.nodes, ch.Key)
		}
		return true
	})
	if full {
		c.full(now)
	}
	return counts, full
}

// TestWatchersSeeTheSelection changes nodes at random, lets clients of several
// filters look whenever they like, and compares what they know in the end with
// what a question answers.
func TestWatchersSeeTheSelection(t *testing.T) {
	yes := true
	filters := []Filter{{}, {Nodes: []string{"1", "2"}}, {Straggler: &yes}, {States: []string{"active"}}, {Health: []string{"degraded"}}, {MinUtilization: 0.5}}
	rapid.Check(t, func(t *rapid.T) {
		cfg := DefaultConfig()
		cfg.NodeExpiry = 3 * time.Minute
		s := New(cfg)
		f := NewFeed(s)
		now := t0
		clients := make([]*client, len(filters))
		for i := range clients {
			w := f.Watch(filters[i])
			clients[i] = &client{w: w}
			clients[i].full(now)
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0:
				now = now.Add(time.Duration(rapid.IntRange(1, 70).Draw(t, "seconds")) * time.Second)
			case 1:
				s.Expire(now)
				f.Advance(now)
			case 2:
				c := clients[rapid.IntRange(0, len(clients)-1).Draw(t, "client")]
				c.follow(t, now)
			default:
				u, ok := s.Begin(Key{"c", strconv.Itoa(rapid.IntRange(0, 3).Draw(t, "node"))}, now)
				require.True(t, ok)
				switch rapid.IntRange(0, 4).Draw(t, "what") {
				case 0:
					u.Set(reading.NodeStraggler, float64(rapid.IntRange(0, 1).Draw(t, "straggler")))
				case 1:
					u.SetState("active", rapid.Bool().Draw(t, "active"))
				case 2:
					u.SetHealth(u.GPU("g"), Degraded, rapid.Bool().Draw(t, "degraded"))
				case 3:
					u.SetGPU(u.GPU("g"), reading.Utilization, rapid.SampledFrom([]float64{0, 0.5, 1}).Draw(t, "usage"))
				}
				u.Commit(now)
			}
		}
		f.Advance(now)
		for i, c := range clients {
			c.follow(t, now)
			want := slices.Collect(s.Each(&filters[i], now))
			require.Len(t, c.nodes, len(want), "filter %d", i)
			for _, v := range want {
				got, ok := c.nodes[v.Key]
				require.True(t, ok)
				require.Same(t, v.Node, got.Node)
				require.Equal(t, v.Seen, got.Seen)
				require.Equal(t, v.State, got.State)
			}
			counts, _ := c.follow(t, now)
			require.Zero(t, counts, "nothing is sent twice")
			c.w.Close()
		}
	})
}

func TestSignsOfLifeAreNoNewViews(t *testing.T) {
	s := New(DefaultConfig())
	f := NewFeed(s)
	c := client{w: f.Watch(Filter{})}
	defer c.w.Close()
	c.full(t0)
	follow := func(after time.Duration, reports bool) [3]int {
		if reports {
			put(t, s, "c", "n", t0.Add(after), nil)
		}
		f.Advance(t0.Add(after))
		counts, _ := c.follow(t, t0.Add(after))
		return counts
	}
	assert.Equal(t, [3]int{Changed: 1}, follow(0, true))
	assert.Equal(t, [3]int{Seen: 1}, follow(time.Second, true))
	assert.Equal(t, [3]int{Changed: 1}, follow(2*time.Minute, false), "a node that goes missing is a change")
}

// TestRemovals: a watcher receives each once, also of a node that is no longer selected. One
// that missed a removal takes the full view.
func TestRemovals(t *testing.T) {
	cfg := DefaultConfig()
	s := New(cfg)
	f := NewFeed(s)
	clients := make([]client, 3)
	for i, filter := range []Filter{{}, {Straggler: new(true)}, {}} {
		clients[i] = client{w: f.Watch(filter)}
		clients[i].full(t0)
	}
	quick, stragglers, slow := &clients[0], &clients[1], &clients[2]
	removed := 0
	for i, straggler := range []float64{1, 0, 0} {
		put(t, s, "c", "n", t0, func(u *Update) {
			u.Set(reading.NodeStraggler, straggler)
			u.Set(reading.NodeSuspicion, float64(i))
		})
		f.Advance(t0)
		quick.follow(t, t0)
		counts, _ := stragglers.follow(t, t0)
		removed += counts[Removed]
	}
	assert.Equal(t, 1, removed)

	counts, _ := slow.follow(t, t0)
	assert.Equal(t, [3]int{Changed: 1}, counts)
	later := t0.Add(cfg.NodeExpiry + time.Second)
	require.Equal(t, 1, s.Expire(later))
	next := slow.w.Next()
	f.Advance(later)
	<-next
	counts, _ = quick.follow(t, later)
	assert.Equal(t, [3]int{Removed: 1}, counts)
	f.Advance(later)
	_, full := slow.follow(t, later)
	assert.True(t, full)
	assert.Empty(t, slow.nodes)
	f.Advance(later)
	_, full = slow.follow(t, later)
	assert.False(t, full)
	quick.w.Close()
	quick.w.Close()
	assert.Equal(t, 2, f.Watchers(), "closed twice, counted once")
	stragglers.w.Close()
	slow.w.Close()
	last := f.frame.Load()
	f.Advance(later)
	assert.Same(t, last, f.frame.Load(), "there is no watcher")
}
