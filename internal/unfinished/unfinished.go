// SPDX-License-Identifier: Apache-2.0

// Package unfinished counts what the messages on HTTP/2 connections take from their first
// byte on. gRPC tells of a message once all of it is in memory: until then only who reads
// along on the connection can say how much has come.
package unfinished // import "github.com/gpu-collector/gpu-collector/internal/unfinished"

import (
	"container/list"
	"encoding/binary"
	"sync"
	"time"
)

// Budget is what the bytes are taken from.
type Budget interface {
	// Take takes bytes, or says that too few are left.
	Take(n int64) bool
	// Most is what it has when nothing is taken.
	Most() int64
	// Rest takes as many of the bytes as are left at all, and returns how many.
	Rest(n int64) int64
	// Give gives bytes back.
	Give(n int64)
	// Refused counts a connection that was ended.
	Refused()
}

// Ledger counts for all connections of a server. Where the budget is used up it ends the
// connection whose unfinished messages have most bytes, each of them times how long it has
// been there: an honest message is soon whole, and a greedy one is large or slow.
type Ledger struct {
	budget Budget
	now    func() int64 // milliseconds

	mu     sync.Mutex
	coming list.List // of *Conn with messages that are not whole, in the order in which they began
}

// New returns a ledger over a budget.
func New(budget Budget) *Ledger {
	start := time.Now()
	return &Ledger{budget: budget, now: func() int64 { return time.Since(start).Milliseconds() }}
}

// Conn is one connection, as its server sees it.
type Conn struct {
	ledger *Ledger
	end    func()
	in     frames // of the one goroutine that reads
	out    frames // of the one that writes

	// Guarded by the ledger's mutex.
	streams map[uint32]*stream
	latest  uint32 // of the client's streams
	ended   bool
	coming  load // of the streams that are awaited
	awaited int
	listed  *list.Element // among those that are coming
}

// load is what has come of messages.
type load struct {
	bytes int64
	// came is the sum of bytes times when they came. It may overflow, and does no harm: so
	// does what it is taken from.
	came int64
}

func (l *load) add(o load) { l.bytes, l.came = l.bytes+o.bytes, l.came+o.came }
func (l *load) sub(o load) { l.bytes, l.came = l.bytes-o.bytes, l.came-o.came }

// weight is the bytes times for how long they have been there, and one millisecond.
func (l *load) weight(now int64) int64 { return (now+1)*l.bytes - l.came }

type stream struct {
	conn    *Conn
	has     load
	awaited bool // from its first byte until all have come, and while its answer is taken
	whole   bool
}

// Open adds a connection; end closes it from any goroutine, without delay.
func (l *Ledger) Open(end func()) *Conn {
	return &Conn{ledger: l, end: end, in: frames{skip: len(preface)}, streams: map[uint32]*stream{}}
}

// preface is what a client sends before its frames (RFC 9113, 3.4).
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// Types and flags of frames (RFC 9113, 6).
const (
	typeData      = 0
	typeHeaders   = 1
	typeReset     = 3
	flagEndStream = 1
)

// maxFrame is the length up to which gRPC reads a frame. It ends the connection of a longer
// one, whose bytes never come.
const maxFrame = 1 << 14

// perFrame is what gRPC allocates for a DATA frame beside its bytes. A client may put each
// byte into a frame of its own.
const perFrame = 128

// Received counts bytes that the server has read, before it acts on them. It returns false
// where the connection is ended.
func (c *Conn) Received(p []byte) bool {
	l := c.ledger
	locked := false
	var victims []*Conn
	for c.in.next(&p) {
		if c.in.length <= maxFrame && c.in.kind != typeData && c.in.kind != typeHeaders && c.in.kind != typeReset {
			continue
		}
		if !locked {
			locked = true
			l.mu.Lock()
		}
		victims = c.received(&c.in, victims)
	}
	alive := true
	if locked {
		alive = !c.ended
		l.mu.Unlock()
	}
	for _, v := range victims {
		v.end()
	}
	return alive
}

