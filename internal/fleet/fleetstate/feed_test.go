// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// client keeps what a watcher is told, as a browser would.
type client struct {
	w     *Watcher
	nodes map[Key]View
}

func (c *client) full(now time.Time) {
	c.nodes = map[Key]View{}
	c.w.Full(now, func(v View) bool { c.nodes[v.Key] = v; return true })
}

func (c *client) follow(t require.TestingT, now time.Time) (changed, seen int) {
	ok := c.w.Changes(now, func(ch Change) bool {
		switch ch.Kind {
		case Changed:
			changed++
			c.nodes[ch.Key] = ch.View
		case Seen:
			seen++
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
	if !ok {
		c.full(now)
	}
	return changed, seen
}

// told is what a watcher is told at a time.
type told struct {
	changed []View
	removed []Key
	missed  bool
}

func changes(t *testing.T, w *Watcher, now time.Time) (out told) {
	t.Helper()
	out.missed = !w.Changes(now, func(c Change) bool {
		switch c.Kind {
		case Changed:
			out.changed = append(out.changed, c.View)
		case Removed:
			out.removed = append(out.removed, c.Key)
		}
		return true
	})
	return out
}

// TestWatchersSeeTheSelection changes nodes at random, lets clients of several
// filters look whenever they like, and compares what they know in the end with
// what a question answers.
func TestWatchersSeeTheSelection(t *testing.T) {
	yes := true
	filters := []Filter{{}, {Names: []string{"1", "2"}}, {Straggler: &yes}, {States: []string{"active"}}, {Health: []string{"degraded"}}, {MinUsage: 0.5}}
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
			want, _ := s.List(&filters[i], now, 0, 100)
			require.Len(t, c.nodes, len(want), "filter %d", i)
			for _, v := range want {
				got, ok := c.nodes[v.Key]
				require.True(t, ok)
				require.Same(t, v.Node, got.Node)
				require.Equal(t, v.Seen, got.Seen)
				require.Equal(t, v.State, got.State)
			}
			changed, seen := c.follow(t, now)
			require.Zero(t, changed+seen, "nothing is told twice")
			c.w.Close()
		}
	})
}

func TestSignsOfLifeAreNoNewViews(t *testing.T) {
	s := New(DefaultConfig())
	f := NewFeed(s)
	put(t, s, "c", "n", t0, nil)
	w := f.Watch(Filter{})
	defer w.Close()
	c := client{w: w}
	c.full(t0)
	f.Advance(t0)
	c.follow(t, t0)
	put(t, s, "c", "n", t0.Add(time.Second), nil)
	f.Advance(t0.Add(time.Second))
	changed, seen := c.follow(t, t0.Add(time.Second))
	assert.Equal(t, []int{0, 1}, []int{changed, seen})
	f.Advance(t0.Add(2 * time.Minute))
	changed, seen = c.follow(t, t0.Add(2*time.Minute))
	assert.Equal(t, []int{1, 0}, []int{changed, seen}, "that a node is missing is news")
}

func TestFeedBounds(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxNodes, cfg.ClusterShare = 2*maxRemoved, 1
	s := New(cfg)
	f := NewFeed(s)
	a := f.Watch(Filter{})
	b := f.Watch(Filter{})
	a.Close()
	a.Close()
	assert.Equal(t, 1, f.Watchers(), "closed twice, counted once")

	next := b.Next()
	for i := range maxRemoved + 1 {
		put(t, s, "c", strconv.Itoa(i), t0, nil)
	}
	f.Advance(t0)
	<-next
	b.Full(t0, func(View) bool { return true })
	later := t0.Add(cfg.NodeExpiry + time.Second)
	s.Expire(later)
	f.Advance(later)
	assert.True(t, changes(t, b, later).missed, "more is gone than is remembered")
	b.Full(later, func(View) bool { t.Error("there is no node"); return false })
	f.Advance(later)
	assert.False(t, changes(t, b, later).missed)
	b.Close()
	before := b.Next()
	f.Advance(later)
	select {
	case <-before:
		t.Error("nobody watches")
	default:
	}
}

func TestRemovedOnce(t *testing.T) {
	s := New(DefaultConfig())
	f := NewFeed(s)
	yes := true
	w := f.Watch(Filter{Straggler: &yes})
	defer w.Close()
	removed := 0
	for i, straggler := range []float64{1, 0, 0} {
		put(t, s, "c", "n", t0, func(u *Update) {
			u.Set(reading.NodeStraggler, straggler)
			u.Set(reading.NodeSuspicion, float64(i))
		})
		f.Advance(t0)
		removed += len(changes(t, w, t0).removed)
	}
	assert.Equal(t, 1, removed)
}
