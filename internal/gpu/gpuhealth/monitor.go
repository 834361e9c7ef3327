// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// maxTracks bounds the GPUs and slices that a node has, with many to spare:
// 16 boards of 7 slices are 128.
const maxTracks = 1024

// Monitor judges the GPUs of one node. It has no clock: its verdicts depend
// on its calls alone. It may be called from several goroutines.
type Monitor struct {
	mu      sync.Mutex
	rubric  Rubric
	tracks  map[string]*track
	start   time.Time
	dropped uint64
	view    view

	load   DriverLoad
	opened bool // load was set, in this process or an earlier one
}

// NewMonitor starts a monitor that judges by the rubric as it is now.
func NewMonitor(r *Rubric) *Monitor {
	return &Monitor{rubric: Rubric{rules: r.Rules(), xids: maps.Clone(r.xids)}, tracks: map[string]*track{}}
}

// newLoad has Xids no longer count that a load of the driver ends and that are
// older than start. Counters may begin at zero.
func (m *Monitor) newLoad(start time.Time) {
	m.start = start
	for _, t := range m.tracks {
		t.newGeneration(m.rubric.rules, start)
		t.reopened, t.Signs = time.Time{}, resetSigns{}
	}
}

// ObserveXid takes an event into account from the next Observe of its GPU on,
// and returns what the rubric knows of its code. Events of slices that NVIDIA
// answers by restarting the node count for the whole GPU.
func (m *Monitor) ObserveXid(ev XidEvent) Xid {
	m.mu.Lock()
	defer m.mu.Unlock()
	x := m.rubric.Xid(ev.Code)
	if t := m.tracks[ev.UUID]; t != nil && x.Ends != 0 {
		t.events = dropEvents(t.events, func(e *event) bool { return e.Code == x.Ends && !e.Last.After(ev.Time) })
	}
	if x.Class == XidApplication && !x.Off {
		m.track(ev.UUID, ev.Time).Faults.add(halfHourOf(ev.Time))
	}
	if x.Off || x.Cap >= NoCap || x.endsWithGeneration() && ev.Time.Before(m.start) {
		return x
	}
	e := event{xid: x, reason: x.Reason(), keptEvent: keptEvent{Code: ev.Code, First: ev.Time, Last: ev.Time}}
	if x.Class != XidNode {
		e.GI, e.CI = ev.GPUInstance, ev.ComputeInstance
	}
	if !m.track(ev.UUID, ev.Time).addXid(e) {
		m.dropped++
	}
	return x
}

// Acknowledge ends one Xid of a GPU and of its slices, or without a code all Xids and
// rules, also those that no clean poll ends. The number of its active NVLinks becomes the
// expected one then. The next poll finds again a fault that is still there. It reports
// whether the GPU is known, whatever Xids it has.
func (m *Monitor) Acknowledge(uuid string, code Opt[uint64]) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.tracks[uuid]
	if t == nil {
		return false
	}
	if code.OK {
		t.events = dropEvents(t.events, func(e *event) bool { return e.Code == code.V })
		return true
	}
	clear(t.rules)
	clear(t.events)
	t.events = t.events[:0]
	t.LinksUp, t.LinksAccepted, t.Faults = 0, true, slots{}
	return true
}

// Forget drops a GPU that is no longer reported, and returns a last verdict
// that knows nothing of it.
func (m *Monitor) Forget(uuid string, now time.Time) Verdict {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := Verdict{UUID: uuid, State: StateUnknown, Since: now}
	if t := m.tracks[uuid]; t != nil {
		v.Previous, v.Changed = t.verdict.State, t.verdict.State != StateUnknown
		delete(m.tracks, uuid)
	}
	return v
}

// Dropped counts the Xids and GPUs that were over a bound of the monitor.
func (m *Monitor) Dropped() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dropped
}

// Observe judges a GPU by one validated sample more. Of one report, GPUs come
// before their slices: a slice inherits the last verdict on its GPU.
func (m *Monitor) Observe(s *Sample, now time.Time) Verdict {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.track(s.UUID, now)
	t.seen, t.Model = now, cmp.Or(s.Model, t.Model)
	if usable(s) {
		t.missed, t.answered, t.read = 0, min(t.answered+1, cleanPolls), true
		if s.Parent == "" {
			t.noteReset(m.rubric.rules, s)
			t.learn(s, now)
			t.settleSlices(s)
		}
	} else {
		t.missed, t.answered = min(t.missed+1, missedPolls), 0
		if s.Reason == ReasonHang {
			t.missed = missedPolls
		}
	}
	if parent := m.tracks[s.Parent]; s.Parent != "" && parent != nil {
		parent.seeSlice(s)
	}
	m.applyRules(t, s, now)
	if t.history != nil && t.missed == 0 {
		t.history.mark(now)
	}
	if s.Parent == "" {
		t.events = dropEvents(t.events, func(e *event) bool { return e.over(s, t, now) })
	}
	m.judge(t, s, now)
	return t.verdict
}

