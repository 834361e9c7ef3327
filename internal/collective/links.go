// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"math"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/episode"
)

// link is a communicator, whose ranks tell how fast its operations are.
type link struct {
	of      Rank // the last that told
	members map[member]time.Time
	flows   map[Class]*flow
	event   *episode.Event // of its being slow, nil for none
	calm    float64        // seconds that it has not been
}

type member struct {
	node       string
	pid, place int64
}

// Class is a kind of operations that are alike.
type Class struct {
	Operation string
	Size      int64 // the least, bytes
}

// flow is the bandwidth of one class: the greatest of all ranks, since who enters an
// operation last waits for nobody.
type flow struct {
	now    float64    // of this tick, By/s
	last   [3]float64 // ticks: pushes of all nodes fall into no single one
	usual  float64    // logarithm, 1 h mean
	spread float64    // mean of what it differs by
	age    float64    // seconds
	fall   float64    // below usual, logarithm
	over   int        // ticks running that it is too low
	well   time.Time  // the last tick that was not too low by itself
}

const (
	// A communicator is slow that is a seventh below its own hour for three ticks, and six
	// times as far as it is used to.
	leastFall, spreads, overTicks = 1.15, 6, 3
	linkYoung, linkHour           = 300, 3600
	maxFlows                      = 8
	// calmAfter seconds without a fall end it.
	calmAfter = 180
)

// Bandwidth takes the greatest bandwidth of a class of operations that a rank of a
// communicator saw since its last report, By/s.
func (b *Book) Bandwidth(of *Rank, class Class, bandwidth float64, now time.Time) error {
	l := b.links[key{of.Cluster, of.ID}]
	if l == nil {
		l = &link{members: make(map[member]time.Time), flows: make(map[Class]*flow)}
	}
	m := member{of.Node, of.PID, of.Place}
	if _, known := l.members[m]; !known {
		if err := b.hold(of.Cluster); err != nil {
			return err
		}
		l.of = of.own()
		m.node = l.of.Node
		b.links[key{l.of.Cluster, l.of.ID}] = l
		b.moved = true
	}
	l.members[m] = now
	f := l.flows[class]
	if f == nil {
		if len(l.flows) == maxFlows {
			return nil
		}
		f = &flow{}
		l.flows[Class{string([]byte(class.Operation)), class.Size}] = f
		b.moved = true // what it is for decides whose part it is
	}
	f.now = max(f.now, bandwidth)
	return nil
}

// pipe reports whether ranks only send messages to one another.
func (l *link) pipe() bool {
	for c := range l.flows {
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
func (b *Book) follow(now time.Time) {
	falls := make(map[kind][]float64)
	for k, l := range b.links {
		for m, told := range l.members {
			if !b.fresh(told, now) {
				delete(l.members, m)
				b.free(k.cluster)
				b.moved = true
			}
		}
		if len(l.members) == 0 {
			b.end(l, episode.CauseIdle)
			delete(b.links, k)
			continue
		}
		for c, f := range l.flows {
			if f.tick(b.dt, now) {
				at := kind{k.cluster, c, l.of.Size, l.of.Nodes}
				falls[at] = append(falls[at], f.fall)
			}
		}
	}
	for k, l := range b.links {
		l.calm += b.dt
		for c, f := range l.flows {
			// Of the others the median: the whole fabric is no fault of one communicator.
			others := falls[kind{k.cluster, c, l.of.Size, l.of.Nodes}]
			if slices.Sort(others); len(others) > 2 && others[(len(others)-1)/2] > math.Log(leastFall) {
				f.over = 0
			}
			// A rank that nobody reports may be the last in each operation.
			if f.over < overTicks || int64(len(l.members)) < l.of.Size || b.blamed(l) {
				continue
			}
			l.calm = 0
			if l.event == nil {
				l.event = &episode.Event{
					Subject: episode.SubjectLink, Cluster: k.cluster, Group: b.jobOf(&l.of), Job: l.of.Job, Detail: l.of.Label(),
					Severity: episode.SeverityOf(-math.Expm1(-f.fall)), Since: f.well, Confidence: 1,
					Gap: -math.Expm1(-f.fall), Value: math.Exp(f.usual - f.fall), Median: math.Exp(f.usual), Ranks: int(l.of.Size),
				}
				b.tell(l.event, episode.EventOnset, "")
			}
		}
		if l.event != nil && l.calm > calmAfter {
			b.end(l, episode.CauseRecovered)
		}
	}
}

func (b *Book) end(l *link, cause string) {
	if l.event != nil {
		b.tell(l.event, episode.EventEnd, cause)
		l.event = nil
	}
}

// blamed reports whether a node of the communicator has a slow rank, which says more.
func (b *Book) blamed(l *link) bool {
	for m := range l.members {
		if n := b.nodes[key{l.of.Cluster, m.node}]; n != nil && n.word.Slow {
			return true
		}
	}
	return false
}

// tick takes what was told since the last, and reports whether there was anything.
func (f *flow) tick(dt float64, now time.Time) bool {
	if f.now == 0 {
		return false
	}
	copy(f.last[1:], f.last[:])
	f.last[0], f.now = f.now, 0
	x := math.Log(max(f.last[0], f.last[1], f.last[2]))
	if f.age == 0 {
		f.usual = x
	}
	f.age += max(dt, 1)
	f.fall = f.usual - x
	limit := max(math.Log(leastFall), spreads*f.spread)
	if f.usual-math.Log(f.last[0]) <= limit {
		f.well = now
	}
	if f.age > linkYoung && f.fall > limit {
		f.over++
		return true
	}
	f.over = 0
	weight := dt / min(f.age, linkHour)
	f.usual += weight * (x - f.usual)
	f.spread += weight * (math.Abs(f.fall) - f.spread)
	return true
}
