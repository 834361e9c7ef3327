// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
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
	SinceBefore           bool      // it began at Since or earlier: no record says when
	Confidence            *float64  // [0,1]
	Gap                   *float64  // share of the peers' level that is lost
	Value, Median         *float64  // in the signal's unit
	Rank, Active          *int64
	LostGPUHoursPerHour   *float64
	// Nodes are those of a group's episode, at most 100; NodeCount counts all.
	Nodes     []string
	NodeCount int64
	// Job is that of the ranks or of the communicator that are meant, where it has a name.
	Job, Communicator string
	// Holders are those of the culprit's GPU, else of the node, as of the onset.
	Holders []reading.Holder
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

// The subjects of episodes.
const (
	SubjectNode    = "node"
	SubjectGroup   = "group"
	SubjectMissing = "missing"
	SubjectLink    = "communicator"
	SubjectJob     = "job"
)

// EpisodeKey names an episode. Everybody can read the IDs, so the cluster is part of
// the key: a client that speaks for one cluster cannot touch another's episodes.
type EpisodeKey struct{ Cluster, ID string }

// Key returns what the episode is kept by.
func (e *Episode) Key() EpisodeKey { return EpisodeKey{e.Cluster, e.ID} }

// sameSubject reports whether both records are about the same thing, which no
// episode changes. A node's peer group may change meanwhile, and whom a job waits for.
func (e *Episode) sameSubject(other *Episode) bool {
	if e.Subject != other.Subject {
		return false
	}
	switch e.Subject {
	case SubjectGroup:
		return e.Group == other.Group && e.Node == other.Node
	case SubjectJob:
		return e.Group == other.Group
	default:
		return e.Node == other.Node && e.Communicator == other.Communicator
	}
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
	open    map[EpisodeKey]kept
	past    map[EpisodeKey]kept
	// ended are the keys of past by account, the oldest first.
	ended map[string][]EpisodeKey
	// openRoom and pastRoom count kibibytes by account.
	openRoom, pastRoom *fairshare.Ledger[string]
	// subjects are the open episodes whose subject has one at a time.
	subjects map[subject]EpisodeKey
	// doubted is since when the views contradict what is open.
	doubted map[EpisodeKey]time.Time
	keep    func(*Episode)
}

// kept is an episode and the account that pays for it.
type kept struct {
	*Episode // never changed in place
	account  string
	size     int // KiB
}

// kibibytes is the memory of an episode, in whole KiB.
func (e *Episode) kibibytes() int {
	const fixed = 512 // the struct, its numbers, and its places in the maps
	n := fixed + len(e.ID) + len(e.Cluster) + len(e.Group) + len(e.Node) + len(e.Signal) + len(e.Severity) +
		len(e.Cause) + len(e.Reason) + len(e.Action) + len(e.GPU) + len(e.Text) + len(e.Culprit.GPU) + len(e.Job) + len(e.Communicator)
	for _, name := range e.Nodes {
		n += 16 + len(name)
	}
	for _, h := range e.Holders {
		n += 72 + len(h.Job) + len(h.Pod) + len(h.Namespace) + len(h.Container)
	}
	for i := range e.Evidence {
		ev := &e.Evidence[i]
		n += 80 + len(ev.Fact) + len(ev.GPU) + len(ev.Unit)
	}
	return (n + 1023) / 1024
}

// account returns who pays for an episode: its cluster, or, for a subject that has
// never reported, the account of all invented subjects.
func (s *Store) account(ep *Episode) string {
	if ep.Node == "" && s.nodes.Held(ep.Cluster) > 0 || ep.Node != "" && s.find(Key{ep.Cluster, ep.Node}) != nil {
		return ep.Cluster
	}
	return ""
}

// subject is what has one open episode at most.
type subject struct{ kind, cluster, name string }

// subject returns false for an episode of many nodes that has others of its
// kind beside it.
func (e *Episode) subject() (subject, bool) {
	switch {
	case e.Subject == SubjectGroup || e.Subject == SubjectJob:
		return subject{e.Subject, e.Cluster, e.Group}, true
	case e.Node != "":
		return subject{e.Subject, e.Cluster, e.Node}, true
	default:
		return subject{}, false
	}
}

func (e *episodes) init(limit int, share float64) {
	e.open, e.past, e.ended = map[EpisodeKey]kept{}, map[EpisodeKey]kept{}, map[string][]EpisodeKey{}
	e.openRoom, e.pastRoom = fairshare.New[string](limit, share), fairshare.New[string](limit, share)
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
		e.end(ep, ep.Cluster)
	}
}

// store hands on what is to be kept beyond the process.
func (e *episodes) store(list ...*Episode) {
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
	if ep.SinceBefore {
		// It was slow from its first value on, and that is when the node was first heard of.
		from := *ep
		for _, name := range append(ep.Nodes[:len(ep.Nodes):len(ep.Nodes)], ep.Node) {
			if n := s.find(Key{ep.Cluster, name}); n != nil && n.born < from.Since.UnixMilli() {
				from.Since = time.UnixMilli(n.born)
			}
		}
		ep = &from
	}
	changed := s.putEpisode(ep)
	s.episodes.store(changed...)
	return len(changed) > 0
}

