// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func config(rungs ...Step) Config {
	c := DefaultConfig()
	c.Rungs, c.SilenceWait = rungs, 0
	return c
}

func throughput(node string) *Episode {
	return &Episode{ID: "ep-" + node, Node: node, Subject: "node", Signal: "throughput", Severity: "major", Reason: "unexplained", Action: "burn_in", Gap: 0.18, Group: "g", Peers: 99}
}

func hot(node string) *Episode {
	e := throughput(node)
	e.Reason, e.Action, e.GPU = "hw_thermal", "check_cooling", "GPU-"+node
	return e
}

// run does all steps that are due, and returns them.
func run(m *Machine, now time.Time) (done []string) {
	for {
		p, ok := m.Next(now)
		if !ok {
			return done
		}
		text := string(p.Step) + " " + p.Case.Node
		if p.Undo {
			text = "undo " + text
		}
		done = append(done, text)
		m.Done(p.ID, &Result{Outcome: Taken}, now)
	}
}

// state is that of node a.
func state(m *Machine) State {
	for _, c := range m.Cases() {
		if c.Node == "a" {
			return c.State
		}
	}
	return Healthy
}

func TestTheWholeWay(t *testing.T) {
	m := New(config(StepEvent, StepCondition, StepTaint, StepCordon, StepEvict, StepBurnIn))
	now := start
	m.Episode(throughput("a"), now)
	assert.Equal(t, []string{"event a"}, run(m, now), "nothing is touched before a confirmation")
	assert.Equal(t, Suspect, state(m))

	m.Health(&Health{Node: "a", GPU: "GPU-1", To: "unhealthy"}, now)
	assert.Equal(t, Confirmed, state(m), "a second signal, from another source")
	assert.Equal(t, []string{"event a", "condition a", "taint a", "cordon a", "event a", "evict a"}, run(m, now))
	assert.Equal(t, KeptOff, state(m))

	m.See(&Sight{Node: "a", Empty: true}, now)
	assert.Equal(t, UnderRepair, state(m))
	assert.Empty(t, run(m, now), "the test waits for the repair")
	require.True(t, m.Say(&Word{Kind: RuleWordRepaired, Node: "a", Person: "kim", Reason: "new fan"}, now))
	p, ok := m.Next(now)
	require.True(t, ok)
	assert.Equal(t, StepBurnIn, p.Step)
	m.Done(p.ID, &Result{Outcome: Taken}, now)
	m.Tested(&Test{Node: "a", ID: p.ID, Name: "gemm", ExitCode: 1, Output: "slow"}, now)
	assert.Equal(t, UnderRepair, state(m), "a failed test opens no probation")
	assert.Equal(t, []string{"event a"}, run(m, now), "people are told")

	require.True(t, m.Say(&Word{Kind: RuleWordRepaired, Node: "a", Person: "kim", Reason: "new board"}, now))
	p2, ok := m.Next(now)
	require.True(t, ok)
	assert.NotEqual(t, p.ID, p2.ID)
	m.Done(p2.ID, &Result{Outcome: Taken}, now)
	m.Tested(&Test{Node: "a", ID: p2.ID, Name: "gemm"}, now)
	assert.Equal(t, OnProbation, state(m))
	assert.Equal(t, []string{"event a", "undo cordon a", "undo taint a", "undo condition a"}, run(m, now))

	for range 24 * 60 {
		assert.Equal(t, OnProbation, state(m))
		m.Reading(&Reading{Node: "a", Straggler: new(false), Active: new(true)}, now)
		now = now.Add(time.Minute)
	}
	m.Reading(&Reading{Node: "a", Straggler: new(false), Active: new(true)}, now)
	run(m, now)
	assert.Equal(t, Healthy, state(m))
	assert.Empty(t, m.Cases(), "nothing is kept of a healthy node")
}

