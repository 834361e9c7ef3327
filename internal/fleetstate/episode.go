// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// Episode is a time in which a node, a group or its absence stood out.
type Episode struct {
	// ID is the same from onset to end, and of no other episode of the cluster.
	// Another cluster may have one of the same ID.
	ID string
	// Subject is SubjectNode or one of its siblings.
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
	GPU         string // that the reason points at
	// Culprit is the rank or GPU of the node that stands out from its others.
	Culprit  nodesignal.Subject
	Evidence []Evidence
	Text     string // one sentence for people

	// Untold says that nobody told the end; it is what the views conclude.
	Untold bool
}

// What episodes are about.
const (
	SubjectNode    = "node"
	SubjectGroup   = "group"
	SubjectMissing = "missing"
	SubjectCluster = "cluster"
)

// EpisodeKey names an episode. Whoever may speak for one cluster cannot touch
// the episodes of another by their IDs, which everybody can read.
type EpisodeKey struct{ Cluster, ID string }

// Key returns what the episode is kept by.
func (e *Episode) Key() EpisodeKey { return EpisodeKey{e.Cluster, e.ID} }

// sameSubject reports whether both records are about the same thing, which no
// episode changes. A node's peer group may change meanwhile.
func (e *Episode) sameSubject(other *Episode) bool {
	return e.Subject == other.Subject && e.Node == other.Node && (e.Subject != SubjectGroup || e.Group == other.Group)
}

// Open reports whether the episode goes on.
func (e *Episode) Open() bool { return e.Ended.IsZero() }

// Evidence is a fact that speaks for an episode's reason.
type Evidence struct {
	Fact, GPU, Unit string
	Value, Peers    *float64 // Peers is their median, where there is one
}

// The causes of an end that nobody told: another episode of the same subject,
// the views (see Config.EpisodeDoubt), and the end of the process.
const (
	CauseSuperseded  = "superseded"
	CauseUnconfirmed = "unconfirmed"
	CauseRestart     = "restart"
)

type episodes struct {
	version atomic.Uint64
	mu      sync.RWMutex
	limit   int
	open    map[EpisodeKey]*Episode // never changed in place
	past    []*Episode              // ring, next is the oldest once it is full; nil for one that goes on
	next    int
	place   map[EpisodeKey]int // of those in past
	// subjects are the open ones of which there is one at a time.
	subjects map[subject]EpisodeKey
	// doubted is since when the views contradict what is open.
	doubted map[EpisodeKey]time.Time
	keep    func(*Episode)
}

// subject is what has one open episode at most.
type subject struct{ kind, cluster, name string }

// subject returns false for an episode of many nodes that has others of its
// kind beside it.
func (e *Episode) subject() (subject, bool) {
	switch {
	case e.Node != "":
		return subject{e.Subject, e.Cluster, e.Node}, true
	case e.Subject == SubjectGroup:
		return subject{e.Subject, e.Cluster, e.Group}, true
	default:
		return subject{}, false
	}
}

func (e *episodes) init(limit int) {
	e.limit, e.open, e.place = limit, map[EpisodeKey]*Episode{}, map[EpisodeKey]int{}
	e.subjects, e.doubted = map[subject]EpisodeKey{}, map[EpisodeKey]time.Time{}
}

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
			ep = ep.untoldEnd(ep.Updated, CauseRestart)
		}
		e.end(ep)
	}
}

// kept hands on what is to be kept beyond the process.
func (e *episodes) kept(list ...*Episode) {
	if e.keep == nil {
		return
	}
	for _, ep := range list {
		e.keep(ep)
	}
}

// PutEpisode takes the latest record of an episode: an ended one moves to the
// past, where the oldest makes room for it. One that comes again, or late,
// changes nothing, and neither does one with the ID of another subject's.
func (s *Store) PutEpisode(ep *Episode) bool {
	if ep.ID == "" || len(ep.ID) > MaxName || len(ep.Node) > MaxName || len(ep.Cluster) > MaxName || len(ep.Group) > MaxName {
		s.drop(DropText)
		return false
	}
	changed := s.putEpisode(ep)
	s.episodes.kept(changed...)
	return len(changed) > 0
}

