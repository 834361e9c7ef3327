// SPDX-License-Identifier: Apache-2.0

package statetable // import "github.com/gpu-collector/gpu-collector/internal/delta/statetable"

import (
	"bytes"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// maxReportText bounds the names that one report can bring, and what the pool
// keeps of them is less.
const (
	maxReportText = 16 << 20
	keepText      = 1 << 20
)

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
	// Start is the start time of a sum, in Unix nanoseconds, where that is all that
	// Origin says; 0 otherwise.
	Start uint64
	// Time is in Unix nanoseconds, 0 when there is none.
	Time uint64
	// Received is when the report came, likewise: the time of a point whose clock
	// was set back, see Report.Stamp. 0 for never.
	Received uint64
	Kind     Kind
	// Band is how far the next hop's value may be from this one.
	Band Band
}

// Verdict is what is to be done with a point.
type Verdict uint8

// The verdicts.
const (
	// Forward: the next hop does not have this, or it may not.
	Forward Verdict = iota
	// Unchanged: the next hop has this value, or one within the point's Band.
	Unchanged
	// Stale: the next hop has a newer value.
	Stale
)

// Report compares one push with the table. It is used by one goroutine:
//
//	OpenNode, Observe and Forget..., Vanished, HeartbeatDue, CloseNode   for each node
//	Commit or Abort                                                      once
//
// DescribeNode and Describe, right after OpenNode and Observe, give what is new
// a name, which Vanished, Resync of single nodes, and Reader go by.
//
// OpenNode takes the node's lock and CloseNode gives it back; between the last
// CloseNode and Commit no lock is held. A Report must not be used after Commit
// or Abort.
type Report struct {
	table *Table
	id    uint64
	now   time.Duration
	ticks uint64
	tick  uint16 // of ticks what an entry holds

	node     *node // nil between nodes, and for a node there is no room for
	key      NodeKey
	cursor   int    // where in node.entries the next point is expected
	fresh    bool   // the point just observed is of a new series
	stamp    uint64 // see Stamp
	changed  bool   // something of the open node is forwarded
	again    int    // points that were repeated
	visits   []visit
	pending  []pending
	first    *node // of those that were opened
	accepted bool  // the next hop has something of one of them
	namer    namer
	text     []byte // encoded names of pending's new series
	metric   span   // in text, the last one described
	named    uint32 // pending.metric whose number is number, for one node
	number   uint16

	stale, untracked, unnamed, resyncs int64
}

// Cluster is the hash of the cluster that the first of the report's nodes names, 0
// where it names none, or found no room.
func (r *Report) Cluster() uint64 {
	if r.first == nil {
		return 0
	}
	r.first.mu.Lock()
	defer r.first.mu.Unlock()
	return r.first.cluster
}

// IsNew reports whether the next hop had accepted nothing of the report's nodes yet,
// also of those that have nothing to say.
func (r *Report) IsNew() bool { return !r.accepted }

type span struct{ from, to uint32 }

// visit is one node's part of a report: the points it forwards are
// pending[from:to], judged against the given generation.
type visit struct {
	node       *node
	generation uint64
	epoch      uint64
	from, to   int
	heartbeat  bool
	repeated   bool // what the node did not report was, see Repeated
}

// pending is a forwarded point, to be remembered once it is accepted.
type pending struct {
	key, value       uint64
	start            uint64
	origin           uint32
	time             uint32
	at               int32 // position when compared, -1 for a new series
	kind             Kind
	repeated, forget bool
	stands           bool // what the table has was sent as it is
	// Of a new series that has a name, where in Report.text its metric begins, plus
	// 1, and between which its attributes are; 0 without a name.
	metric, from, to uint32
}

// Begin starts a report.
func (t *Table) Begin(now time.Duration) *Report {
	r := t.reports.Get().(*Report)
	r.id = t.lastID.Add(1)
	r.now = now
	r.ticks = t.ticks(now)
	r.tick = uint16(r.ticks) & heardMask
	return r
}

// OpenNode starts a node's part of the report. The same node may be opened
// more than once in a report.
func (r *Report) OpenNode(key NodeKey) {
	r.cursor, r.fresh, r.changed = 0, false, false
	n := r.table.open(key, r.now)
	r.node, r.key = n, key
	if n == nil {
		return
	}
	if r.first == nil {
		r.first = n
	}
	r.accepted = r.accepted || n.accepted
	if n.owner != r.id {
		n.owner = r.id
		n.visit++
		if r.now-n.heard > r.table.set.VanishedAfter {
			n.since = r.now // silence is not held against the series
		}
		paused := n.pause(r.now - n.heard)
		n.heard = r.now
		r.resync(n, paused)
		r.opaque(n)
	}
	n.inflight++
	r.visits = append(r.visits, visit{node: n, generation: n.generation, epoch: n.epoch, from: len(r.pending)})
}

