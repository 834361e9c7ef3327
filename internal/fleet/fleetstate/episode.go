// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/platform/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// sameSubject reports whether both records have the same subject, which no episode changes.
// A node's peer group may change, and so may the rank that a job waits for.
func sameSubject(e, other *episode.Episode) bool {
	if e.Subject != other.Subject {
		return false
	}
	switch e.Subject {
	case episode.SubjectGroup:
		return e.Group == other.Group && e.Node == other.Node
	case episode.SubjectJob:
		return e.Group == other.Group
	default:
		return e.Node == other.Node && e.CommunicatorID == other.CommunicatorID
	}
}

type episodes struct {
	version atomic.Uint64
	mu      sync.RWMutex
	all     map[episode.Key]kept
	// ended are the keys of the ended episodes by account, the oldest first.
	ended map[string][]episode.Key
	// openRoom and pastRoom count kibibytes by account.
	openRoom, pastRoom *fairshare.Ledger[string]
	// subjects are the open episodes whose subject has one at a time.
	subjects map[subject]episode.Key
	// doubted is since when the views contradict an open episode.
	doubted map[episode.Key]time.Time
}

// kept is an episode and the account that its memory counts for.
type kept struct {
	*episode.Episode // never changed in place
	account          string
	size             int // KiB
}

// kibibytes is the memory of an episode, in whole KiB.
func kibibytes(e *episode.Episode) int {
	const fixed = 768 // the struct, its numbers, and its entries in the maps
	n := fixed + len(e.ID) + len(e.Cluster) + len(e.Group) + len(e.Node) + len(e.Signal) + len(e.Part) +
		len(e.Cause) + len(e.Reason) + len(e.Action) + len(e.GPU) + len(e.Text) + len(e.Culprit.GPU) + len(e.Job) + len(e.Communicator) + len(e.CommunicatorID)
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

// account returns the account that an episode's memory counts for: its cluster, or, for a
// subject that never reported, one account for all of these.
func (s *Store) account(ep *episode.Episode) string {
	if ep.Node == "" && s.bytes.Held(ep.Cluster) > 0 || ep.Node != "" && s.find(Key{ep.Cluster, ep.Node}) != nil {
		return ep.Cluster
	}
	return ""
}

// subject has one open episode at most.
type subject struct {
	kind          episode.Subject
	cluster, name string
}

// subjectOf returns false for an episode of many nodes: several of its kind may be open.
func subjectOf(e *episode.Episode) (subject, bool) {
	switch {
	case e.Subject == episode.SubjectGroup || e.Subject == episode.SubjectJob:
		return subject{e.Subject, e.Cluster, e.Group}, true
	case e.Node != "":
		return subject{e.Subject, e.Cluster, e.Node}, true
	default:
		return subject{}, false
	}
}

func (e *episodes) init(limit int, share float64) {
	e.all, e.ended = map[episode.Key]kept{}, map[string][]episode.Key{}
	e.openRoom, e.pastRoom = fairshare.New[string](limit, share), fairshare.New[string](limit, share)
	e.subjects, e.doubted = map[subject]episode.Key{}, map[episode.Key]time.Time{}
}

// RestoreEpisodes takes the episodes of the past, the newest first. An open one ends with its
// last record; its next record opens it again.
func (s *Store) RestoreEpisodes(list []*episode.Episode) {
	e := &s.episodes
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ep := range slices.Backward(list) {
		if ep.Open() {
			ep = concludedEnd(ep, ep.Updated, episode.CauseRestart)
		}
		e.end(ep, ep.Cluster)
	}
}

// PutEpisode takes the latest record of an episode. An ended episode moves to the past, where
// the oldest makes room. A repeated or late record, and one with the ID of another subject's
// episode, change nothing. The store keeps ep, and returns whether it is shown.
func (s *Store) PutEpisode(ep *episode.Episode) bool {
	if ep.ID == "" || len(ep.ID) > MaxName || len(ep.Node) > MaxName || len(ep.Cluster) > MaxName || len(ep.Group) > MaxName {
		s.drop(DropText)
		return false
	}
	if ep.SinceBefore {
		// The node was slow from its first value on, which came with its first report.
		from := *ep
		for _, name := range append(ep.Nodes[:len(ep.Nodes):len(ep.Nodes)], ep.Node) {
			if n := s.find(Key{ep.Cluster, name}); n != nil && n.born < from.Since.UnixMilli() {
				from.Since = time.UnixMilli(n.born)
			}
		}
		ep = &from
	}
	return s.putEpisode(ep)
}

func (s *Store) putEpisode(ep *episode.Episode) bool {
	account := s.account(ep)
	e := &s.episodes
	e.mu.Lock()
	defer e.mu.Unlock()
	key := ep.Key()
	was := e.all[key]
	old := was.Episode
	over := old != nil && !old.Open()
	if old != nil && !sameSubject(ep, old) {
		s.drop(DropForeignEpisode)
		return false
	}
	// Only a concluded end, which no record reported, can change.
	if over && (!old.Concluded || ep.Open() && !ep.Updated.After(old.Ended)) {
		return false
	}
	if old != nil {
		ep = after(ep, old)
	}
	if !ep.Open() {
		e.end(ep, account)
		return true
	}
	if old != nil && !over && old.Updated.After(ep.Updated) {
		return false
	}
	what, single := subjectOf(ep)
	var former *episode.Episode // of the subject
	if single && e.subjects[what] != key {
		former = e.all[e.subjects[what]].Episode
	}
	if former != nil && former.Updated.After(ep.Updated) {
		// A late record: its episode was over when the other began.
		ep = concludedEnd(ep, former.Since, episode.CauseSuperseded)
		e.end(ep, account)
		return true
	}
	if former != nil {
		e.end(concludedEnd(former, ep.Updated, episode.CauseSuperseded), account)
	}
	// A continued episode keeps its room, however much others took meanwhile.
	k, more := kept{ep, account, kibibytes(ep)}, kibibytes(ep)
	goes := old != nil && !over
	if goes {
		k.account, more = was.account, k.size-was.size
	}
	if !take(e.openRoom, k.account, more) {
		s.drop(DropMaxEpisodes)
		return false
	}
	if over {
		e.forget(key)
	}
	e.all[key] = k
	if single {
		e.subjects[what] = key
	}
	e.version.Add(1)
	return true
}

// after returns the episode with the fields that only its earlier record has.
func after(e, old *episode.Episode) *episode.Episode {
	next := *e
	if old.Since.Before(e.Since) {
		// A record without a start has its own time there.
		next.Since, next.SinceBefore = old.Since, old.SinceBefore
	}
	if len(e.Holders) == 0 {
		next.Holders = old.Holders
	}
	if !e.Open() && len(e.Evidence) == 0 {
		// The record of an end has no evidence; the earlier record has.
		next.Evidence = old.Evidence
		next.Reason, next.Action, next.GPU = cmp.Or(e.Reason, old.Reason), cmp.Or(e.Action, old.Action), cmp.Or(e.GPU, old.GPU)
		next.Culprit = cmp.Or(e.Culprit, old.Culprit)
		next.Observation = e.Observation || old.Observation
	}
	return &next
}

// concludedEnd returns the episode with an end that no record reported.
func concludedEnd(e *episode.Episode, at time.Time, cause string) *episode.Episode {
	ended := *e
	ended.Ended, ended.Cause, ended.Concluded = at, cause, true
	if at.Before(e.Since) {
		ended.Ended = e.Since
	}
	return &ended
}

// end moves an episode to the past. The account's oldest make room for it, else those of the
// account that holds most. mu is held.
func (e *episodes) end(ep *episode.Episode, account string) {
	key := ep.Key()
	e.forget(key)
	delete(e.doubted, key)
	if what, single := subjectOf(ep); single && e.subjects[what] == key {
		delete(e.subjects, what)
	}
	e.version.Add(1)
	size := kibibytes(ep)
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
			return // larger than all the room
		}
		e.forget(e.ended[from][0])
	}
	e.all[key] = kept{ep, account, size}
	e.ended[account] = append(e.ended[account], key)
}

