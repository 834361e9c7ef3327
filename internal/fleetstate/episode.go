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
	// restored are those of the past whose end is a guess.
	restored map[string]struct{}
	keep     func(*Episode)
}

func (e *episodes) init(limit int) { e.limit, e.open = limit, map[string]*Episode{} }

// CauseRestart is the cause of an end that is a guess: the episode was open when
// the process ended, and is over as far as anybody knows.
const CauseRestart = "restart"

// KeepEpisodes has f called with each record that is taken, as it is kept. It
// is set before the first one.
func (s *Store) KeepEpisodes(f func(*Episode)) { s.episodes.keep = f }

// RestoreEpisodes takes the episodes of the past, the newest first. One that was
// open ends with its last record; if it goes on, its next record opens it again.
func (s *Store) RestoreEpisodes(list []*Episode) {
	e := &s.episodes
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ep := range slices.Backward(list) {
		if ep.Open() {
			ep.Ended, ep.Cause = ep.Updated, CauseRestart
			if e.restored == nil {
				e.restored = map[string]struct{}{}
			}
			e.restored[ep.ID] = struct{}{}
		}
		e.append(ep)
	}
	e.version.Add(1)
}

// append puts an episode into the past.
func (e *episodes) append(ep *Episode) {
	if len(e.past) < e.limit {
		e.past = append(e.past, ep)
		return
	}
	e.past[e.next] = ep
	e.next = (e.next + 1) % e.limit
}

// takeBack returns an episode whose end was a guess, nil if it is none, and
// takes it out of the past.
func (e *episodes) takeBack(id string) *Episode {
	if _, ok := e.restored[id]; !ok {
		return nil
	}
	delete(e.restored, id)
	e.past, e.next = slices.Concat(e.past[e.next:], e.past[:e.next]), 0
	for i, ep := range e.past {
		if ep.ID == id {
			e.past = slices.Delete(e.past, i, i+1)
			return ep
		}
	}
	return nil
}

// PutEpisode takes the latest record of an episode: an ended one moves to the
// past, where the oldest makes room for it.
func (s *Store) PutEpisode(ep *Episode) bool {
	kept := s.putEpisode(ep)
	if kept != nil && s.episodes.keep != nil {
		s.episodes.keep(kept)
	}
	return kept != nil
}

func (s *Store) putEpisode(ep *Episode) *Episode {
	if ep.ID == "" || len(ep.ID) > MaxName || len(ep.Node) > MaxName || len(ep.Cluster) > MaxName || len(ep.Group) > MaxName {
		s.drop(DropText)
		return nil
	}
	e := &s.episodes
	e.mu.Lock()
	defer e.mu.Unlock()
	old := e.open[ep.ID]
	if old == nil {
		old = e.takeBack(ep.ID)
	}
	if old != nil && old.Since.Before(ep.Since) {
		// A record that does not say since when has its own time there.
		earlier := *ep
		earlier.Since = old.Since
		ep = &earlier
	}
	if ep.Open() {
		if e.open[ep.ID] == nil && len(e.open) >= e.limit {
			s.drop(DropMaxEpisodes)
			return nil
		}
		if old != nil && old.Updated.After(ep.Updated) {
			return nil
		}
		e.open[ep.ID] = ep
		e.version.Add(1)
		return ep
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
	e.append(ep)
	e.version.Add(1)
	return ep
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
