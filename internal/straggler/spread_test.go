// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// params of the last tick of the only group.
func (s *simulation) params() Params {
	for _, g := range s.last.Groups {
		if g.Group != "" {
			return g.Signals[nodesignal.Throughput].Params
		}
	}
	return Params{}
}

// TestSuspectsDoNotWidenTheSpread: six of 64 slow nodes leave the others' centre
// and spread what they are without. Counted in, they widen it by an eighth.
func TestSuspectsDoNotWidenTheSpread(t *testing.T) {
	well := simulation{nodes: 64, sd: 0.02, phi: 0.8, hours: 3}
	well.run(t, 1)
	faulty := first(6)
	sick := simulation{nodes: 64, sd: 0.02, phi: 0.8, hours: 3, faulty: faulty, from: 720, mutate: slowBy(0.1, faulty, 720)}
	sick.run(t, 1)
	assert.Len(t, sick.flagged, 6)
	assert.InEpsilon(t, well.params().Scale, sick.params().Scale, 0.06)
	assert.InEpsilon(t, well.params().Centre, sick.params().Centre, 0.003)
}

// TestSmallGroupsCountEverybody: of four peers none can be left out, however
// suspect it is.
func TestSmallGroupsCountEverybody(t *testing.T) {
	faulty := first(1)
	s := simulation{nodes: 4, sd: 0.01, hours: 2, faulty: faulty, from: 360, mutate: slowBy(0.2, faulty, 360)}
	s.run(t, 1)
	assert.Contains(t, s.flagged, "n0000")
	assert.True(t, s.last.Nodes[0].Straggler, "and it stays one")
	assert.Zero(t, s.healthy)
	assert.NotZero(t, s.params().Scale)
}

// TestCoarseResolution: values come in steps of 5 %. A node that is one step off for
// hours is no straggler, and two steps are found soon: the limit is not for the noise
// that the steps hide.
func TestCoarseResolution(t *testing.T) {
	steps := func(x float64) float64 { return math.Round(x/0.05) * 0.05 }
	faulty := first(1)
	slow := slowBy(0.1, faulty, 720)
	s := simulation{
		nodes: 64, sd: 0.01, phi: 0.8, hours: 12, faulty: faulty, from: 720,
		level:  func(int, int) float64 { return 0.935 }, // some 14 % of the values are one step below
		mutate: func(i, tick int, x float64) float64 { return steps(slow(i, tick, x)) },
	}
	s.run(t, 2)
	assert.Zero(t, s.healthy)
	assert.Contains(t, s.flagged, "n0000")
	assert.LessOrEqual(t, s.flagged["n0000"], 7)
	p, c := s.params(), DefaultCUSUM()
	assert.InEpsilon(t, 0.9*p.Step/p.Scale, p.steps(&c, 0).kappa[mid], 0.01)
	assert.InDelta(t, 0.05/0.9, p.Step, 0.01)
}
