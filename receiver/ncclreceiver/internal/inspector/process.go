// SPDX-License-Identifier: Apache-2.0

package inspector

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// Bounds of what is kept.
const (
	// MaxMembers is how many communicators of how many ranks are known of a node: 8 ranks
	// with 128 each, or as many of one rank.
	MaxMembers    = 1024
	maxRanks      = 64 // of a communicator in one process
	maxOperations = 8  // kinds of a rank in a communicator
)

const (
	// setUp is how long a process connects its ranks, which is not judged.
	setUp = int64(time.Second / time.Microsecond)
	// recent is how long a communicator without an operation is one of its ranks' still.
	recent = int64(time.Minute / time.Microsecond)
	// idle is how long a communicator is remembered.
	idle = 60 * minute
	// leastStall is the shortest pause that may be a stall.
	leastStall = time.Minute
	minute     = int64(time.Minute / time.Microsecond)
)

// floors are the lower bounds of the classes of messages, in bytes.
var floors = [...]int64{0, 64 << 10, 1 << 20, 16 << 20, 256 << 20}

// Room is how many members all processes of a node may have yet.
type Room struct{ Left int }

// Process is what one process has told. Its memory is bounded by its communicators.
type Process struct {
	// Past is set while records are read that nobody is told of: they were there before,
	// or are too many.
	Past bool

	room          *Room
	communicators map[string]*communicator
	latest        *communicator // of the last record
	first, last   int64         // dumps, in microseconds since 1970
	from          int64         // the last dump that was reported
	pauses        [60]pause
}

type pause struct{ minute, longest int64 }

type communicator struct {
	Membership // without a rank
	members    []*member
	collective bool
}

// member is one rank of the process in a communicator.
type member struct {
	rank       int64
	last       int64 // dump
	operations []operation
	share      float64 // microseconds since the last report
	total      float64 // since the set-up
	done       int64   // operations
}

type operation struct {
	name    string
	counts  bool // in the time
	classes [len(floors)]class
}

type class struct {
	done int64
	// Since the last report.
	seen, micros int64
	best         float64
}

// NewProcess returns a process that has told nothing.
func NewProcess(room *Room) *Process {
	return &Process{room: room, communicators: map[string]*communicator{}}
}

// Close gives the room back.
func (p *Process) Close() { p.forget(func(*communicator) bool { return true }) }

func (p *Process) forget(which func(*communicator) bool) {
	for id, c := range p.communicators {
		if which(c) {
			p.room.Left += len(c.members)
			delete(p.communicators, id)
			p.latest = nil
		}
	}
}

// IDs are those of its communicators.
func (p *Process) IDs() []string { return slices.Sorted(maps.Keys(p.communicators)) }

// Add takes a record, and reports whether there was room for it.
func (p *Process) Add(r *Record) bool {
	if p.first == 0 {
		p.first = r.Dumped
	}
	if r.Dumped < p.last-minute { // the clock was set
		p.last, p.from = r.Dumped, r.Dumped
	}
	if r.Dumped > p.last {
		if p.last > 0 {
			p.paused(r.Dumped, r.Dumped-p.last)
		}
		p.last = r.Dumped
	}
	m, known := p.member(r)
	if m == nil {
		return false
	}
	m.last = max(m.last, r.Dumped)
	m.done++
	op := m.operation(r)
	if op == nil {
		return false
	}
	setting := p.Past || r.Dumped <= p.first+setUp
	if setting {
		p.from = max(p.from, r.Dumped)
	}
	size, _ := slices.BinarySearch(floors[1:], r.Bytes+1)
	c := &op.classes[size]
	if !p.Past {
		c.done++
	}
	if setting || !known { // the first one connects
		return true
	}
	c.seen++
	c.micros += r.Micros
	c.best = max(c.best, r.Bandwidth)
	return true
}

// paused remembers the longest pause of each minute of an hour.
func (p *Process) paused(until, micros int64) {
	at := &p.pauses[until/minute%int64(len(p.pauses))]
	if at.minute != until/minute {
		*at = pause{minute: until / minute}
	}
	at.longest = max(at.longest, micros)
}

// Stalled reports whether the process, whose last operation ended then, stands still for
// longer than in the hour before.
func (p *Process) Stalled(since, now time.Time) bool {
	longest := int64(0)
	for _, at := range p.pauses {
		if now := p.last / minute; at.minute > now-int64(len(p.pauses)) && at.minute <= now {
			longest = max(longest, at.longest)
		}
	}
	still := now.Sub(since)
	return p.last > 0 && still >= leastStall && still.Microseconds() > longest
}

