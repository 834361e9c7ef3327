// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// MaxSnapshot is the size in bytes that no snapshot exceeds. Sixteen boards
// with 64 Xids each take a fifth of it.
const MaxSnapshot = 1 << 20

const (
	// snapshotVersion is another when an older Restore would misread the snapshot.
	snapshotVersion = 1
	// forgetAfter: a board that was taken out is not remembered for ever.
	forgetAfter = 30 * 24 * time.Hour
	maxUUID     = 128
)

// The errors of Restore and Snapshot.
var (
	// ErrSnapshotVersion is a snapshot of another version of this code.
	ErrSnapshotVersion = errors.New("the snapshot is of another version")
	// ErrSnapshotSize is a snapshot of more than MaxSnapshot bytes.
	ErrSnapshotSize = errors.New("the snapshot is too large")
	// ErrSnapshotCorrupt means that Snapshot cannot have returned this snapshot.
	ErrSnapshotCorrupt = errors.New("the snapshot is corrupt")
)

type snapshot struct {
	Version int
	Load    DriverLoad
	Opened  bool
	Start   time.Time
	GPUs    []gpuSnapshot
}

type gpuSnapshot struct {
	UUID            string
	Model           string `json:",omitempty"`
	State           State
	Since           time.Time
	Rules           []ruleSnapshot  `json:",omitempty"`
	Events          []eventSnapshot `json:",omitempty"`
	LinksUp         uint32          `json:",omitempty"`
	LinksAccepted   bool            `json:",omitempty"`
	FabricCompleted bool            `json:",omitempty"`
	FabricSince     time.Time       `json:",omitzero"`
	Day             int64           `json:",omitempty"`
	RetiredDBE      [8]Opt[uint64]  `json:",omitzero"`
	HotMinutes      slots           `json:",omitzero"`
	Faults          slots           `json:",omitzero"`
	Signs           resetSigns      `json:",omitzero"`
}

type ruleSnapshot struct {
	Name  string
	Since time.Time
}

type eventSnapshot struct {
	Code            uint64
	First, Last     time.Time
	Slice           string      `json:",omitempty"`
	GI, CI          Opt[uint32] `json:",omitzero"`
	Silent, Pending bool        `json:",omitempty"`
}

// Revision grows with each change that a restart should not forget.
func (m *Monitor) Revision() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.revision
}

// Snapshot is what Restore needs, as bounded JSON, and the Revision that it
// has. The rates of the last ten minutes are not in it, and of what a GPU
// itself tells at each poll only that it was so.
func (m *Monitor) Snapshot() (data []byte, revision uint64, err error) {
	s, revision := m.copy()
	if data, err = json.Marshal(s); err != nil {
		return nil, revision, fmt.Errorf("encode the snapshot: %w", err)
	}
	if len(data) > MaxSnapshot {
		return nil, revision, fmt.Errorf("%w: %d bytes", ErrSnapshotSize, len(data))
	}
	return data, revision, nil
}

// copy holds the lock for as long as it takes, and for no encoding.
func (m *Monitor) copy() (*snapshot, uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &snapshot{Version: snapshotVersion, Load: m.load, Opened: m.opened, Start: m.start}
	var last time.Time
	for _, t := range m.tracks {
		last = later(last, t.seen)
	}
	for _, uuid := range slices.Sorted(maps.Keys(m.tracks)) {
		if t := m.tracks[uuid]; last.Sub(t.seen) <= forgetAfter {
			s.GPUs = append(s.GPUs, t.snapshot(uuid, m.rubric.rules))
		}
	}
	return s, m.revision
}

func (t *track) snapshot(uuid string, rules []Rule) gpuSnapshot {
	g := gpuSnapshot{
		UUID: uuid, Model: t.model, State: t.verdict.State, Since: t.verdict.Since,
		LinksUp: t.linksUp, LinksAccepted: t.linksAccepted,
		FabricCompleted: t.fabricCompleted, FabricSince: t.fabricSince,
		Day: t.week.day, RetiredDBE: t.week.count,
		HotMinutes: t.throttle.minutes, Faults: t.faults,
		Signs: t.signs,
	}
	for i := range rules {
		// Rules that need no reading are of what the GPU answers at the moment.
		if t.rules[i].active && !rules[i].always {
			g.Rules = append(g.Rules, ruleSnapshot{rules[i].Name, t.rules[i].since})
		}
	}
	for i := range t.events {
		e := &t.events[i]
		g.Events = append(g.Events, eventSnapshot{
			Code: e.xid.Code, First: e.first, Last: e.last, Slice: e.slice, GI: e.gi, CI: e.ci, Silent: e.silent, Pending: e.pending,
		})
	}
	return g
}

