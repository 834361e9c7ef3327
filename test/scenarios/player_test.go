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

	"github.com/gpu-collector/gpu-collector/internal/detect/straggler"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

const root = "../.."

func family(t *testing.T, name string, runs int) Family {
	t.Helper()
	recorded, err := Recorded(root)
	require.NoError(t, err)
	list := slices.Concat(All(), recorded)
	i := slices.IndexFunc(list, func(f Family) bool { return f.Name == name })
	require.GreaterOrEqual(t, i, 0, name)
	list[i].Runs = runs
	return list[i]
}

// TestDetector: a few runs of some families, with bounds that leave room for what chance
// does in so few. `make eval` has the limits.
func TestDetector(t *testing.T) {
	for _, tt := range []struct {
		family  string
		runs    int
		onsets  float64 // at most, in both forms of the runs
		recall  float64
		delay   time.Duration // median; 0 is any
		flagged float64
	}{
		{"base", 4, 1, 1, 60 * time.Second, 0.001},
		{"noisy", 4, 1, 0.9, 15 * time.Minute, 0.001},
		{"steps", 4, 2, 0.9, 2 * time.Minute, 0.005},
		{"restart", 4, 3, 1, 60 * time.Second, 0.005},
		{"models", 4, 2, 0.9, 60 * time.Second, 0.005},
		{"many", 4, 1, 0.9, 150 * time.Second, 0.001},
		{"small", 8, 1, 0.8, 90 * time.Second, 0.001},
		{"loss-3", 4, 1, 1, 5 * time.Minute, 0.001},
		{"grid", 4, 2, 0.8, 5 * time.Minute, 0.02},
		{"stages", 4, 1, 0.9, 60 * time.Second, 0.001},
		{"uneven", 4, 1, 0.9, 60 * time.Second, 0.001},
		{"contradiction", 4, 2, 1, 60 * time.Second, 0.005},
		{"ar-10", 15, 0, 0.9, time.Minute, 0},
		{"h100-10", 3, 0, 1, time.Minute, 0},
	} {
		t.Run(tt.family, func(t *testing.T) {
			list := []Family{family(t, tt.family, tt.runs)}
			outcomes, err := Evaluate(t.Context(), list, Options{Seed: 7, Workers: 1, Deciders: Deciders()[:1]})
			require.NoError(t, err)
			r, clean := outcomes[0].Results[Detector], outcomes[0].Clean
			assert.LessOrEqual(t, float64(r.total().Onsets+clean.total().Onsets), tt.onsets, "false onsets")
			assert.LessOrEqual(t, max(r.Flagged(), clean.Flagged()), tt.flagged, "share of the healthy time")
			assert.GreaterOrEqual(t, r.Recall(), tt.recall)
			p50, _ := r.Delay(0.5, false)
			assert.LessOrEqual(t, p50, tt.delay)
			assert.Empty(t, clean.Runs[0].Found)
		})
	}
}

// TestQuiet: for a day nothing is reported of sixteen nodes that run the steps of one GPU, nor
// of workers that wait for the slowest of them.
func TestQuiet(t *testing.T) {
	for name, run := range map[string]int{"h100": 1, "ar-wall": 0} {
		f := family(t, name, 1)
		whole := f.draw
		f.draw = func(d *draw, m *Model) {
			whole(d, m)
			m.Length = 24 * time.Hour
			assert.Equal(t, 16, m.Nodes)
		}
		runs, err := play(&f, Deciders()[:1], 3, run, false)
		require.NoError(t, err)
		assert.Zero(t, runs[0].Onsets, name)
		assert.Zero(t, runs[0].FlaggedDays, name)
		if name == "ar-wall" {
			assert.Greater(t, (&Result{Runs: runs}).unjudgedFor("lockstep"), 0.9)
		}
	}
}

// TestEvaluate: whatever the number of workers, the tables come out the same, and show
// what is known of the rules.
func TestEvaluate(t *testing.T) {
	list := []Family{family(t, "base", 2), family(t, "churn", 1), family(t, "ar-20", 2)}
	var texts [2]string
	var outcomes []Outcome
	for i := range texts {
		var err error
		outcomes, err = Evaluate(t.Context(), list, Options{Seed: 5, Workers: 1 + 2*i, Deciders: Deciders()})
		require.NoError(t, err)
		var figures strings.Builder
		Figures(&figures, outcomes)
		texts[i] = Markdown(outcomes, nil) + figures.String()
	}
	assert.Equal(t, texts[0], texts[1])
	band, _ := outcomes[0].Results["ingero-like"].Onsets()
	assert.InDelta(t, 110, band, 50, "one tick is enough for it")
	for _, line := range []string{
		`eval_base_detector_false_onsets_upper [\d.]+ 1/node-day limit 0.02 (pass|short)`,
		`eval_base_detector_recall 1 share limit 1 pass`,
		`eval_base_detector_delay8_p50 \d+ s limit 60 (pass|short)`,
		`eval_churn_detector_recall \S+ share limit 0.95 (pass|short)`,
		`eval_ar_20_detector_clean_onsets \d+ onsets limit 0.5 (pass|short)`,
		`eval_all_detector_clean_false_onsets_upper [\d.]+ 1/node-day limit 0.003 (pass|short)`,
	} {
		assert.Regexp(t, `(?m)^figure `+line+`$`, texts[0])
	}

	table := Markdown(outcomes, map[string]*Result{"base": outcomes[0].Results["threshold"]})
	assert.Regexp(t, `(?m)^\| base \| \S+ \([\d.]+\) \| \S+ \| \d+\.?\d* \| \S+, \S+, \d+ s \| 1 \| \d+ s \| \d\.\d \|$`, table)
	assert.Regexp(t, `(?m)^\| ar-20 \|.* – \|.* \d\.\d \|$`, table)
	assert.NotContains(t, Markdown(outcomes, nil), "before")
}

