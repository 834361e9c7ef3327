// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Episode is a time in which a node, a group or its absence stood out.
type Episode struct {
	// ID is the same from onset to end.
	ID string
	// Subject is node, group, missing or cluster.
	Subject               string
	Cluster, Group, Node  string
	Signal, Severity      string
	Since, Updated, Ended time.Time // Ended is zero while the episode is open
	Confidence            *float64  // [0,1]
	Gap                   *float64  // share of the peers' level that is lost
	Value, Median         *float64  // in the signal's unit
	Rank, Active          *int64
	LostGPUHoursPerHour   *float64
	// Nodes are those of a group's episode, at most 100; NodeCount counts all.
	Nodes     []string
	NodeCount int64
	// Cause is why it ended, or what made a group's incident.
	Cause          string
	Reason, Action string
	// Observation says that the reason has no contrast with the peers: no proof.
	Observation bool
	GPU         string
	Evidence    []Evidence
	Text        string // one sentence for people
}

// Open reports whether the episode goes on.
func (e *Episode) Open() bool { return e.Ended.IsZero() }

// Evidence is a fact that speaks for an episode's reason.
type Evidence struct {
	Fact, GPU, Unit string
	Value, Peers    *float64 // Peers is their median, where there is one
}

type episodes struct {
	version atomic.Uint64
	mu      sync.RWMutex
	limit   int
	open    map[string]*Episode // never changed in place
	past    []*Episode          // ring, next is the oldest once it is full
	next    int
}

func (e *episodes) init(limit int) { e.limit, e.open = limit, map[string]*Episode{} }

// PutEpisode takes the latest record of an episode: an ended one moves to the
// past, where the oldest makes room for it.
func (s *Store) PutEpisode(ep *Episode) bool {
	if ep.ID == "" || len(ep.ID) > MaxName || len(ep.Node) > MaxName || len(ep.Cluster) > MaxName || len(ep.Group) > MaxName {
		s.drop(DropText)
		return false
	}
	e := &s.episodes
	e.mu.Lock()
	defer e.mu.Unlock()
	old := e.open[ep.ID]
	if old != nil && old.Since.Before(ep.Since) {
		// A record that does not say since when has its own time there.
		earlier := *ep
		earlier.Since = old.Since
		ep = &earlier
	}
	if ep.Open() {
		if old == nil && len(e.open) >= e.limit {
			s.drop(DropMaxEpisodes)
			return false
		}
		if old != nil && old.Updated.After(ep.Updated) {
			return false
		}
		e.open[ep.ID] = ep
		e.version.Add(1)
		return true
	}
	delete(e.open, ep.ID)
	if old != nil && len(ep.Evidence) == 0 {
		// The end says that it is over; what it was is known from before.
		ended := *ep
		ended.Evidence = old.Evidence
		ended.Reason, ended.Action, ended.GPU = cmp.Or(ep.Reason, old.Reason), cmp.Or(ep.Action, old.Action), cmp.Or(ep.GPU, old.GPU)
		ended.Observation = ep.Observation || old.Observation
		ep = &ended
	}
	if len(e.past) < e.limit {
		e.past = append(e.past, ep)
	} else {
		e.past[e.next] = ep
		e.next = (e.next + 1) % e.limit
	}
	e.version.Add(1)
	return true
}

// EpisodeVersion changes whenever an episode does.
func (s *Store) EpisodeVersion() uint64 { return s.episodes.version.Load() }

// EpisodeFilter selects episodes. The zero filter selects all.
type EpisodeFilter struct {
	Clusters, Nodes []string
	Open            *bool
	// Since leaves out what ended before.
	Since time.Time
}

func (f *EpisodeFilter) match(ep *Episode) bool {
	if f.Open != nil && *f.Open != ep.Open() {
		return false
	}
	if len(f.Clusters) > 0 && !slices.Contains(f.Clusters, ep.Cluster) {
		return false
	}
	if len(f.Nodes) > 0 && !slices.Contains(f.Nodes, ep.Node) &&
		!slices.ContainsFunc(ep.Nodes, func(n string) bool { return slices.Contains(f.Nodes, n) }) {
		return false
	}
	return ep.Open() || f.Since.IsZero() || !ep.Ended.Before(f.Since)
}

// Episodes returns the selected episodes, the newest first.
func (s *Store) Episodes(f *EpisodeFilter) []*Episode {
	e := &s.episodes
	e.mu.RLock()
	var list []*Episode
	for _, ep := range e.open {
		if f.match(ep) {
			list = append(list, ep)
		}
	}
	for _, ep := range e.past {
		if f.match(ep) {
			list = append(list, ep)
		}
	}
	e.mu.RUnlock()
	slices.SortFunc(list, func(a, b *Episode) int { return cmp.Or(b.Since.Compare(a.Since), cmp.Compare(a.ID, b.ID)) })
	return list
}
