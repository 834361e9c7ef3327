// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

// hostile plays a fleet that pushes what it should not.
type hostile struct {
	*driver
	w       *world
	flagged []bool
	was     []bool
	// Verdicts that began, node events of slowness, group incidents, nodes told missing.
	onsets, missing int
	counters        straggler.Counters
	groups          int // most at one tick
}

func newHostile(m Model, nodes int) *hostile {
	h := &hostile{w: newWorld(m, Fault{}, nodes, 0, 0, random(1, "hostile", nodes))}
	h.driver = newDriver(straggler.DefaultConfig(), nodes, h.w)
	h.flagged, h.was = make([]bool, nodes), make([]bool, nodes)
	return h
}

// end ends a tick and counts what the engine says of it.
func (h *hostile) end(tick int) {
	h.tick(tick, h.flagged)
	for i, f := range h.flagged {
		if f && !h.was[i] {
			h.onsets++
		}
	}
	copy(h.was, h.flagged)
	for _, e := range h.report.Events {
		if e.Kind == straggler.EventOnset && e.Subject == straggler.SubjectMissing {
			h.missing++
		}
	}
	c := h.report.Counters
	h.counters.Contested += c.Contested
	h.counters.Stuck += c.Stuck
	h.counters.GroupChanges += c.GroupChanges
	h.groups = max(h.groups, len(h.report.Groups)-1)
}

// quiet asserts that nobody was accused, and that the engine knows no more
// nodes than there are.
func (h *hostile) quiet(t *testing.T) {
	t.Helper()
	assert.Zero(t, h.onsets, "verdicts")
	assert.Zero(t, h.nodeRecords, "events of nodes")
	assert.Zero(t, h.groupRecords, "events of groups")
	assert.LessOrEqual(t, h.engine.Nodes(), len(h.obs))
}

func at(tick int) time.Time {
	return epoch.Add(time.Duration(tick)*Interval + Interval/2)
}

const hours = 2

// TestClocksApart: the pushes of each node are late by a time of their own, up to a
// minute, or up to 20 s where the job pauses now and then. So the work of one moment
// lands in several ticks.
func TestClocksApart(t *testing.T) {
	paused := correlated(0.01)
	paused.Dip = Dip{Every: 30 * time.Minute, For: time.Minute, Depth: 0.4}
	for name, tt := range map[string]struct {
		m    Model
		late int
	}{"a minute": {correlated(0.01), 6}, "20 s and pauses": {paused, 2}} {
		t.Run(name, func(t *testing.T) {
			const nodes = 64
			h := newHostile(tt.m, nodes)
			past := make([][]float64, tt.late+1)
			for tick := range hours * perHour {
				past[tick%len(past)] = append([]float64(nil), h.w.next()...)
				for i := range nodes {
					if from := tick - i%len(past); from >= 0 {
						require.NoError(t, h.pushOne(i, past[from%len(past)][i], at(tick)))
					}
				}
				h.end(tick)
			}
			h.quiet(t)
		})
	}
}

// TestPushesWander: each push is late by another time, so that a tick has none
// or several of a node.
func TestPushesWander(t *testing.T) {
	const nodes, late = 64, 6
	h := newHostile(correlated(0.01), nodes)
	type push struct {
		node  int
		value float64
	}
	var queue [late + 1][]push
	for tick := range hours * perHour {
		for i, v := range h.w.next() {
			to := (tick + h.w.rng.IntN(late+1)) % len(queue)
			queue[to] = append(queue[to], push{i, v})
		}
		for _, p := range queue[tick%len(queue)] {
			require.NoError(t, h.pushOne(p.node, p.value, at(tick)))
		}
		queue[tick%len(queue)] = queue[tick%len(queue)][:0]
		h.end(tick)
	}
	h.quiet(t)
}

// TestFlappingNodes: every fourth node comes and goes, for up to two minutes
// at a time, and says that it calibrates when it is back.
func TestFlappingNodes(t *testing.T) {
	const nodes = 64
	h := newHostile(correlated(0.01), nodes)
	silent := make([]int, nodes) // ticks to go
	for tick := range hours * perHour {
		for i, v := range h.w.next() {
			if i%4 == 0 {
				if silent[i]--; silent[i] <= -12 && h.w.rng.Float64() < 0.2 {
					silent[i] = 1 + h.w.rng.IntN(12)
				}
				if silent[i] > 0 {
					continue
				}
			}
			h.obs[i].State = nodesignal.StateActive
			if i%4 == 0 && silent[i] == 0 {
				h.obs[i].State = nodesignal.StateCalibrating
			}
			require.NoError(t, h.pushOne(i, v, at(tick)))
		}
		h.end(tick)
	}
	h.quiet(t)
	// A silent node is told of, once an episode at most.
	assert.Positive(t, h.missing)
	assert.LessOrEqual(t, h.missing, nodes/4*hours*4, "who comes and goes for ever is held open")
}

