// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func ended(e *Episode) *Episode {
	e.Ended = true
	return e
}

// notices does all steps that are due, and returns what people were notified of.
func notices(t *testing.T, m *Machine, now time.Time, outcome Outcome) (list []string) {
	t.Helper()
	for range 1000 {
		p, ok := m.Next(now)
		if !ok {
			return list
		}
		r := Result{Outcome: Taken}
		if p.Step == StepNotify {
			list = append(list, strings.Trim(p.Case.Node+" "+string(p.State)+" "+string(p.Rule), " "))
			r.Outcome = outcome
		}
		m.Done(p.ID, &r, now)
	}
	t.Fatal("there is always another step")
	return nil
}

func TestTheEndOfASuspicionIsTold(t *testing.T) {
	m := New(config(StepNotify, StepEvent, StepTaint))
	m.Episode(throughput("a"), start)
	assert.Equal(t, []string{"a suspect onset"}, notices(t, m, start, Taken))
	m.Episode(ended(throughput("a")), start.Add(time.Hour))
	assert.Equal(t, []string{"a healthy ended"}, notices(t, m, start.Add(time.Hour), Taken))
	assert.Empty(t, m.Cases())

	m = New(config(StepEvent))
	m.Episode(throughput("a"), start)
	assert.Equal(t, []string{"event a"}, run(m, start))
	m.Episode(ended(throughput("a")), start)
	assert.Equal(t, []string{"event a"}, run(m, start), "an event tells of it too")
}

// TestAnEndDoesNotOvertake: what comes last at a receiver holds there.
func TestAnEndDoesNotOvertake(t *testing.T) {
	m := New(config(StepNotify, StepTaint))
	m.Episode(throughput("a"), start)
	assert.Equal(t, []string{"a suspect onset"}, notices(t, m, start, Failed))
	m.Episode(ended(throughput("a")), start.Add(time.Second))
	assert.Empty(t, notices(t, m, start.Add(time.Second), Taken))
	later := start.Add(time.Minute)
	assert.Equal(t, []string{"a suspect onset", "a healthy ended"}, notices(t, m, later, Taken))

	m.Episode(hot("b"), later)
	assert.Equal(t, []string{"b suspect onset"}, notices(t, m, later, Failed))
	c := m.Cases()[0]
	assert.Equal(t, KeptOff, c.State, "telling people holds no mark up")
}

// TestASuspicionThatReturns: before people were told that it had ended, or after that.
func TestASuspicionThatReturns(t *testing.T) {
	m := New(config(StepNotify))
	m.Episode(throughput("a"), start)
	notices(t, m, start, Taken)
	m.Episode(ended(throughput("a")), start)
	m.Episode(throughput("a"), start)
	assert.Empty(t, notices(t, m, start, Taken), "people know of it")
	m.Episode(ended(throughput("a")), start)
	p, ok := m.Next(start) // the driver is at it
	require.True(t, ok)
	require.Equal(t, Healthy, p.State)
	m.Episode(throughput("a"), start)
	m.Take()
	m.Done(p.ID, &Result{Outcome: Taken}, start)
	records := m.Take()
	require.Len(t, records, 1, "what was told is in the audit")
	assert.Equal(t, p.ID, records[0].ID)
	assert.Equal(t, []string{"a suspect onset"}, notices(t, m, start, Taken))
	m.Episode(ended(throughput("a")), start)
	assert.Equal(t, []string{"a healthy ended"}, notices(t, m, start, Taken))
	assert.Empty(t, m.Cases())
}