// applyRules moves each rule of the sample on by one poll. Without a usable
// reading the rules that need one stay as they are.
func (m *Monitor) applyRules(t *track, s *Sample, now time.Time) {
	m.view.s, m.view.t, m.view.now = s, t, now
	if s.Parent == "" {
		m.view.others = m.others(t, now)
	}
	for i := range m.rubric.rules {
		r, st := &m.rubric.rules[i], &t.rules[i]
		if r.Off || !r.always && (s.Parent != "" || t.missed > 0) || r.slow && s.Cached {
			continue
		}
		m.view.active, m.view.threshold = st.active, r.Threshold
		st.step(r, r.condition(&m.view), now)
	}
	m.view.s, m.view.t = nil, nil
}

// others summarises the GPUs of the node beside this one, by their last answers, also
// those before a restart of the agent.
func (m *Monitor) others(t *track, now time.Time) (o others) {
	for uuid, other := range m.tracks {
		if other == t || strings.HasPrefix(uuid, slicePrefix) {
			continue
		}
		o.gpus++
		o.faults = max(o.faults, other.occasions(now))
		if other.Model == t.Model {
			o.links = max(o.links, other.LinksUp)
			if other.LinksUp == t.LinksUp {
				o.alike++
			}
		}
	}
	return o
}

// judge turns the rules and events that are active into a verdict.
func (m *Monitor) judge(t *track, s *Sample, now time.Time) {
	var parent *track
	if s.Parent != "" {
		parent = m.tracks[s.Parent]
	}
	unknown := !t.read
	t.evidence = false
	if parent != nil {
		unknown = unknown || parent.verdict.State == StateUnknown
		t.evidence = parent.evidence
	}
	for i := range m.rubric.rules {
		if r := &m.rubric.rules[i]; t.rules[i].active {
			unknown = unknown || r.Unknown
			t.evidence = t.evidence || r.always && !r.Unknown && r.Cap < minDegraded
		}
	}
	events := t.events
	if s.Parent != "" {
		events = nil
		if parent != nil {
			events = parent.events
		}
	}
	for i := range events {
		if e := &events[i]; e.hits(s) {
			t.evidence = t.evidence || e.xid.Cap < minDegraded
		}
	}
	unknown = unknown && !t.evidence

	t.reasons = t.reasons[:0]
	predicted := false
	score := NoCap
	for i := range m.rubric.rules {
		r := &m.rubric.rules[i]
		if !t.rules[i].active || unknown && !r.always {
			continue
		}
		if r.Cap < score {
			score, predicted = r.Cap, r.Predicted
		}
		t.add(ActiveReason{Reason: r.Name, Action: r.Action, Cap: r.Cap, Since: t.rules[i].since})
	}
	for i := range events {
		e := &events[i]
		if !e.hits(s) {
			continue
		}
		if e.xid.Cap < score {
			score, predicted = e.xid.Cap, false
		}
		a := ActiveReason{Reason: e.reason, Action: e.xid.Action, Cap: e.xid.Cap, Since: e.First}
		if e.Code == xidRowRemapFailure && s.On(reading.RemapFailed).V {
			a.Action = ActionService
		}
		t.add(a)
	}
	if parent != nil {
		if parent.verdict.Score.OK && parent.verdict.Score.V < score {
			score, predicted = parent.verdict.Score.V, parent.verdict.Hardware == HardwarePredictedFailure
		}
		for _, a := range parent.reasons {
			t.add(a)
		}
	}

	v := Verdict{UUID: s.UUID, State: StateUnknown, Reasons: t.reasons, Previous: t.verdict.State, Since: t.verdict.Since}
	if !unknown {
		v.Score, v.State = Some(score), StateOf(score)
		v.Hardware = hardwareState(v.State, predicted && s.Up())
	}
	if v.Changed = v.State != v.Previous; v.Changed {
		v.Since = now
	}
	t.verdict = v
}

func hardwareState(s State, predicted bool) HardwareState {
	switch {
	case s == StateHealthy:
		return HardwareOK
	case s == StateDegraded:
		return HardwareDegraded
	case predicted:
		return HardwarePredictedFailure
	default:
		return HardwareFailed
	}
}

// add keeps the reasons in order, and each of them once.
func (t *track) add(a ActiveReason) {
	if slices.ContainsFunc(t.reasons, func(r ActiveReason) bool { return r.Reason == a.Reason }) {
		return
	}
	at, _ := slices.BinarySearchFunc(t.reasons, a, func(r, a ActiveReason) int {
		return cmp.Or(r.Cap-a.Cap, strings.Compare(r.Reason, a.Reason))
	})
	t.reasons = slices.Insert(t.reasons, at, a)
}

// track returns the track of the GPU. A new one replaces the one that was not seen for
// longest where there are too many.
func (m *Monitor) track(uuid string, now time.Time) *track {
	if t := m.tracks[uuid]; t != nil {
		return t
	}
	if len(m.tracks) >= maxTracks {
		delete(m.tracks, slices.MinFunc(slices.Collect(maps.Keys(m.tracks)), func(a, b string) int {
			return cmp.Or(m.tracks[a].seen.Compare(m.tracks[b].seen), strings.Compare(a, b))
		}))
		m.dropped++
	}
	t := &track{seen: now, rules: make([]ruleState, len(m.rubric.rules))}
	m.tracks[uuid] = t
	return t
}
