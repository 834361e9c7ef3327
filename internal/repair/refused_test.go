// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// answer does all steps that are due, with that outcome for the marks of some nodes.
func answer(m *Machine, now time.Time, outcome Outcome, nodes ...string) (done []string) {
	of := map[string]bool{}
	for _, n := range nodes {
		of[n] = true
	}
	for {
		p, ok := m.Next(now)
		if !ok {
			return done
		}
		r := Result{Outcome: Taken}
		if of[p.Case.Node] && isMark(p.Step) {
			r = Result{Outcome: outcome, Rule: RuleForeign, Text: "somebody else has set it"}
		}
		done = append(done, string(p.Step)+" "+p.Case.Node+" "+string(r.Outcome))
		m.Done(p.ID, &r, now)
	}
}

// TestARefusedNodeDoesNotCount: people drained three nodes before us. Nothing of ours was
// done about them, so they take nobody's place.
func TestARefusedNodeDoesNotCount(t *testing.T) {
	cfg := config(StepDrain)
	cfg.Breaker = BreakerConfig{MaxNodes: 3, MaxPerHour: 3, MaxFraction: 0.03}
	m := New(cfg)
	for _, node := range []string{"a", "b", "c"} {
		m.Episode(hot(node), start)
	}
	require.Len(t, answer(m, start, Refused, "a", "b", "c"), 3)
	for _, c := range m.Cases() {
		assert.Equal(t, Confirmed, c.State)
		assert.False(t, c.keptOff(), c.Node)
	}
	m.Tick(start.Add(time.Minute))
	assert.Empty(t, run(m, start.Add(time.Minute)), "a refused step is not tried anew")

	later := start.Add(2 * time.Hour)
	m.Tick(later)
	for _, node := range []string{"d", "e", "f"} {
		m.Episode(hot(node), later)
	}
	assert.Equal(t, []string{"drain d taken", "drain e taken", "drain f taken"}, answer(m, later, Taken))
	assert.False(t, m.Breaker().Open)
	m.Episode(hot("g"), later)
	assert.Empty(t, run(m, later))
	assert.True(t, m.Breaker().Open, "our own three do count")
}

// TestARefusedNodeCountsAgain: the step took effect, and its word was wrong.
func TestARefusedNodeCountsAgain(t *testing.T) {
	m := New(config(StepLabel, StepTaint))
	m.Episode(hot("a"), start)
	answer(m, start, Refused, "a")
	require.False(t, m.state.Cases["a"].keptOff())
	m.Recall(&Sight{Node: "a", CaseID: m.Cases()[0].ID, Ours: []Step{StepTaint}}, start)
	assert.True(t, m.state.Cases["a"].keptOff())
	m.Tick(start)
	assert.Equal(t, KeptOff, state(m))
	assert.Len(t, m.Breaker().Taken, 1)
}

// TestANodeCountsWhileAMarkMayHold: one that was refused does not outweigh one that holds,
// nor one that is tried still.
func TestANodeCountsWhileAMarkMayHold(t *testing.T) {
	m := New(config(StepLabel, StepTaint))
	m.Episode(hot("a"), start)
	answer(m, start, Failed, "a")
	assert.True(t, m.state.Cases["a"].keptOff(), "it may hold")
	p, ok := m.Next(start.Add(time.Hour))
	require.True(t, ok)
	m.Done(p.ID, &Result{Outcome: Taken}, start.Add(time.Hour))
	p, ok = m.Next(start.Add(time.Hour))
	require.True(t, ok)
	m.Done(p.ID, &Result{Outcome: Refused}, start.Add(time.Hour))
	assert.True(t, m.state.Cases["a"].keptOff(), "the label holds")
	m.See(&Sight{Node: "a", Foreign: []Step{StepLabel}, By: "kim"}, start.Add(time.Hour))
	assert.False(t, m.state.Cases["a"].keptOff(), "nothing of ours is left")
	assert.Len(t, m.Breaker().Taken, 1, "it was taken on all the same")
}
