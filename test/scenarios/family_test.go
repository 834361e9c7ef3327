// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
)

// span is what a number of a family is drawn from.
type span [2]float64

// numbers are what a run drew.
func numbers(r *Run) map[string]float64 {
	m, f := &r.Model, &r.Model.Fault
	n := map[string]float64{
		"nodes": float64(m.Nodes), "tick": m.Interval.Seconds(), "hours": m.Length.Hours(),
		"sigma": m.Sigma, "phi": m.Phi, "white": m.White, "bias": m.Bias, "restless": m.Restless,
		"jobs": float64(len(m.Jobs)), "missing": m.Missing, "churn": m.Churn, "turn": m.Turn.Minutes(),
		"racks": float64(m.Racks), "rack sigma": m.RackSigma, "rack phi": m.RackPhi,
		"loud every": float64(m.LoudEvery), "loud": m.Loud, "student": 0,
		"hit": float64(len(r.Faults)), "share": float64(len(r.Faults)) / float64(m.Nodes),
		"for": f.For.Hours(), "kind": float64(f.Kind), "signal": float64(m.Signal), "first level": m.Jobs[0].Level,
		"grid": m.Grid, "singles": m.Singles, "swap": 0, "warm-up": m.WarmUp.Minutes(), "cold": m.Cold, "reboot": m.Reboot.Minutes(),
	}
	if m.Student {
		n["student"] = 1
	}
	if m.Swap {
		n["swap"] = 1
	}
	for i := range r.Faults {
		n["loss"] = r.Faults[i].Loss
		n["begin"] = float64(r.Faults[i].Begin) * m.Interval.Hours()
	}
	if m.Steps != nil {
		n["step"], n["step sigma"], n["long"] = m.Steps.Time.Seconds(), m.Steps.Sigma, m.Steps.Long
	}
	if m.Diurnal != nil {
		n["amplitude"], n["unequal"], n["phase"] = m.Diurnal.Amplitude, m.Diurnal.Unequal, m.Diurnal.Phase.Hours()
		n["swing"] = m.Diurnal.Period.Hours()
	}
	if u := m.Upgrade; u != nil {
		n["most"], n["from"], n["within"] = u.Most, u.From.Hours(), (u.To - u.From).Hours()
	}
	if m.Odd != nil {
		n["odd"], n["more"], n["less"], n["clock sigma"] = m.Odd.Share, m.Odd.More, m.Odd.Less, m.Odd.Sigma
	}
	if m.Dips != nil {
		n["depth"], n["dip"] = m.Dips.Depth, m.Dips.For.Seconds()
		n["dip each"], n["clocks"] = m.Dips.Every.Minutes(), m.Dips.Clocks.Seconds()
	}
	if m.Restarts != nil {
		n["slow"] = m.Restarts.Slow
	}
	if f.Kind == Drift {
		n["rate"] = f.Rate
	}
	if f.Losses != nil {
		n["first loss"] = r.Faults[0].Loss
	}
	if f.Kind == Flicker || f.Kind == Daily {
		n["duty"], n["period"] = f.Duty, f.Period.Minutes()
	}
	switch {
	case len(m.Jobs) == 1:
	case m.Turn == 0:
		n["job"] = float64(m.Jobs[1].Nodes)
		n["apart"] = m.Jobs[0].Level / m.Jobs[1].Level
	default:
		n["level"] = m.Jobs[1].Level
	}
	return n
}

// base is what a family has where its row says nothing else.
var base = map[string]span{
	"nodes": {16, 128}, "tick": {10, 10}, "hours": {10, 10}, "sigma": {0.005, 0.02}, "phi": {0, 0.85},
	"white": {}, "bias": {}, "restless": {}, "jobs": {1, 1}, "missing": {}, "churn": {}, "turn": {},
	"racks": {}, "rack sigma": {}, "rack phi": {}, "loud every": {}, "loud": {}, "student": {},
	"hit": {1, 13}, "share": {0.01, 0.1}, "for": {3, 3}, "kind": {0, 0}, "loss": {0.08, 0.2}, "begin": {5, 6},
	"signal": {}, "first level": {1, 1}, "grid": {}, "singles": {}, "swap": {}, "warm-up": {}, "cold": {}, "reboot": {},
}