// take takes all of n units or none; it gives back a negative n.
func take(room *fairshare.Ledger[string], account string, n int) bool {
	if n > 0 {
		return room.TakeAll(account, n)
	}
	room.Give(account, -n)
	return true
}

// forget removes an episode and gives its room back.
func (e *episodes) forget(key episode.Key) {
	k, ok := e.all[key]
	if !ok {
		return
	}
	delete(e.all, key)
	if k.Open() {
		e.openRoom.Give(k.account, k.size)
		return
	}
	e.pastRoom.Give(k.account, k.size)
	list := e.ended[k.account]
	if list[0] == key {
		list = list[1:]
	} else {
		list = slices.DeleteFunc(list, func(other episode.Key) bool { return other == key })
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

func (f *EpisodeFilter) match(ep *episode.Episode) bool {
	named := func(n string) bool { return slices.Contains(f.Nodes, n) }
	return (f.Open == nil || *f.Open == ep.Open()) &&
		(len(f.Clusters) == 0 || slices.Contains(f.Clusters, ep.Cluster)) &&
		(len(f.IDs) == 0 || slices.Contains(f.IDs, ep.ID)) &&
		(len(f.Nodes) == 0 || named(ep.Node) || slices.ContainsFunc(ep.Nodes, named)) &&
		(ep.Open() || f.Since.IsZero() || !ep.Ended.Before(f.Since))
}

// Episodes returns the selected episodes, the newest first.
func (s *Store) Episodes(f *EpisodeFilter) []*episode.Episode {
	e := &s.episodes
	e.mu.RLock()
	var list []*episode.Episode
	for _, k := range e.all {
		if f.match(k.Episode) {
			list = append(list, k.Episode)
		}
	}
	e.mu.RUnlock()
	slices.SortFunc(list, func(a, b *episode.Episode) int {
		return cmp.Or(b.Since.Compare(a.Since), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Cluster, b.Cluster))
	})
	return list
}
