// SPDX-License-Identifier: Apache-2.0

package statetable

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// hop is the next hop: it keeps the last value of each series that reached it.
type hop map[seriesID]Point

type seriesID struct {
	node NodeKey
	key  uint64
}

func (h hop) take(node NodeKey, points []Point) {
	for _, p := range points {
		h[seriesID{node, p.Key}] = p
	}
}

func (h hop) has(t require.TestingT, node NodeKey, points map[uint64]Point) {
	for key, want := range points {
		got := h[seriesID{node, key}]
		got.Time = want.Time
		require.Equal(t, want, got)
	}
}

// forwarded observes the points as one node's part of a report.
func forwarded(r *Report, node NodeKey, points []Point) []Point {
	r.OpenNode(node)
	var out []Point
	for _, p := range points {
		if r.Observe(&p) == Forward {
			out = append(out, p)
		}
	}
	r.CloseNode()
	return out
}

// shuffled returns a node's state as a full report, in random order.
func shuffled(t *rapid.T, state map[uint64]Point) []Point {
	var points []Point
	for key := range uint64(maxKeys) {
		if p, ok := state[key]; ok {
			points = append(points, p)
		}
	}
	if len(points) > 1 && rapid.Bool().Draw(t, "reorder") {
		points = rapid.Permutation(points).Draw(t, "order")
	}
	return points
}

const maxKeys = 12

// Reports of one node that overlap in any way: the next hop takes them in any
// order, and their outcomes arrive in any order. Once no report is under way,
// each series is either unknown or at the next hop as the table has it, so the
// next accepted report makes the two equal.
func TestOverlappingReportsLoseNothing(t *testing.T) {
	type flight struct {
		report    *Report
		points    []Point
		delivered bool
		accepted  bool
	}
	rapid.Check(t, func(t *rapid.T) {
		var (
			table   = New(Settings{MaxNodes: 1, MaxSeries: rapid.IntRange(1, 4).Draw(t, "max_series")})
			next    = hop{}
			flights []*flight
			clock   = uint64(1_800_000_000e9)
			timed   = rapid.Bool().Draw(t, "timed")
		)
		state := func(t *rapid.T) map[uint64]Point {
			clock += 1e9
			points := map[uint64]Point{}
			for key := range uint64(3) {
				if rapid.Bool().Draw(t, "reported") {
					p := Point{Key: key, Value: rapid.Uint64Range(0, 2).Draw(t, "value")}
					if timed {
						// Reports may overtake each other before they get here.
						p.Time = clock - rapid.Uint64Range(0, 5e9).Draw(t, "late")
					}
					points[key] = p
				}
			}
			return points
		}
		deliver := func(f *flight, ok bool) {
			f.delivered, f.accepted = true, ok
			next.take(nodeA, f.points)
		}
		finish := func(i int) {
			f := flights[i]
			switch {
			case f.accepted:
				f.report.Commit()
			case f.delivered:
				f.report.Abort()
			default:
				f.report.Discard()
			}
			flights = append(flights[:i], flights[i+1:]...)
		}
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				if len(flights) == 4 {
					t.Skip()
				}
				r := table.Begin(0)
				flights = append(flights, &flight{report: r, points: forwarded(r, nodeA, shuffled(t, state(t)))})
			},
			"deliver": func(t *rapid.T) {
				if len(flights) == 0 {
					t.Skip()
				}
				f := rapid.SampledFrom(flights).Draw(t, "flight")
				if f.delivered {
					t.Skip()
				}
				deliver(f, rapid.Bool().Draw(t, "accepted"))
			},
			"finish": func(t *rapid.T) {
				if len(flights) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(flights)-1).Draw(t, "flight")
				finish(i) // a report that was not delivered was refused before it got anywhere
			},
		})
		for len(flights) > 0 {
			if !flights[0].delivered {
				deliver(flights[0], true)
			}
			finish(0)
		}
		clock += 10e9
		last := map[uint64]Point{}
		for key := range uint64(3) {
			last[key] = Point{Key: key, Value: rapid.Uint64Range(0, 2).Draw(t, "last"), Time: clock}
		}
		r := table.Begin(0)
		next.take(nodeA, forwarded(r, nodeA, shuffled(t, last)))
		r.Commit()
		next.has(t, nodeA, last)
	})
}

// Many goroutines, own and shared nodes, sweeps: for the race detector, and the
// counts must come out.
func TestConcurrentUse(t *testing.T) {
	for _, drop := range []bool{false, true} {
		concurrentUse(t, New(Settings{
			MaxNodes: 5, MaxSeries: 60, MaxBytes: 8_000, DropOver: drop, ClusterShare: 0.9,
			TTL: 80, ResyncInterval: 50, HeartbeatInterval: 10, Rand: func(n int64) int64 { return n / 2 },
		}))
	}
}

func concurrentUse(t *testing.T, table *Table) {
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 500 {
				now := time.Duration(i)
				r := table.Begin(now)
				for _, node := range []NodeKey{nodeA, nodeB, {Lo: uint64(g)}} {
					r.OpenNode(node)
					if r.Undescribed() {
						r.DescribeNode([]Attr{{Key: "host.name", Text: "n"}})
					}
					for key := range uint64(10) {
						if r.Observe(&Point{Key: key, Value: uint64(i) * key}) == Forward && r.Fresh() {
							named(r, key+uint64(i))
						}
					}
					r.Forget(3)
					r.HeartbeatDue(0)
					r.CloseNode()
				}
				if i%7 == 0 {
					r.Abort()
				} else {
					r.Commit()
				}
				if i%50 == 0 {
					table.Sweep(now)
				}
			}
		})
	}
	wg.Wait()
	assert.LessOrEqual(t, table.Stats().Nodes, int64(5))
	assert.LessOrEqual(t, table.Stats().Series, int64(60))
	requireCounted(t, table)
	table.Sweep(time.Hour)
	assert.Zero(t, table.Stats().Nodes)
	assert.Zero(t, table.Stats().Series)
	table.Sweep(2 * time.Hour)
	assert.Zero(t, table.bytes.Taken())
}