func TestConfirmation(t *testing.T) {
	for _, test := range []struct {
		name string
		tell func(m *Machine) time.Time
		want Rule
	}{
		{"a lone onset", func(m *Machine) time.Time { m.Episode(throughput("a"), start); return start }, ""},
		{"a hardware reason", func(m *Machine) time.Time { m.Episode(hot("a"), start); return start }, RuleHardware},
		{"a hardware reason without contrast", func(m *Machine) time.Time {
			e := hot("a")
			e.Observation = true
			m.Episode(e, start)
			return start
		}, ""},
		{"a small hardware reason", func(m *Machine) time.Time {
			e := hot("a")
			e.Severity = "minor"
			m.Episode(e, start)
			return start
		}, ""},
		{"the same GPU twice", func(m *Machine) time.Time {
			e := throughput("a")
			e.GPU = "GPU-1"
			m.Episode(e, start)
			e.Ended = true
			m.Episode(e, start.Add(time.Hour))
			e.ID, e.Ended = "another", false
			m.Episode(e, start.Add(2*time.Hour))
			return start.Add(2 * time.Hour)
		}, RuleTwice},
		{"the same GPU after a day", func(m *Machine) time.Time {
			e := throughput("a")
			e.GPU = "GPU-1"
			m.Episode(e, start)
			e.Ended = true
			m.Episode(e, start.Add(time.Hour))
			e.ID, e.Ended = "another", false
			m.Episode(e, start.Add(25*time.Hour))
			return start.Add(25 * time.Hour)
		}, ""},
		{"the same record twice", func(m *Machine) time.Time {
			e := throughput("a")
			e.GPU = "GPU-1"
			m.Episode(e, start)
			m.Episode(e, start)
			return start
		}, ""},
		{"another signal of the same source", func(m *Machine) time.Time {
			e := throughput("a")
			m.Episode(e, start)
			e.ID, e.Signal = "another", "power"
			m.Episode(e, start)
			return start
		}, ""},
		{"one that lasts", func(m *Machine) time.Time { m.Episode(throughput("a"), start); return start.Add(4 * time.Hour) }, RuleLasting},
		{"one that lasts by records, and not by metrics", func(m *Machine) time.Time {
			m.Episode(throughput("a"), start)
			m.Reading(&Reading{Node: "a", Straggler: new(false)}, start.Add(time.Minute))
			return start.Add(4 * time.Hour)
		}, ""},
		{"unhealthy by the rubric", func(m *Machine) time.Time {
			m.Health(&Health{Node: "a", GPU: "GPU-1", To: "unhealthy", Actions: []string{"none", "reboot"}}, start)
			return start
		}, RuleHardware},
		{"a person", func(m *Machine) time.Time {
			m.Say(&Word{Kind: RuleWordConfirm, Node: "a", Person: "kim"}, start)
			return start
		}, RulePerson},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := New(config())
			m.Tick(test.tell(m))
			var got Rule
			for _, r := range m.Take() {
				if r.After == Confirmed && r.Step == StepTransition {
					got = r.Rule
				}
			}
			assert.Equal(t, test.want, got)
		})
	}
}

func TestStorm(t *testing.T) {
	m := New(config(StepNotify, StepTaint))
	var done []string
	for i := range 100 {
		m.Episode(hot(fmt.Sprintf("n%03d", i)), start)
		if i == 50 { // a restart in the midst of it
			data, err := m.Snapshot()
			require.NoError(t, err)
			m = New(m.cfg)
			require.NoError(t, m.Restore(data))
		}
		done = append(done, run(m, start)...)
	}
	count := func(what string) (n int) {
		for _, d := range done {
			if d == what || len(d) > len(what) && d[:len(what)] == what {
				n++
			}
		}
		return n
	}
	assert.Equal(t, 3, count("taint "))
	assert.True(t, m.Breaker().Open)
	assert.Equal(t, RulePerHour, m.Breaker().Rule)
	assert.Equal(t, 1, count("notify ")-count("notify n"), "one alert, which is of no node")

	m.ResetBreaker("2026-03-02 kim", "kim", start.Add(2*time.Hour))
	m.Tick(start.Add(2 * time.Hour))
	assert.Len(t, slices.DeleteFunc(run(m, start.Add(2*time.Hour)), func(s string) bool { return s[:5] != "taint" }), 2, "max_nodes is five")
	m.ResetBreaker("2026-03-02 kim", "kim", start.Add(2*time.Hour))
	assert.True(t, m.Breaker().Open, "the same word closes it once")
}