// TestDriver: nodes at another interval are missing as many intervals later, and a node
// of a new name is another one.
func TestDriver(t *testing.T) {
	d := newDriver(straggler.DefaultConfig(), &Model{Interval: time.Minute, Nodes: 5, Jobs: []Job{{5, 1}}})
	values, lives, flagged, onsets := []float64{1, 1, 1, 1, 1}, make([]uint32, 5), make([]bool, 5), []int(nil)
	for tick := range 40 {
		if tick == 10 {
			values[4] = math.NaN()
		}
		require.NoError(t, d.push(tick, values, lives))
		d.tick(tick, flagged)
		for _, e := range d.report.Events {
			assert.Equal(t, episode.SubjectMissing, e.Subject)
			onsets = append(onsets, tick)
		}
	}
	require.Len(t, onsets, 1)
	assert.GreaterOrEqual(t, onsets[0], 14)
	before := d.obs[4].Node
	values[4], lives[4] = 1, 1
	require.NoError(t, d.push(40, values, lives))
	d.tick(40, flagged)
	assert.Len(t, d.report.Nodes, 6)
	assert.NotContains(t, d.nodes, before)
	assert.Equal(t, 4, d.nodes[d.obs[4].Node])
}

// TestReboot: a node that was flagged before a restart is after it, with one onset.
func TestReboot(t *testing.T) {
	f := named(func(m *Model) {
		m.Sigma, m.Length, m.Reboot = 0.01, 4*time.Hour, 50*time.Minute
		m.Fault = FaultLaw{Nodes: 1, Begin: 2 * time.Hour, For: 2 * time.Hour, Loss: 0.2}
	})
	r := f.Play(1, 0, false)
	d, flagged, onsets, again, found := Deciders()[0].watch(r), make([]bool, 8), 0, 0, false
	for r.Next() {
		require.NoError(t, d.push(r.Tick, r.Values, r.Life))
		tally := d.tick(r.Tick, flagged)
		onsets += len(tally.onsets)
		again += tally.again
		found = found || flagged[r.Faults[0].Node]
		assert.Equal(t, found, flagged[r.Faults[0].Node], "tick %d", r.Tick)
	}
	assert.Equal(t, []int{1, 0}, []int{onsets, again})
}

// TestLimits: each family has its own, and no other has.
func TestLimits(t *testing.T) {
	recorded, err := Recorded(root)
	require.NoError(t, err)
	list := slices.Concat(All(), recorded)
	assert.Len(t, limitsOf, len(list))
	for i := range list {
		l, ok := limitsOf[list[i].Name]
		assert.True(t, ok, list[i].Name)
		assert.NotEqual(t, l.Clean > 0, l.Onsets > 0, list[i].Name)
	}
}

// TestRecorded: a run plays the recording from some tick on, and slows the node whose turn
// it is for an hour. The real files are as documented.
func TestRecorded(t *testing.T) {
	rec := &Recording{Rates: [][]float64{{1, 2}, {3, 4}, {5, 6}}, Peers: [][]string{{"a"}, {"a"}}}
	f := ofJob("r", rec, 1, 0.1)
	r, clean := f.Play(1, 7, false), f.Play(1, 7, true)
	require.Len(t, r.Faults, 1)
	fault := r.Faults[0]
	assert.Equal(t, 1, fault.Node)
	assert.Equal(t, 360, fault.End-fault.Begin)
	var row int
	for r.Next() {
		require.True(t, clean.Next())
		if r.Tick == 0 {
			row = int(clean.Values[0]) / 2
		}
		want := rec.Rates[(row+r.Tick)%3]
		require.Equal(t, want, clean.Values)
		require.InDelta(t, want[1]*(1-fault.At(r.Tick)), r.Values[1], 1e-12)
	}
	f = ofJob("none", rec, 1, 0)
	assert.Empty(t, f.Play(1, 0, false).Faults)

	job, err := readJob(root+"/"+computeTimes, "compute_s")
	require.NoError(t, err)
	assert.Len(t, job.Rates, 44)
	assert.InDelta(t, 19.075573/44.80378, job.Rates[0][slowWorker]/job.Rates[0][1], 1e-12)
	assert.Equal(t, []string{"AR", "stage-3"}, job.Peers[7])
	_, err = readJob("testdata/none.csv", "compute_s")
	require.Error(t, err)
	_, err = readJob(root+"/"+computeTimes, "wall_s")
	require.ErrorContains(t, err, "has no column wall_s")
}
