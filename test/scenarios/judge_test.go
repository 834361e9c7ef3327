// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// trace is a run whose verdicts a test makes: ticks of 15 min, so that the first hour
// is four ticks and the grace one.
func trace(nodes int, faults ...Fault) *Run {
	return &Run{
		Family: &Family{Grace: 15 * time.Minute}, Model: Model{Nodes: nodes, Interval: 15 * time.Minute}, Faults: faults,
		Life: make([]uint32, nodes), Absent: make([]bool, nodes),
	}
}

// verdicts plays a line for each node, an x for each tick with a verdict, and returns
// what came of it. before is called before each tick.
func verdicts(run *Run, before func(tick int, tally *tally), lines ...string) *Verdicts {
	j, tally := newJudge(run), &tally{known: len(lines)}
	for tick := range lines[0] {
		run.Tick = tick
		before(tick, tally)
		for i, line := range lines {
			j.flagged[i] = line[tick] == 'x'
		}
		j.tick(tally)
	}
	return &j.result
}

func nothing(int, *tally) {}

func TestJudge(t *testing.T) {
	fault := Fault{Node: 1, Begin: 6, End: 9, Loss: 0.2, Noise: 0.02, Oracle: 15 * time.Minute}
	found := func(ticks time.Duration) Found {
		return Found{Delay: ticks * 15 * time.Minute, Never: ticks == 0, Oracle: fault.Oracle, Plain: true}
	}
	for _, tt := range []struct {
		name, healthy, faulty string
		onsets                int
		counted, flagged      int // ticks
		found                 Found
	}{
		{"the first hour, the fault and its grace do not count", ".x.x........", "x..x..x.xx..", 0, 8 + 4, 0, found(1)},
		{"a verdict that lasts began once", "....xxx..x..", ".......x....", 2, 12, 4, found(2)},
		{"one from the first hour is no onset after it", "...xx.......", ".......xxxxx", 0, 12, 1 + 2, found(2)},
		{"before and after its fault a node is healthy", "............", "....x......x", 2, 12, 2, found(0)},
		{"a node that is flagged already is found at once", "............", ".....xx.....", 1, 12, 1, found(1)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := verdicts(trace(2, fault), nothing, tt.healthy, tt.faulty)
			assert.Equal(t, tt.onsets, r.Onsets)
			assert.InDelta(t, float64(tt.counted)/96, r.Days, 1e-9)
			assert.InDelta(t, float64(tt.flagged)/96, r.FlaggedDays, 1e-9)
			assert.Equal(t, []Found{tt.found}, r.Found)
		})
	}
}

// TestJudgeCounts: a new name is a new node, and between two names no node is there. A
// node that is slow in a recording itself does not count. Incidents and missing verdicts count from the second
// hour on.
func TestJudgeCounts(t *testing.T) {
	run := trace(2)
	run.Model.Recording = &Recording{Slow: []int{1}}
	r := verdicts(run, func(tick int, tally *tally) {
		run.Absent[0] = tick == 6 || tick == 7
		run.Life[0] = uint32(tick / 8)
		tally.incidents = int("011001201000"[tick] - '0')
		tally.unjudged = map[string]int{"idle": tick % 2}
	}, "....xxxxxx..", "xxx.x.x.x.x.")
	assert.Equal(t, 2, r.Onsets)
	assert.InDelta(t, 6.0/96, r.Days, 1e-9)
	assert.InDelta(t, 4.0/96, r.FlaggedDays, 1e-9)
	assert.Equal(t, 3, r.Incidents)
	assert.InDelta(t, 0.25, (&Result{Runs: []Verdicts{*r}}).unjudgedFor("idle"), 1e-9)
}

// TestJudgeOnsets: onsets of the first hour, of nodes that have a fault with others, and
// those reported again are counted apart.
func TestJudgeOnsets(t *testing.T) {
	daily := Fault{Node: 1, Begin: 6, End: 9, Kind: Daily, period: 1, on: 2, day: 96}
	r := verdicts(trace(3, daily, Fault{Node: 2, Begin: 6, End: 9}), func(tick int, tally *tally) {
		tally.onsets, tally.again = nil, 0
		switch tick {
		case 6:
			tally.onsets = []int{0, 1, 2}
		case 8:
			tally.onsets, tally.again = []int{1}, 1
		}
	}, "x.x.....x...", ".x..........", "............")
	assert.Equal(t, []int{3, 1, 2, 1}, []int{r.Early, r.Onsets, r.Named, r.Again})
	both := &Result{Runs: []Verdicts{*r, {}}}
	all := both.total()
	assert.InDelta(t, 1.5, both.perRun(all.Early), 1e-12)
	assert.Equal(t, []int{2, 1}, []int{all.Named, all.Again})
}

func TestResult(t *testing.T) {
	never, at := Found{Never: true, Oracle: time.Minute}, func(minutes int, plain bool) Found {
		return Found{Delay: time.Duration(minutes) * time.Minute, Oracle: time.Minute, Plain: plain}
	}
	r := &Result{Runs: []Verdicts{
		{Days: 10, FlaggedDays: 1, Incidents: 3, Found: []Found{at(1, false), at(3, true), never}},
		{Days: 30, Onsets: 4, FlaggedDays: 1, Found: []Found{at(2, false), at(5, true)}},
	}}
	rate, upper := r.Onsets()
	assert.InDelta(t, 0.1, rate, 1e-12)
	// Both draws may be of the run with the onsets: 4 in 30 days; Poisson's is more.
	assert.InDelta(t, 4.0/30, r.bootstrap(), 1e-12)
	assert.InDelta(t, RateUpper(4, 40), upper, 1e-12)
	assert.InDelta(t, 0.8, r.Recall(), 1e-12)
	assert.InDelta(t, 3, r.Ratio(), 1e-12)
	assert.InDelta(t, 0.05, r.Flagged(), 1e-12)
	assert.InDelta(t, 1.5, r.perRun(r.total().Incidents), 1e-12)
	p90, n := r.Delay(0.9, false)
	assert.Equal(t, 5*time.Minute, p90)
	assert.Equal(t, 4, n)
	p50, n := r.Delay(0.5, true)
	assert.Equal(t, 3*time.Minute, p50)
	assert.Equal(t, 2, n)

	// Onsets that come in one run of twenty: the runs drawn anew know how rare that is.
	bursts := &Result{Runs: make([]Verdicts, 20)}
	for i := range bursts.Runs {
		bursts.Runs[i].Days = 1
	}
	bursts.Runs[7].Onsets = 20
	_, upper = bursts.Onsets()
	assert.InDelta(t, 3, upper, 1e-12, "three draws of it")
	assert.Greater(t, upper, RateUpper(20, 20))

	lost := &Result{Runs: []Verdicts{{Days: 1, Found: []Found{at(1, false), never, never}}}}
	assert.True(t, math.IsInf(lost.Ratio(), 1))
}

// TestBounds: published values, and the closed forms of the edges.
func TestBounds(t *testing.T) {
	assert.InDelta(t, 3.0/300, RateUpper(0, 300), 1e-4, "the rule of three")
	assert.InDelta(t, 4.744, RateUpper(1, 1), 1e-3)
	assert.InDelta(t, 16.962, RateUpper(10, 1), 1e-3)
	assert.InDelta(t, 100_000+1.645*math.Sqrt(100_000), RateUpper(100_000, 1), 5, "nearly normal")
	assert.True(t, math.IsInf(RateUpper(1, 0), 1))
}
