// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
)

// TestALargePartThatFell is found by the rest and told as one incident, and it is well
// again.
func TestALargePartThatFell(t *testing.T) {
	for _, tc := range []struct {
		nodes, slow int
		loss        float64
	}{
		{20, 6, 0.2}, {20, 9, 0.2}, {20, 10, 0.2}, {8, 4, 0.3}, {64, 20, 0.12}, {64, 32, 0.15},
	} {
		t.Run(fmt.Sprintf("%d of %d lose %v", tc.slow, tc.nodes, tc.loss), func(t *testing.T) {
			p := newPlay(t, []string{"j"}, tc.nodes, nil)
			p.noise = 0.005
			require.Empty(t, p.ticks(200))
			began := p.now
			lose(tc.loss, upTo(tc.slow)...)(p)
			told := p.ticks(90)
			require.Equal(t, []string{fmt.Sprintf("group onset %d stragglers", tc.slow)}, brief(told))
			assert.InDelta(t, tc.loss, *told[0].Gap, 0.04)
			assert.InDelta(t, 10, *told[0].Median, 0.1)
			assert.InDelta(t, 10*(1-tc.loss), *told[0].Value, 0.2)
			assert.LessOrEqual(t, told[0].Updated.Sub(began).Minutes(), 4.0)
			assert.LessOrEqual(t, told[0].Since.Sub(began).Abs().Seconds(), 120.0)
			for i := range tc.nodes {
				assert.Equal(t, i < tc.slow, p.node(nodeName("j", i)).Straggler, "%d", i)
			}
			require.Empty(t, p.ticks(360), "it lasts")
			assert.Equal(t, tc.slow, p.group().Stragglers)
			lose(0)(p)
			require.Equal(t, []string{fmt.Sprintf("group end %d recovered", tc.slow)}, brief(p.ticks(120)))
			assert.Empty(t, stragglers(p.last))
		})
	}
}

// TestFall is known once there is a usual level.
func TestFall(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	for range 60 {
		p.ticks(1)
		s := p.group().Signals[nodesignal.Throughput]
		assert.InDelta(t, 0, s.Fall, 0.01)
	}
	assert.True(t, p.group().Signals[nodesignal.Throughput].FallKnown)
	lose(0.4, upTo(8)...)(p)
	p.ticks(3)
	assert.InDelta(t, 0.4, p.group().Signals[nodesignal.Throughput].Fall, 0.02)
}

// TestPartsThatAreNoFault: a part that becomes faster, all together however they differ,
// parts that do so one after the other, and a fall that too few others were left behind by.
func TestPartsThatAreNoFault(t *testing.T) {
	for name, loss := range map[string]func(k, i int) float64{
		"a third is faster":     func(_, i int) float64 { return map[bool]float64{true: -0.3}[i < 7] },
		"nearly half is faster": func(_, i int) float64 { return map[bool]float64{true: -0.3}[i < 9] },
		"all fall":              func(_, _ int) float64 { return 0.4 },
		"all fall again and again": func(k, i int) float64 {
			return map[bool]float64{true: 0.3, false: 0.002 * float64(i)}[k%100 >= 60]
		},
		"all fall and rise within a minute of each other": func(k, i int) float64 { return map[bool]float64{true: 0.3}[(k+i/6)%90 >= 60] },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlay(t, []string{"j"}, 20, nil)
			require.Empty(t, p.ticks(300))
			p.loss = func(_ string, i int) float64 { return loss(p.k, i) }
			require.Empty(t, p.ticks(600))
		})
	}
}

// TestAFaultBesideAPart: a node that falls among those that became faster is found.
func TestAFaultBesideAPart(t *testing.T) {
	tell(t, map[string]story{
		"a third is faster": {steps: []step{
			{ticks: 200},
			{do: lose(-0.3, upTo(7)...), ticks: 200},
			{do: loseEach(map[int]float64{0: -0.3, 1: -0.3, 2: -0.3, 3: -0.3, 4: -0.3, 5: -0.3, 6: -0.3, 9: 0.2}), ticks: 60, told: []string{"node onset j-09"}},
		}},
		"nodes vanish while others fall": {steps: []step{
			{ticks: 200},
			{do: both(silent(upTo(6)...), lose(0.2, 6, 7, 8, 9, 10, 11, 12)), ticks: 60, told: []string{"missing onset 6", "group onset 7 stragglers"}},
		}},
		"all that are left fall": {steps: []step{
			{ticks: 200},
			{do: both(silent(upTo(6)...), lose(0.2, upTo(20)...)), ticks: 60, told: []string{"missing onset 6"}},
		}},
	})
}
