// SPDX-License-Identifier: Apache-2.0

package statetable // import "github.com/gpu-collector/gpu-collector/internal/delta/statetable"

import (
	"bytes"
	"math"
	"time"
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
	// Heartbeat tells those of another tier, see Report.Relayed.
	Heartbeat bool
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
	// Over: the series is new and there is no room for it, see Settings.DropOver and
	// Report.Limit. It is forwarded with the first report that finds room.
	Over
)

// Report compares one push with the table. One goroutine uses it:
//
//	OpenNode, Observe and Forget..., Vanished, HeartbeatDue, CloseNode   for each node
//	Commit, Abort or Discard                                             once
//
// Nothing that another report or a reader can see changes before Commit: neither a
// value nor a time, and not that the node was heard of. DescribeNode and Describe,
// right after OpenNode and Observe, give a name to what is new. Vanished, Resync of
// single nodes, and Table.Series go by the names. A new series has its room from then
// on, and the end of the report gives back the room that it did not use.
//
// OpenNode takes the node's lock and CloseNode gives it back. No lock is held
// between the last CloseNode and the end. A Report must not be used after its end.
type Report struct {
	table *Table
	id    uint64
	now   time.Duration
	ticks uint64
	tick  uint16 // of ticks what an entry holds

	node    *node         // nil between nodes, and for a node there is no room for
	cursor  int           // where in node.entries the next point is expected
	fresh   bool          // the point just observed is of a new series
	stamp   uint64        // see Stamp
	spare   spare         // of the open node
	limit   Limit         // see Limit
	held    bool          // the point just observed has the room of holdBeat
	pressed bool          // something found no room, see Table.Pressed
	since   time.Duration // node.since with this report
	lacking bool          // node.lacking with this report
	run     run           // of the open node, not yet in runs
	again   int           // points that were repeated
	visits  []visit
	pending []pending
	runs    []run
	clocks  []Clock
	namer   namer
	text    []byte // encoded names of pending's new series
	metric  span   // in text, the last one described
	named   uint32 // pending.metric whose number is number, for one node
	number  uint16

	stale, untracked, unnamed, resyncs, unrepeatable int64
}

type span struct{ from, to uint32 }

// visit is one node's part of a report: what Commit is to do. The node forwards
// pending[from:to], judged against the given generation.
type visit struct {
	node           *node
	generation     uint64
	epoch          uint64
	from, to       int
	runFrom, runTo int
	said, received uint64 // the report's times, see Said
	told           uint64 // see Heard
	behind         time.Duration
	timed          bool   // behind is known
	beat           uint32 // the time of its heartbeat, as in entry.time
	first          bool   // of this node in this report
	resync, paused bool   // all of its series are forwarded, and why
	opaque         bool   // its opaque ones are
	heartbeat      bool
	relayed        bool // see Relayed
	returned       bool // after silence of that tier
	repeated       bool // the series that the node did not report were, see Repeated
	scanned        bool // for vanished series
	series, bytes  int  // reserved
	beats          bool // see holdBeat
	missed         bool // see Miss
	held           bool // not a report of the node, see OpenHeld
}