// putEpisode returns the episodes that changed.
func (s *Store) putEpisode(ep *Episode) []*Episode {
	account := s.account(ep)
	e := &s.episodes
	e.mu.Lock()
	defer e.mu.Unlock()
	key := ep.Key()
	old := e.open[key].Episode
	before, over := e.past[key]
	if over {
		old = before.Episode
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
		e.end(ep, account)
		return []*Episode{ep}
	}
	if old != nil && !over && old.Updated.After(ep.Updated) {
		return nil
	}
	what, single := ep.subject()
	var former *Episode // of the subject
	if single && e.subjects[what] != key {
		former = e.open[e.subjects[what]].Episode
	}
	if former != nil && former.Updated.After(ep.Updated) {
		// It comes late, and was over when the other began.
		ep = ep.untoldEnd(former.Since, CauseSuperseded)
		e.end(ep, account)
		return []*Episode{ep}
	}
	changed := []*Episode{ep}
	if former != nil {
		former = former.untoldEnd(ep.Updated, CauseSuperseded)
		e.end(former, account)
		changed = append(changed, former)
	}
	// An episode that goes on keeps its room, whatever others took meanwhile.
	k := kept{ep, account, ep.kibibytes()}
	was, goes := e.open[key]
	if goes {
		k.account = was.account
	}
	if !take(e.openRoom, k.account, k.size-was.size) {
		s.drop(DropMaxEpisodes)
		return changed[1:]
	}
	e.open[key] = k
	if over {
		e.forget(key)
	}
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
		next.Since, next.SinceBefore = old.Since, old.SinceBefore
	}
	if len(e.Holders) == 0 {
		next.Holders = old.Holders
	}
	if !e.Open() && len(e.Evidence) == 0 {
		// The end says only that it is over; the rest is known from before.
		next.Evidence = old.Evidence
		next.Reason, next.Action, next.GPU = cmp.Or(e.Reason, old.Reason), cmp.Or(e.Action, old.Action), cmp.Or(e.GPU, old.GPU)
		next.Culprit = cmp.Or(e.Culprit, old.Culprit)
		next.Observation = e.Observation || old.Observation
	}
	return &next
}

// untoldEnd returns the episode with an end that nobody reported.
func (e *Episode) untoldEnd(at time.Time, cause string) *Episode {
	ended := *e
	ended.Ended, ended.Cause, ended.Untold = at, cause, true
	if at.Before(e.Since) {
		ended.Ended = e.Since
	}
	return &ended
}

// end moves an episode to the past, where the account's oldest make room for it, or
// those of the account that holds most. mu is held.
func (e *episodes) end(ep *Episode, account string) {
	key := ep.Key()
	e.close(key)
	e.forget(key)
	delete(e.doubted, key)
	if what, single := ep.subject(); single && e.subjects[what] == key {
		delete(e.subjects, what)
	}
	e.version.Add(1)
	size := ep.kibibytes()
	for !take(e.pastRoom, account, size) {
		from := account
		if len(e.ended[account]) == 0 {
			for other := range e.ended {
				if from == account || e.pastRoom.Held(other) > e.pastRoom.Held(from) {
					from = other
				}
			}
		}
		if len(e.ended[from]) == 0 {
			return // larger than all the room there is
		}
		e.forget(e.ended[from][0])
	}
	e.past[key] = kept{ep, account, size}
	e.ended[account] = append(e.ended[account], key)
}

// take takes all of n places or none; it gives back a negative n.
func take(room *fairshare.Ledger[string], account string, n int) bool {
	if n > 0 {
		return room.TakeAll(account, n)
	}
	room.Give(account, -n)
	return true
}

// close takes an episode from the open ones, and forget from those that are over.
func (e *episodes) close(key EpisodeKey) {
	if k, ok := e.open[key]; ok {
		delete(e.open, key)
		e.openRoom.Give(k.account, k.size)
	}
}

func (e *episodes) forget(key EpisodeKey) {
	k, ok := e.past[key]
	if !ok {
		return
	}
	delete(e.past, key)
	e.pastRoom.Give(k.account, k.size)
	list := e.ended[k.account]
	if list[0] == key {
		list = list[1:]
	} else {
		list = slices.DeleteFunc(list, func(other EpisodeKey) bool { return other == key })
	}
	if e.ended[k.account] = list; len(list) == 0 {
		delete(e.ended, k.account)
	}
}

// EpisodeVersion changes whenever an episode does.
func (s *Store) EpisodeVersion() uint64 { return s.episodes.version.Load() }

// EpisodeFilter selects episodes. The zero filter selects all.
type EpisodeFilter struct {
	Clusters, Nodes, IDs []string
	Open                 *bool
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
	if len(f.IDs) > 0 && !slices.Contains(f.IDs, ep.ID) {
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
	for _, of := range [...]map[EpisodeKey]kept{e.open, e.past} {
		for _, k := range of {
			if f.match(k.Episode) {
				list = append(list, k.Episode)
			}
		}
	}
	e.mu.RUnlock()
	slices.SortFunc(list, func(a, b *Episode) int { return cmp.Or(b.Since.Compare(a.Since), cmp.Compare(a.ID, b.ID)) })
	return list
}