// Undescribed reports whether the open node wants DescribeNode.
func (r *Report) Undescribed() bool { return r.node != nil && !r.node.described }

// DescribeNode names the open node by its resource's attributes.
func (r *Report) DescribeNode(attrs []Attr) {
	n := r.node
	if n == nil {
		return
	}
	if cluster := attrText(attrs, gpusemconv.AttrClusterName); cluster != "" {
		n.cluster = HashString(cluster)
	}
	if r.table.places.Take(n.cluster, 1) == 0 {
		r.giveUp()
		return
	}
	n.described = true
	n.label = HashString(NodeName(attrs))
	text, ok := encodePairs(nil, attrs)
	if !ok {
		return
	}
	r.namer.next()
	n.attrs = r.namer.add(n, text)
	r.namer.next()
}

// giveUp makes the open node, which is new, one for which there is no room.
func (r *Report) giveUp() {
	n := r.node
	r.visits[len(r.visits)-1].node = nil
	r.visits = r.visits[:len(r.visits)-1]
	n.inflight--
	n.evicted = true
	n.mu.Unlock()
	r.table.remove(n)
	r.node = nil
}

// resync forgets the node's series when that is due, or when asked to. The
// deadline moves on by whole intervals, so the node keeps its phase.
func (r *Report) resync(n *node, now bool) {
	every, epoch := r.table.set.ResyncInterval, r.table.epoch.Load()
	due := every > 0 && r.now >= n.resyncAt
	if !due && !now && n.epoch == epoch && !n.lost {
		return
	}
	if full := r.table.set.Full; full != nil && n.accepted && full(n.cluster, r.now) {
		n.lost = true // with the first report for which there is room
		return
	}
	// What paused may have reported elsewhere, so what is known here may be old.
	n.lacking = !now
	if due {
		n.resyncAt += every * (1 + (r.now-n.resyncAt)/every)
	}
	n.epoch, n.lost = epoch, false
	n.forgetAll()
	r.resyncs++
}

// opaque forgets those of the node's series that no tier after this one is likely
// to repeat, for it has only a hash of them or no name. That tier could ask for
// them, but would get all of the node each time.
func (r *Report) opaque(n *node) {
	every := r.table.set.OpaqueInterval
	if every <= 0 || every >= r.table.set.ResyncInterval || r.now < n.opaqueAt {
		return
	}
	n.opaqueAt += every * (1 + (r.now-n.opaqueAt)/every)
	for i := range n.entries {
		if e := &n.entries[i]; e.opaque() {
			e.set(unknown)
		}
	}
}

// Observe compares a point with what is known of its series.
//
// A series that comes more than once in a report keeps its order: once its
// first point is judged, the others are forwarded, and so are all of the next
// report's. Two series whose keys collide look just like that, and so neither
// is lost.
func (r *Report) Observe(p Point) Verdict {
	n := r.node
	r.fresh, r.stamp = false, 0
	if n == nil {
		r.untracked++
		r.changed = true
		return Forward
	}
	at := coarse(p.Time)
	i, ok := n.find(p.Key, r.cursor)
	if !ok {
		r.fresh, r.changed = true, true
		r.pend(&p, at, -1, false)
		return Forward
	}
	r.cursor = i + 1
	e := &n.entries[i]
	again := e.seen == n.visit
	e.seen = n.visit
	e.hear(r.tick)
	if setBack(e.time, at) {
		at = r.restamp(e.time, at, p.Received)
	}
	switch {
	case older(e.time, at):
		r.stale++
		return Stale
	case again || e.is(unknown|repeated|gone) || !e.serves(&p):
		e.live()
		r.changed = true
		r.pend(&p, at, i, again)
		return Forward
	}
	// True whether or not the rest of the report is accepted: at this time the
	// series had the value that the next hop holds.
	e.setTime(at)
	if r.table.set.WholeNodes {
		r.pend(&p, at, i, false) // in case that another point changed
	}
	return Unchanged
}

func (r *Report) pend(p *Point, at uint32, i int, again bool) {
	r.pending = append(r.pending, pending{
		key: p.Key, value: p.Value, start: p.Start, origin: short(p.Origin), kind: p.Kind,
		time: at, at: int32(i), repeated: again,
	})
}

// restamp returns the time of a point that is much older than its series: that
// of receipt, or just after the state's where that is ahead of the clock here.
// Where the clock here was set back too, the point's own stands.
func (r *Report) restamp(state, at uint32, received uint64) uint32 {
	now := coarse(received)
	if now == 0 || setBack(state, now) {
		return at
	}
	r.stamp = received
	if older(state, now) {
		r.stamp += uint64(state-now+1) << timeShift
	}
	return coarse(r.stamp)
}

// Stamp returns the time that the point just observed has to go on with, in Unix
// nanoseconds, 0 for its own: the sender's clock was set back, and what takes
// the point keeps the newest of a series, so that until the clock is where it was
// all of its values would be taken for old.
func (r *Report) Stamp() uint64 { return r.stamp }