// run is points from..to of the node's entries that the report holds and does not
// forward, all with that time; or series that ended and have no name.
type run struct {
	from, to int32
	time     uint32
	ended    bool
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
	placed           bool // there is room for the new series
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

// OpenNode starts a node's part of the report. A report may open the same node
// more than once.
func (r *Report) OpenNode(key NodeKey) {
	r.cursor, r.fresh, r.run = 0, false, run{}
	n := r.table.open(key, r.now)
	r.node = n
	if n == nil {
		r.limit, r.pressed = LimitNodes, true
		return
	}
	v := visit{
		node: n, generation: n.generation, epoch: r.table.epoch.Load(),
		from: len(r.pending), runFrom: len(r.runs), first: n.owner != r.id,
	}
	if v.first {
		n.owner = r.id
		n.visit++
	}
	silent := r.now - n.heard
	if r.since = n.since; silent > r.table.set.VanishedAfter {
		r.since = r.now // silence is not held against the series
	}
	_, v.paused = n.pace(silent)
	v.resync = v.paused || n.lost || n.epoch != v.epoch || r.due(r.table.set.ResyncInterval, n.resyncAt)
	v.opaque = r.table.set.OpaqueInterval < r.table.set.ResyncInterval && r.due(r.table.set.OpaqueInterval, n.opaqueAt)
	if r.lacking = n.lacking; v.resync {
		// The node may have reported elsewhere during a pause: what is known here may be old.
		r.lacking = !v.paused
	}
	n.inflight++
	r.visits = append(r.visits, v)
}

// visit is the open node's.
func (r *Report) visit() *visit { return &r.visits[len(r.visits)-1] }

// due reports whether something is that is to be done at a time and after each
// interval, 0 for never.
func (r *Report) due(every, at time.Duration) bool { return every > 0 && r.now >= at }

// past is the first time after now that lies whole intervals after at, so that a
// node keeps its phase.
func (r *Report) past(every, at time.Duration) time.Duration {
	return at + every*(1+(r.now-at)/every)
}

// unsure reports whether the next hop is to get the series whatever its value is.
func (v *visit) unsure(e *entry) bool {
	return v.resync || e.is(unknown) || (v.opaque && e.opaque())
}

// Undescribed reports whether the open node wants DescribeNode.
func (r *Report) Undescribed() bool { return r.node != nil && !r.node.described }

// DescribeNode names the open node by its resource's attributes.
func (r *Report) DescribeNode(attrs []Attr) {
	n := r.node
	if n == nil {
		return
	}
	names := Identify(attrs)
	n.cluster = HashCluster(&names)
	t := r.table
	text, without := encodeNode(attrs)
	bytes := nodeBytes + nameBytes + len(text) + 4*len(attrs)
	if !t.places.TakeAll(n.cluster, 1) {
		r.giveUp(LimitNodes)
		return
	}
	if !t.bytes.TakeAll(n.cluster, bytes) {
		t.places.Give(n.cluster, 1)
		r.giveUp(LimitBytes)
		return
	}
	n.described = true
	n.label = HashString(names.Node())
	r.namer.next()
	n.attrs, n.without = r.namer.add(n, text), uint16(min(without, math.MaxUint16))
	r.namer.next()
	t.recount(n)
	t.bytes.Give(n.cluster, bytes)
}

// giveUp takes the open node, which is new, out of the table: there is no room for it.
func (r *Report) giveUp(over Limit) {
	r.limit, r.pressed = over, true
	n := r.node
	r.visits[len(r.visits)-1].node = nil
	r.visits = r.visits[:len(r.visits)-1]
	n.inflight--
	n.evicted = true
	n.mu.Unlock()
	r.table.remove(n)
	r.node = nil
}

// Observe compares a point with what is known of its series.
//
// A series that comes more than once in a report keeps its order: once its
// first point is judged, the others are forwarded, and so are all of the next
// report's. Two series whose keys collide look just like that, and so neither
// is lost.
func (r *Report) Observe(p *Point) Verdict {
	n := r.node
	r.fresh, r.stamp = false, 0
	if n == nil {
		return r.unplaced()
	}
	at := coarse(p.Time)
	i, ok := n.find(p.Key, r.cursor)
	if !ok {
		return r.enter(p, at)
	}
	r.cursor = i + 1
	e := &n.entries[i]
	again := e.seen == n.visit
	e.seen = n.visit
	if setBack(e.time, at) {
		at = r.restamp(e.time, at, p.Received)
	}
	switch {
	case older(e.time, at):
		r.stale++
		r.touch(i, 0)
		return Stale
	case again || e.is(repeated|gone) || r.visit().unsure(e) || !e.serves(p):
		r.pend(p, at, i, again)
		return Forward
	}
	r.touch(i, at)
	return Unchanged
}

// enter takes the point of a new series.
func (r *Report) enter(p *Point, at uint32) Verdict {
	placed := r.reserve(1, seriesBytes)
	r.held = !placed && p.Heartbeat && r.holdBeat()
	if placed = placed || r.held; !placed && r.table.set.DropOver {
		return Over
	}
	r.fresh = true
	r.pend(p, at, -1, false)
	r.pending[len(r.pending)-1].placed = placed
	return Forward
}

// touch notes that the report holds the series at position i, as it was at a time.
func (r *Report) touch(i int, at uint32) {
	if r.run.to == int32(i) && r.run.time == at {
		r.run.to++
		return
	}
	r.endRun()
	r.run = run{from: int32(i), to: int32(i) + 1, time: at}
}

func (r *Report) endRun() {
	if r.run.to > r.run.from {
		r.runs = append(r.runs, r.run)
	}
	r.run = run{}
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

// Stamp returns the time with which the point just observed has to go on, in Unix
// nanoseconds, 0 for its own. A sender's clock may have been set back; a receiver, which
// keeps the newest point, would take all of its values for old.
func (r *Report) Stamp() uint64 { return r.stamp }

// Fresh reports whether the point just observed is of a new series, which wants
// Describe.
func (r *Report) Fresh() bool { return r.fresh }

// Describe names the series of the point just observed. It reports false where there is
// no room for the name: the point is Over then. Nothing is kept of its arguments.
func (r *Report) Describe(m *Metric, attrs []Attr) bool {
	if !r.fresh || !r.pending[len(r.pending)-1].placed {
		return true // there will be no entry to name
	}
	if len(r.text) > maxReportText {
		r.unnamed++
		return true
	}
	start, last := len(r.text), r.metric
	metric, ok := r.describe(m)
	if !ok {
		r.unnamed++
		return true
	}
	from := len(r.text)
	if r.text, ok = encodePairs(r.text, attrs); !ok {
		r.text = r.text[:from]
		r.unnamed++
		return true
	}
	bytes := len(r.text) - start + nameBytes + 4*len(attrs)
	if r.metric != last {
		bytes += metricBytes
	}
	if !r.reserve(0, bytes) {
		r.text, r.metric = r.text[:start], last
		if !r.table.set.DropOver || r.held {
			r.unnamed++
			return true
		}
		r.withdraw()
		return false
	}
	p := &r.pending[len(r.pending)-1]
	p.metric, p.from, p.to = metric, uint32(from), uint32(len(r.text))
	return true
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
// reduced it: a series that the report lacks is not gone. This holds for twice the
// TTL. After silence of half a TTL that tier may have forgotten series that ended: it
// forgets after a TTL, and tells of an end in time where VanishedAfter is below half
// of that.
func (r *Report) Relayed() {
	n := r.node
	if n == nil {
		return
	}
	v := r.visit()
	v.relayed, v.returned = true, r.silent(n)
}

// silent reports whether the tier before was for half a TTL.
func (r *Report) silent(n *node) bool {
	ttl := r.table.set.TTL
	return ttl > 0 && r.now-n.relayedAt >= ttl/2
}

// Vanished yields each named series that the open node did not report for VanishedAfter,
// although it went on reporting. Series whose end the next hop knows are not among them,
// but those whose end it lost are, see ResyncNode. The caller forwards a point without a
// value for each. Call it once the node's points are observed.
func (r *Report) Vanished(yield func(Series) bool) {
	n, after := r.node, r.table.vanishedTicks
	if n == nil || n.scanner == r.id {
		return
	}
	n.scanner = r.id
	if n.owes && !r.owed(yield) || after == 0 || n.scanned == r.ticks {
		return
	}
	v := r.visit()
	v.scanned = true
	if v.relayed || r.relays(n) || r.ticks-r.table.ticks(r.since) <= after {
		return
	}
	for i := range n.entries {
		e := &n.entries[i]
		if e.seen == n.visit || uint64((r.tick-e.heard())&heardMask) <= after || e.is(gone) {
			continue
		}
		if e.metric == 0 {
			r.endRun()
			r.run = run{from: int32(i), to: int32(i) + 1, ended: true}
			continue
		}
		if !r.end(i, yield) {
			return
		}
	}
}

// relays reports whether another tier still counts as the sender of the node's reports.
func (r *Report) relays(n *node) bool {
	return n.relayed && r.now-n.relayedAt < 2*r.table.set.TTL
}

// owed is Vanished for the series whose end has to be told again.
func (r *Report) owed(yield func(Series) bool) bool {
	n := r.node
	for i := range n.entries {
		if e := &n.entries[i]; e.owed() && e.seen != n.visit && e.metric != 0 && !r.end(i, yield) {
			return false
		}
	}
	return true
}

// end yields the series at position i: the report ends it. A value that follows in the
// same report is news.
func (r *Report) end(i int, yield func(Series) bool) bool {
	e := &r.node.entries[i]
	e.seen = r.node.visit
	r.pending = append(r.pending, pending{key: e.key, at: int32(i), forget: true})
	return yield(r.table.name(r.node, e))
}

// Forget notes that the report ends a series: whatever its next value is, it
// will be forwarded. With DropOver the end of a series that is not known takes room
// like a value, or ends of made-up series would be for ever.
func (r *Report) Forget(key uint64) Verdict {
	n := r.node
	r.fresh = false
	if n == nil {
		return r.unplaced()
	}
	i, ok := n.find(key, r.cursor)
	p := pending{key: key, at: int32(i), forget: true}
	if ok {
		// A value that follows in the same report is news, too.
		n.entries[i].seen = n.visit
		r.cursor = i + 1
	} else {
		p.at = -1
		p.placed = r.table.set.DropOver
		if p.placed && !r.reserve(1, seriesBytes) {
			return Over
		}
		r.fresh, r.held = p.placed, false
	}
	r.pending = append(r.pending, p)
	return Forward
}

// HeartbeatDue reports whether the open node is due a heartbeat with the given
// Unix time in nanoseconds, which the caller then sends with this report: at
// most one per report, and none older than one before. A node there is no room
// for always is due, or never with DropOver.
func (r *Report) HeartbeatDue(unixNano uint64) bool {
	n := r.node
	if n == nil {
		return !r.table.set.DropOver
	}
	v, at := r.visit(), coarse(unixNano)
	if (r.now < n.heartbeatAt && !v.resync) || n.heartbeatBy == r.id || older(n.heartbeatTime, at) {
		return false
	}
	n.heartbeatBy = r.id
	v.heartbeat, v.beat = true, at
	return true
}

// CloseNode ends a node's part of the report.
func (r *Report) CloseNode() {
	n := r.node
	if n == nil {
		return
	}
	v := r.visit()
	r.endRun()
	v.to, v.runTo = len(r.pending), len(r.runs)
	if r.spare != (spare{}) {
		r.giveSpare()
	}
	n.mu.Unlock()
	r.node = nil
}
