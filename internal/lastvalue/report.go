// SPDX-License-Identifier: Apache-2.0

package lastvalue // import "github.com/gpu-collector/gpu-collector/internal/lastvalue"

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
	Key   uint64
	Value uint64
	// Start is the start time of a sum, in Unix nanoseconds, 0 for none.
	Start uint64
	// Time is in Unix nanoseconds, 0 when there is none.
	Time uint64
	// Received is when the report came, likewise: the time of a point whose clock
	// was set back, see Report.Stamp. 0 for never.
	Received uint64
	Kind     Kind
	// Flags are the point's own, which must be equal too.
	Flags uint8
	// End is set for a point without a value, which ends its series.
	End bool
	// Heartbeat is set for those of another tier, which find room beyond the limits.
	Heartbeat bool
}

// Verdict is what is to be done with a point.
type Verdict uint8

// The verdicts.
const (
	// Pass: the point goes on with its report.
	Pass Verdict = iota
	// Drop: the next hop has the value, one within the metric's Band, or a newer one; or
	// Emit makes the point.
	Drop
	// Over: the point is dropped, for there is no room for its series, see Report.Limit.
	Over
	// Unknown: the table does not have the series. Call Add, whose verdict counts.
	Unknown
)

// Report is one push on its way in, and the message on its way out: what the push holds
// that the next hop does not have. One goroutine uses it:
//
//	Open, Observe and Add..., Close, Emit, Done   for each node of a push
//	OpenPending, Emit, Done                       for each node that is sent from the table
//	Accepted, Refused or GaveUp                   once
//
// Open takes the node's lock and Done gives it back. No lock is held between the last Done
// and the end. A Report must not be used after its end.
type Report struct {
	table *Table
	id    uint64
	now   time.Duration
	ticks uint64
	tick  uint16 // of ticks what an entry holds

	node     *node  // nil between nodes, and for a node there is no room for
	cursor   int    // where in node.entries the next point is expected
	stamp    uint64 // see Stamp
	limit    Limit  // see Limit
	returned bool   // see Relayed
	sent     part   // of the open node
	parts    []part
	places   []int32 // of the entries that the message has, node by node
	namer    namer
	clocks   []Clock

	Counts
}

// Counts are what a message has besides the points of its report.
type Counts struct {
	// Heartbeats are the nodes' own, Markers the points that end a series, and Repeated
	// those that were made of what is known here.
	Heartbeats, Markers, Repeated int64
}

