// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/packed"
)

// What is saved of an engine is in two parts: the state, which is large and told of in
// pieces, and the changes since, which are few and have all that events were told of.
const (
	stateKind, changesKind = "straggler-state", "straggler-changes"
	// SaveVersion is that of both. A field that is added needs a version of its own, and a
	// reader that knows what the field is where an older version lacks it.
	// Version 2 has wavers, version 3 has them by blocks, and times in place of ticks.
	SaveVersion = 3
)

// saving is what an Engine remembers of its saves.
type saving struct {
	on bool
	// epoch counts the saves that were begun. base is the newest that is kept: a node
	// whose episodes changed in it, or later, may differ from the state.
	epoch, base uint32
	changed     []*node // each once
	resumed     int64   // when the state was restored, unix nanoseconds
	continues   bool    // the next tick tells what goes on since before the restart
}

// ErrWhole says that the whole state is to be saved: none is kept, or more changed since
// than can be saved at once.
var ErrWhole = errors.New("the changes alone say too little: save the state")

// maxChanges bounds the nodes among the changes: about a millisecond's work.
const maxChanges = 1000

// change notes that what is told of a node is not what the state says.
func (e *Engine) change(n *node) {
	if !e.saving.on {
		return
	}
	if n.changed <= e.saving.base {
		e.saving.changed = append(e.saving.changed, n)
	}
	n.changed = e.saving.epoch
}

// Save is a save of an engine under way.
type Save struct {
	e     *Engine
	c     *packed.Coder
	epoch uint32
	left  []*group
	slot  int // in the first of left
	of    *cluster
	slots []int
}

// Remember has the engine note its changes, for Changes to tell.
func (e *Engine) Remember() {
	if !e.saving.on {
		e.saving.on, e.saving.epoch, e.saving.base = true, 1, 0
	}
}

// Save begins to save the state, piece by piece in the room of buf. settings tell what the
// numbers mean: a state of others is not taken. No Tick may come before End, observations
// may.
func (e *Engine) Save(buf []byte, settings string) *Save {
	e.Remember()
	e.saving.epoch++
	e.saving.changed = slices.DeleteFunc(e.saving.changed, func(n *node) bool { return n.gone })
	s := &Save{e: e, c: packed.NewWriter(buf, stateKind, SaveVersion), epoch: e.saving.epoch}
	e.head(s.c, settings)
	for _, c := range e.order {
		s.left = append(s.left, c.order...)
	}
	return s
}

// Next returns the piece of the next nodes, at most so many, and whether there are more.
// A piece is good until the next call.
func (s *Save) Next(nodes int) (piece []byte, more bool) {
	for len(s.left) > 0 && nodes > 0 {
		g := s.left[0]
		if g.cluster != s.of {
			s.of = g.cluster
			s.mark(markCluster)
			s.of.pack(s.c)
		}
		if s.slot == 0 {
			s.mark(markGroup)
			s.c.Texts(&g.peers, maxNameLength)
			s.e.packGroup(s.c, g)
		}
		s.slots = s.slots[:0]
		for ; s.slot < len(g.nodes) && len(s.slots) < nodes; s.slot++ {
			if g.nodes[s.slot] != nil {
				s.slots = append(s.slots, s.slot)
			}
		}
		if nodes -= len(s.slots); len(s.slots) > 0 {
			s.mark(markNodes)
			packNames(s.c, g, s.slots)
			s.e.packNodes(s.c, g, s.slots)
			for _, i := range s.slots {
				g.nodes[i].packEpisodes(s.c, nil)
			}
		}
		if s.slot == len(g.nodes) {
			s.left, s.slot = s.left[1:], 0
			nodes -= groupWork
		}
	}
	return s.c.Flush(), len(s.left) > 0
}

// groupWork is how many nodes take as long as a group.
const groupWork = 16

// Marks tell what comes next in a state.
const (
	markEnd uint8 = iota
	markCluster
	markGroup
	markNodes
	numMarks
)

func (s *Save) mark(m uint8) { packed.Below(s.c, &m, numMarks) }

// End returns the last piece of the state.
func (s *Save) End() []byte {
	s.mark(markEnd)
	return s.c.Seal()
}

// Kept notes that the state of a save, and the changes since, will be found again.
func (s *Save) Kept() {
	s.e.saving.base = s.epoch - 1
	s.e.saving.changed = slices.DeleteFunc(s.e.saving.changed, func(n *node) bool {
		old := n.changed <= s.e.saving.base
		if old {
			n.changed = 0
		}
		return old
	})
}

// Changes is what changed since the state that was kept last: the nodes of which
// something was told, with all that is known of them, the events of many nodes, and those
// that the next tick will tell. It goes with that state, or with the one that of saves. It
// is written in the room of buf.
func (e *Engine) Changes(buf []byte, settings string, of *Save) ([]byte, error) {
	since := e.saving.base
	if of != nil {
		since = of.epoch - 1
	}
	nodes := slices.DeleteFunc(slices.Clone(e.saving.changed), func(n *node) bool { return n.gone || n.changed <= since })
	if of == nil && (since == 0 || len(nodes) > maxChanges) {
		return nil, ErrWhole
	}
	slices.SortFunc(nodes, func(a, b *node) int {
		return cmp.Or(cmp.Compare(a.group.cluster.name, b.group.cluster.name), cmp.Compare(a.group.name, b.group.name), cmp.Compare(a.slot, b.slot))
	})
	c := packed.NewWriter(buf, changesKind, SaveVersion)
	e.head(c, settings)
	e.packFolds(c)
	packEvents(c, &e.events)
	clusters := c.Size(len(e.order))
	for _, of := range e.order[:clusters] {
		of.pack(c)
		of.packSilent(c)
		e.packChanges(c, of, &nodes)
	}
	return c.Seal(), nil
}