// rows are the table of the families, by what differs.
var rows = map[string]map[string]span{
	"base":  {},
	"noisy": {"sigma": {0.03, 0.15}, "phi": {0, 0.6}, "loss": {0.05, 0.3}},
	"steps": {"step": {0.5, 5}, "step sigma": {0.02, 0.1}, "long": {0.003, 0.02}, "loss": {0.1, 0.3}},
	"student": {
		"student": {1, 1}, "sigma": {0.01, 0.05}, "phi": {0, 0.8}, "loss": {0.1, 0.3},
	},
	"bias":      {"bias": {0.03, 0.08}, "sigma": {0.01, 0.03}, "loss": {0.1, 0.3}},
	"fromstart": {"bias": {0, 0.02}, "loss": {0.1, 0.25}, "begin": {0, 0}, "for": {8, 8}},
	"diurnal": {
		"hours": {60, 60}, "nodes": {16, 64}, "hit": {1, 3}, "share": {0.03, 0.0625}, "begin": {30, 54},
		"amplitude": {0.1, 0.4}, "unequal": {0, 0.33}, "phase": {0, 0.5}, "swing": {}, "sigma": {0.01, 0.04}, "phi": {0.5, 0.95}, "loss": {0.15, 0.4},
	},
	"dips": {
		"depth": {0.2, 0.6}, "dip": {20, 90}, "dip each": {10, 40}, "clocks": {0, 30}, "missing": {0, 0.3}, "loss": {0.1, 0.25},
	},
	"restart": {"slow": {0, 0.3}, "restless": {1, 2}, "loss": {0.1, 0.25}},
	"swing":   {"sigma": {0.005, 0.015}, "restless": {2, 4}, "loss": {0.1, 0.25}},
	"churn":   {"churn": {0.02, 0.2}, "loss": {0.1, 0.25}},
	"jobs": {
		"jobs": {2, 6}, "job": {8, 24}, "apart": {1.2, 2.2}, "nodes": {16, 144}, "bias": {0, 0.02},
		"hit": {1, 12}, "share": {0.035, 0.084}, "loss": {0.1, 0.25},
	},
	"models": {
		"jobs": {2, 5}, "job": {5, 40}, "apart": {0.24, 4.17}, "nodes": {10, 200}, "bias": {0, 0.02},
		"first level": {0.3, 1.25}, "hit": {1, 20}, "loss": {0.1, 0.25},
	},
	"turns": {"jobs": {2, 2}, "level": {0.5, 0.75}, "turn": {5, 30}, "sigma": {0.005, 0.015}, "loss": {0.12, 0.25}},
	"many":  {"nodes": {8, 128}, "hit": {2, 77}, "share": {0.25, 0.625}, "loss": {0.06, 0.3}},
	"small": {"nodes": {3, 7}, "sigma": {0.005, 0.03}, "hit": {1, 2}, "share": {0.14, 0.5}, "loss": {0.1, 0.3}},
	"tiny":  {"hours": {18, 18}, "for": {8, 8}, "loss": {0.015, 0.04}, "sigma": {0.003, 0.015}, "phi": {0, 0.8}},
	"drift": {"hours": {16, 16}, "for": {10, 10}, "kind": {1, 1}, "rate": {0.005, 0.08}, "loss": {0.2, 0.2}},
	"flicker": {
		"kind": {2, 2}, "duty": {0.05, 0.5}, "period": {2, 30}, "loss": {0.1, 0.5},
	},
	"ticks":  {"tick": {1, 60}, "sigma": {0.0006, 0.06}, "phi": {0, 0.98}, "loss": {0.1, 0.5}},
	"stop":   {"loss": {0.5, 0.99}, "bias": {0, 0.08}, "sigma": {0.005, 0.05}},
	"memory": {"hours": {14, 14}, "phi": {0.95, 0.995}, "sigma": {0.005, 0.02}, "white": {0, 0.02}, "loss": {0.1, 0.3}},
	"racks": {
		"racks": {3, 12}, "nodes": {24, 96}, "rack sigma": {0.005, 0.02}, "rack phi": {0.9, 0.99},
		"hit": {1, 10}, "share": {0.01, 1.0 / 3}, "loss": {0.1, 0.3},
	},
	"big": {"nodes": {256, 512}, "hit": {3, 26}, "share": {0.01, 0.05}},
	"mix": {
		"hours": {12, 12}, "nodes": {6, 160}, "sigma": {0.003, 0.08}, "phi": {0, 0.95}, "student": {0, 1}, "bias": {0, 0.08},
		"amplitude": {0, 0.3}, "unequal": {0.2, 0.2}, "phase": {}, "swing": {}, "missing": {0, 0.3}, "slow": {0, 0.3}, "churn": {0, 0.1},
		"depth": {0.2, 0.6}, "dip": {20, 90}, "dip each": {10, 40}, "clocks": {0, 30},
		"loud every": {0, 9}, "loud": {0, 3}, "kind": {0, 2}, "rate": {0.03, 0.2}, "duty": {0.2, 0.5}, "period": {2, 30},
		"hit": {1, 48}, "share": {0.01, 0.3}, "loss": {0.08, 0.5},
	},

	"loss-3":  {"loss": {0.03, 0.03}},
	"loss-5":  {"loss": {0.05, 0.05}},
	"loss-8":  {"loss": {0.08, 0.08}},
	"upgrade": {"most": {0.03, 0.06}, "from": {1, 4}, "within": {2, 8}, "loss": {0.1, 0.25}},
	"experts": {
		"amplitude": {0.05, 0.1}, "unequal": {0.2, 0.2}, "phase": {1.0 / 3, 2}, "swing": {1.0 / 3, 2}, "loss": {0.1, 0.3},
	},
	"hotrow": {
		"hours": {60, 60}, "nodes": {16, 64}, "hit": {4, 22}, "share": {0.25, 0.35}, "kind": {3, 3}, "begin": {5, 10}, "for": {48, 48},
		"loss": {0.04, 0.06}, "period": {20, 120}, "duty": {0.2, 0.3},
	},
	"grid": {"grid": {0.05, 0.05}, "first level": {0.85, 1.05}, "bias": {0, 0.03}, "loss": {0.1, 0.3}},
	"clock": {
		"signal": {float64(nodesignal.Compute), float64(nodesignal.Compute)}, "first level": {0.7, 0.95}, "sigma": {0.001, 0.01}, "loss": {0.1, 0.3},
	},
	"stages": {"jobs": {2, 8}, "job": {4, 16}, "apart": {1.03, 1.064}, "nodes": {8, 128}, "loss": {0.1, 0.3}},
	"swapped": {
		"jobs": {2, 5}, "job": {5, 40}, "apart": {0.24, 4.17}, "nodes": {10, 200}, "bias": {0, 0.02},
		"first level": {0.3, 1.25}, "hit": {1, 20}, "loss": {0.1, 0.25}, "churn": {0.01, 0.1}, "swap": {1, 1},
	},
	"uneven":    {"nodes": {8, 8}, "hit": {2, 2}, "share": {0.25, 0.25}, "first loss": {0.6, 0.6}, "loss": {0.08, 0.08}},
	"rampstart": {"warm-up": {3, 15}, "cold": {0.05, 0.3}, "loss": {0.1, 0.25}, "begin": {0, 0}, "for": {8, 8}},
	"contradiction": {
		"odd": {0.02, 0.1}, "more": {0.02, 0.1}, "less": {0.06, 0.15}, "clock sigma": {0.001, 0.01}, "loss": {0.1, 0.3},
	},
	"reboot":  {"reboot": {90, 150}, "loss": {0.1, 0.25}},
	"singles": {"hours": {6, 6}, "nodes": {2000, 2000}, "hit": {20, 200}, "singles": {0.3, 0.8}, "turn": {60, 480}, "begin": {2, 2}},
}

