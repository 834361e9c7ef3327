// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// replicas are machines of which one leads, the Lease with the leader's history, and the
// nodes that they act upon.
type replicas struct {
	cfg      Config
	lease    []byte
	machines []*Machine
	kept     [][]byte // what each has in its own storage
	leader   int
	tainted  map[string]string // node to case
	taints   []time.Time       // of all replicas
}

func (r *replicas) lead(t require.TestingT, i int, now time.Time) {
	r.leader = i
	m := New(r.cfg)
	if r.kept[i] != nil {
		require.NoError(t, m.Restore(r.kept[i]))
	}
	if r.lease != nil {
		require.NoError(t, m.Inherit(r.lease, now))
	}
	r.machines[i] = m
	r.look(now)
}

// look adopts the marks that are there, as the actor does before its first step.
func (r *replicas) look(now time.Time) {
	m := r.machines[r.leader]
	for node, id := range r.tainted {
		m.Recall(&Sight{Node: node, CaseID: id, Ours: []Step{StepTaint}}, now)
		m.Adopt(node, id, []Step{StepTaint}, now)
	}
	for _, c := range m.Cases() {
		s := &Sight{Node: c.Node}
		if c.marked(StepTaint) && r.tainted[c.Node] == "" {
			s.Foreign = []Step{StepTaint}
		}
		m.See(s, now)
	}
}

// settle writes what the leader knows, before it acts; a kill comes before, in between or
// not at all.
func (r *replicas) settle(t require.TestingT, kill int) bool {
	var err error
	if kill == 1 {
		return false
	}
	r.kept[r.leader], err = r.machines[r.leader].Snapshot()
	require.NoError(t, err)
	if kill == 2 {
		return false
	}
	r.lease, err = r.machines[r.leader].History()
	require.NoError(t, err)
	return true
}

// step takes one, and is killed before it tells of it where kill says so.
func (r *replicas) step(now time.Time, kill bool) {
	m := r.machines[r.leader]
	p, ok := m.Next(now)
	if !ok {
		return
	}
	result := Result{Outcome: Taken}
	if p.Step == StepTaint {
		switch node := p.Case.Node; {
		case p.Undo:
			delete(r.tainted, node)
		case r.tainted[node] == "":
			r.tainted[node] = p.Case.ID
			r.taints = append(r.taints, now)
		}
	}
	if !kill {
		m.Done(p.ID, &result, now)
	}
}

// However onsets, kills and takeovers come, both replicas together stay within the limits
// of one.
func TestReplicasShareTheBreaker(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := config(StepNotify, StepTaint)
		cfg.Breaker = BreakerConfig{
			MaxNodes: rapid.IntRange(1, 4).Draw(t, "max nodes"), MaxPerHour: rapid.IntRange(1, 4).Draw(t, "per hour"), MaxFraction: 1,
		}
		r := &replicas{cfg: cfg, machines: make([]*Machine, 2), kept: make([][]byte, 2), tainted: map[string]string{}}
		now := start
		r.lead(t, 0, now)
		node := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g", "h"})
		wasOpen, resets := false, 0
		// act settles and works, with a kill drawn; the other replica, or the same one, goes on.
		act := func(t *rapid.T) {
			kill := rapid.IntRange(0, 12).Draw(t, "kill")
			if r.settle(t, kill) {
				r.step(now, kill == 3)
				if kill != 3 {
					r.settle(t, 0)
				}
			}
			if kill >= 1 && kill <= 3 {
				r.lead(t, rapid.IntRange(0, 1).Draw(t, "next"), now)
				r.settle(t, 0)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				inHour := 0
				for _, at := range r.taints {
					if now.Sub(at) < time.Hour {
						inHour++
					}
				}
				require.LessOrEqual(t, inHour, cfg.Breaker.MaxPerHour, "taints of both replicas in an hour")
				require.LessOrEqual(t, len(r.tainted), cfg.Breaker.MaxNodes, "tainted at a time")
				var h struct{ Breaker Breaker }
				if r.lease != nil {
					s, err := parse(r.lease)
					require.NoError(t, err)
					h.Breaker = s.Breaker
				}
				require.False(t, wasOpen && !h.Breaker.Open && resets == 0, "nobody has reset it")
				wasOpen = h.Breaker.Open
				if !wasOpen {
					resets = 0
				}
			},
			"onset": func(t *rapid.T) { r.machines[r.leader].Episode(hot(node.Draw(t, "node")), now); act(t) },
			"act":   act,
			"wait": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.Int64Range(1, int64(50*time.Minute)).Draw(t, "wait")))
				r.machines[r.leader].Tick(now)
				act(t)
			},
			"release": func(t *rapid.T) {
				n := node.Draw(t, "node")
				r.machines[r.leader].Say(&Word{Kind: RuleWordRelease, Node: n, Person: "kim", Reason: strconv.Itoa(rapid.Int().Draw(t, "reason"))}, now)
				act(t)
			},
			"reset": func(t *rapid.T) {
				resets++
				r.machines[r.leader].ResetBreaker(strconv.Itoa(rapid.Int().Draw(t, "word")), "kim", now)
				act(t)
			},
			"takeover": func(t *rapid.T) {
				r.settle(t, 0)
				r.lead(t, 1-r.leader, now)
				act(t)
			},
		})
	})
}