// received counts one frame, and returns the connections that made room for it as well.
func (c *Conn) received(f *frames, victims []*Conn) []*Conn {
	l, s := c.ledger, c.streams[f.id]
	switch {
	case c.ended:
		return victims
	case f.length > maxFrame:
		c.settle()
		return append(victims, c)
	case f.kind == typeReset:
		c.over(f.id)
		return victims
	case f.kind == typeHeaders && s == nil && f.id > c.latest:
		c.latest = f.id
		s = &stream{conn: c}
		c.streams[f.id] = s
	case s == nil: // the server drops what comes after its answer
		return victims
	case s.whole: // nothing may follow its end
		c.settle()
		return append(victims, c)
	}
	if f.flags&flagEndStream != 0 {
		s.whole = true
		s.arrived()
	}
	if f.kind != typeData || f.length == 0 { // gRPC keeps nothing of an empty one
		return victims
	}
	cost := load{bytes: int64(f.length + perFrame)}
	if s.has.bytes+cost.bytes > l.budget.Most() {
		// All the room that others could make is too little for it.
		l.budget.Refused()
		c.settle()
		return append(victims, c)
	}
	now := l.now()
	cost.came = now * cost.bytes
	if !s.whole {
		s.await()
	}
	for !l.budget.Take(cost.bytes) {
		victim := l.heaviest(now)
		if victim == nil {
			// All messages are there. What this one becomes is refused with its call, since
			// nothing is left.
			cost = load{bytes: l.budget.Rest(cost.bytes)}
			cost.came = now * cost.bytes
			break
		}
		l.budget.Refused()
		victim.settle()
		victims = append(victims, victim)
		if victim == c {
			return victims
		}
	}
	s.has.add(cost)
	if s.awaited {
		c.coming.add(cost)
	}
	return victims
}

// heaviest returns the connection that makes room: of equals, the one that began first.
func (l *Ledger) heaviest(now int64) *Conn {
	var found *Conn
	most := int64(-1)
	for e := l.coming.Front(); e != nil; e = e.Next() {
		c := e.Value.(*Conn)
		if w := c.coming.weight(now); w > most {
			found, most = c, w
		}
	}
	return found
}

// Sent learns from what the server is about to write which calls are over. One whose answer
// has begun is awaited until it ends: only a client that does not take it holds it up.
func (c *Conn) Sent(p []byte) {
	locked := false
	for c.out.next(&p) {
		if c.out.kind != typeData && c.out.kind != typeHeaders && c.out.kind != typeReset {
			continue
		}
		if !locked {
			locked = true
			c.ledger.mu.Lock()
		}
		if c.out.kind == typeReset || c.out.flags&flagEndStream != 0 {
			c.over(c.out.id)
		} else if s := c.streams[c.out.id]; s != nil {
			s.await()
		}
	}
	if locked {
		c.ledger.mu.Unlock()
	}
}

// Close gives back what the connection has taken.
func (c *Conn) Close() {
	c.ledger.mu.Lock()
	defer c.ledger.mu.Unlock()
	c.settle()
}

func (c *Conn) settle() {
	for id := range c.streams {
		c.over(id)
	}
	c.ended = true
}

func (c *Conn) over(id uint32) {
	if s := c.streams[id]; s != nil {
		s.arrived()
		c.ledger.budget.Give(s.has.bytes)
		delete(c.streams, id)
	}
}

// await counts a message among those that can make room.
func (s *stream) await() {
	if s.awaited {
		return
	}
	s.awaited = true
	c := s.conn
	c.coming.add(s.has)
	if c.awaited++; c.awaited == 1 {
		c.listed = c.ledger.coming.PushBack(c)
	}
}

// arrived takes a message off those.
func (s *stream) arrived() {
	if !s.awaited {
		return
	}
	s.awaited = false
	c := s.conn
	c.coming.sub(s.has)
	if c.awaited--; c.awaited == 0 {
		c.ledger.coming.Remove(c.listed)
		c.listed = nil
	}
}

// frames finds the heads of frames in a stream of bytes.
type frames struct {
	// The head that was found last.
	length      int
	kind, flags byte
	id          uint32

	head [9]byte
	have int // of the head
	skip int // of what follows it
}

// next finds the next head, and takes off what it has seen.
func (f *frames) next(p *[]byte) bool {
	skipped := min(f.skip, len(*p))
	f.skip -= skipped
	rest := (*p)[skipped:]
	n := copy(f.head[f.have:], rest)
	f.have += n
	*p = rest[n:]
	if f.have < len(f.head) {
		return false
	}
	f.have = 0
	f.length = int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2])
	f.kind, f.flags, f.id = f.head[3], f.head[4], binary.BigEndian.Uint32(f.head[5:])&(1<<31-1)
	f.skip = f.length
	return true
}
