// SPDX-License-Identifier: Apache-2.0

package episode

import (
	"slices"
	"time"
)

// SavedNode is what a Book keeps of a node over a restart: episodes that began.
type SavedNode struct {
	Slow, Silence *openEpisode
	// Many is the silence of many that the node is part of, of one of its nodes alone, and
	// ManyID its ID, of all.
	Many             *openEpisode
	ManyID           string
	Onsets, Silences []time.Time

	SlowEnded, SilenceEnded time.Time
}

// SavedGroup is what a Book keeps of a group over a restart.
type SavedGroup struct {
	Incident *openEpisode
	Ended    time.Time
}

// Saver copies what lasts over a restart, for one engine.
type Saver struct{ many map[string]bool }

// Node copies the episodes of a node.
func (s *Saver) Node(n *Node) SavedNode {
	to := SavedNode{
		Slow: n.slow.copy(), Silence: n.silence.copy(), Onsets: slices.Clone(n.onsets), Silences: slices.Clone(n.silences),
		SlowEnded: n.slowEnded, SilenceEnded: n.silenceEnded,
	}
	if n.silence != nil && n.silence.in != nil {
		f := n.silence.in
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
	if sp == nil || !sp.told() {
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
	*n = Node{
		slow: from.Slow, silence: from.Silence, onsets: from.Onsets, silences: from.Silences,
		slowEnded: from.SlowEnded, silenceEnded: from.SilenceEnded,
	}
	if n.slow != nil {
		n.slow.of, n.slow.group = n, g
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
		n.silence = &openEpisode{Episode: Episode{Subject: SubjectMissing, Cluster: g.Cluster, Group: g.Name, Node: name}, in: f}
	}
	return n.slow != nil
}