// handOver has another machine take over from one.
func handOver(t *testing.T, from *Machine, now time.Time) *Machine {
	t.Helper()
	data, err := from.History()
	require.NoError(t, err)
	m := New(from.cfg)
	require.NoError(t, m.Inherit(data, now))
	again, err := m.History()
	require.NoError(t, err)
	require.JSONEq(t, string(data), string(again), "nothing is lost on the way")
	return m
}

func TestTheNextLeaderGoesOn(t *testing.T) {
	m := New(config(StepEvent, StepTaint, StepCordon, StepEvict, StepBurnIn))
	m.Episode(hot("a"), start)
	p, ok := m.Next(start)
	require.True(t, ok)
	m.Done(p.ID, &Result{Outcome: Taken}, start) // the event alone
	m = handOver(t, m, start)
	assert.Equal(t, []string{"event a", "taint a", "cordon a", "event a", "evict a"}, run(m, start), "whatever the former leader had not done")
	m = handOver(t, m, start)
	assert.Equal(t, KeptOff, state(m))
	m.See(&Sight{Node: "a", Empty: true}, start)
	word := &Word{Kind: RuleWordRepaired, Node: "a", Person: "kim", Reason: "new fan"}
	require.True(t, m.Say(word, start))
	run(m, start)
	m.Tested(&Test{Node: "a", ID: m.Cases()[0].ID + "/burn_in/0", ExitCode: 1}, start)

	m = handOver(t, m, start)
	m.Say(word, start)
	assert.Equal(t, []string{"event a"}, run(m, start), "the word was obeyed by the former leader")
	word.Reason = "new board"
	m.Say(word, start)
	p, ok = m.Next(start)
	require.True(t, ok)
	assert.Equal(t, m.Cases()[0].ID+"/burn_in/1", p.ID, "another test than the former leader's")
	m = handOver(t, m, start)
	run(m, start)
	m.Tested(&Test{Node: "a", ID: p.ID}, start)
	assert.Equal(t, OnProbation, state(m))

	m = handOver(t, m, start)
	assert.Equal(t, []string{"event a", "undo cordon a", "undo taint a"}, run(m, start))
	m = handOver(t, m, start)
	m.Reading(&Reading{Node: "a", Suspicion: new(0.7)}, start)
	assert.Equal(t, Confirmed, state(m), "the probation goes on")
	assert.Equal(t, 1, m.Cases()[0].Relapses)
}

// TestAFormerLeadersOwnState: what it has not heard of since is not acted upon.
func TestAFormerLeadersOwnState(t *testing.T) {
	m := New(config(StepTaint))
	m.Episode(throughput("suspect"), start)
	m.Episode(hot("kept"), start)
	run(m, start)
	m.Episode(hot("asked"), start) // was not acted upon yet
	other := New(m.cfg)
	data, err := other.History()
	require.NoError(t, err)
	require.NoError(t, m.Inherit(data, start))
	states := map[string]bool{}
	for _, c := range m.Cases() {
		states[fmt.Sprint(c.Node, " ", c.State, " ", c.Admitted)] = true
	}
	assert.Equal(t, map[string]bool{"suspect suspect false": true, "asked confirmed false": true}, states)
	m.Tick(start)
	assert.Equal(t, []string{"taint asked"}, run(m, start), "after it has passed the breaker once more")

	before, err := m.Snapshot()
	require.NoError(t, err)
	own, err := m.History()
	require.NoError(t, err)
	require.NoError(t, m.Inherit(own, start))
	after, err := m.Snapshot()
	require.NoError(t, err)
	assert.JSONEq(t, string(before), string(after), "it was the last leader itself")
	for _, text := range []string{"", "{}", `{"version":2}`} {
		assert.Error(t, m.Inherit([]byte(text), start), text)
	}
}