// Fresh reports whether the point just observed is of a new series, which wants
// Describe.
func (r *Report) Fresh() bool { return r.fresh }

// Describe names the series of the point just observed. Nothing is kept of its
// arguments.
func (r *Report) Describe(m *Metric, attrs []Attr) {
	n := r.node
	if !r.fresh || len(n.entries) >= r.table.set.MaxSeriesPerNode || r.table.series.Load() >= int64(r.table.set.MaxSeries) {
		return // there will be no entry to name
	}
	if len(r.text) > maxReportText {
		r.unnamed++
		return
	}
	metric, ok := r.describe(m)
	if !ok {
		r.unnamed++
		return
	}
	from := len(r.text)
	if r.text, ok = encodePairs(r.text, attrs); !ok {
		r.text = r.text[:from]
		r.unnamed++
		return
	}
	p := &r.pending[len(r.pending)-1]
	p.metric, p.from, p.to = metric, uint32(from), uint32(len(r.text))
}

// describe writes a metric to text, unless it is the last one's, and returns
// where that begins, plus 1.
func (r *Report) describe(m *Metric) (uint32, bool) {
	from := len(r.text)
	text, ok := encodeMetric(r.text, m)
	if !ok {
		return 0, false
	}
	r.text = text
	if last := r.metric; bytes.Equal(text[from:], text[last.from:last.to]) {
		r.text = text[:from]
		return last.from + 1, true
	}
	r.metric = span{uint32(from), uint32(len(text))}
	return r.metric.from + 1, true
}

// Relayed notes that the open node's report comes from another tier, which
// reduced it: what it lacks is not gone. This holds for twice the TTL. After
// silence of half a TTL that tier may have forgotten the node, or series of it
// that ended, and is asked for all, see Wants: it forgets after a TTL, and tells of
// an end in time where VanishedAfter is below half of that.
func (r *Report) Relayed() {
	n := r.node
	if n == nil {
		return
	}
	// A node that was never heard of was silent since this table began: before half
	// a TTL of that nothing can have been forgotten, and its epoch says the rest.
	if ttl := r.table.set.TTL; ttl > 0 && r.now-n.relayedAt >= ttl/2 {
		n.returned()
	}
	if !n.relayed {
		n.startsKnown()
	}
	n.relayed, n.relayedAt = true, r.now
}

// Vanished yields each named series that the open node did not report for
// VanishedAfter, although it went on reporting, and that the next hop has not
// been told of; and those of which it was told in vain, see ResyncNode. The
// caller forwards a point without a value for it. Call it once the node's points
// are observed.
func (r *Report) Vanished(yield func(Series) bool) {
	n, after := r.node, r.table.vanishedTicks
	if n == nil || (n.owes && !r.owed(yield)) || after == 0 || n.scanned == r.ticks {
		return
	}
	n.scanned = r.ticks
	n.relayed = n.relayed && r.now-n.relayedAt < 2*r.table.set.TTL
	if n.relayed || r.ticks-r.table.ticks(n.since) <= after {
		return
	}
	for i := range n.entries {
		e := &n.entries[i]
		if uint64((r.tick-e.heard())&heardMask) <= after || e.is(gone) {
			continue
		}
		if e.metric == 0 {
			e.set(unknown | gone)
			continue
		}
		// In doubt from now on: a report that overlaps may carry it again.
		e.set(unknown)
		if !r.end(i, yield) {
			return
		}
	}
}

// owed is Vanished for the series whose end has to be told again.
func (r *Report) owed(yield func(Series) bool) bool {
	n := r.node
	n.owes = false
	for i := range n.entries {
		e := &n.entries[i]
		if !e.owed() {
			continue
		}
		if e.metric == 0 {
			e.set(unknown)
			continue
		}
		n.owes = true // until this is accepted
		if !r.end(i, yield) {
			return false
		}
	}
	return true
}

// end yields the series at position i as one that the report ends.
func (r *Report) end(i int, yield func(Series) bool) bool {
	e := &r.node.entries[i]
	r.changed = true
	r.pending = append(r.pending, pending{key: e.key, at: int32(i), forget: true})
	return yield(r.table.name(r.node, e))
}

// Changed reports whether anything of the open node is forwarded so far. With
// WholeNodes, everything that is not Stale is, if anything is.
func (r *Report) Changed() bool { return r.changed }

// Change notes that something of the open node is forwarded that the table does
// not know of.
func (r *Report) Change() { r.changed = true }

// Forget notes that the report ends a series: whatever its next value is, it
// will be forwarded.
func (r *Report) Forget(key uint64) {
	n := r.node
	r.fresh, r.changed = false, true
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
	if !r.changed {
		r.pending = r.pending[:v.from]
	}
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