// packChanges writes the groups of a cluster that have an incident or changed nodes,
// which are the first of a list.
func (e *Engine) packChanges(c *packed.Coder, of *cluster, nodes *[]*node) {
	slots := []int{}
	for _, g := range of.order {
		slots = slots[:0]
		for len(*nodes) > 0 && (*nodes)[0].group == g {
			slots = append(slots, (*nodes)[0].slot)
			*nodes = (*nodes)[1:]
		}
		if !g.incident.on && len(slots) == 0 {
			continue
		}
		m := markGroup
		packed.Below(c, &m, numMarks)
		c.Texts(&g.peers, maxNameLength)
		g.incident.pack(c)
		packNames(c, g, slots)
		e.packNodes(c, g, slots)
		for _, i := range slots {
			g.nodes[i].packEpisodes(c, nil)
		}
	}
	m := markEnd
	packed.Below(c, &m, numMarks)
}

// ErrSettings says that a state is of other settings.
var ErrSettings = errors.New("the state was saved under other settings")

// Saved is a state with its changes, as they were saved.
type Saved struct {
	State, Changes []byte
	// Settings are those that a state must have been saved under.
	Settings string
}

// At is the time of the tick that the changes are of.
func (s *Saved) At() (time.Time, error) {
	c, err := packed.NewReader(s.Changes, changesKind, SaveVersion)
	if err != nil {
		return time.Time{}, err
	}
	e := Engine{}
	err = e.readHead(c, s.Settings)
	return e.ticked, err
}

// Restore makes the engine what it was when it was saved, or returns an error and changes
// nothing. Nobody listened from then until now: that is nobody's silence.
func (e *Engine) Restore(s *Saved, now time.Time) error {
	f := New(e.cfg)
	f.job, f.table = e.job, e.table
	f.Remember()
	state, err := packed.NewReader(s.State, stateKind, SaveVersion)
	if err != nil {
		return err
	}
	changes, err := packed.NewReader(s.Changes, changesKind, SaveVersion)
	if err != nil {
		return err
	}
	if err := f.readHead(state, s.Settings); err != nil {
		return err
	}
	if err := f.readHead(changes, s.Settings); err != nil {
		return err
	}
	r := restorer{e: f, c: changes, folds: map[string]*fold{}}
	r.readFolds()
	packEvents(changes, &f.events)
	r.c = state
	r.state()
	r.c = changes
	r.changes()
	if err := errors.Join(state.End(), changes.End(), r.err); err != nil {
		return err
	}
	r.finish(now)
	f.saving.continues = true
	*e = *f
	return nil
}

// Open lists what was told of and is open, as events of a kind: EventContinues, or
// EventEnd where it cannot go on. Ends that wait to be told are among the latter.
func (e *Engine) Open(kind EventKind, cause string, now time.Time) (events []Event) {
	tell := func(ev Event) {
		if kind == EventEnd {
			ev.Cause = cause
		}
		events = append(events, ev)
	}
	for i := range e.events {
		if kind == EventEnd && e.events[i].Kind == EventEnd {
			events = append(events, e.events[i])
		}
	}
	for _, c := range e.order {
		for _, f := range c.folds {
			ev := f.Event
			ev.Kind, ev.At = kind, now
			tell(ev)
		}
		for _, g := range c.order {
			if g.incident.on {
				ev := e.event(kind, g, now)
				ev.Cause, ev.Gap = CauseStragglers, g.incident.gap
				if kind == EventContinues {
					e.listIncident(&ev, g)
				}
				tell(ev)
			}
			for _, n := range g.nodes {
				if n == nil {
					continue
				}
				if n.slow != nil && n.slow.told {
					ev := e.nodeEvent(kind, n, now)
					if last := len(n.onsets) - 1; kind == EventContinues && n.slow.since == 0 && last >= 0 {
						ev.Since = time.UnixMilli(n.onsets[last]).UTC() // nobody knows more than when it was told of
					}
					tell(ev)
				}
				if n.silence != nil && n.silence.told {
					tell(silenceEvent(kind, n, now))
				}
			}
		}
	}
	return events
}

// listIncident names the nodes that an incident told of, or would tell of now: what was told
// since the last whole state is not known.
func (e *Engine) listIncident(ev *Event, g *group) {
	for i := range g.members {
		if g.members[i].flags&flagListed == 0 && !g.pressed(i) {
			continue
		}
		if ev.NodeCount++; len(ev.Nodes) < e.cfg.Episodes.MaxListed {
			ev.Nodes = append(ev.Nodes, g.nodes[i].name)
		}
	}
}

// Standing is the report of the last tick as far as the groups go: what there is to
// publish before the next one.
func (e *Engine) Standing() *Report {
	r := &e.report
	r.At, r.Groups, r.Nodes, r.Changes, r.Events, r.Ranks = e.ticked, r.Groups[:0], r.Nodes[:0], r.Changes[:0], r.Events[:0], r.Ranks[:0]
	for _, c := range e.order {
		at, stragglers := len(r.Groups), 0
		e.addGroup()
		c.wideCounts = [numStates]int{}
		for _, g := range c.order {
			to := e.addGroup()
			e.groupReport(to, c.name, g.name, &g.rule, g.counts, g.slow)
			e.reportSignals(g, to)
			stragglers += g.slow
			for s, n := range g.counts {
				c.wideCounts[s] += n
			}
		}
		e.groupReport(&r.Groups[at], c.name, "", &c.wide, c.wideCounts, stragglers)
	}
	return r
}
