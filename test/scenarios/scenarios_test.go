// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const recordingPath, wallPath = "../../" + ComputeTimes, "../../" + WallTimes

// quick returns the scenarios but for the 10,000 nodes, each shortened.
func quick(t *testing.T) []Scenario {
	t.Helper()
	recording, err := ReadRecording(recordingPath, ComputeColumn)
	require.NoError(t, err)
	recorded := recording.Scenario()
	recorded.Length = 2 * time.Hour
	list := []Scenario{recorded}
	for _, s := range All() {
		if s.Nodes <= 64 {
			list = append(list, s.Quick(1))
		}
	}
	return list
}

func product() []Decider {
	d := Deciders()
	return d[len(d)-1:]
}

// The fault of a short run comes after 90 minutes. The limits are higher then than after
// six hours, since what is assumed of the peers' sums still outweighs what was seen. Where
// the noise changes, they are too low for as long.
const (
	youngOnsets = 0.05
	youngDelay  = 10 * time.Second
)

// TestPromises plays all scenarios shortly, with seeds that no setting was
// chosen with. The margins are those of a small sample: `make eval` has the rest.
func TestPromises(t *testing.T) {
	const seeds = 3
	list := quick(t)
	sums := make([]Result, len(list))
	for seed := range uint64(seeds) {
		outcomes, err := Evaluate(t.Context(), list, Options{Seed: 1_000_003 * (seed + 1), Workers: runtime.NumCPU(), Deciders: product()})
		require.NoError(t, err)
		for i, o := range outcomes {
			sums[i].add(o.Results[Product])
		}
	}
	onsets, days := 0, 0.0
	for i, s := range list {
		t.Run(s.ID, func(t *testing.T) {
			r, p := &sums[i], s.Promise
			if p.Gap {
				recall, _ := r.Recall(time.Hour)
				assert.Greater(t, recall, 0.9)
				return
			}
			if p.FalseOnsets <= 0.01 {
				onsets += r.FalseOnsets
				days += r.NodeDays()
			}
			assert.LessOrEqual(t, float64(r.FalseOnsets), 1+2*max(p.FalseOnsets, youngOnsets)*r.NodeDays(), "false onsets in %.0f node-days", r.NodeDays())
			assert.Equal(t, p.Events, r.MinEvents, "group incidents of the run with fewest")
			assert.Equal(t, p.Events, r.MaxEvents, "group incidents of the run with most")
			assert.Zero(t, r.FalseIncidents)
			if p.Recall > 0 {
				// Three standard deviations of a small sample, and one more.
				recall, _ := r.Recall(p.Within)
				n, share := float64(r.Faults), p.Recall
				if s.ID == "04" {
					// Short of its promise (docs/detection.md), and shorter still where
					// the fault comes after 90 min: 0.82 of 360 faults of short runs.
					share = 0.82
					later, _ := r.Recall(time.Hour)
					assert.GreaterOrEqual(t, later, p.Recall, "found at all, of %d faults", r.Faults)
				}
				assert.GreaterOrEqual(t, recall*n, share*n-1-3*math.Sqrt(n*share*(1-share)), "of %d faults", r.Faults)
			}
			if p.Delay50 > 0 {
				assert.LessOrEqual(t, r.Delay(0.5), p.Delay50+youngDelay)
			}
		})
	}
	assert.LessOrEqual(t, float64(onsets), 1+0.01*days, "false onsets in %.0f node-days of all scenarios", days)
}

// TestPlainRule: the evaluation sees what is wrong with the rule that the
// product replaces, else it could not see what is right with the product.
func TestPlainRule(t *testing.T) {
	pick := func(id string) Scenario {
		for _, s := range quick(t) {
			if s.ID == id {
				return s
			}
		}
		t.Fatal(id)
		return Scenario{}
	}
	outcomes, err := Evaluate(t.Context(), []Scenario{pick("02"), pick("07")}, Options{Seed: 1, Workers: 2, Deciders: Deciders()})
	require.NoError(t, err)
	plain, band := outcomes[0].Results["threshold"], outcomes[0].Results["ingero-like"]
	plainRate, _ := plain.OnsetRate()
	bandRate, _ := band.OnsetRate()
	assert.InDelta(t, 100, plainRate, 30)
	assert.Less(t, bandRate, plainRate, "an exit band joins onsets")
	assert.Greater(t, band.FlaggedShare(), 2*plain.FlaggedShare(), "and keeps nodes flagged")
	recall, _ := outcomes[1].Results["threshold"].Recall(time.Hour)
	assert.Zero(t, recall, "between two jobs the median absolute deviation hides everything")

	text := Text(outcomes)
	for _, want := range []string{"02 AR .8 noise 1 %, loss 10 %", "threshold", "ingero-like", "cusum"} {
		assert.Contains(t, text, want)
	}
	assert.Contains(t, Markdown(outcomes), "**recall 0**")
	var figures strings.Builder
	Figures(&figures, outcomes)
	assert.Regexp(t, `(?m)^figure eval_cusum_s02_false_onsets 0 1/node-day limit 0.01 pass$`, figures.String())
	assert.Regexp(t, `(?m)^figure eval_cusum_delay10_p50 \d+ s limit 60 (pass|short)$`, figures.String())
}

