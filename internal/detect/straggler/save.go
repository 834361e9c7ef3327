// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// Saved is a copy of what an engine has learnt of its groups and nodes. Nothing of it is
// the engine's, so that it can be written while the engine goes on.
type Saved struct {
	at     time.Time
	groups []savedGroup
}

// savedGroup is what is kept of a group over a restart. Its episodes go on.
type savedGroup struct {
	Cluster     string
	GroupLabels []string
	Age         float64
	Levels      []level
	Split       split
	Nodes       []savedNode
	Tracks      map[nodesignal.Signal][]track // by node
	Episodes    episode.SavedGroup
}

type savedNode struct {
	Name     string
	State    nodesignal.State
	Known    nodesignal.Set
	Level    uint8
	Off      uint32
	Seen     int64 // unix nanoseconds of its last report, 0 unless it is missing
	Episodes episode.SavedNode
}

// Save copies what the engine has learnt of its groups and nodes.
func (e *Engine) Save() *Saved {
	s, episodes := &Saved{at: e.ticked}, &episode.Saver{}
	for _, c := range e.clusters {
		for _, g := range c.groups {
			g.settle()
			s.groups = append(s.groups, g.save(episodes))
		}
	}
	return s
}

func (g *group) save(episodes *episode.Saver) savedGroup {
	to := savedGroup{
		Cluster: g.cluster.name, GroupLabels: g.labels, Age: g.age, Split: g.split,
		Levels: slices.Clone(g.levels), Nodes: make([]savedNode, len(g.nodes)), Tracks: make(map[nodesignal.Signal][]track), Episodes: episodes.Group(&g.episodes),
	}
	for i, n := range g.nodes {
		m := &g.members[i]
		to.Nodes[i] = savedNode{Name: n.name, State: m.reported, Known: m.known, Level: m.level, Off: n.off, Episodes: episodes.Node(&n.episodes)}
		if m.flags&flagMissing != 0 {
			to.Nodes[i].Seen = m.seen
		}
	}
	for s, tracks := range g.tracks {
		if tracks != nil {
			to.Tracks[nodesignal.Signal(s)] = slices.Clone(tracks)
		}
	}
	return to
}

// Write writes a copy in the form that Restore reads.
func (s *Saved) Write(w io.Writer) error {
	out := gob.NewEncoder(w)
	err := out.Encode(s.at)
	for i := range s.groups {
		if err == nil {
			err = out.Encode(&s.groups[i])
		}
	}
	return err
}

// Restore reads into a new engine what another one's Saved wrote, unless that is older than the
// retention. Nodes that were missing still are. Others have a TTL to report.
func (e *Engine) Restore(r io.Reader, now time.Time) error {
	var at time.Time
	in := gob.NewDecoder(r)
	if err := in.Decode(&at); err != nil {
		return fmt.Errorf("when it was saved cannot be read: %w", err)
	}
	if now.Sub(at) > e.cfg.Retention {
		return nil
	}
	e.tracker.Rest = holdTicks // no verdict begins sooner
	var episodes episode.Restorer
	for {
		var from savedGroup
		if err := in.Decode(&from); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("a group cannot be read: %w", err)
		}
		for i, kept := range from.Nodes {
			n, err := e.node(&nodesignal.Observation{Cluster: from.Cluster, Node: kept.Name, GroupLabels: from.GroupLabels}, now)
			if err != nil {
				break // the bounds are lower than they were
			}
			g := n.group
			if i == 0 {
				episodes.Group(&g.episodes, &from.Episodes)
			}
			g.age, g.levels, g.split, n.off = from.Age, from.Levels, from.Split, kept.Off
			m := &g.members[n.slot]
			m.seen, m.reported, m.known, m.level = now.UnixNano(), kept.State, kept.Known, kept.Level
			if kept.Seen != 0 {
				m.seen, m.flags = kept.Seen, m.flags|flagMissing
				g.cluster.missing = append(g.cluster.missing, n)
			}
			if episodes.Node(&n.episodes, n.name, &g.episodes, &kept.Episodes) {
				m.flags |= flagEpisode
			}
			for s, tracks := range from.Tracks {
				*g.track(s, n.slot) = tracks[i]
			}
		}
	}
}
