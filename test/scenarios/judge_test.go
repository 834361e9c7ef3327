// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/test/scenarios/families"
)

// trace is a run whose verdicts a test makes: ticks of 15 min, so that the first hour
// is four ticks and the grace one.
func trace(f *families.Family, nodes, racks int, faults ...families.Fault) *families.Run {
	f.Grace = 15 * time.Minute
	return &families.Run{
		Family: f, Model: families.Model{Nodes: nodes, Racks: racks, Interval: 15 * time.Minute}, Faults: faults,
		Life: make([]uint32, nodes), Absent: make([]bool, nodes),
	}
}

// verdicts plays a line for each node, an x for each tick with a verdict, and returns
// what came of it. before is called before each tick.
func verdicts(run *families.Run, incidents string, before func(tick int), lines ...string) *FamilyRun {
	j := newJudge(run)
	for tick := range lines[0] {
		run.Tick = tick
		if before != nil {
			before(tick)
		}
		for i, line := range lines {
			j.flagged[i] = line[tick] == 'x'
		}
		open := 0
		if incidents != "" {
			open = int(incidents[tick] - '0')
		}
		j.tick(open, 0)
	}
	return &j.result
}

func TestJudge(t *testing.T) {
	fault := families.Fault{Node: 1, Begin: 6, End: 9, Loss: 0.2, Noise: 0.02, Oracle: 15 * time.Minute}
	found := Found{Delay: 30 * time.Minute, Oracle: 15 * time.Minute, Plain: true}
	for _, tt := range []struct {
		name, healthy, faulty string
		onsets                int
		counted, flagged      int // ticks
		found                 Found
	}{
		{"the first hour, the fault and its grace do not count", ".x.x........", "x..x..x.xx..", 0, 8 + 4, 0, Found{Delay: 15 * time.Minute, Oracle: found.Oracle, Plain: true}},
		{"a verdict that lasts began once", "....xxx..x..", ".......x....", 2, 12, 4, found},
		{"one from the first hour is no onset after it", "...xx.......", ".......xxxxx", 0, 12, 1 + 2, found},
		{"before and after its fault a node is healthy", "............", "....x......x", 2, 12, 2, Found{Never: true, Oracle: found.Oracle, Plain: true}},
		{"who is flagged already is found at once", "............", ".....xx.....", 1, 12, 1, Found{Delay: 15 * time.Minute, Oracle: found.Oracle, Plain: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := verdicts(trace(&families.Family{}, 2, 0, fault), "", nil, tt.healthy, tt.faulty)
			assert.Equal(t, tt.onsets, r.Onsets)
			assert.InDelta(t, float64(tt.counted)/96, r.Days, 1e-9)
			assert.InDelta(t, float64(tt.flagged)/96, r.FlaggedDays, 1e-9)
			assert.Equal(t, []Found{tt.found}, r.Found)
		})
	}
}

// TestJudgeSlow: who is slow in a recording itself does not count, flagged or not. What is
// told of lockstep counts from the second hour on.
func TestJudgeSlow(t *testing.T) {
	run := trace(&families.Family{}, 2, 0)
	run.Model.Recording = &families.Recording{Slow: []int{1}}
	j := newJudge(run)
	for run.Tick = range 8 {
		j.flagged[0], j.flagged[1] = run.Tick == 6, run.Tick%2 == 0
		j.tick(0, 1)
	}
	assert.Equal(t, 1, j.result.Onsets)
	assert.InDelta(t, 4.0/96, j.result.Days, 1e-9)
	assert.InDelta(t, 1.0/96, j.result.FlaggedDays, 1e-9)
	assert.InDelta(t, 1, (&FamilyResult{Runs: []FamilyRun{j.result}}).Lockstep(), 1e-9)
}

// TestJudgeIncidents: those that begin after the first hour.
func TestJudgeIncidents(t *testing.T) {
	r := verdicts(trace(&families.Family{}, 1, 0), "0110012010", nil, "..........")
	assert.Equal(t, 3, r.Incidents)
}

// TestJudgeLives: a new name is a new node, and between two names nobody is there.
func TestJudgeLives(t *testing.T) {
	run := trace(&families.Family{}, 1, 0)
	r := verdicts(run, "", func(tick int) {
		run.Absent[0] = tick == 6 || tick == 7
		run.Life[0] = uint32(tick / 8)
	}, "....xxxxxx..")
	assert.Equal(t, 2, r.Onsets)
	assert.InDelta(t, 6.0/96, r.Days, 1e-9)
	assert.InDelta(t, 4.0/96, r.FlaggedDays, 1e-9)
}