// loose are the numbers whose ends are rare: products, and shares of whole nodes.
var loose = []string{"hit", "share", "nodes", "apart"}

// TestRanges: what a family draws lies in its row, and fills it.
func TestRanges(t *testing.T) {
	for _, f := range All() {
		t.Run(f.Name, func(t *testing.T) {
			row, ok := rows[f.Name]
			require.True(t, ok, "the family has a row")
			want := maps.Clone(base)
			maps.Copy(want, row)
			least, most := map[string]float64{}, map[string]float64{}
			for run := range 2000 {
				for name, x := range numbers(f.run(1, run, true)) {
					if _, ok := least[name]; !ok {
						least[name], most[name] = x, x
					}
					least[name], most[name] = min(least[name], x), max(most[name], x)
				}
			}
			for name, s := range want {
				// One node, or a whole one more or less, is any share.
				slack := 1e-9
				if name == "share" {
					slack = 0.04
				}
				if name == "begin" {
					slack = 0.02 // to the tick
				}
				require.Contains(t, least, name)
				assert.GreaterOrEqual(t, least[name], s[0]-slack, name)
				if slices.Contains(loose, name) && s[0] < s[1] {
					assert.Less(t, least[name], most[name], name)
					if name != "share" {
						assert.LessOrEqual(t, most[name], s[1], name)
					}
					continue
				}
				assert.LessOrEqual(t, most[name], s[1]+slack, name)
				assert.InDelta(t, s[0], least[name], 0.1*(s[1]-s[0])+slack, "%s at least", name)
				assert.InDelta(t, s[1], most[name], 0.1*(s[1]-s[0])+slack, "%s at most", name)
			}
			for name := range least {
				assert.Contains(t, want, name, "the row says so")
			}
		})
	}
	assert.Len(t, All(), 40)
	assert.Len(t, rows, len(All()))
}

