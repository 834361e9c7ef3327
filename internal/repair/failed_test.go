// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAFailedTestConfirms: it is evidence of a source of its own, each one is told once,
// and a test that passed ends it.
func TestAFailedTestConfirms(t *testing.T) {
	cfg := config(StepNotify, StepEvent, StepTaint, StepBurnIn)
	m := New(cfg)
	keptOff(t, m)
	m.See(&Sight{Node: "a", Empty: true}, start)
	m.Take()
	test := func(exit int) (told []string) {
		t.Helper()
		require.True(t, m.Say(&Word{Kind: RuleWordRepaired, Node: "a", Person: "kim", Reason: strconv.Itoa(m.Cases()[0].Tests)}, start))
		require.Equal(t, []string{"burn_in a"}, run(m, start))
		c := m.Cases()[0]
		result := &Test{Node: "a", ID: c.ID + "/burn_in/" + strconv.Itoa(c.Tests), Name: "gemm", ExitCode: exit, Output: "9 % slower"}
		m.Tested(result, start)
		m.Tested(result, start) // once more, as after a kill
		data, err := m.Snapshot()
		require.NoError(t, err)
		n := New(cfg)
		require.NoError(t, n.Restore(data))
		n.records = m.Take()
		m = n
		for {
			p, ok := m.Next(start)
			if !ok {
				return told
			}
			if p.Step.tells() {
				told = append(told, string(p.Step)+" "+string(p.Rule)+" "+string(p.State))
			}
			m.Done(p.ID, &Result{Outcome: Taken}, start)
		}
	}
	for range 2 {
		assert.Equal(t, []string{"notify test_failed under_repair", "event test_failed under_repair"}, test(3), "each is told, once")
		c := m.Cases()[0]
		assert.Equal(t, RuleTestFailed, c.By)
		last := c.Signals[len(c.Signals)-1]
		assert.Equal(t, SourceTest, last.Source)
		assert.Equal(t, RuleTestFailed, last.Proof)
		var results []Record
		for _, r := range m.Take() {
			if r.Test != nil {
				results = append(results, r)
			}
		}
		require.Len(t, results, 1)
		assert.Equal(t, RuleTestFailed, results[0].Rule)
		assert.Contains(t, results[0].Evidence, "test=gemm exit=3", "the record has it as evidence")
	}
	assert.Equal(t, []string{"notify test_passed on_probation", "event test_passed on_probation"}, test(0))
	assert.Empty(t, m.Cases()[0].Signals)
}