func TestWhatForbidsToAct(t *testing.T) {
	for _, test := range []struct {
		name  string
		given func(m *Machine)
		want  Rule
	}{
		{"nothing", func(*Machine) {}, ""},
		{"a silence of the node", func(m *Machine) {
			m.Say(&Word{Kind: RuleWordSilence, Node: "a", Person: "kim", Until: start.Add(time.Hour)}, start)
		}, RuleSilenced},
		{"a silence of the group", func(m *Machine) {
			m.Say(&Word{Kind: RuleWordSilence, Group: "g", Person: "kim", Until: start.Add(time.Hour)}, start)
		}, RuleSilenced},
		{"a silence of another node", func(m *Machine) {
			m.Say(&Word{Kind: RuleWordSilence, Node: "b", Person: "kim", Until: start.Add(time.Hour)}, start)
		}, ""},
		{"a silence at the gateway", func(m *Machine) { m.Mute("a", start.Add(time.Hour), start) }, RuleSilenced},
		{"one that ended", func(m *Machine) {
			m.Mute("a", start.Add(time.Hour), start)
			m.Mute("a", time.Time{}, start)
		}, ""},
		{"one of another node", func(m *Machine) { m.Mute("b", start.Add(time.Hour), start) }, ""},
		{"panic", func(m *Machine) { m.Group(&Group{Group: "g", Panic: new(true)}, start) }, RulePanic},
		{"coverage", func(m *Machine) { m.Group(&Group{Group: "g", CoverageLow: new(true)}, start) }, RuleCoverage},
		{"an incident by metrics", func(m *Machine) { m.Group(&Group{Group: "g", Incident: new(true)}, start) }, RuleGroupIncident},
		{"an incident of another group", func(m *Machine) { m.Group(&Group{Group: "h", Incident: new(true)}, start) }, ""},
		{"an incident by its record", func(m *Machine) { m.Episode(&Episode{ID: "i", Subject: "group", Group: "g"}, start) }, RuleGroupIncident},
		{"one that ended", func(m *Machine) {
			m.Episode(&Episode{ID: "i", Subject: "group", Group: "g"}, start)
			m.Episode(&Episode{ID: "i", Subject: "group", Group: "g", Ended: true}, start)
		}, ""},
		{"too few peers", func(m *Machine) { m.Group(&Group{Group: "g", Active: new(3)}, start) }, RulePeers},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := New(config(StepTaint))
			test.given(m)
			m.Episode(hot("a"), start)
			m.Tick(start)
			m.Tick(start)
			var got []Rule
			for _, r := range m.Take() {
				if r.Outcome == Refused {
					got = append(got, r.Rule)
				}
			}
			if test.want == "" {
				assert.Empty(t, got)
				assert.Equal(t, []string{"taint a"}, run(m, start))
			} else {
				assert.Equal(t, []Rule{test.want}, got, "told once")
				assert.Empty(t, run(m, start))
			}
		})
	}
}

func keptOff(t *testing.T, m *Machine) {
	t.Helper()
	m.Episode(hot("a"), start)
	run(m, start)
	require.Equal(t, KeptOff, state(m))
}

func TestForeignChanges(t *testing.T) {
	m := New(config(StepLabel, StepTaint))
	keptOff(t, m)
	m.See(&Sight{Node: "a", Foreign: []Step{StepTaint}, By: "kim"}, start)
	assert.Equal(t, []string{"undo label a"}, run(m, start), "the taint is not ours any more")
	assert.Equal(t, Healthy, state(m))
	m.Episode(hot("a"), start.Add(time.Hour))
	assert.Empty(t, run(m, start.Add(time.Hour)), "a person's word is not undone by an episode that goes on")
}

