// SPDX-License-Identifier: Apache-2.0

package statetable

import (
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const maxKeys = 12

// forwarded observes the points as one node's part of a report, and returns those for the next hop.
func forwarded(r *Report, points []Point) map[uint64]Point {
	next := map[uint64]Point{}
	for i, verdict := range observe(r, nodeA, points...) {
		if verdict == Forward {
			next[points[i].Key] = points[i]
		}
	}
	return next
}

// Reports of one node that overlap in any way: the next hop takes them in any
// order, and their outcomes arrive in any order. Once no report is under way,
// each series is either unknown or at the next hop as the table has it, so the
// next accepted report makes the two equal.
func TestOverlappingReportsLoseNothing(t *testing.T) {
	type flight struct {
		report *Report
		points map[uint64]Point
		end    func(*Report)
	}
	rapid.Check(t, func(t *rapid.T) {
		table := New(Settings{MaxNodes: 1, MaxSeries: rapid.IntRange(1, 4).Draw(t, "max_series")})
		next := map[uint64]Point{}
		var flights []*flight
		clock, timed := uint64(1_800_000_000e9), rapid.Bool().Draw(t, "timed")
		begin := func(t *rapid.T) {
			clock += 1e9
			var points []Point
			for _, key := range rapid.SliceOfNDistinct(rapid.Uint64Range(0, 2), 0, 3, rapid.ID).Draw(t, "reported") {
				p := Point{Key: key, Value: rapid.Uint64Range(0, 2).Draw(t, "value")}
				if timed {
					// Reports may overtake each other before they get here.
					p.Time = clock - rapid.Uint64Range(0, 5e9).Draw(t, "late")
				}
				points = append(points, p)
			}
			r := table.Begin(0)
			// A report that is not delivered was refused before it got anywhere.
			flights = append(flights, &flight{r, forwarded(r, points), (*Report).Discard})
		}
		deliver := func(f *flight, end func(*Report)) {
			maps.Copy(next, f.points)
			f.points, f.end = nil, end
		}
		finish := func(i int) {
			flights[i].end(flights[i].report)
			flights = slices.Delete(flights, i, i+1)
		}
		for range 40 {
			i := rapid.IntRange(0, 3).Draw(t, "flight")
			switch {
			case i >= len(flights):
				begin(t)
			case flights[i].points != nil && rapid.IntRange(0, 3).Draw(t, "delivered") > 0:
				deliver(flights[i], rapid.SampledFrom([]func(*Report){(*Report).Commit, (*Report).Abort}).Draw(t, "end"))
			default:
				finish(i)
			}
		}
		for len(flights) > 0 {
			if flights[0].points != nil {
				deliver(flights[0], (*Report).Commit)
			}
			finish(0)
		}
		clock += 10e9
		last := []Point{{Key: 0, Time: clock}, {Key: 1, Time: clock}, {Key: 2, Time: clock}}
		for i := range last {
			last[i].Value = rapid.Uint64Range(0, 2).Draw(t, "last")
		}
		r := table.Begin(0)
		maps.Copy(next, forwarded(r, last))
		r.Commit()
		for _, want := range last {
			require.Equal(t, want.Value, next[want.Key].Value)
		}
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