// TestWorkers: the number of workers changes nothing.
func TestWorkers(t *testing.T) {
	list := []Scenario{All()[13].Quick(2), All()[4].Quick(2)}
	var texts [2]string
	for i := range texts {
		outcomes, err := Evaluate(t.Context(), list, Options{Seed: 7, Workers: 1 + 2*i, Deciders: Deciders()})
		require.NoError(t, err)
		texts[i] = Text(outcomes)
	}
	assert.Equal(t, texts[0], texts[1])
}

func TestTally(t *testing.T) {
	const o, x = false, true
	// Node 0 is healthy; 1 is hit in [4,7); 2 too, and never found.
	ta := newTally([]bool{o, x, x}, 2, 4, 7)
	for tick, flags := range [][]bool{
		{x, o, o}, // an onset of the warm-up
		{x, o, o},
		{x, o, o}, // flagged still, no onset
		{o, x, o}, // an onset before the fault is false
		{o, o, o},
		{x, x, o}, // a false one, and the fault found at its second tick
		{o, x, o},
		{o, x, o}, // not cleared yet
		{o, o, o},
	} {
		copy(ta.flagged, flags)
		incidents := 0
		if tick == 3 || tick > 4 {
			incidents = 1
		}
		ta.tick(tick, incidents)
	}
	r := ta.result
	assert.Equal(t, 1, r.WarmupOnsets)
	assert.Equal(t, 2, r.FalseOnsets)
	assert.Equal(t, 7+2+2, r.HealthyTicks)
	assert.Equal(t, 2+1, r.FlaggedTicks)
	assert.Equal(t, 2, r.Faults)
	assert.Equal(t, []time.Duration{2 * Interval}, r.Delays)
	assert.Equal(t, []time.Duration{2 * Interval}, r.Clear)
	assert.Equal(t, 2, r.Incidents)
	assert.Equal(t, 1, r.FalseIncidents)
	recall, lower := r.Recall(2 * Interval)
	assert.InDelta(t, 0.5, recall, 0)
	assert.InDelta(t, 0.0253, lower, 1e-4)
	recall, _ = r.Recall(Interval)
	assert.Zero(t, recall)

	var sum Result
	sum.add(&r)
	sum.add(&Result{Incidents: 5})
	assert.Equal(t, 2, sum.MinEvents)
	assert.Equal(t, 5, sum.MaxEvents)
	assert.Equal(t, 7, sum.Incidents)
}

func TestRecording(t *testing.T) {
	r, err := ReadRecording(recordingPath, ComputeColumn)
	require.NoError(t, err)
	assert.Len(t, r.stages, 16)
	assert.Len(t, r.seconds, 44)
	p := r.play()
	assert.InDelta(t, 1/44.80378, p.next()[0], 1e-12)
	assert.Equal(t, []string{"AR", "stage-3"}, p.peers(7))
	for range 44 {
		p.next()
	}
	assert.InDelta(t, 1/44.493711, p.next()[0], 1e-12, "it begins anew")

	_, err = ReadRecording("testdata/none.csv", ComputeColumn)
	require.Error(t, err)
	_, err = ReadRecording(recordingPath, WallColumn)
	require.ErrorContains(t, err, "has the columns time_s, step, dp_rank, pp_rank, compute_s, step_s, not wall_s")
}

func TestDigits(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.00512: "0.0051", 1: "1.00", 12.345: "12.3", 167.2: "167"} {
		assert.Equal(t, want, digits(v))
	}
}
