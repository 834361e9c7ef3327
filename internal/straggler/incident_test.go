// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/nodesignal"
)

// TestAnIncidentFoldsItsNodes: one node slow by itself, then five more at once
// that are one incident; who is slow when it is over is told of by itself.
func TestAnIncidentFoldsItsNodes(t *testing.T) {
	p := newPlay(t, []string{"j"}, 20, nil)
	p.ticks(60)
	p.slow(0.2, 0)
	require.Equal(t, []string{"node onset j-00"}, brief(p.ticks(30)))

	p.slow(0.2, 0, 1, 2, 3, 4, 5)
	before := p.now
	told := p.ticks(60)
	require.Equal(t, []string{"group onset 6 stragglers"}, brief(told))
	in := told[0]
	assert.Equal(t, []string{"j-00", "j-01", "j-02", "j-03", "j-04", "j-05"}, in.Nodes)
	assert.Equal(t, nodesignal.Throughput, in.Signal)
	assert.Equal(t, SeverityMajor, in.Severity)
	assert.InDelta(t, 0.2, in.Gap, 0.02)
	assert.Equal(t, 20, in.Active)
	assert.True(t, in.Since.Before(before), "the first of them began before")
	assert.EqualValues(t, 5, p.counters.Folded)
	g := groupOf(t, p.last, "c", "j")
	assert.True(t, g.Incident)
	assert.Equal(t, in.Since, g.IncidentSince)
	assert.Equal(t, 6, g.Stragglers)

	p.slow(0.2, 3)
	told = p.ticks(100)
	require.Equal(t, []string{"node end j-00 recovered", "group end 0 recovered", "node onset j-03"}, brief(told), "still slow, and told of by itself")
	assert.Equal(t, in.ID, told[1].ID)
	assert.Less(t, told[0].At, told[1].At, "after 18 calm ticks")
	assert.False(t, groupOf(t, p.last, "c", "j").Incident)
	p.slow(0)
	assert.Equal(t, []string{"node end j-03 recovered"}, brief(p.ticks(60)))
}

// TestAnIncidentNeedsMoreThanAFew: three of twenty are 15 %, not more.
func TestAnIncidentNeedsMoreThanAFew(t *testing.T) {
	p := newPlay(t, []string{"j"}, 20, nil)
	p.ticks(60)
	p.slow(0.2, 0, 1, 2)
	assert.Len(t, onsets(p.ticks(60), SubjectNode), 3)
	assert.False(t, groupOf(t, p.last, "c", "j").Incident)
}

// TestAFallOfAllIsOneIncident and becomes the usual level after six hours.
func TestAFallOfAllIsOneIncident(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	require.Empty(t, p.ticks(360))
	all := []int{0, 1, 2, 3, 4, 5, 6, 7}
	p.slow(0.2, all...)
	require.Empty(t, p.ticks(17))
	began := p.now.Add(-16 * tick)
	told := p.ticks(1)
	require.Equal(t, []string{"group onset 8 level"}, brief(told))
	in := told[0]
	assert.Equal(t, began, in.Since)
	assert.InDelta(t, 0.2, in.Gap, 0.01)
	assert.InDelta(t, 8.04, in.Value, 0.05)
	assert.InDelta(t, 10.05, in.Median, 0.05, "what is usual")

	told = p.ticks(6 * 360)
	require.Equal(t, []string{"group end 0 relearned"}, brief(told))
	assert.Equal(t, 6*time.Hour, told[0].At.Sub(in.At))
	assert.Equal(t, in.ID, told[0].ID)
	assert.False(t, groupOf(t, p.last, "c", "j").Incident)
	require.Empty(t, p.ticks(120), "it is usual now")

	p.loss = func(_ string, i int) float64 { return map[bool]float64{true: 0.5, false: 0.2}[i == 4] }
	require.Equal(t, []string{"node onset j-04"}, brief(p.ticks(20)), "and nodes are found as before")
	p.slow(0)
	require.Equal(t, []string{"node end j-04 recovered"}, brief(p.ticks(60)), "better than usual is no incident")
}

func TestAFallThatEndsIsOver(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	p.ticks(60)
	all := []int{0, 1, 2, 3, 4, 5, 6, 7}
	p.slow(0.2, all...)
	require.Equal(t, []string{"group onset 8 level"}, brief(p.ticks(60)))
	p.slow(0)
	require.Empty(t, p.ticks(10))
	p.slow(0.2, all...)
	require.Empty(t, p.ticks(5))
	p.slow(0)
	require.Empty(t, p.ticks(17), "counts anew")
	require.Equal(t, []string{"group end 0 recovered"}, brief(p.ticks(1)))

	p.slow(0.2, all...)
	require.Empty(t, p.ticks(10))
	p.slow(0)
	require.Empty(t, p.ticks(10), "a dip")
	p.slow(0.2, all...)
	require.Empty(t, p.ticks(17), "counts anew")
	require.Len(t, p.ticks(1), 1)
	p.idle = func(string, int) bool { return true }
	require.Equal(t, []string{"group end 0 idle"}, brief(p.ticks(1)), "the job is over")
}

// TestASmallFallOfAllIsNone: a hot afternoon, or another phase of the job.
func TestASmallFallOfAllIsNone(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	p.ticks(60)
	p.slow(0.06, 0, 1, 2, 3, 4, 5, 6, 7)
	assert.Empty(t, p.ticks(120))
}

// TestAnIncidentEndsWithItsGroup: all of its nodes go on to another job.
func TestAnIncidentEndsWithItsGroup(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	p.ticks(60)
	p.slow(0.2, 0, 1, 2, 3, 4, 5, 6, 7)
	require.Len(t, p.ticks(60), 1)
	for i := range p.nodes {
		o := p.observe("j", i)
		o.Peers = []string{"k"}
		require.NoError(t, p.e.Observe(&o, p.now))
	}
	assert.Equal(t, []string{"group end 0 idle"}, brief(p.tickOnce()))
}
