// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/peergroup"
	"github.com/gpu-collector/gpu-collector/internal/straggler/unjudged"
)

// TestEverySilenceHasAReason: each node without a verdict says why, the group counts
// them, and the reason goes with its cause.
func TestEverySilenceHasAReason(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	why := func(name string) unjudged.Reason { return p.node(name).Unjudged }
	p.ticks(2)
	n := p.node("j-00")
	require.Equal(t, unjudged.Calibrating, n.Unjudged)
	assert.Equal(t, p.last.At.Add(4*tick).UnixMilli(), n.Until, "six ticks warm up")
	p.ticks(4)
	for i := range 8 {
		assert.Equal(t, unjudged.Judged, why(nodeName("j", i)))
	}
	assert.Equal(t, unjudged.Calibrating, p.node("j-00").UnjudgedBefore)

	p.idle = func(_ string, i int) bool { return i == 0 }
	p.silent = func(_ string, i int) bool { return i == 1 }
	for range 10 {
		p.twin(2) // two nodes by the name of the third
		p.ticks(1)
	}
	assert.Equal(t, unjudged.Idle, why("j-00"))
	assert.Equal(t, unjudged.Missing, why("j-01"))
	assert.Equal(t, unjudged.Contested, why("j-03"))
	assert.Equal(t, unjudged.Judged, why("j-02"))
	g := groupOf(t, p.last, "c", "j")
	assert.Equal(t, [unjudged.Count]int{unjudged.Judged: 5, unjudged.Idle: 1, unjudged.Missing: 1, unjudged.Contested: 1}, g.Unjudged)

	p = newPlay(t, []string{"j"}, 2, nil)
	p.ticks(20)
	assert.Equal(t, unjudged.FewPeers, why("j-00"))
	assert.Zero(t, groupOf(t, p.last, "c", "j").Detectable)

	f := newFleet(t, nil)
	for range 3 {
		for i := range 5 {
			o := Observation{Cluster: "c", Node: nodeName("j", i), HasState: true}
			o.Values.Set(nodesignal.Power, 300) // decides nothing
			require.NoError(t, f.e.Observe(&o, f.now))
		}
		f.tick()
	}
	assert.Equal(t, 5, groupOf(t, &f.e.report, "c", peergroup.Default).Unjudged[unjudged.NoSignal])

	p = newPlay(t, []string{""}, 16, nil)
	p.idle = func(_ string, i int) bool { return i == 3 && p.k < 100 }
	p.slow(0.3, 3)
	p.ticks(110)
	n = p.node("-03")
	require.Equal(t, unjudged.Levels, n.Unjudged)
	assert.InDelta(t, (5*time.Minute - 100*time.Second).Milliseconds(), n.Until-p.last.At.UnixMilli(), 1)

	p = newPlay(t, []string{"j"}, 4, func(c *Config) { c.Decision = DecisionThreshold })
	p.ticks(5)
	assert.Equal(t, unjudged.NoSignal, why("j-00"), "no score")
}

// TestTheDetectableLossIsFound within the hour, and half of it is not; more noise makes
// it greater.
func TestTheDetectableLossIsFound(t *testing.T) {
	p := newPlay(t, []string{"j"}, 16, nil)
	p.ticks(1000)
	loss := groupOf(t, p.last, "c", "j").Detectable
	require.Greater(t, loss, 0.01)
	require.Less(t, loss, 0.05)
	p.slow(loss+0.025, 3) // what may be learnt as the node's own comes on top
	assert.Equal(t, []string{"node onset j-03"}, brief(p.ticks(360)))

	p = newPlay(t, []string{"j"}, 16, nil)
	p.ticks(1000)
	p.slow(loss/2, 3)
	assert.Empty(t, p.ticks(360))

	p = newPlay(t, []string{"j"}, 16, nil)
	p.loss = func(_ string, i int) float64 { return 0.12 * float64((i*7+p.k*5)%16) / 16 }
	p.ticks(1000)
	assert.Greater(t, groupOf(t, p.last, "c", "j").Detectable, 1.5*loss)
}
