// SPDX-License-Identifier: Apache-2.0

package inspector

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"time"
)

// Bounds of what is kept.
const (
	// MaxMembers is how many communicators of how many ranks are known of a node: 8 ranks
	// with 128 each, or as many of one rank.
	MaxMembers = 1024
	maxRanks   = 64 // of a communicator in one process
	maxTallies = 40 // kinds and sizes of a rank's operations in a communicator
)

const (
	minute = int64(time.Minute / time.Microsecond)
	// setUp is how long a process connects its ranks, which is not judged.
	setUp = minute / 60
	// recent is how long a communicator without an operation is one of its ranks' still.
	recent = minute
	// idle is how long a communicator is remembered.
	idle = 60 * minute
	// leastStall is the shortest pause that may be a stall.
	leastStall = time.Minute
)

// floors are the lower bounds of the classes of messages, in bytes.
var floors = [...]int64{0, 64 << 10, 1 << 20, 16 << 20, 256 << 20}

// Room is how many members all processes of a node may have yet.
type Room struct{ Left int }

// Process is what one process has recorded. Its memory is bounded by its communicators.
type Process struct {
	// Past is set while records are read that are not reported: they were there before,
	// or are too many.
	Past bool

	room          *Room
	communicators map[Membership]*communicator // as the file has them, without a rank
	first, last   int64                        // dumps, in microseconds since 1970
	from          int64                        // the last dump that was reported
	pauses        [60]int64                    // the longest of each minute
}

type communicator struct {
	Membership // without a rank
	members    []*member
	collective bool
	last       int64 // dump
}

// member is one rank of the process in a communicator.
type member struct {
	of      *communicator
	rank    int64
	tallies []*tally
	share   float64 // microseconds since the last report
	total   float64 // since the set-up
}

// tally is of operations of one kind and size, but for Done since the last report.
type tally struct {
	Part
	seen, micros float64
}

// NewProcess returns a process without records.
func NewProcess(room *Room) *Process {
	return &Process{room: room, communicators: map[Membership]*communicator{}}
}

// Close gives the room back.
func (p *Process) Close() { p.forget(math.MaxInt64) }

func (p *Process) forget(before int64) {
	for id, c := range p.communicators {
		if c.last < before {
			p.room.Left += len(c.members)
			delete(p.communicators, id)
		}
	}
}

// Why a line is left out.
var (
	ErrLine = errors.New("a line is broken, too long, or tells of no operation")
	ErrRoom = errors.New("the node has more than 1024 communicators of ranks, or a communicator more than 64 ranks or 40 kinds of operations in a process")
)

// Add takes a line of JSON.
func (p *Process) Add(line []byte) error {
	var r Record
	if !r.Parse(line) {
		return ErrLine
	}
	return p.add(&r)
}

func (p *Process) add(r *Record) error {
	if p.first == 0 {
		p.first = r.Dumped
	}
	if step := r.Dumped - p.last; step < -minute || step > idle { // the clock was set
		p.first = min(p.first, r.Dumped)
		p.last, p.from, p.pauses = r.Dumped, r.Dumped, [60]int64{}
	}
	if pause := r.Dumped - p.last; pause > 0 {
		now := r.Dumped / minute
		for at := max(p.last/minute, now-60) + 1; at <= now; at++ {
			p.pauses[at%60] = 0
		}
		if p.last > 0 {
			p.pauses[now%60] = max(p.pauses[now%60], pause)
		}
		p.last = r.Dumped
	}
	t, connects := p.tally(r)
	if t == nil {
		return ErrRoom
	}
	setting := p.Past || r.Dumped <= p.first+setUp
	if setting {
		p.from = max(p.from, r.Dumped)
	}
	if !p.Past {
		t.Done++
	}
	if !setting && !connects {
		t.Bandwidth = max(t.Bandwidth, r.Bandwidth)
		t.micros += float64(r.Micros)
		t.seen++
	}
	return nil
}

// tally returns where a record counts, nil for one too many, and whether it is its rank's
// first in the communicator.
func (p *Process) tally(r *Record) (at *tally, connects bool) {
	id := Membership{ID: r.Communicator, Name: r.Name, Size: r.Ranks, Nodes: r.Nodes}
	c := p.communicators[id]
	i, known := 0, false
	if c != nil {
		i, known = slices.BinarySearchFunc(c.members, r.Rank, func(m *member, rank int64) int { return cmp.Compare(m.rank, rank) })
	}
	if !known {
		if p.room.Left <= 0 || c != nil && len(c.members) >= maxRanks {
			return nil, false
		}
		if c == nil {
			c = &communicator{Membership: id}
			p.communicators[id] = c
		}
		p.room.Left--
		c.members = slices.Insert(c.members, i, &member{of: c, rank: r.Rank})
	}
	c.collective = c.collective || r.Collective
	c.last = max(c.last, r.Dumped)
	m := c.members[i]
	size, _ := slices.BinarySearch(floors[1:], r.Bytes+1)
	for _, t := range m.tallies {
		if t.Operation == r.Operation && t.Floor == floors[size] {
			return t, !known
		}
	}
	if len(m.tallies) >= maxTallies {
		return nil, false
	}
	at = &tally{Part: Part{Membership: c.Membership, Operation: r.Operation, Floor: floors[size]}}
	at.Rank = r.Rank
	m.tallies = append(m.tallies, at)
	return at, !known
}

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

// Report is what a process has recorded in an interval.
type Report struct {
	Units []Unit
	Parts []Part
	// Shared is whether the units' shares are known: there are new records, and no doubt
	// whose they are.
	Shared bool
	// Stalled: it stands still for longer than in the hour before.
	Stalled bool
}

// Report ends an interval. still is how long ago the last operation ended.
func (p *Process) Report(still time.Duration) (r Report) {
	wall := float64(p.last - p.from)
	p.forget(p.last - idle)
	var active []*communicator
	for _, c := range p.communicators {
		for _, m := range c.members {
			r.Parts = append(r.Parts, m.report()...)
		}
		if c.last >= min(p.last-recent, p.from) {
			active = append(active, c)
		}
	}
	units, joined := layout(active)
	for _, members := range units {
		var u Unit
		for _, m := range members {
			if u.Group.ID == "" && m.of.collective {
				u.Group = m.of.Membership
				u.Group.Rank = m.rank
			}
			u.Share += m.share / wall
		}
		r.Units = append(r.Units, u)
	}
	if p.from > 0 {
		r.Shared = joined && wall > 0
		p.from = p.last
	}
	r.Stalled = p.last > 0 && still >= leastStall && still.Microseconds() > slices.Max(p.pauses[:])
	return r
}

// report returns what is known of a member's operations, and ends their interval.
func (m *member) report() (parts []Part) {
	m.share = 0
	for _, t := range m.tallies {
		if t.seen > 0 {
			t.Latency = t.micros / t.seen / 1e6
		}
		if t.Operation != "Broadcast" && t.Operation != "Reduce" { // some ranks leave them early
			m.share += t.micros
		}
		parts = append(parts, t.Part)
		t.Bandwidth, t.Latency, t.seen, t.micros = 0, 0, 0, 0
	}
	m.total = 0.9*m.total + m.share // of late: the noise of hours would hide which rank becomes slow
	return parts
}
