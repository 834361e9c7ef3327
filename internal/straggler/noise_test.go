// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// delay plays one faulty node of 16 that loses a share of one signal after an hour. It
// returns the ticks until the verdict, -1 without a verdict in the next hour.
func delay(t *testing.T, cfg Config, s nodesignal.Signal, base, noise, loss float64) int {
	t.Helper()
	require.NoError(t, cfg.Validate(""))
	e := New(cfg)
	rng := rand.New(rand.NewPCG(3, 5))
	now := time.Unix(1_800_000_000, 0)
	for tick := range 720 {
		now = now.Add(10 * time.Second)
		for i := range 16 {
			o := Observation{Cluster: "c", Node: fmt.Sprintf("n%02d", i), Peers: []string{"j", "r"}, State: StateActive, HasState: true}
			x := base * (1 + noise*rng.NormFloat64())
			if i == 3 && tick >= 360 {
				x *= 1 - loss
			}
			if s == nodesignal.Score {
				o.Score, o.HasScore = min(x, 1), true
			} else {
				o.Values.Set(s, x)
			}
			require.NoError(t, e.Observe(&o, now))
		}
		for _, n := range e.Tick(now).Nodes {
			if n.Straggler {
				require.Equal(t, "n03", n.Node)
				require.GreaterOrEqual(t, tick, 360)
				return tick - 360 + 1
			}
		}
	}
	return -1
}

// TestEverySignalCanAccuse: whatever the smallest gap worth an alert is, a loss of
// twice that is found within ticks, under noise and without.
func TestEverySignalCanAccuse(t *testing.T) {
	defaults := DefaultConfig().Signals
	for s := range nodesignal.Count {
		for _, gap := range []float64{defaults[s].MinGap, 0.02, 0.15, 0.3, 0.45} {
			for _, noise := range []float64{0, 0.01} {
				t.Run(fmt.Sprintf("%s min_gap %v noise %v", s, gap, noise), func(t *testing.T) {
					cfg := DefaultConfig()
					cfg.Signals[s].MinGap, cfg.Signals[s].Decides = gap, true
					if cfg.Signals[s].Relative {
						cfg.Split.Interval = 0
					}
					found := delay(t, cfg, s, 0.98, noise, min(2*gap/0.98, 0.95))
					assert.Positive(t, found)
					assert.LessOrEqual(t, found, map[bool]int{true: 6, false: 40}[gap > 0.02])
				})
			}
		}
	}
}

// TestCPULosses are those of a node that shares its cores, with the default gap.
func TestCPULosses(t *testing.T) {
	for _, loss := range []float64{0.25, 0.4, 0.6, 0.9} {
		for _, noise := range []float64{0, 0.01, 0.03} {
			found := delay(t, DefaultConfig(), nodesignal.CPU, 0.98, noise, loss)
			assert.Positive(t, found, "loss %v noise %v", loss, noise)
			assert.LessOrEqual(t, found, 7, "loss %v noise %v", loss, noise)
		}
	}
}

// TestConstantsThatCouldNeverAccuse are refused.
func TestConstantsThatCouldNeverAccuse(t *testing.T) {
	for key, change := range map[string]func(*Config){
		"estimator::min_scale": func(c *Config) { c.Estimator.MinScale = 0 },
		"cusum::mid::reach":    func(c *Config) { c.CUSUM.Mid.Reach = 0 },
		"cusum::loud::loss":    func(c *Config) { c.CUSUM.Loud.Loss = math.NaN() },
		"cusum::low::wander":   func(c *Config) { c.CUSUM.Low.Wander = -1 },
		"cusum::leave_after":   func(c *Config) { c.CUSUM.LeaveAfter = 0 },
	} {
		cfg := DefaultConfig()
		change(&cfg)
		require.ErrorContains(t, cfg.Validate(""), "`"+key+"`")
		assert.NotContains(t, cfg.Validate("").Error(), "\n", "one mistake, one error")
	}
}

// restlessNodes gives every eighth node three times the noise of the others.
func restlessNodes(seed uint64) func(int, int, float64) float64 {
	rng := rand.New(rand.NewPCG(seed, 11))
	ar := make([]float64, 64)
	return func(i, _ int, x float64) float64 {
		if i%8 != 0 {
			return x
		}
		ar[i] = 0.8*ar[i] + 0.6*0.028*rng.NormFloat64()
		return x * (1 + ar[i])
	}
}

// TestRestlessNodesAreNoStragglers: what the restless ones reach by themselves sets the
// limits. One of them is found all the same when it loses 15 %.
func TestRestlessNodesAreNoStragglers(t *testing.T) {
	s := simulation{nodes: 64, sd: 0.01, phi: 0.8, hours: 12, mutate: restlessNodes(1)}
	s.run(t, 1)
	late := 0
	for _, ev := range onsets(s.messages, SubjectNode) {
		if ev.At.Sub(start) > 3*time.Hour { // by then something is known of them
			late++
		}
	}
	assert.LessOrEqual(t, late, 1)

	wild, faulty := restlessNodes(1), first(1)
	slow := slowBy(0.15, faulty, 720)
	s = simulation{nodes: 64, sd: 0.01, phi: 0.8, hours: 4, faulty: faulty, from: 720, mutate: func(i, tick int, x float64) float64 { return slow(i, tick, wild(i, tick, x)) }}
	s.run(t, 2)
	require.Contains(t, s.flagged, "n0000")
	assert.LessOrEqual(t, s.flagged["n0000"], 30)
}

// TestTheWorstSignalIsNamed: of two full sums that of the greater loss, in terms
// of what is worth an alert, is what an episode speaks of.
func TestTheWorstSignalIsNamed(t *testing.T) {
	f := newFleet(t, nil)
	var severe []Event
	for tick := range 400 {
		for i := range 16 {
			o := Observation{Cluster: "c", Node: fmt.Sprintf("n%02d", i), Peers: []string{"j", "r"}, State: StateActive, HasState: true}
			rate, clock := 1000.0, 0.95
			if i == 3 && tick >= 100 {
				rate = 900
			}
			if i == 3 && tick >= 200 {
				clock = 0.55
			}
			o.Values.Set(nodesignal.Throughput, rate+float64((i*7+tick*3)%11))
			o.Values.Set(nodesignal.Compute, clock)
			require.NoError(t, f.e.Observe(&o, f.now))
		}
		for _, ev := range f.tick().Events {
			if ev.Kind == EventSeverity {
				severe = append(severe, ev)
			}
		}
	}
	require.Len(t, severe, 1)
	assert.Equal(t, nodesignal.Compute, severe[0].Signal)
	assert.Equal(t, SeverityCritical, severe[0].Severity)
	assert.InDelta(t, 0.4, severe[0].Gap, 0.01)
}
