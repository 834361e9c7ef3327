// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// saved is what is kept of a group over a restart. Its episodes have the same IDs again.
type saved struct {
	Cluster string
	Peers   []string
	Age     float64
	Levels  []level
	Split   split
	Nodes   []savedNode
	Tracks  map[nodesignal.Signal][]track // by node
}

type savedNode struct {
	Name  string
	State nodesignal.State
	Known nodesignal.Set
	Level uint8
	Off   uint32
	Seen  int64 // unix nanoseconds of its last report, 0 unless it is missing
}

// Save writes what the engine has learnt of its groups and nodes.
func (e *Engine) Save(w io.Writer) error {
	out := gob.NewEncoder(w)
	err := out.Encode(e.ticked)
	for _, c := range e.clusters {
		for _, g := range c.groups {
			g.settle()
			to := saved{Cluster: c.name, Peers: g.peers, Age: g.age, Levels: g.levels, Split: g.split, Tracks: make(map[nodesignal.Signal][]track)}
			for i, n := range g.nodes {
				m := &g.members[i]
				kept := savedNode{Name: n.name, State: m.reported, Known: m.known, Level: m.level, Off: n.off}
				if m.flags&flagMissing != 0 {
					kept.Seen = m.seen
				}
				to.Nodes = append(to.Nodes, kept)
			}
			for s, tracks := range g.tracks {
				if tracks != nil {
					to.Tracks[nodesignal.Signal(s)] = tracks
				}
			}
			if err == nil {
				err = out.Encode(to)
			}
		}
	}
	return err
}

// restTicks are two reports of each node.
const restTicks = 3

// Restore reads into a new engine what another one saved, unless that is older than the
// retention. Nodes that were missing are, and others that say nothing until the TTL.
func (e *Engine) Restore(r io.Reader, now time.Time) error {
	var at time.Time
	in := gob.NewDecoder(r)
	if err := in.Decode(&at); err != nil {
		return fmt.Errorf("when it was saved cannot be read: %w", err)
	}
	if now.Sub(at) > e.cfg.Retention {
		return nil
	}
	e.book.Rest = restTicks
	for {
		var from saved
		if err := in.Decode(&from); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("a group cannot be read: %w", err)
		}
		for i, kept := range from.Nodes {
			n, err := e.node(&Observation{Cluster: from.Cluster, Node: kept.Name, Peers: from.Peers}, now)
			if err != nil {
				break // the bounds are lower than they were
			}
			g := n.group
			g.age, g.levels, g.split, n.off = from.Age, from.Levels, from.Split, kept.Off
			m := &g.members[n.slot]
			m.seen, m.reported, m.known, m.level = now.UnixNano(), kept.State, kept.Known, kept.Level
			if kept.Seen != 0 {
				m.seen, m.flags = kept.Seen, m.flags|flagMissing
				g.cluster.silent = append(g.cluster.silent, n)
			}
			for s, tracks := range from.Tracks {
				*g.track(s, n.slot) = tracks[i]
			}
		}
	}
}