// part is a node's part of a message.
type part struct {
	node     *node
	epoch    uint64
	from, to int // in places
	beat     uint64
	first    bool // of the node in the message
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

// Open starts a node's part of a push. A push may open the same node more than once. Where
// the node is new the attributes of its resource are asked for, those that fit the table's
// form, and whether these are all. Where there is no room for it Open reports false, and the
// node is not open.
func (r *Report) Open(key NodeKey, attrs func() (some []Attr, all bool)) bool {
	n := r.table.open(key)
	for full := false; n == nil; {
		some, all := attrs()
		if n, r.limit, full = r.table.add(key, some, all, r.now); full {
			return false
		}
		if n == nil {
			n = r.table.open(key) // another goroutine has made it meanwhile
		}
	}
	r.begin(n)
	if n.owner != r.id {
		n.owner = r.id
		n.visit++
		r.arrive(n)
	}
	return true
}

func (r *Report) begin(n *node) {
	r.node, r.cursor, r.returned = n, 0, false
	r.sent = part{node: n, epoch: r.table.epoch.Load(), from: len(r.places)}
}

// arrive takes note that the node reports, and of what is due at such times.
func (r *Report) arrive(n *node) {
	t := r.table
	silent := r.now - n.heard
	if silent > t.set.VanishedAfter {
		n.since = r.now // silence is not held against the series
	}
	usual, paused := n.pace(silent)
	if n.paced, n.usual = n.usual > 0, usual; paused {
		n.paused = silent
	}
	n.heard = max(n.heard, r.now)
	if n.visit-n.sureAfter > 1<<14 {
		n.sureAfter++ // visits are compared modulo 2^16
	}
	if paused {
		// What is known here of series that this report does not hold may be old.
		n.unsure, n.sureAfter, n.beatAt = true, n.visit-1, 0
		t.noteResync(n, r.now)
	} else if t.whole(n, r.now) {
		t.resync(n, r.now)
	}
	if t.set.OpaqueInterval < t.set.ResyncInterval && due(t.set.OpaqueInterval, n.opaqueAt, r.now) {
		n.opaqueAt = past(t.set.OpaqueInterval, n.opaqueAt, r.now)
		for i := range n.entries {
			if e := &n.entries[i]; e.opaque() && !e.is(gone) {
				e.set(dirty)
			}
		}
	}
}

// whole reports whether the next hop is to get all of a node.
func (t *Table) whole(n *node, now time.Duration) bool {
	return n.epoch != t.epoch.Load() || n.requests < t.requests.of(n.label) || due(t.set.ResyncInterval, n.resyncAt, now) || n.gaveUp && now >= n.retryAt
}

// resync makes all series of a node dirty.
func (t *Table) resync(n *node, now time.Duration) {
	t.noteResync(n, now)
	n.markAll()
	n.markPending()
}

func (t *Table) noteResync(n *node, now time.Duration) {
	n.epoch, n.requests = t.epoch.Load(), t.requests.count.Load()
	if due(t.set.ResyncInterval, n.resyncAt, now) {
		n.resyncAt = past(t.set.ResyncInterval, n.resyncAt, now)
	}
	t.resyncs.Add(1)
}

// markPending has the node wait for Pending.
func (n *node) markPending() {
	if !n.inline && !n.pending {
		n.pending, n.waitsSince = true, n.heard
	}
}

// due reports whether something is that is to be done at a time and after each
// interval, 0 for never.
func due(every, at, now time.Duration) bool { return every > 0 && now >= at }

// past is the first time after now that lies whole intervals after at, so that a
// node keeps its phase.
func past(every, at, now time.Duration) time.Duration { return at + every*(1+(now-at)/every) }

// Observe compares a point with what is known of its series, and takes its value.
//
// A series that comes more than once in a report keeps its order: both go on, and so they
// do from the next report. Two series whose keys collide look just like that, and so
// neither is lost.
func (r *Report) Observe(p *Point) Verdict {
	n := r.node
	r.stamp = 0
	if n == nil {
		return r.untracked()
	}
	i, ok := n.find(p.Key, r.cursor)
	if !ok {
		return Unknown
	}
	r.cursor = i + 1
	e := &n.entries[i]
	again, doubted := e.seen == n.visit, n.doubted(e)
	e.seen = n.visit
	if p.End {
		return r.ended(e)
	}
	at := coarse(p.Time)
	if setBack(e.time, at) {
		at = r.restamp(e.time, at, p.Received)
	}
	if e.hear(r.tick); older(e.time, at) {
		r.table.stale.Add(1)
		return Drop
	}
	twice := again || e.is(repeated)
	if !doubted && !twice && !e.is(gone) && n.serves(e, p) && (!e.is(dirty) || e.is(sending) && !n.inline) {
		e.setTime(at)
		return Drop
	}
	if n.store(e, p, at); again {
		e.set(repeated)
	}
	if !n.inline && !twice && !e.opaque() {
		n.markPending()
		return Drop
	}
	return r.send(i, e)
}

// ended takes the end of a known series.
func (r *Report) ended(e *entry) Verdict {
	if e.is(gone) && e.metric != 0 {
		return Drop // the next hop has been told, or is to be
	}
	e.end(r.tick)
	if e.metric == 0 {
		return Pass
	}
	r.node.markPending()
	return Drop
}

// send has the message carry the entry at position i in a point of the report.
func (r *Report) send(i int, e *entry) Verdict {
	e.set(sending)
	r.places = append(r.places, int32(i))
	return Pass
}

// Add takes the point of a new series. The metric is nil for a series whose name does not
// fit the table's form. Nothing is kept of the arguments.
func (r *Report) Add(p *Point, m *Metric, attrs []Attr) Verdict {
	n, t := r.node, r.table
	size := seriesBytes
	if m != nil {
		size += nameSize(m, attrs)
	}
	if !r.reserve(size) && (!p.Heartbeat || !r.holdBeat(size)) {
		return r.untracked()
	}
	i := n.insert(p.Key)
	e := &n.entries[i]
	if m != nil {
		e.metric, e.attrs = t.christen(&r.namer, n, m, attrs)
	}
	if e.metric == 0 {
		t.unnamed.Add(1)
	}
	e.seen = n.visit
	e.hear(r.tick)
	t.series.Add(1)
	if p.End {
		return r.ended(e)
	}
	if n.store(e, p, coarse(p.Time)); !n.inline && !e.opaque() {
		n.markPending()
		return Drop
	}
	return r.send(i, e)
}

// untracked is the verdict on a point that there is no room for.
func (r *Report) untracked() Verdict {
	if r.table.set.DropOver {
		return Over
	}
	r.table.untracked.Add(1)
	return Pass
}

// Inline reports whether the message is to have what Emit yields of the open node: without
// Collect, and for a node whose resource cannot be made of the table.
func (r *Report) Inline() bool { return r.node != nil && r.node.inline }

// Drops reports whether all points of the node are over a limit.
func (r *Report) Drops() bool { return r.node == nil && r.table.set.DropOver }

// Limit is the one that the last point or node was over.
func (r *Report) Limit() Limit { return r.limit }

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

// Lag is by how much the time of the open node's last report was before its heartbeat.
func (r *Report) Lag() uint64 {
	if n := r.node; n != nil && n.said < n.beat {
		return n.beat - n.said
	}
	return 0
}

// Heartbeat takes a heartbeat that another tier has of the open node, in Unix nanoseconds of
// that tier's clock, which agrees with the one here or does not. It returns the node's last
// heartbeat, 0 where that tier had none, whether this one is newer, and whether the clocks
// agreed with the last one.
func (r *Report) Heartbeat(unixNano uint64, agrees bool) (last uint64, newer, agreed bool) {
	n := r.node
	if n == nil {
		return 0, false, false
	}
	before, agreed := n.told, n.agreed
	if n.told, n.agreed = unixNano, agrees; before == 0 {
		return 0, false, false
	}
	return n.beat, unixNano > before, agreed
}

// Facts are what a push holds of a node besides its series.
type Facts struct {
	// Time is that of the report by the node's own clock, and Beat when the first tier
	// received it, both in Unix nanoseconds; a Beat of 0 stands for none that can be.
	Time, Beat uint64
	// Relayed is set for a report of another tier, which reduced it: a series that the
	// report lacks is not gone. This holds for twice the TTL. After silence of half a TTL that
	// tier may have forgotten series that ended: it forgets after a TTL.
	Relayed bool
	// Alive is set where the node itself reported, and not a gateway about it.
	Alive bool
	// Behind is by how much the newest time of the report, as the node had it, is before
	// its receipt; only with Timed.
	Behind time.Duration
	Timed  bool
}

// Close ends the points of the open node. Emit and Done follow.
func (r *Report) Close(f Facts) {
	n := r.node
	if n == nil {
		return
	}
	ttl := r.table.set.TTL
	// A heartbeat that is sent again is no news of the node.
	if f.Relayed && (f.Beat > n.beat || !n.relayed) {
		if ttl > 0 && r.now-n.relayedAt >= ttl/2 {
			n.returned()
		}
		n.relayed, n.relayedAt = true, max(n.relayedAt, r.now)
	}
	if !f.Alive {
		if n.said == 0 {
			n.said = f.Time
		}
		return
	}
	if f.Beat != 0 && f.Beat >= n.beat {
		n.said, n.beat = f.Time, f.Beat
	}
	if f.Timed && n.clock.hear(f.Behind, r.now) {
		r.tellClock(n)
	}
	if !f.Relayed && n.isNode && r.now >= n.beatAt {
		n.beatDirty = true
		n.markPending()
	}
	if n.scanned == r.ticks {
		return
	}
	n.scanned = r.ticks
	if n.relayed = n.relayed && r.now-n.relayedAt < 2*ttl; !n.relayed {
		r.vanish(n)
	}
}

// vanish ends the series that the node did not report for VanishedAfter, although it went
// on reporting.
func (r *Report) vanish(n *node) {
	after := r.table.vanishedTicks
	if after == 0 || r.ticks-r.table.ticks(n.since) <= after {
		return
	}
	for i := range n.entries {
		e := &n.entries[i]
		if e.seen != n.visit && uint64((r.tick-e.heard())&heardMask) > after && !e.is(gone) {
			e.end(r.tick)
			n.markPending()
		}
	}
}
