// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"fmt"
	"math"
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

func (h *hostile) pushNow(i int, v float64) {
	require.NoError(h.t, h.pushOne(i, v, epoch.Add(time.Duration(h.Tick)*usual+usual/2)))
}

func (h *hostile) odds(p float64) bool { return h.draw.Float64() < p }

// late pushes what was true some ticks ago: a node's clock is off by up to so many.
func late(ticks int) func(*hostile, int, float64) {
	past := map[int][]float64{}
	return func(h *hostile, i int, v float64) {
		past[i] = append(past[i], v)
		if from := h.Tick - i%(ticks+1); from >= 0 {
			h.pushNow(i, past[i][from])
		}
	}
}

// TestBadInput: no node is accused for values or names that are wrong.
func TestBadInput(t *testing.T) {
	const nodes = 64
	missing, calm := map[int]int{}, func(*Model) {}
	for name, tt := range map[string]struct {
		change func(*Model)
		push   func(h *hostile, i int, v float64)
	}{
		"clocks a minute apart": {calm, late(6)},
		"clocks 20 s apart, and pauses": {func(m *Model) {
			m.Dips = &Dips{Depth: 0.4, For: time.Minute, Every: 30 * time.Minute}
		}, late(2)},
		// For up to two minutes; once back it reports that it calibrates.
		"every fourth comes and goes": {calm, func(h *hostile, i int, v float64) {
			if missing[i]--; missing[i] <= -12 && i%4 == 0 && h.odds(0.2) {
				missing[i] = 1 + h.draw.IntN(12)
			}
			h.obs[i].State = 0
			if missing[i] == 0 {
				h.obs[i].State = nodesignal.StateCalibrating
			}
			if missing[i] <= 0 {
				h.pushNow(i, v)
			}
		}},
		// Most nodes are at 1, some at 0.98.
		"steps of 2 %": {calm, func(h *hostile, i int, v float64) {
			h.pushNow(i, math.Round(v*0.995/0.02)*0.02)
		}},
		"every fourth names one of two jobs": {calm, jobs(2)},
		"every fourth names a new job":       {calm, jobs(1_000_000)},
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
			assert.Len(t, h.report.Nodes, nodes)
		})
	}
}

// jobs lets every push of every fourth node name another of some jobs.
func jobs(n int) func(*hostile, int, float64) {
	return func(h *hostile, i int, v float64) {
		h.obs[i].GroupLabels = []string{"job"}
		if i%4 == 0 {
			h.obs[i].GroupLabels = []string{fmt.Sprintf("job-%d", (h.Tick*65+i/4)%n)}
			v *= 0.5 + 0.5*h.draw.Float64()
		}
		h.pushNow(i, v)
	}
}