// TestJudgeRacks: a rack counts once, and a verdict on the fault's own rack that lasts
// beyond its grace is none.
func TestJudgeRacks(t *testing.T) {
	calm := "............"
	lines := []string{
		calm, calm, "....xx......", ".....xx.....", calm, calm, "..........x.", calm, // twice
		calm, "....x.......", calm, calm, calm, calm, calm, "......xxxxxx",
	}
	fault := families.Fault{Node: 15, Begin: 6, End: 9}
	r := verdicts(trace(&families.Family{ByRack: true}, 16, 2, fault), "", nil, lines...)
	assert.Equal(t, 3, r.Onsets)
	r = verdicts(trace(&families.Family{}, 16, 2, fault), "", nil, lines...)
	assert.Equal(t, 4, r.Onsets, "each node")
}

func TestFamilyResult(t *testing.T) {
	never, at := Found{Never: true, Oracle: time.Minute}, func(minutes int, plain bool) Found {
		return Found{Delay: time.Duration(minutes) * time.Minute, Oracle: time.Minute, Plain: plain}
	}
	r := &FamilyResult{Runs: []FamilyRun{
		{Days: 10, FlaggedDays: 1, Incidents: 3, Found: []Found{at(1, false), at(3, true), never}},
		{Days: 30, Onsets: 4, FlaggedDays: 1, Incidents: 0, Found: []Found{at(2, false), at(5, true)}},
	}}
	rate, upper := r.Onsets()
	assert.InDelta(t, 0.1, rate, 1e-12)
	// Both draws may be of the run with the onsets: 4 in 30 days; Poisson's is more.
	assert.InDelta(t, 4.0/30, r.bootstrap(), 1e-12)
	assert.InDelta(t, RateUpper(4, 40), upper, 1e-12)
	recall, lower := r.Recall()
	assert.InDelta(t, 0.8, recall, 1e-12)
	assert.InDelta(t, 0.3426, lower, 1e-4)
	assert.InDelta(t, 3, r.Ratio(), 1e-12)
	assert.InDelta(t, 0.05, r.Flagged(), 1e-12)
	assert.InDelta(t, 1.5, r.Incidents(), 1e-12)
	p90, n := r.Delay(0.9, false)
	assert.Equal(t, 5*time.Minute, p90)
	assert.Equal(t, 4, n)
	p50, n := r.Delay(0.5, true)
	assert.Equal(t, 3*time.Minute, p50)
	assert.Equal(t, 2, n)

	// Onsets that come in one run of twenty: the runs drawn anew know how rare that is.
	bursts := &FamilyResult{Runs: make([]FamilyRun, 20)}
	for i := range bursts.Runs {
		bursts.Runs[i].Days = 1
	}
	bursts.Runs[7].Onsets = 20
	_, upper = bursts.Onsets()
	assert.InDelta(t, 3, upper, 1e-12, "three draws of it")
	assert.Greater(t, upper, RateUpper(20, 20))

	lost := &FamilyResult{Runs: []FamilyRun{{Days: 1, Found: []Found{at(1, false), never, never}}}}
	assert.True(t, math.IsInf(lost.Ratio(), 1))
}

// family is one by name, with so many runs.
func family(t *testing.T, name string, runs int) families.Family {
	t.Helper()
	for _, f := range append(families.All(), families.Cases()...) {
		if f.Name == name {
			f.Runs = runs
			return f
		}
	}
	t.Fatal(name)
	return families.Family{}
}

// TestFamilies plays a few runs: whatever the number of workers, the figures come out
// the same, and show what is known of the rules.
func TestFamilies(t *testing.T) {
	list := []families.Family{family(t, "base", 2), family(t, "churn", 2), family(t, "ticks", 1), family(t, "racks", 1)}
	for _, name := range []string{"signals", "shards"} {
		list = append(list, family(t, name, 1).Short(16, 3*time.Hour))
	}
	var texts [2]string
	var outcomes []FamilyOutcome
	for i := range texts {
		var err error
		outcomes, err = EvaluateFamilies(t.Context(), list, FamilyOptions{Seed: 5, Workers: 1 + 2*i, Deciders: Deciders()})
		require.NoError(t, err)
		var figures strings.Builder
		FamilyFigures(&figures, outcomes, Deciders())
		texts[i] = FamilyText(outcomes, Deciders()) + figures.String()
	}
	assert.Equal(t, texts[0], texts[1])
	for i := range outcomes {
		plain, _ := outcomes[i].Results["threshold"].Onsets()
		band, _ := outcomes[i].Results["ingero-like"].Onsets()
		product, _ := outcomes[i].Results[Product].Onsets()
		clean, _ := outcomes[i].Clean[Product].Onsets()
		assert.Greater(t, plain, 10.0, outcomes[i].Family.Name)
		assert.Greater(t, plain, band, outcomes[i].Family.Name)
		assert.Less(t, product, 1.0, outcomes[i].Family.Name)
		assert.Less(t, clean, 1.0, outcomes[i].Family.Name)
		recall, _ := outcomes[i].Results[Product].Recall()
		assert.InDelta(t, 1, recall, 0, outcomes[i].Family.Name)
		assert.Empty(t, outcomes[i].Clean[Product].Runs[0].Found)
	}
	for _, line := range []string{
		`eval_base_cusum_false_onsets_upper [\d.]+ 1/node-day limit 0.02 (pass|short)`,
		`eval_base_cusum_recall 1 share limit 1 pass`,
		`eval_base_cusum_delay10_p50 \d+ s limit 60 (pass|short)`,
		`eval_base_cusum_oracle_ratio [\d.]+ x limit 6.5 (pass|short)`,
		`eval_racks_cusum_false_onsets_upper [\d.]+ 1/node-day limit 0.05 (pass|short)`,
		`eval_base_ingero_like_recall 1 share`,
		`eval_clean_cusum_false_onsets_upper [\d.]+ 1/node-day limit 0.003 (pass|short)`,
	} {
		assert.Regexp(t, `(?m)^figure `+line+`$`, texts[0])
	}
}

