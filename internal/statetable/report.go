// SPDX-License-Identifier: Apache-2.0

package statetable // import "github.com/gpu-collector/gpu-collector/internal/statetable"

import "time"

// Kind tells how a value is to be read; the same bits of two kinds differ.
type Kind uint8

// The kinds of a value.
const (
	KindInt    Kind = iota // Value holds an int64
	KindDouble             // Value holds the bits of a float64
	KindHash               // Value holds a hash of the content, for histograms
)

// Point is one observation of a series.
type Point struct {
	// Key is the series' identity within its node, evenly spread over 64 bits.
	// Two series of a node that share a key are noticed when one report has
	// both, and are then always forwarded, see Report.Observe.
	Key   uint64
	Value uint64
	// Origin is what else must be equal: the start time of a sum, and flags.
	Origin uint64
	// Time is in Unix nanoseconds, 0 when there is none.
	Time uint64
	Kind Kind
}

// Verdict is what is to be done with a point.
type Verdict uint8

// The verdicts.
const (
	// Forward: the next hop does not have this, or it may not.
	Forward Verdict = iota
	// Unchanged: the next hop has this value.
	Unchanged
	// Stale: the next hop has a newer value.
	Stale
)

// Report compares one push with the table. It is used by one goroutine:
//
//	OpenNode, Observe and Forget..., HeartbeatDue, CloseNode   for each node
//	Commit or Abort                                            once
//
// OpenNode takes the node's lock and CloseNode gives it back; between the last
// CloseNode and Commit no lock is held. A Report must not be used after Commit
// or Abort.
type Report struct {
	table *Table
	id    uint64
	now   time.Duration
	tick  uint16

	node    *node // nil between nodes, and for a node there is no room for
	cursor  int   // where in node.entries the next point is expected
	visits  []visit
	pending []pending

	stale, untracked, resyncs int64
}

// visit is one node's part of a report: the points it forwards are
// pending[from:to], judged against the given generation.
type visit struct {
	node       *node
	generation uint64
	from, to   int
	heartbeat  bool
}

// pending is a forwarded point, to be remembered once it is accepted.
type pending struct {
	key, value, origin uint64
	time               uint32
	at                 int32 // position when compared, -1 for a new series
	kind               Kind
	repeated, forget   bool
}

// Begin starts a report.
func (t *Table) Begin(now time.Duration) *Report {
	r := t.reports.Get().(*Report)
	r.id = t.lastID.Add(1)
	r.now = now
	r.tick = t.tick(now)
	return r
}

// OpenNode starts a node's part of the report. The same node may be opened
// more than once in a report.
func (r *Report) OpenNode(key NodeKey) {
	r.cursor = 0
	n := r.table.open(key, r.now)
	r.node = n
	if n == nil {
		return
	}
	if n.owner != r.id {
		n.owner = r.id
		n.visit++
		n.heard = r.now
		r.resync(n)
	}
	n.inflight++
	r.visits = append(r.visits, visit{node: n, generation: n.generation, from: len(r.pending)})
}

// resync forgets the node's series when that is due. The deadline moves on by
// whole intervals, so the node keeps its phase.
func (r *Report) resync(n *node) {
	every := r.table.set.ResyncInterval
	if every <= 0 || r.now < n.resyncAt {
		return
	}
	n.resyncAt += every * (1 + (r.now-n.resyncAt)/every)
	n.forgetAll()
	r.resyncs++
}

// Observe compares a point with what is known of its series.
//
// A series that comes more than once in a report keeps its order: once its
// first point is judged, the others are forwarded, and so are all of the next
// report's. Two series whose keys collide look just like that, and so neither
// is lost.
func (r *Report) Observe(p Point) Verdict {
	n := r.node
	if n == nil {
		r.untracked++
		return Forward
	}
	at := coarse(p.Time)
	i, ok := n.find(p.Key, r.cursor)
	if !ok {
		r.pend(&p, at, -1, false)
		return Forward
	}
	r.cursor = i + 1
	e := &n.entries[i]
	again := e.seen == n.visit
	e.seen = n.visit
	e.hear(r.tick)
	switch {
	case older(e.time, at):
		r.stale++
		return Stale
	case again || e.is(unknown|repeated) || !e.equal(&p):
		r.pend(&p, at, i, again)
		return Forward
	}
	// True whether or not the rest of the report is accepted: at this time the
	// series had the value that the next hop holds.
	e.setTime(at)
	return Unchanged
}

func (r *Report) pend(p *Point, at uint32, i int, again bool) {
	r.pending = append(r.pending, pending{
		key: p.Key, value: p.Value, origin: p.Origin, kind: p.Kind,
		time: at, at: int32(i), repeated: again,
	})
}

