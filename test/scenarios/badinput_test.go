// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/detect/straggler"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
)

// hostile is a fleet that is well, and of which some push what they should not.
type hostile struct {
	*driver
	*Run
	t *testing.T
}

// says pushes a value of a node.
func (h *hostile) says(i int, v float64) {
	require.NoError(h.t, h.pushOne(i, v, epoch.Add(time.Duration(h.Tick)*usual+usual/2)))
}

// odds is true with a probability.
func (h *hostile) odds(p float64) bool { return h.draw.Float64() < p }

// late pushes what was true some ticks ago: a node's clock is off by up to so many.
func late(ticks int) func(*hostile, int, float64) {
	past := map[int][]float64{}
	return func(h *hostile, i int, v float64) {
		past[i] = append(past[i], v)
		if from := h.Tick - i%(ticks+1); from >= 0 {
			h.says(i, past[i][from])
		}
	}
}

// TestBadInput: nobody is accused of what a node or its name says wrongly, and what never
// was a number is not kept.
func TestBadInput(t *testing.T) {
	const nodes, hour = 64, 360
	silent, calm := map[int]int{}, func(*Model) {}
	for name, tt := range map[string]struct {
		change func(*Model)
		push   func(h *hostile, i int, v float64)
		kept   int
	}{
		"clocks a minute apart": {calm, late(6), nodes},
		"clocks 20 s apart, and pauses": {func(m *Model) {
			m.Dips = &Dips{Depth: 0.4, For: time.Minute, Every: 30 * time.Minute}
		}, late(2), nodes},
		// For up to two minutes, and back it says that it calibrates.
		"every fourth comes and goes": {calm, func(h *hostile, i int, v float64) {
			if silent[i]--; silent[i] <= -12 && i%4 == 0 && h.odds(0.2) {
				silent[i] = 1 + h.draw.IntN(12)
			}
			h.obs[i].State = 0
			if silent[i] == 0 {
				h.obs[i].State = nodesignal.StateCalibrating
			}
			if silent[i] <= 0 {
				h.says(i, v)
			}
		}, nodes},
		// Another sender pushes half of it, before or after the true one.
		"four names are claimed": {calm, func(h *hostile, i int, v float64) {
			claimed := i%16 == 5 && h.Tick > hour
			first := claimed && h.odds(0.5)
			if first {
				h.says(i, v/2)
			}
			h.says(i, v)
			if claimed && !first {
				h.says(i, v/2)
			}
			if h.Tick > 2*hour-10 {
				contested := 0
				for k := range h.report.Nodes {
					if strings.Contains(h.report.Nodes[k].Unjudged.String(), "contested") {
						contested++
					}
				}
				require.Equal(h.t, 4, contested)
			}
		}, nodes},
		"no numbers": {calm, func(h *hostile, i int, v float64) {
			if i < 3 && h.Tick%(i+1) == 0 {
				require.Error(h.t, h.pushOne(i, []float64{math.NaN(), math.Inf(1), -1}[i], epoch))
			} else {
				h.says(i, v)
			}
		}, nodes - 1},
		// Their peers become 15 % faster in an hour.
		"three values are stuck": {calm, func(h *hostile, i int, v float64) {
			if v *= 1 + 0.15*min(max(float64(h.Tick)/hour-1, 0), 1); i < 3 {
				v = 1
			}
			h.says(i, v)
		}, nodes},
		// Most nodes are at 1, some at 0.98.
		"steps of 2 %": {calm, func(h *hostile, i int, v float64) {
			h.says(i, math.Round(v*0.995/0.02)*0.02)
		}, nodes},
		"every fourth names one of two jobs": {calm, jobs(2), nodes},
		"every fourth names a new job":       {calm, jobs(1_000_000), nodes},
	} {
		t.Run(name, func(t *testing.T) {
			run := named(func(m *Model) {
				m.Nodes, m.Jobs, m.Length = nodes, []Job{{nodes, 1}}, 2*time.Hour
				m.Sigma, m.Phi = 0.01, 0.8
				tt.change(m)
			}).run(1, 0, true)
			h := &hostile{newDriver(straggler.DefaultConfig(), &run.Model), run, t}
			flagged := make([]bool, nodes)
			for h.Next() {
				for i, v := range h.Values {
					tt.push(h, i, v)
				}
				h.tick(h.Tick, flagged)
				require.NotContains(t, flagged, true, "tick %d", h.Tick)
				for _, e := range h.report.Events {
					require.Equal(t, "missing", string(e.Subject), "tick %d", h.Tick)
				}
				require.LessOrEqual(t, len(h.report.Nodes), nodes)
				require.LessOrEqual(t, len(h.report.Groups), nodes+1)
			}
			assert.Len(t, h.report.Nodes, tt.kept)
		})
	}
}

// jobs lets every push of every fourth node name another of some jobs.
func jobs(n int) func(*hostile, int, float64) {
	return func(h *hostile, i int, v float64) {
		h.obs[i].Peers = []string{"job"}
		if i%4 == 0 {
			h.obs[i].Peers = []string{fmt.Sprintf("job-%d", (h.Tick*65+i/4)%n)}
			v *= 0.5 + 0.5*h.draw.Float64()
		}
		h.says(i, v)
	}
}