// TestDriver: nodes at another interval are missing as many intervals later, and a node
// of a new name is another one.
func TestDriver(t *testing.T) {
	f := family(t, "base", 1)
	run := f.Play(1, 0, true)
	run.Model.Nodes = 5
	d := newDriverAt(straggler.DefaultConfig(), time.Minute, 5, familyFleet{run})
	values, flagged := []float64{1, 1, 1, 1, 1}, make([]bool, 5)
	missing := func() int { return d.report.Groups[0].Counts[nodesignal.StateMissing] }
	for tick := range 20 {
		if tick == 10 {
			values[4] = math.NaN()
		}
		require.NoError(t, d.push(tick, values))
		d.tick(tick, flagged)
		assert.Equal(t, tick >= 14, missing() > 0, "tick %d", tick)
	}
	d.rename([]uint32{0, 0, 0, 0, 1})
	values[4] = 1
	require.NoError(t, d.push(20, values))
	assert.Equal(t, 6, d.engine.Nodes())
	at, alive := d.nodeIndex(nodeName(4, 1))
	assert.Equal(t, 4, at)
	assert.True(t, alive)
	_, alive = d.nodeIndex(nodeName(4, 0))
	assert.False(t, alive)
}

// TestFamilyPromises: each family has its row of limits.
func TestFamilyPromises(t *testing.T) {
	list := slices.Concat(families.All(), families.Cases(), recorded(t))
	assert.Len(t, familyPromises, len(list))
	for i := range list {
		name := list[i].Name
		p := familyPromises[name]
		assert.NotEqual(t, p.Quiet, p.Onsets > 0, name)
		assert.NotEqual(t, p.Lockstep > 0, p.Recall > 0, name)
		assert.Equal(t, name == "fromstart" || p.Quiet, p.Ratio == 0, name)
	}
}

// recorded are the families of a real run.
func recorded(t *testing.T) []families.Family {
	t.Helper()
	compute, err := ReadRecording(recordingPath, ComputeColumn)
	require.NoError(t, err)
	wall, err := ReadRecording(wallPath, WallColumn)
	require.NoError(t, err)
	return RecordedFamilies(compute, wall)
}

// TestRecordedFamilies: in the clean run of a real job nobody is named but the worker
// that was slowed, which does not count, and by wall time nobody at all. The slowed
// healthy workers of whole stages are found.
func TestRecordedFamilies(t *testing.T) {
	const runs = 4
	list := recorded(t)
	list = []families.Family{list[0], list[2]}
	list[0].Runs = runs
	deciders := product()
	outcomes, err := EvaluateFamilies(t.Context(), list, FamilyOptions{Seed: 11, Workers: 2, Deciders: deciders})
	require.NoError(t, err)
	for i := range outcomes {
		o := &outcomes[i]
		assert.Zero(t, o.Clean[Product].count(), o.Family.Name)
		assert.Zero(t, o.Clean[Product].Flagged(), o.Family.Name)
		recall, _ := o.Results[Product].Recall()
		if o.Family.Name == "lockstep" {
			assert.Zero(t, o.Results[Product].faults())
			continue
		}
		// The fourth has two peers left besides the one that was slowed.
		assert.Equal(t, runs, o.Results[Product].faults())
		assert.GreaterOrEqual(t, recall, 0.75, o.Family.Name)
		assert.InDelta(t, runs*15*5.0/24, o.Clean[Product].days(), 1e-6, "all but one worker and the first hour")
	}
	var figures strings.Builder
	FamilyFigures(&figures, outcomes, deciders)
	for _, line := range []string{
		`eval_recorded_cusum_clean_onsets 0 onsets limit 0 pass`,
		`eval_recorded_cusum_recall [\d.]+ share limit 0.9 (pass|short)`,
		`eval_lockstep_cusum_told [\d.]+ share limit 0.9 (pass|short)`,
	} {
		assert.Regexp(t, `(?m)^figure `+line+`$`, figures.String())
	}
	assert.NotContains(t, figures.String(), "eval_lockstep_cusum_recall", "nothing is slow")
	assert.NotContains(t, figures.String(), "eval_clean", "they are not of the table")
}