// TestSameSeedSameRun, and each seed, family and run has its own.
func TestSameSeedSameRun(t *testing.T) {
	list := All()
	first := func(seed uint64, f *Family, run int) (values []float64) {
		r := f.run(seed, run, false)
		for range 50 {
			require.True(t, r.Next())
			values = append(values, r.Values[:3]...)
		}
		return values
	}
	for i := range list {
		f := &list[i]
		same := fingerprint(first(1, f, 0))
		assert.Equal(t, same, fingerprint(first(1, f, 0)), f.Name)
		other := &list[(i+1)%len(list)]
		for _, x := range [][]float64{first(2, f, 0), first(1, f, 1), first(1, other, 0)} {
			assert.NotEqual(t, same, fingerprint(x), f.Name)
		}
	}
}

// fingerprint is the values to the bit: NaN is NaN.
func fingerprint(values []float64) []uint64 {
	bits := make([]uint64, len(values))
	for i, v := range values {
		bits[i] = math.Float64bits(v)
	}
	return bits
}

// TestCleanForm: without its faults a run is the same but for the losses.
func TestCleanForm(t *testing.T) {
	for _, f := range All() {
		t.Run(f.Name, func(t *testing.T) {
			slow, clean := f.run(3, 0, false), f.Play(3, 0, true)
			assert.Empty(t, clean.Faults)
			require.NotEmpty(t, slow.Faults)
			// The loss comes before the rounding.
			grid := slow.Model.Grid
			clean.Model.Grid = 0
			lost, last := 0, 0
			for i := range slow.Faults {
				last = max(last, slow.Faults[i].End)
			}
			for range min(last+10, slow.Ticks()) {
				require.True(t, slow.Next())
				require.True(t, clean.Next())
				if slow.Tick%7 > 0 && slow.Tick < last-10 {
					continue // each seventh tick is enough
				}
				for i, v := range slow.Values {
					loss := 0.0
					if at := slow.nodes[i].fault; at != nil {
						loss = at.At(slow.Tick)
					}
					want := clean.Values[i] * (1 - loss)
					if grid > 0 {
						want = min(math.Round(want/grid)*grid, 1)
					}
					if math.IsNaN(v) {
						assert.True(t, math.IsNaN(clean.Values[i]))
					} else if math.Abs(want-v) > 1e-12 {
						t.Fatalf("tick %d, node %d: %g is not %g less %g", slow.Tick, i, v, clean.Values[i], loss)
					}
					if loss > 0 {
						lost++
					}
				}
			}
			assert.Positive(t, lost)
		})
	}
}