// TestAWordResetsOnce: also where the replicas differ in it for a while.
func TestAWordResetsOnce(t *testing.T) {
	m := New(config(StepTaint))
	reset := func(word string) bool {
		m.Trip(RuleStateLost, start)
		m.ResetBreaker(word, "kim", start)
		return !m.Breaker().Open
	}
	assert.False(t, reset(""), "none was said")
	assert.True(t, reset("monday"))
	assert.True(t, reset("tuesday"))
	m = handOver(t, m, start)
	assert.False(t, reset("monday"), "a replica with the old configuration")
	assert.False(t, reset(""))
	assert.True(t, reset("wednesday"))
	for i := range 20 {
		assert.True(t, reset(strconv.Itoa(i)))
	}
	assert.Len(t, m.Breaker().Former, maxFormer)
}

func TestAHistoryIsBounded(t *testing.T) {
	cfg := config(StepTaint)
	cfg.Breaker = BreakerConfig{MaxNodes: 1000, MaxPerHour: 1000, MaxFraction: 1}
	m := New(cfg)
	long := func(i int) string { return fmt.Sprintf("%0250d", i) }
	for i := range maxSilences {
		m.Say(&Word{Kind: RuleWordSilence, Node: long(i), Person: long(i), Reason: long(i), Until: start.Add(time.Hour)}, start)
	}
	m.Episode(hot("a"), start)
	data, err := m.History()
	require.NoError(t, err)
	assert.LessOrEqual(t, len(data), maxHistory)
	assert.NotNil(t, handOver(t, m, start).state.Cases["a"], "rather a silence than a node that is kept off")
	for i := range 999 {
		e := hot(long(maxSilences + i))
		e.Peers = 0
		m.Episode(e, start)
	}
	_, err = m.History()
	assert.ErrorContains(t, err, "lower `breaker::max_nodes`")
}

// TestACaseWaitsForSilences: the gateway's word of them follows its records.
func TestACaseWaitsForSilences(t *testing.T) {
	cfg := config(StepEvent, StepTaint)
	cfg.SilenceWait = 150 * time.Second
	reading := &Reading{Node: "a", Straggler: new(true)}
	for name, tt := range map[string]struct {
		tell func(m *Machine)
		at   time.Duration
		want []string
	}{
		"at once":                   {func(*Machine) {}, 0, nil},
		"no word, soon":             {func(*Machine) {}, 149 * time.Second, nil},
		"no word, late":             {func(*Machine) {}, 150 * time.Second, []string{"event a", "event a", "taint a", "event a"}},
		"a reading too early":       {func(m *Machine) { m.Reading(reading, start.Add(29*time.Second)) }, 149 * time.Second, nil},
		"a reading":                 {func(m *Machine) { m.Reading(reading, start.Add(30*time.Second)) }, 30 * time.Second, []string{"event a", "event a", "taint a", "event a"}},
		"of another node":           {func(m *Machine) { m.Reading(&Reading{Node: "b", Straggler: new(true)}, start.Add(30*time.Second)) }, 30 * time.Second, nil},
		"a silence before it":       {func(m *Machine) { m.Mute("a", start.Add(time.Hour), start.Add(20*time.Second)) }, 30 * time.Minute, nil},
		"a restart in the meantime": {func(m *Machine) { m.Reading(reading, start.Add(30*time.Second)); m.Listen(start.Add(31 * time.Second)) }, 3 * time.Minute, nil},
		"and after that":            {func(m *Machine) { m.Listen(start.Add(30 * time.Second)) }, 3 * time.Minute, []string{"event a", "event a", "taint a", "event a"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := New(cfg)
			m.Episode(hot("a"), start)
			tt.tell(m)
			m.Tick(start.Add(tt.at))
			assert.Equal(t, tt.want, run(m, start.Add(tt.at)))
			for _, r := range m.Take() {
				assert.False(t, r.Step == StepTaint && r.Outcome == Taken && r.Rule != RuleHardware, "the rule of a mark is what confirmed the node, however late: %s", r.Rule)
			}
		})
	}
}

// TestAnEndIsNotHeldUp: by the wait for silences.
func TestAnEndIsNotHeldUp(t *testing.T) {
	m := New(config(StepEvent, StepTaint))
	m.Episode(hot("a"), start)
	run(m, start)
	m.cfg.SilenceWait = time.Hour
	m.Listen(start)
	m.Say(&Word{Kind: RuleWordRelease, Node: "a", Person: "kim"}, start)
	assert.Equal(t, []string{"event a", "undo taint a"}, run(m, start))

	m = New(m.cfg)
	m.Episode(throughput("a"), start)
	e := throughput("a")
	e.Ended = true
	m.Episode(e, start)
	later := start.Add(2 * time.Hour)
	m.Tick(later)
	assert.Empty(t, run(m, later), "a suspicion that ended in the wait is never told")
	assert.Empty(t, m.Cases())
}
