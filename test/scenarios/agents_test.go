// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAgents: what a node says of itself is what its gateway says of it, tick by tick.
func TestAgents(t *testing.T) {
	flagged := 0
	for _, name := range []string{"base", "dips", "jobs", "signals"} {
		f := family(t, name, 1).Short(8, time.Hour)
		a, err := playAgents(f.Play(3, 0, false))
		require.NoError(t, err)
		assert.Greater(t, a.Compared, 500, name)
		assert.LessOrEqual(t, float64(a.Differ), mostDiffer*float64(a.Compared), name)
		flagged += a.Flagged
	}
	assert.Greater(t, flagged, 200)

	var figures strings.Builder
	AgentFigures(&figures, []Agreement{{Family: "a", Compared: 1000, Flagged: 9, Differ: 2}})
	assert.Equal(t, "figure eval_a_agents_flagged 9 node-ticks\nfigure eval_a_agents_differ 0.002 share limit 0.001 short\n", figures.String())
}

// TestAgentsDiffer where an agent knows what its gateway does not: the agent finds the
// loss that a shard holds back.
func TestAgentsDiffer(t *testing.T) {
	f := family(t, "base", 1).Short(8, time.Hour)
	told, err := playAgents(f.Play(3, 0, false))
	require.NoError(t, err)
	assert.Zero(t, told.Differ)
	r := f.Play(3, 0, false)
	r.Same = make([]bool, r.Model.Nodes)
	kept, err := playAgentsWith(r, func() { r.Same[r.Faults[0].Node] = r.Tick >= r.Faults[0].Begin })
	require.NoError(t, err)
	assert.Greater(t, told.Flagged, 50)
	assert.Zero(t, kept.Flagged)
	assert.Greater(t, kept.Differ, 50)
}