// putEpisode returns the episodes that changed.
func (s *Store) putEpisode(ep *Episode) []*Episode {
	e := &s.episodes
	e.mu.Lock()
	defer e.mu.Unlock()
	key := ep.Key()
	old := e.open[key]
	at, over := e.place[key]
	if over {
		old = e.past[at]
	}
	if old != nil && !ep.sameSubject(old) {
		s.drop(DropForeignEpisode)
		return nil
	}
	if over {
		// Only an end that was not told is open to news.
		if !old.Untold || ep.Open() && !ep.Updated.After(old.Ended) {
			return nil
		}
	}
	if old != nil {
		ep = ep.after(old)
	}
	if !ep.Open() {
		e.end(ep)
		return []*Episode{ep}
	}
	if old != nil && !over && old.Updated.After(ep.Updated) {
		return nil
	}
	what, single := ep.subject()
	before := e.open[e.subjects[what]]
	replaces := single && before != nil && before.Key() != key
	if (old == nil || over) && !replaces && len(e.open) >= e.limit {
		s.drop(DropMaxEpisodes)
		return nil
	}
	if replaces && before.Updated.After(ep.Updated) {
		// It comes late, and was over when the other began.
		ep = ep.untoldEnd(before.Since, CauseSuperseded)
		e.end(ep)
		return []*Episode{ep}
	}
	if over {
		e.past[at] = nil
		delete(e.place, key)
	}
	changed := []*Episode{ep}
	if replaces {
		before = before.untoldEnd(ep.Updated, CauseSuperseded)
		e.end(before)
		changed = append(changed, before)
	}
	e.open[key] = ep
	if single {
		e.subjects[what] = key
	}
	e.version.Add(1)
	return changed
}

// after returns the episode with what only an earlier record of it says.
func (e *Episode) after(old *Episode) *Episode {
	next := *e
	if old.Since.Before(e.Since) {
		// A record that does not say since when has its own time there.
		next.Since = old.Since
	}
	if !e.Open() && len(e.Evidence) == 0 {
		// The end says that it is over; what it was is known from before.
		next.Evidence = old.Evidence
		next.Reason, next.Action, next.GPU = cmp.Or(e.Reason, old.Reason), cmp.Or(e.Action, old.Action), cmp.Or(e.GPU, old.GPU)
		next.Culprit = cmp.Or(e.Culprit, old.Culprit)
		next.Observation = e.Observation || old.Observation
	}
	return &next
}

// untoldEnd returns the episode as one that ended without a word.
func (e *Episode) untoldEnd(at time.Time, cause string) *Episode {
	ended := *e
	ended.Ended, ended.Cause, ended.Untold = at, cause, true
	if at.Before(e.Since) {
		ended.Ended = e.Since
	}
	return &ended
}

// end moves an episode to the past. mu is held.
func (e *episodes) end(ep *Episode) {
	key := ep.Key()
	delete(e.open, key)
	delete(e.doubted, key)
	if what, single := ep.subject(); single && e.subjects[what] == key {
		delete(e.subjects, what)
	}
	e.version.Add(1)
	if at, over := e.place[key]; over {
		e.past[at] = ep
		return
	}
	at := len(e.past)
	if at < e.limit {
		e.past = append(e.past, ep)
	} else {
		at = e.next
		if oldest := e.past[at]; oldest != nil {
			delete(e.place, oldest.Key())
		}
		e.past[at] = ep
		e.next = (e.next + 1) % e.limit
	}
	e.place[key] = at
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
		if ep != nil && f.match(ep) {
			list = append(list, ep)
		}
	}
	e.mu.RUnlock()
	slices.SortFunc(list, func(a, b *Episode) int { return cmp.Or(b.Since.Compare(a.Since), cmp.Compare(a.ID, b.ID)) })
	return list
}