// member returns the record's rank in its communicator, nil for one too many. Most records
// are of the same communicator as the one before.
func (p *Process) member(r *Record) (m *member, known bool) {
	c := p.latest
	if c == nil || string(r.Communicator) != c.ID {
		c = p.communicators[string(r.Communicator)]
	}
	if c == nil {
		if p.room.Left <= 0 {
			return nil, false
		}
		c = &communicator{Membership: Membership{ID: clean(r.Communicator), Name: clean(r.Name), Size: r.Ranks, Nodes: r.Nodes}}
		p.communicators[string(r.Communicator)] = c
	}
	p.latest = c
	c.collective = c.collective || r.Collective
	at, known := slices.BinarySearchFunc(c.members, r.Rank, func(m *member, rank int64) int { return cmp.Compare(m.rank, rank) })
	if known {
		return c.members[at], true
	}
	if len(c.members) >= maxRanks || p.room.Left <= 0 {
		return nil, false
	}
	p.room.Left--
	m = &member{rank: r.Rank}
	c.members = slices.Insert(c.members, at, m)
	return m, false
}

func (m *member) operation(r *Record) *operation {
	for i := range m.operations {
		if op := &m.operations[i]; op.name == string(r.Operation) {
			return op
		}
	}
	if len(m.operations) >= maxOperations {
		return nil
	}
	name := clean(r.Operation)
	// Some ranks leave a Broadcast and a Reduce early.
	m.operations = append(m.operations, operation{name: name, counts: name != "Broadcast" && name != "Reduce"})
	return &m.operations[len(m.operations)-1]
}

func clean(text []byte) string { return strings.ToValidUTF8(string(text), "\uFFFD") }

// Membership is a rank of a communicator.
type Membership struct {
	ID, Name          string
	Rank, Size, Nodes int64
}

// Unit is one rank of the job.
type Unit struct {
	// Group is its widest communicator with collectives, with an empty ID for none.
	Group Membership
	// Share is the part of time in operations.
	Share float64
}

// Part is what is known of one kind of operation of a rank in a communicator.
type Part struct {
	Membership
	Operation string
	// Floor is the lower bound of the size of the messages.
	Floor int64
	// Done counts since the process is known. Bandwidth, in bytes a second, is the
	// greatest since the last report, Latency the mean in seconds; 0 for unknown.
	Done               int64
	Bandwidth, Latency float64
}

// Report ends an interval. shared says whether there are new records to have a share of.
func (p *Process) Report() (units []Unit, parts []Part, shared bool) {
	wall := p.last - p.from
	shared = p.from > 0 && wall > 0
	p.forget(func(c *communicator) bool { return c.last() < p.last-idle })
	var active []*communicator
	for _, c := range p.communicators {
		for _, m := range c.members {
			parts = m.report(c, parts)
		}
		if len(c.members) > 0 && c.last() >= min(p.last-recent, p.from) {
			active = append(active, c)
		}
	}
	for _, seats := range layout(active) {
		var u Unit
		for _, s := range seats {
			if u.Group.ID == "" && s.of.collective {
				u.Group = s.of.at(s.member)
			}
			if shared {
				u.Share += s.share / float64(wall)
			}
		}
		units = append(units, u)
	}
	if p.from > 0 {
		p.from = p.last
	}
	return units, parts, shared
}

func (c *communicator) at(m *member) Membership {
	of := c.Membership
	of.Rank = m.rank
	return of
}

func (c *communicator) last() (at int64) {
	for _, m := range c.members {
		at = max(at, m.last)
	}
	return at
}

// report adds what is known of a member's operations, and ends their interval.
func (m *member) report(c *communicator, parts []Part) []Part {
	m.share = 0
	for i := range m.operations {
		op := &m.operations[i]
		for size := range op.classes {
			cl := &op.classes[size]
			if cl.done == 0 {
				continue
			}
			part := Part{Membership: c.at(m), Operation: op.name, Floor: floors[size], Done: cl.done, Bandwidth: cl.best}
			if op.counts {
				m.share += float64(cl.micros)
			}
			if cl.seen > 0 {
				part.Latency = float64(cl.micros) / float64(cl.seen) / 1e6
			}
			parts = append(parts, part)
			cl.seen, cl.micros, cl.best = 0, 0, 0
		}
	}
	m.total += m.share
	return parts
}