func TestRelapse(t *testing.T) {
	m := New(config(StepNotify, StepTaint, StepBurnIn))
	keptOff(t, m)
	now := start
	for i := range 3 {
		now = now.Add(2 * time.Hour)
		m.See(&Sight{Node: "a", Empty: true}, now)
		m.Say(&Word{Kind: RuleWordRepaired, Node: "a", Person: "kim", Reason: strconv.Itoa(i)}, now)
		run(m, now)
		m.Tested(&Test{Node: "a", ID: fmt.Sprintf("%s/burn_in/%d", m.Cases()[0].ID, i)}, now)
		require.Equal(t, OnProbation, state(m))
		run(m, now)
		now = now.Add(2 * time.Hour)
		m.Reading(&Reading{Node: "a", Straggler: new(false), Suspicion: new(0.6)}, now)
		assert.Contains(t, run(m, now), "taint a", "a relapse is kept off at once")
	}
	assert.True(t, slices.ContainsFunc(m.Take(), func(r Record) bool { return r.Rule == RuleProposeService }))
}

func TestAgesWithoutAnEnd(t *testing.T) {
	m := New(config(StepTaint))
	m.Episode(throughput("a"), start)
	m.Reading(&Reading{Node: "a", Straggler: new(true)}, start)
	m.Reading(&Reading{Node: "a", Straggler: new(false)}, start.Add(time.Minute))
	m.Tick(start.Add(30 * time.Minute))
	assert.Equal(t, Suspect, state(m))
	m.Tick(start.Add(time.Hour))
	assert.Equal(t, Healthy, state(m), "the gateway lost the episode, and its metric says that all is well")
}

func TestRestoreRefusesWhatIsNoSnapshot(t *testing.T) {
	m := New(config())
	for _, text := range []string{"", "{}", `{"version":2}`, `{"version":1,"cases":null}`, `{"version":1,"cases":{"a":null}}`, `{"version":1,"cases":{"a":{"node":"b"}}}`} {
		assert.Error(t, m.Restore([]byte(text)), text)
	}
}

// TestASilenceHoldsAllSteps: also those that were asked for before, and what only tells.
// Nothing is forgotten by a restart, and our own marks are taken off.
func TestASilenceHoldsAllSteps(t *testing.T) {
	m := New(config(StepNotify, StepEvent, StepTaint, StepEvict))
	m.Episode(hot("a"), start)
	until := start.Add(time.Hour)
	m.Mute("a", until, start)
	assert.Empty(t, run(m, start))
	data, err := m.Snapshot()
	require.NoError(t, err)
	m = New(config(StepNotify, StepEvent, StepTaint, StepEvict))
	require.NoError(t, m.Restore(data))
	m.Tick(until.Add(-time.Second))
	assert.Empty(t, run(m, until.Add(-time.Second)))
	m.Tick(until)
	done := run(m, until)
	assert.Contains(t, done, "taint a")
	assert.Contains(t, done, "evict a")
	assert.Equal(t, KeptOff, state(m))
	for _, r := range m.Take() {
		assert.False(t, r.Step != StepTransition && r.At.Before(until) && r.Outcome == Taken, "%+v", r)
	}

	m.Mute("a", until.Add(time.Hour), until)
	m.Say(&Word{Kind: RuleWordRelease, Node: "a", Person: "kim"}, until)
	assert.Equal(t, []string{"notify a", "event a", "undo taint a"}, run(m, until))
}

// TestASuspicionInASilenceIsNeverTold: neither then nor afterwards.
func TestASuspicionInASilenceIsNeverTold(t *testing.T) {
	m := New(config(StepNotify, StepTaint))
	m.Mute("a", start.Add(time.Hour), start)
	m.Episode(throughput("a"), start)
	e := throughput("a")
	e.Ended = true
	m.Episode(e, start.Add(time.Minute))
	later := start.Add(2 * time.Hour)
	m.Tick(later)
	assert.Empty(t, run(m, later))
	assert.Empty(t, m.Cases())
}

func TestSilencesOfTheGatewayAreBounded(t *testing.T) {
	m := New(config(StepTaint))
	for i := range maxMuted + 10 {
		m.Mute(strconv.Itoa(i), start.Add(100*maxMute), start)
	}
	assert.Len(t, m.state.Muted, maxMuted)
	m.Tick(start.Add(maxMute))
	assert.Empty(t, m.state.Muted)
}