// TestAMarkOfAFormerSuspicion: it was on its way off when the node was confirmed again.
func TestAMarkOfAFormerSuspicion(t *testing.T) {
	m := New(config(StepTaint))
	keptOff(t, m)
	m.Say(&Word{Kind: RuleWordRelease, Node: "a", Person: "kim"}, start)
	p, ok := m.Next(start)
	require.True(t, ok)
	require.True(t, p.Undo)
	m.Done(p.ID, &Result{Outcome: Failed}, start)
	later := start.Add(25 * time.Hour) // the silence of the release is over
	m.Tick(later)
	e := hot("a")
	e.ID = "another"
	m.Episode(e, later)
	assert.Equal(t, []string{"undo taint a", "taint a"}, run(m, later))
	assert.Equal(t, KeptOff, state(m))
}

// TestNoticesAreRepeated: as long as a case is open, however often the actor starts anew.
func TestNoticesAreRepeated(t *testing.T) {
	m := New(config(StepNotify, StepTaint, StepBurnIn))
	now := start
	m.Episode(hot("a"), now)
	assert.Equal(t, []string{"a suspect onset", "a confirmed hardware_reason", "a kept_off marked"}, notices(t, m, now, Taken))
	for range 100 { // 50 days
		m.Tick(now.Add(RepeatAfter - time.Second))
		assert.Empty(t, notices(t, m, now.Add(RepeatAfter-time.Second), Taken))
		now = now.Add(RepeatAfter)
		m.Tick(now)
		m.Tick(now)
		data, err := m.Snapshot()
		require.NoError(t, err)
		m = New(m.cfg)
		require.NoError(t, m.Restore(data))
		require.Equal(t, []string{"a kept_off repeated"}, notices(t, m, now, Taken))
	}
	assert.Less(t, len(m.state.Cases["a"].Told), 10)
	now = now.Add(RepeatAfter)
	m.Tick(now)
	assert.Equal(t, []string{"a kept_off repeated"}, notices(t, m, now, Failed))
	m.Tick(now.Add(time.Minute))
	assert.Equal(t, []string{"a kept_off repeated"}, notices(t, m, now.Add(time.Minute), Taken))

	m.Say(&Word{Kind: RuleWordRelease, Node: "a", Person: "kim"}, now)
	assert.Equal(t, []string{"a healthy person"}, notices(t, m, now, Taken))
	m.Tick(now.Add(25 * time.Hour))
	assert.Empty(t, notices(t, m, now.Add(25*time.Hour), Taken))

	m = New(config(StepTaint)) // the rung is off
	m.Episode(hot("a"), start)
	run(m, start)
	m.Tick(start.Add(25 * time.Hour))
	assert.Empty(t, run(m, start.Add(25*time.Hour)))
}

// TestTheBreakersAlert: told, repeated, and ended by a reset.
func TestTheBreakersAlert(t *testing.T) {
	cfg := config(StepNotify)
	m := New(cfg)
	m.Trip(RuleStateLost, start)
	assert.Equal(t, []string{"state_lost"}, notices(t, m, start, Taken))
	now := start.Add(RepeatAfter)
	m = handOver(t, m, now)
	m.Tick(now)
	m.Tick(now)
	assert.Equal(t, []string{"repeated"}, notices(t, m, now, Taken))
	m.Tick(now.Add(time.Hour))
	assert.Empty(t, notices(t, m, now.Add(time.Hour), Taken))
	m.ResetBreaker("monday", "kim", now)
	assert.Equal(t, []string{"healthy reset"}, notices(t, m, now, Taken))
	now = now.Add(48 * time.Hour)
	m.Tick(now)
	assert.Empty(t, notices(t, m, now, Taken))

	m.Trip(RuleStateLost, now)
	assert.Equal(t, []string{"state_lost"}, notices(t, m, now, Failed))
	m.ResetBreaker("tuesday", "kim", now)
	assert.Empty(t, notices(t, m, now, Taken), "the end does not overtake it")
	assert.Equal(t, []string{"state_lost", "healthy reset"}, notices(t, m, now.Add(time.Minute), Taken))

	m = New(config(StepTaint))
	m.Trip(RuleStateLost, start)
	m.ResetBreaker("monday", "kim", start)
	assert.Empty(t, run(m, start), "the rung is off")
}
