// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"math"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// link is a communicator, whose ranks report the bandwidth of its operations.
// The exported fields last over a restart.
type link struct {
	Of      Rank // that reported last
	members map[member]time.Time
	Flows   map[Class]*flow
	Slow    *episode.Episode // nil for none
	calm    float64          // seconds that it has not been
	Ended   time.Time        // the last episode
}

type member struct {
	node       string
	pid, index int64
}

// Class is a kind of operations that are alike.
type Class struct {
	Operation string
	Size      int64 // the least, bytes
}

// flow is the bandwidth of one class: the greatest of all ranks, since the last rank to
// enter an operation does not wait.
// The exported fields last over a restart.
type flow struct {
	now      float64    // of this tick, By/s
	Last     [3]float64 // ticks: pushes of all nodes fall into no single one
	Usual    float64    // logarithm, 1 h mean
	Spread   float64    // mean of what it differs by
	Age      float64    // seconds
	fall     float64    // below usual, logarithm
	Over     int        // ticks running that it is too low
	Well     time.Time  // the last tick that was not too low by itself
	Reported time.Time  // the last report of it
}

const (
	// A communicator is slow that is a seventh below its own hour for three ticks, and six
	// times as far as it is used to.
	leastFall, spreads, overTicks = 1.15, 6, 3
	linkYoung, linkHour           = 300, 3600
	// FSDP has three operations, and the nccl receiver five sizes of each.
	maxFlows = 16
	// calmAfter seconds without a fall end it.
	calmAfter = 180
)

// Bandwidth takes the greatest bandwidth of a class of operations that a rank of a
// communicator saw since its last report, By/s.
func (b *Tracker) Bandwidth(of *Rank, class Class, bandwidth float64, now time.Time) error {
	l := b.links[key{of.Cluster, of.ID}]
	if l == nil {
		l = &link{members: make(map[member]time.Time), Flows: make(map[Class]*flow)}
	}
	m := member{of.Node, of.PID, of.Index}
	if _, known := l.members[m]; !known {
		own := of.own()
		if !b.take(key{own.Cluster, own.Node}) {
			return ErrTooMany
		}
		l.Of, m.node = own, own.Node
		b.links[key{l.Of.Cluster, l.Of.ID}] = l
		b.moved = true
	}
	l.members[m] = now
	f := l.Flows[class]
	if f == nil {
		if len(l.Flows) == maxFlows && !b.evict(l, now) {
			return ErrTooManyClasses
		}
		f = &flow{}
		l.Flows[Class{string([]byte(class.Operation)), class.Size}] = f
		b.moved = true // the operation decides to which part of the job the link belongs
	}
	f.now, f.Reported = max(f.now, bandwidth), now
	return nil
}

// evict forgets the class that was reported longest ago, and false where none is idle. Until
// then an idle class keeps its usual bandwidth: an evaluation or a long step may come back.
func (b *Tracker) evict(l *link, now time.Time) bool {
	var oldest Class
	reportedAt := now
	for c, f := range l.Flows {
		if f.Reported.Before(reportedAt) {
			oldest, reportedAt = c, f.Reported
		}
	}
	if b.fresh(reportedAt, now) {
		return false
	}
	delete(l.Flows, oldest)
	return true
}

// pipe reports whether ranks only send messages to one another.
func (l *link) pipe() bool {
	for c := range l.Flows {
		if c.Operation != "Send" && c.Operation != "Recv" {
			return false
		}
	}
	return true
}

// kind are the communicators that are alike.
type kind struct {
	cluster string
	Class
	size, nodes int64
}

