// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"slices"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// job is a job that stands still.
// The exported fields last over a restart.
type job struct {
	episode.Episode
	// Named: the laggards are known. updated: an event has named them.
	Named, updated bool
}

// laggard is a rank that the others of its communicator wait for.
type laggard struct {
	cluster, id string
	index       int64
}

type lagging struct {
	Rank
	by         string // the node that named it first
	reportedAt time.Time
}

// Stalled takes since when no operation of a rank has ended, zero while they end.
func (b *Tracker) Stalled(of *Rank, since, now time.Time) error {
	r, err := b.find(of, now)
	if err == nil {
		r.stalled = since
	}
	return err
}

// Laggard takes that a rank is behind the others or missing, which holds while it is
// repeated. Node and PID are those that RAS names, by is the node that reports it.
func (b *Tracker) Laggard(of *Rank, by string, now time.Time) error {
	lag := b.laggards[laggard{of.Cluster, of.ID, of.Index}]
	if lag == nil {
		lag = &lagging{Rank: of.own(), by: strings.Clone(by)}
		if !b.take(key{lag.Cluster, lag.by}) {
			return ErrTooMany
		}
		b.laggards[laggard{lag.Cluster, lag.ID, lag.Index}] = lag
	}
	lag.reportedAt = now
	return nil
}

// stand finds jobs that stand still: no operation of any of their ranks ends. Each
// has one episode.
func (b *Tracker) stand(now time.Time) {
	for at, lag := range b.laggards {
		if !b.fresh(lag.reportedAt, now) {
			delete(b.laggards, at)
			b.give(key{at.cluster, lag.by})
		}
	}
	type state struct {
		ranks, stalled, processes int
		since                     time.Time
		job                       string
	}
	states := make(map[key]state)
	var jobs, steps []key // of a node: of ranks in communicators, and of those that report step times alone
	for at, n := range b.nodes {
		known := make(map[int64]bool, len(n.ranks))
		jobs, steps = jobs[:0], steps[:0]
		for _, r := range n.ranks {
			k := key{at.cluster, b.jobOf(&r.Rank)}
			if r.ID == "" {
				if r.Job != "" && r.moves(b, now) {
					steps = append(steps, k)
				}
				continue
			}
			jobs = append(jobs, k)
			s := states[k]
			s.job = r.Job
			if s.ranks++; !known[r.PID] {
				known[r.PID] = true
				s.processes++
			}
			if !r.stalled.IsZero() {
				s.stalled++
				if r.stalled.After(s.since) {
					s.since = r.stalled
				}
			}
			states[k] = s
		}
		for _, k := range steps { // of the same processes, perhaps
			if !slices.Contains(jobs, k) {
				s := states[k]
				s.ranks++
				states[k] = s
			}
		}
	}
	for k, j := range b.jobs {
		switch s := states[k]; {
		case !j.Open(): // kept, since its ranks may repeat since when they stand still
			if now.Sub(j.Ended) > b.cfg.Retention || len(b.jobs) > b.cfg.MaxNodes {
				delete(b.jobs, k)
			}
		case s.ranks == 0 && b.fresh(b.restored, now): // they have yet to report
		case s.ranks == 0:
			b.record(&j.Episode, episode.PhaseEnd)
			j.End(now, episode.CauseIdle)
		case s.stalled < s.ranks:
			b.record(&j.Episode, episode.PhaseEnd)
			j.End(now, episode.CauseRecovered)
		}
	}
	for k := range b.left {
		if states[k].ranks == 0 {
			delete(b.left, k)
		}
	}
	for k, s := range states {
		if s.stalled < s.ranks || b.left[k] > s.processes { // the last ones of a job that ends
			continue
		}
		j, phase := b.jobs[k], episode.PhaseUpdate
		if j == nil || !j.Open() {
			if j != nil {
				s.since = later(s.since, j.Ended)
			}
			j, phase = &job{Episode: episode.Episode{
				Subject: episode.SubjectJob, Cluster: k.cluster, Group: k.name, Job: s.job, Severity: episode.SeverityCritical,
				Since: s.since, Ranks: int64(s.ranks),
			}}, episode.PhaseOnset
			b.jobs[k] = j
		}
		if !j.Named {
			j.Named = b.name(&j.Episode, k, now)
		}
		if phase == episode.PhaseOnset || j.Named && !j.updated {
			b.record(&j.Episode, phase)
		}
		j.updated, j.Updated = j.Named, now
		b.open = append(b.open, &j.Episode)
	}
}

// moves reports whether a rank has reported work within the TTL, and no stall.
func (r *rank) moves(b *Tracker, now time.Time) bool {
	return r.stalled.IsZero() && b.fresh(r.reportedAt, now)
}

// mayHoldUp reports whether a node's own reports allow that it holds up a job, as another
// node claims: it has ranks of that job, or none of its ranks moves.
func (b *Tracker) mayHoldUp(node key, job string, now time.Time) bool {
	moves := false
	if n := b.nodes[node]; n != nil {
		for _, r := range n.ranks {
			if b.jobOf(&r.Rank) == job {
				return true
			}
			moves = moves || r.moves(b, now)
		}
	}
	return !moves
}

// name adds the nodes that a job waits for to its episode, and reports whether there are any.
func (b *Tracker) name(e *episode.Episode, k key, now time.Time) bool {
	n := 0
	for at, lag := range b.laggards {
		if at.cluster != k.cluster || b.jobOf(&lag.Rank) != k.name {
			continue
		}
		node, culprit := b.locate(&lag.Rank)
		if !b.mayHoldUp(key{k.cluster, node}, k.name, now) {
			continue
		}
		n++
		e.Node, e.Culprit = node, culprit
		if !slices.Contains(e.Nodes, node) {
			e.Nodes = append(e.Nodes, node)
		}
	}
	if slices.Sort(e.Nodes); n > 1 {
		e.Node, e.Culprit = "", nodesignal.Subject{}
	}
	e.NodeCount = int64(len(e.Nodes))
	e.Nodes = e.Nodes[:min(len(e.Nodes), episode.MaxNodes)]
	return n > 0
}

// locate finds the node and rank of a laggard among the reports of its communicator. RAS
// knows an address alone.
func (b *Tracker) locate(lag *Rank) (node string, culprit nodesignal.Subject) {
	for at, n := range b.nodes {
		for _, r := range n.ranks {
			if at.cluster == lag.Cluster && r.ID == lag.ID && r.Index == lag.Index {
				return at.name, r.culprit()
			}
		}
	}
	if l := b.links[key{lag.Cluster, lag.ID}]; l != nil {
		for m := range l.members {
			if m.index == lag.Index {
				return m.node, lag.culprit()
			}
		}
	}
	return lag.Node, lag.culprit()
}