// Restore takes up what Snapshot returned in an earlier life. It is called
// before anything else of the monitor's, at now; times after it are taken for
// it. Rules and Xids count as the rubric of today has them, and a rule that
// needs a clean time begins it anew. After an error, which is one of the three
// above, the monitor is as it was.
func (m *Monitor) Restore(data []byte, now time.Time) error {
	if len(data) > MaxSnapshot {
		return fmt.Errorf("%w: %d bytes, at most %d are read", ErrSnapshotSize, len(data), MaxSnapshot)
	}
	var head struct{ Version int }
	if err := json.Unmarshal(data, &head); err != nil {
		return fmt.Errorf("%w: %w", ErrSnapshotCorrupt, err)
	}
	if head.Version != snapshotVersion {
		return fmt.Errorf("%w: %d, this is %d", ErrSnapshotVersion, head.Version, snapshotVersion)
	}
	var s snapshot
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("%w: %w", ErrSnapshotCorrupt, err)
	}
	if len(s.GPUs) > maxTracks {
		return fmt.Errorf("%w: %d GPUs", ErrSnapshotCorrupt, len(s.GPUs))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	tracks := make(map[string]*track, len(s.GPUs))
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if err := g.validate(); err != nil {
			return fmt.Errorf("%w: GPU %d: %w", ErrSnapshotCorrupt, i, err)
		}
		if tracks[g.UUID] != nil {
			return fmt.Errorf("%w: %s is there twice", ErrSnapshotCorrupt, g.UUID)
		}
		tracks[g.UUID] = g.track(&m.rubric, now)
	}
	m.tracks, m.load, m.opened, m.start = tracks, s.Load, s.Opened, earlier(s.Start, now)
	return nil
}

// Known is what Restore took up of each GPU, and of slices with Xids of their
// own: its state then, and the reasons that held.
func (m *Monitor) Known() []Verdict {
	m.mu.Lock()
	defer m.mu.Unlock()
	var known []Verdict
	for _, uuid := range slices.Sorted(maps.Keys(m.tracks)) {
		t := m.tracks[uuid]
		v := Verdict{UUID: uuid, State: t.verdict.State, Since: t.verdict.Since}
		for i := range m.rubric.rules {
			if r := &m.rubric.rules[i]; t.rules[i].active {
				v.Reasons = append(v.Reasons, ActiveReason{Reason: r.Name, Action: r.Action, Cap: r.Cap, Since: t.rules[i].since})
			}
		}
		for _, parent := range m.tracks {
			for i := range parent.events {
				if e := &parent.events[i]; e.slice == uuid || parent == t && e.slice == "" && !e.gi.OK {
					v.Reasons = append(v.Reasons, ActiveReason{Reason: e.reason, Action: e.xid.Action, Cap: e.xid.Cap, Since: e.first})
				}
			}
		}
		known = append(known, v)
	}
	return known
}

func (g *gpuSnapshot) validate() error {
	switch {
	case !ValidUUID(g.UUID) || len(g.UUID) > maxUUID:
		return errors.New("a UUID is none")
	case len(g.Events) > maxEvents:
		return fmt.Errorf("%d Xids", len(g.Events))
	case g.LinksUp > MaxNVLinks:
		return fmt.Errorf("%d NVLinks", g.LinksUp)
	}
	switch g.State {
	case "", StateUnknown, StateHealthy, StateDegraded, StateUnhealthy:
	default:
		return fmt.Errorf("a state of %q", g.State)
	}
	for i := range g.Events {
		if s := g.Events[i].Slice; s != "" && (!ValidUUID(s) || len(s) > maxUUID) {
			return errors.New("a slice's UUID is none")
		}
	}
	return nil
}

func (g *gpuSnapshot) track(r *Rubric, now time.Time) *track {
	t := &track{
		seen: now, model: g.Model, rules: make([]ruleState, len(r.rules)),
		linksUp: g.LinksUp, linksAccepted: g.LinksAccepted, signs: g.Signs,
		fabricCompleted: g.FabricCompleted, fabricSince: earlier(g.FabricSince, now),
		verdict: Verdict{UUID: strings.Clone(g.UUID), State: g.State, Since: earlier(g.Since, now)},
	}
	// A clock that was ahead would keep days and minutes from ever passing.
	if g.Day >= 0 && g.Day <= now.Unix()/secondsPerDay {
		t.week = week{day: g.Day, count: g.RetiredDBE}
	}
	if at := g.HotMinutes.At; at >= 0 && at <= minuteOf(now) {
		t.throttle.minutes = g.HotMinutes
	}
	if at := g.Faults.At; at >= 0 && at <= halfHourOf(now) {
		t.faults = g.Faults
	}
	for _, saved := range g.Rules {
		i := slices.IndexFunc(r.rules, func(rule Rule) bool { return rule.Name == saved.Name })
		if i < 0 || r.rules[i].Off || r.rules[i].always {
			continue
		}
		t.rules[i] = ruleState{active: true, yes: r.rules[i].polls, since: earlier(saved.Since, now), met: now, answered: now}
	}
	for i := range g.Events {
		s := &g.Events[i]
		x := r.Xid(s.Code)
		if x.Off || x.Cap >= NoCap {
			continue
		}
		t.place(s.Slice)
		t.addEvent(event{
			xid: x, reason: x.Reason(), first: earlier(s.First, now), last: earlier(s.Last, now),
			slice: s.Slice, gi: s.GI, ci: s.CI, silent: s.Silent, pending: s.Pending,
		})
	}
	return t
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