// follow finds the communicators that became slow while others of their kind did not.
func (b *Tracker) follow(now time.Time) {
	falls := make(map[kind][]float64)
	for k, l := range b.links {
		for m, reportedAt := range l.members {
			if !b.fresh(reportedAt, now) {
				delete(l.members, m)
				b.give(key{k.cluster, m.node})
				b.moved = true
			}
		}
		if len(l.members) == 0 && !b.fresh(b.restored, now) {
			b.end(l, episode.CauseIdle)
			delete(b.links, k)
			continue
		}
		for c, f := range l.Flows {
			if f.tick(b.dt, now) {
				at := kind{k.cluster, c, l.Of.Size, l.Of.Nodes}
				falls[at] = append(falls[at], f.fall)
			}
		}
	}
	for k, l := range b.links {
		l.calm += b.dt
		cause, worst := episode.CauseRecovered, (*flow)(nil)
		for c, f := range l.Flows {
			// Of the others the median: the whole fabric is no fault of one communicator.
			others := falls[kind{k.cluster, c, l.Of.Size, l.Of.Nodes}]
			if slices.Sort(others); len(others) > 2 && others[(len(others)-1)/2] > math.Log(leastFall) {
				f.Over = 0
			}
			// A rank without reports may be the last in each operation.
			if f.Over >= overTicks && !b.fresh(f.Reported, now) {
				cause = episode.CauseIdle // without reports it may or may not be slow
				continue
			}
			if f.Over < overTicks || int64(len(l.members)) < l.Of.Size || b.hasSlowRank(l) {
				continue
			}
			l.calm = 0
			if worst == nil || f.fall > worst.fall {
				worst = f
			}
		}
		switch {
		case worst != nil && l.Slow == nil:
			l.Slow = &episode.Episode{
				Subject: episode.SubjectLink, Cluster: k.cluster, Group: b.jobOf(&l.Of), Job: l.Of.Job, Since: later(worst.Well, l.Ended),
				Communicator: l.Of.Name, CommunicatorID: l.Of.ID, Ranks: l.Of.Size,
			}
			worst.figures(l.Slow)
			b.record(l.Slow, episode.PhaseOnset)
		case worst != nil:
			if was := l.Slow.Severity; worst.figures(l.Slow) > was {
				b.record(l.Slow, episode.PhaseSeverity)
			}
		case l.Slow != nil && l.calm > calmAfter:
			b.end(l, cause)
		}
		if l.Slow != nil {
			l.Slow.Updated, l.Slow.Recovering = now, worst == nil
			b.open = append(b.open, l.Slow)
		}
	}
}

func later(x, y time.Time) time.Time {
	if x.Before(y) {
		return y
	}
	return x
}

// figures writes how slow the class is, and returns the severity, which does not fall.
func (f *flow) figures(e *episode.Episode) episode.Severity {
	gap, value, usual := -math.Expm1(-f.fall), math.Exp(f.Usual-f.fall), math.Exp(f.Usual)
	e.Gap, e.Value, e.Median, e.Severity = &gap, &value, &usual, max(e.Severity, episode.SeverityOf(gap))
	return e.Severity
}

// end ends the episode of a communicator. A class that is still too slow needs three more ticks to begin another.
func (b *Tracker) end(l *link, cause string) {
	if l.Slow == nil {
		return
	}
	b.record(l.Slow, episode.PhaseEnd)
	l.Slow.End(b.ticked, cause)
	l.Slow, l.Ended = nil, b.ticked
	for _, f := range l.Flows {
		f.Over = 0
	}
}

// hasSlowRank reports whether a node of the communicator has a slow rank, which explains more.
func (b *Tracker) hasSlowRank(l *link) bool {
	for m := range l.members {
		if n := b.nodes[key{l.Of.Cluster, m.node}]; n != nil && n.verdict.Slow {
			return true
		}
	}
	return false
}

// tick takes the bandwidth reported since the tick before, and reports whether there was any.
func (f *flow) tick(dt float64, now time.Time) bool {
	if f.now == 0 {
		return false
	}
	copy(f.Last[1:], f.Last[:])
	f.Last[0], f.now = f.now, 0
	x := math.Log(max(f.Last[0], f.Last[1], f.Last[2]))
	if f.Age == 0 {
		f.Usual = x
	}
	f.Age += max(dt, 1)
	f.fall = f.Usual - x
	limit := max(math.Log(leastFall), spreads*f.Spread)
	if f.Usual-math.Log(f.Last[0]) <= limit {
		f.Well = now
	}
	if f.Age > linkYoung && f.fall > limit {
		f.Over++
		return true
	}
	f.Over = 0
	weight := dt / min(f.Age, linkHour)
	f.Usual += weight * (x - f.Usual)
	f.Spread += weight * (math.Abs(f.fall) - f.Spread)
	return true
}
