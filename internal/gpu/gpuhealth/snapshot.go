// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"time"
)

const (
	// snapshotVersion is another when an older Restore would misread the snapshot.
	snapshotVersion = 1
	// forgetAfter: a board that was taken out is not remembered for ever.
	forgetAfter = 30 * 24 * time.Hour
)

type snapshot struct {
	Version int
	Load    DriverLoad
	Opened  bool
	Start   time.Time
	GPUs    []gpuSnapshot
}

type gpuSnapshot struct {
	UUID  string
	State State
	Since time.Time
	kept
	Rules      []ruleSnapshot `json:",omitempty"`
	Events     []keptEvent    `json:",omitempty"`
	Day        int64          `json:",omitempty"`
	RetiredDBE [8]Opt[uint64] `json:",omitzero"`
	HotMinutes slots          `json:",omitzero"`
}

type ruleSnapshot struct {
	Name  string
	Since time.Time
}

// Snapshot is what Restore needs, as JSON that changes only with what a restart should
// not forget. It leaves out the rates of the last ten minutes, and the values that a GPU
// reports at each poll.
func (m *Monitor) Snapshot() ([]byte, error) { return json.Marshal(m.copy()) }

// copy holds the lock for as long as it takes, and for no encoding.
func (m *Monitor) copy() *snapshot {
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
	return s
}

func (t *track) snapshot(uuid string, rules []Rule) gpuSnapshot {
	g := gpuSnapshot{
		UUID: uuid, State: t.verdict.State, Since: t.verdict.Since, kept: t.kept,
		Day: t.week.day, RetiredDBE: t.week.count, HotMinutes: t.throttle.minutes,
	}
	// Corrected errors come all day. By powers of two their count seldom changes, and a reset
	// is still seen.
	corrected := &g.Signs.Volatile[ECCCorrected]
	corrected.V = 1 << bits.Len64(corrected.V) >> 1
	for i := range rules {
		// Rules that need no reading are of what the GPU answers at the moment.
		if t.rules[i].active && !rules[i].always {
			g.Rules = append(g.Rules, ruleSnapshot{rules[i].Name, t.rules[i].since})
		}
	}
	for i := range t.events {
		g.Events = append(g.Events, t.events[i].keptEvent)
	}
	return g
}

// Restore takes up what Snapshot returned in an earlier life: the file has a checksum.
// It is called before anything else of the monitor's, at now; times after it are taken for
// it. Rules and Xids count as the rubric of today has them, and a rule that
// needs a clean time begins it anew. After an error the monitor is as it was.
func (m *Monitor) Restore(data []byte, now time.Time) error {
	var s snapshot
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("the snapshot is corrupt: %w", err)
	}
	if s.Version != snapshotVersion {
		return fmt.Errorf("the snapshot is of another version: %d, this is %d", s.Version, snapshotVersion)
	}
	if len(s.GPUs) > maxTracks {
		return fmt.Errorf("the snapshot is corrupt: %d GPUs", len(s.GPUs))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	tracks := make(map[string]*track, len(s.GPUs))
	for i := range s.GPUs {
		g := &s.GPUs[i]
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
				if e := &parent.events[i]; e.Slice == uuid || parent == t && e.Slice == "" && !e.GI.OK {
					v.Reasons = append(v.Reasons, ActiveReason{Reason: e.reason, Action: e.xid.Action, Cap: e.xid.Cap, Since: e.First})
				}
			}
		}
		known = append(known, v)
	}
	return known
}

func (g *gpuSnapshot) track(r *Rubric, now time.Time) *track {
	t := &track{
		seen: now, kept: g.kept, rules: make([]ruleState, len(r.rules)),
		verdict: Verdict{UUID: strings.Clone(g.UUID), State: g.State, Since: earlier(g.Since, now)},
	}
	t.FabricSince = earlier(g.FabricSince, now)
	// A clock that was ahead would keep days and minutes from ever passing.
	if g.Day >= 0 && g.Day <= now.Unix()/secondsPerDay {
		t.week = week{day: g.Day, count: g.RetiredDBE}
	}
	if at := g.HotMinutes.At; at >= 0 && at <= minuteOf(now) {
		t.throttle.minutes = g.HotMinutes
	}
	if at := g.Faults.At; at < 0 || at > halfHourOf(now) {
		t.Faults = slots{}
	}
	for _, saved := range g.Rules {
		i := ruleIndex(r.rules, saved.Name)
		if i < 0 || r.rules[i].Off || r.rules[i].always {
			continue
		}
		t.rules[i] = ruleState{active: true, yes: r.rules[i].polls, since: earlier(saved.Since, now), met: now, answered: now}
	}
	for _, s := range g.Events {
		x := r.Xid(s.Code)
		if x.Off || x.Cap >= NoCap {
			continue
		}
		t.addSlice(s.Slice)
		s.First, s.Last = earlier(s.First, now), earlier(s.Last, now)
		t.addEvent(event{xid: x, reason: x.Reason(), keptEvent: s})
	}
	return t
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