// TestClaimedNames: another sender pushes half the value under the names of
// four nodes, before or after the true one.
func TestClaimedNames(t *testing.T) {
	const nodes = 64
	h := newHostile(correlated(0.01), nodes)
	for tick := range hours * perHour {
		for i, v := range h.w.next() {
			claimed := i%16 == 5 && tick > perHour
			first := claimed && h.w.rng.Float64() < 0.5
			if first {
				require.NoError(t, h.pushOne(i, v/2, at(tick)))
			}
			require.NoError(t, h.pushOne(i, v, at(tick)))
			if claimed && !first {
				require.NoError(t, h.pushOne(i, v/2, at(tick)))
			}
		}
		h.end(tick)
	}
	h.quiet(t)
	assert.GreaterOrEqual(t, h.counters.Contested, int64(4))
	contested := 0
	for _, n := range h.report.Nodes {
		if n.Contested {
			contested++
		}
	}
	assert.Equal(t, 4, contested)
}

// TestNoNumbers: three nodes push NaN, infinity and less than nothing, now and
// then or always. Nothing of it is taken.
func TestNoNumbers(t *testing.T) {
	const nodes = 64
	h := newHostile(correlated(0.01), nodes)
	refused := 0
	for tick := range hours * perHour {
		for i, v := range h.w.next() {
			if i < 3 && (i == 0 || tick%(i+1) == 0) {
				v = []float64{math.NaN(), math.Inf(1), -1}[i]
				refused++
				require.Error(t, h.pushOne(i, v, at(tick)))
				continue
			}
			require.NoError(t, h.pushOne(i, v, at(tick)))
		}
		h.end(tick)
	}
	h.quiet(t)
	assert.Positive(t, refused)
	assert.Equal(t, nodes-1, h.engine.Nodes(), "a node that never said a number is not kept")
}

// TestStuckValues: three nodes push the very same number for ever, while their
// peers become 15 % faster within an hour.
func TestStuckValues(t *testing.T) {
	const nodes = 64
	h := newHostile(correlated(0.01), nodes)
	for tick := range hours * perHour {
		faster := 1 + 0.15*min(max(float64(tick-perHour)/float64(perHour), 0), 1)
		for i, v := range h.w.next() {
			v *= faster
			if i < 3 {
				v = 0.9
			}
			require.NoError(t, h.pushOne(i, v, at(tick)))
		}
		h.end(tick)
	}
	h.quiet(t)
	assert.GreaterOrEqual(t, h.counters.Stuck, int64(3))
}

// TestFewNodes: of two nobody can tell which is slow, of three the one that is.
func TestFewNodes(t *testing.T) {
	for nodes := 1; nodes <= 3; nodes++ {
		t.Run(strconv.Itoa(nodes), func(t *testing.T) {
			h := newHostile(correlated(0.01), nodes)
			for tick := range hours * perHour {
				values := h.w.next()
				if tick > perHour {
					values[0] /= 2
				}
				require.NoError(t, h.push(tick, values))
				h.end(tick)
			}
			found := map[int]int{3: 1}[nodes]
			assert.Equal(t, found, h.onsets)
			assert.Equal(t, found, h.nodeRecords)
		})
	}
}

// TestGroupsChange: every push of every fourth node names another job, among
// few or endlessly many.
func TestGroupsChange(t *testing.T) {
	for _, jobs := range []int{2, 1_000_000} {
		t.Run(strconv.Itoa(jobs), func(t *testing.T) {
			const nodes = 64
			h := newHostile(correlated(0.01), nodes)
			for tick := range hours * perHour {
				for i, v := range h.w.next() {
					h.obs[i].Peers = []string{"job"}
					if i%4 == 0 {
						h.obs[i].Peers = []string{fmt.Sprintf("job-%d", (tick*(nodes+1)+i/4)%jobs)}
						v *= 0.5 + 0.5*h.w.rng.Float64()
					}
					require.NoError(t, h.pushOne(i, v, at(tick)))
				}
				h.end(tick)
			}
			h.quiet(t)
			assert.LessOrEqual(t, h.groups, nodes)
			assert.Equal(t, int64(nodes/4*(hours*perHour-1)), h.counters.GroupChanges)
		})
	}
}
