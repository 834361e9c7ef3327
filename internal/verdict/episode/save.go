// SPDX-License-Identifier: Apache-2.0

package episode

import (
	"slices"
	"time"
)

// SavedNode is what a Tracker keeps of a node, and a Saver copies of it: episodes that began.
type SavedNode struct {
	Slow, Absence *openEpisode
	// When the newest episodes began, and when the last ones ended.
	Onsets, Absences        []time.Time
	SlowEnded, AbsenceEnded time.Time
	// ManyID is that of the absence of many that the node is part of, and Many a copy of it in
	// the first node that has it; both are in copies alone.
	ManyID string
	Many   *openEpisode
}

// SavedGroup is what a Tracker keeps of a group over a restart.
type SavedGroup struct {
	Incident *openEpisode
	Ended    time.Time
}

// Saver copies what lasts over a restart, for one engine.
type Saver struct{ many map[string]bool }

// Node copies the episodes of a node.
func (s *Saver) Node(n *Node) SavedNode {
	to := n.SavedNode
	to.Slow, to.Absence, to.Onsets, to.Absences = n.Slow.copy(), n.Absence.copy(), slices.Clone(n.Onsets), slices.Clone(n.Absences)
	if n.Absence != nil && n.Absence.in != nil {
		f := n.Absence.in
		if to.ManyID = f.ID; !s.many[f.ID] {
			if s.many == nil {
				s.many = make(map[string]bool)
			}
			s.many[f.ID], to.Many = true, f.copy()
		}
	}
	return to
}

// copy returns nil for an episode that has not begun.
func (sp *openEpisode) copy() *openEpisode {
	if sp == nil || !sp.recorded() {
		return nil
	}
	own := *sp
	own.of, own.group, own.in, own.live = nil, nil, nil, 0
	return &own
}

// Group copies the incident of a group.
func (*Saver) Group(g *Group) SavedGroup {
	return SavedGroup{Incident: g.incident.copy(), Ended: g.ended}
}

// Restorer gives nodes and groups back what a Saver copied, a group before its nodes.
type Restorer struct{ many map[string]*openEpisode }

// Group gives a group its incident back.
func (*Restorer) Group(g *Group, from *SavedGroup) { g.incident, g.ended = from.Incident, from.Ended }

// Node gives a node of the group its episodes back, and reports whether it is slow.
func (r *Restorer) Node(n *Node, name string, g *Group, from *SavedNode) (slow bool) {
	*n = Node{SavedNode: *from}
	n.Many, n.ManyID = nil, ""
	if n.Slow != nil {
		n.Slow.of, n.Slow.group = n, g
	}
	if in := g.incident; in != nil && slices.Contains(in.Nodes, name) {
		n.listed = in
	}
	if from.Many != nil {
		if r.many == nil {
			r.many = make(map[string]*openEpisode)
		}
		r.many[from.ManyID] = from.Many
	}
	if f := r.many[from.ManyID]; f != nil {
		f.live++
		n.Absence = &openEpisode{Episode: Episode{Subject: SubjectMissing, Cluster: g.Cluster, Group: g.Name, Node: name}, in: f}
	}
	return n.Slow != nil
}