// Forget notes that the report ends a series: whatever its next value is, it
// will be forwarded.
func (r *Report) Forget(key uint64) {
	n := r.node
	if n == nil {
		r.untracked++
		return
	}
	i, ok := n.find(key, r.cursor)
	if ok {
		// A value that follows in the same report is news, too.
		n.entries[i].seen = n.visit
		r.cursor = i + 1
	} else {
		i = -1
	}
	r.pending = append(r.pending, pending{key: key, at: int32(i), forget: true})
}

// HeartbeatDue reports whether the open node is due a heartbeat with the given
// Unix time in nanoseconds, which the caller then sends with this report: at
// most one per report, and none older than one before. A node there is no room
// for always is due.
func (r *Report) HeartbeatDue(unixNano uint64) bool {
	n := r.node
	if n == nil {
		return true
	}
	at := coarse(unixNano)
	if r.now < n.heartbeatAt || n.heartbeatBy == r.id || older(n.heartbeatTime, at) {
		return false
	}
	n.heartbeatBy = r.id
	n.heartbeatTime = later(n.heartbeatTime, at)
	r.visits[len(r.visits)-1].heartbeat = true
	return true
}

// CloseNode ends a node's part of the report.
func (r *Report) CloseNode() {
	n := r.node
	if n == nil {
		return
	}
	v := &r.visits[len(r.visits)-1]
	v.to = len(r.pending)
	if v.from == v.to && (!v.heartbeat || r.table.set.HeartbeatInterval <= 0) {
		// Nothing to settle later.
		v.node = nil
		r.visits = r.visits[:len(r.visits)-1]
		n.inflight--
	}
	n.mu.Unlock()
	r.node = nil
}

// Commit makes the forwarded points the state: the next hop has accepted them.
func (r *Report) Commit() {
	for i := range r.visits {
		r.commit(&r.visits[i])
	}
	r.table.untracked.Add(r.untracked)
	r.finish()
}

func (r *Report) commit(v *visit) {
	n := v.node
	n.mu.Lock()
	defer n.mu.Unlock()
	n.inflight--
	if v.heartbeat {
		n.heartbeatAt = max(n.heartbeatAt, r.now+r.table.set.HeartbeatInterval)
	}
	points := r.pending[v.from:v.to]
	if len(points) == 0 {
		return
	}
	doubt := r.settle(n, v)
	room := r.table.reserve(countNew(points))
	n.grow(room)
	for i := range points {
		p := &points[i]
		at, found := n.find(p.key, int(p.at))
		switch {
		case p.forget:
			if found {
				n.entries[at].set(unknown)
			}
			continue
		case found && p.at < 0 && !doubt:
			p.repeated = true // entered by this very report
		case !found:
			if room == 0 { // over the bound, or expired while under way
				room = r.table.reserve(1)
				n.grow(room)
			}
			if room == 0 {
				r.untracked++
				continue
			}
			at = n.insert(p.key)
			n.entries[at].seen = n.visit
			room--
		}
		n.entries[at].store(p, r.tick, doubt)
	}
	r.table.series.Add(-int64(room))
}

// countNew is an upper bound: a new series may be there twice.
func countNew(points []pending) int {
	c := 0
	for i := range points {
		if points[i].at < 0 && !points[i].forget {
			c++
		}
	}
	return c
}

// settle closes a visit that forwarded something and reports whether another
// report did so on the same node since this one was compared. Their order at
// the next hop is then anyone's guess.
func (r *Report) settle(n *node, v *visit) bool {
	own := n.committer == r.id
	doubt := n.generation != v.generation && (!own || n.generation != v.generation+1)
	if !own {
		n.generation++
		n.committer = r.id
	}
	return doubt
}

func (e *entry) store(p *pending, tick uint16, doubt bool) {
	e.value, e.origin = p.value, p.origin
	e.setTime(p.time)
	e.bits = uint16(p.kind)<<kindShift | tick
	if p.repeated {
		e.set(repeated)
	}
	if doubt {
		e.set(unknown)
	}
}

// Abort is for a report that the next hop has not accepted. It may have taken
// some of it all the same (one of two exporters, or all of it before a
// timeout), so what was forwarded is unknown from now on, and the next report
// carries it again.
func (r *Report) Abort() {
	for i := range r.visits {
		v := &r.visits[i]
		n := v.node
		n.mu.Lock()
		n.inflight--
		if points := r.pending[v.from:v.to]; len(points) > 0 {
			r.settle(n, v)
			for j := range points {
				if at, found := n.find(points[j].key, int(points[j].at)); found {
					n.entries[at].set(unknown)
				}
			}
		}
		n.mu.Unlock()
	}
	r.finish()
}

func (r *Report) finish() {
	r.table.stale.Add(r.stale)
	r.table.resyncs.Add(r.resyncs)
	clear(r.visits) // no node is kept alive by the pool
	r.visits, r.pending = r.visits[:0], r.pending[:0]
	r.stale, r.untracked, r.resyncs = 0, 0, 0
	r.table.reports.Put(r)
}
