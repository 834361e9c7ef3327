// SPDX-License-Identifier: Apache-2.0

package lastvalue // import "github.com/gpu-collector/gpu-collector/internal/lastvalue"

import "time"

// Kind is how a value is to be read; the same bits of two kinds differ.
type Kind uint8

// The kinds of a value.
const (
	KindInt    Kind = iota // Value holds an int64
	KindDouble             // Value holds the bits of a float64
	KindHash               // Value holds a hash of the content, for histograms
)

// Point is one observation of a series.
type Point struct {
	Key   uint64 // the series' identity within its node, evenly spread over 64 bits
	Value uint64
	Start uint64 // of a sum, in Unix nanoseconds, 0 for none
	// Time is in Unix nanoseconds, 0 when there is none, and so is Received, when the report
	// came. Observe corrects the time of a point whose clock was set back.
	Time, Received uint64
	Kind           Kind
	Flags          uint8 // which must be equal too
	End            bool  // a point without a value, which ends its series
	Heartbeat      bool  // of an upstream tier, which finds room beyond the limits
}

// Verdict is what is to be done with a point.
type Verdict uint8

// The verdicts: a point goes on with its report, or it does not.
const (
	Pass Verdict = iota
	// Drop: the next hop has the value, one within the metric's Band, or a newer one, or
	// Emit makes the point.
	Drop
	// Over: there is no room for the point's series, see Report.Limit.
	Over
	// Unknown: the table does not have the series. Call Add, whose verdict counts.
	Unknown
)

// Report is one push on its way in, and the message on its way out. One goroutine uses it:
//
//	Open, Observe and Add..., Close, Emit, Done   for each node of a push
//	OpenPending, Emit, Done                       for each node that is sent from the table
//	Accepted, Refused or GaveUp                   once
//
// Open takes the node's lock and Done gives it back. No lock is held after the last Done.
type Report struct {
	table *Table
	id    uint64
	now   time.Duration
	ticks uint64 // of now

	node      *node // nil between nodes, and for a node there is no room for
	cursor    int   // where in node.entries the next point is expected
	sent      part  // of the open node
	parts     []part
	positions []int32 // of the entries that the message has, part by part
	namer     namer
	Limit     Limit  // that the last point or node was over
	clock     *Clock // of the open node, where that was found wrong or right again

	Counts
}

// Counts are what a message has besides the points of its report: the nodes' own heartbeats,
// points that end a series, and those made of what is known here.
type Counts struct{ Heartbeats, Markers, Repeated int64 }

// part is what a message has of a node that was opened once.
type part struct {
	node      *node
	from, to  int    // in positions
	heartbeat uint64 // 0 for none
}

// Begin starts a report.
func (t *Table) Begin(now time.Duration) *Report {
	return &Report{table: t, id: t.lastID.Add(1), now: now, ticks: t.ticks(now)}
}

// Open starts a node's part of a push, which may open a node more than once. A new node has
// its resource's attributes asked for: those that fit the table's form, and whether these are
// all. Where there is no room for it Open reports false, and the node is not open.
func (r *Report) Open(key NodeKey, attrs func() (some []Attr, all bool)) bool {
	n := r.table.open(key)
	for ; n == nil; n = r.table.open(key) {
		some, all := attrs()
		var ok bool
		if r.Limit, ok = r.table.add(key, some, all, r.now); !ok {
			return false
		}
	}
	r.begin(n)
	if n.lastPush != r.id {
		n.lastPush, n.visit = r.id, (n.visit+1)|1
		r.onReport(n)
	}
	return true
}

func (r *Report) begin(n *node) {
	r.node, r.cursor, r.sent = n, 0, part{node: n, from: len(r.positions)}
}

// onReport takes note that the node reports, and of what is due at such times.
func (r *Report) onReport(n *node) {
	t := r.table
	gap := r.now - n.lastSeen
	n.lastSeen = max(n.lastSeen, r.now)
	if gap > t.set.VanishedAfter {
		n.reportingSince = r.now // a pause of the node is none of its series
	}
	if n.observeInterval(gap) {
		// A report of a tier has not all of the node: what was asked for comes with the next one.
		t.noteResync(n, r.now)
		for i := range n.entries {
			if e := &n.entries[i]; !n.relayed || !e.is(dirty) {
				e.seen = unseen
			}
		}
	} else if t.resyncDue(n, r.now) {
		t.resync(n, r.now)
	}
	if r.now >= n.opaqueAt {
		n.opaqueAt = past(t.set.OpaqueInterval, n.opaqueAt, r.now)
		for i := range n.entries {
			if e := &n.entries[i]; e.opaque() && !e.is(gone) {
				e.set(dirty)
			}
		}
	}
}

// resyncDue reports whether the next hop is to get all of a node: it lost its state, it is time
// to, or it refused something for good.
func (t *Table) resyncDue(n *node, now time.Duration) bool {
	return now >= min(n.resyncAt, n.retryAt) || n.losses != t.losses.Load()
}

// resync makes all series of a node dirty. What ended is so for the next hop too, unless it
// has refused something for good.
func (t *Table) resync(n *node, now time.Duration) {
	t.noteResync(n, now)
	n.losses = t.losses.Load()
	for i := range n.entries {
		e := &n.entries[i]
		if e.is(gone) && (n.retryAt == never || e.metric == 0) {
			continue
		}
		e.set(dirty)
		if e.unset(sending); e.seen == unseen {
			e.seen = (n.visit - 2) | 1 // that of the report before
		}
	}
	n.retryAt = never
	n.markPending()
}

// noteResync takes note that all of a node is on its way. The heartbeat goes with it: a
// reader that has the node from elsewhere may take it for missing.
func (t *Table) noteResync(n *node, now time.Duration) {
	n.heartbeatAt = 0
	if now >= n.resyncAt {
		n.resyncAt = past(t.set.ResyncInterval, n.resyncAt, now)
	}
	t.resyncs.Add(1)
}

// markPending has the node wait for Pending.
func (n *node) markPending() {
	if !n.inline && !n.pending {
		n.pending, n.pendingSince = true, n.lastSeen
	}
}

// past is the first time after now that lies whole intervals after at, so that a node keeps
// its phase.
func past(every, at, now time.Duration) time.Duration { return at + every*(1+(now-at)/every) }

// Observe compares a point with what is known of its series, and takes its value. A receiver
// keeps the newest point, and would take all values of a clock that was set back for old. So
// Observe gives such a point another time, with which it has to go on.
//
// Points of one series in a report all go on, in order, and so they do from the next report.
// Two series whose keys collide look just like that, and so neither is lost.
func (r *Report) Observe(p *Point) Verdict {
	n := r.node
	if n == nil {
		return r.untracked()
	}
	i, ok := n.find(p.Key, r.cursor)
	if !ok {
		return Unknown
	}
	r.cursor = i + 1
	e := &n.entries[i]
	again, doubted := e.seen == n.visit, e.seen == unseen
	e.seen = n.visit
	if p.End {
		return r.ended(e, doubted)
	}
	at := coarse(p.Time)
	if lag(e.time, at) > maxReorder {
		p.restamp(e.time)
		at = coarse(p.Time)
	}
	if e.markSeen(r.ticks); older(e.time, at) {
		if doubted {
			e.seen = unseen
		}
		r.table.stale.Add(1)
		return Drop
	}
	twice := again || e.is(repeated)
	if !doubted && !twice && !e.is(gone) && n.unchanged(e, p) && (!e.is(dirty) || e.is(sending) && !n.inline) {
		e.setTime(at)
		return Drop
	}
	if n.store(e, p, at); again {
		e.set(repeated)
	}
	return r.changed(i, twice)
}

// ended takes the end of a known series.
func (r *Report) ended(e *entry, doubted bool) Verdict {
	if e.is(gone) && e.metric != 0 && !doubted {
		return Drop // the next hop has the end, or is to get it
	}
	if e.end(r.ticks); e.metric == 0 {
		return Pass
	}
	r.node.markPending()
	return Drop
}

// changed is the verdict on a point whose value the entry at position i has now. It waits for
// Pending, or the message has it in a point of the report.
func (r *Report) changed(i int, twice bool) Verdict {
	e := &r.node.entries[i]
	if !r.node.inline && !twice && !e.opaque() {
		r.node.markPending()
		return Drop
	}
	e.set(sending)
	r.positions = append(r.positions, int32(i))
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
	if !r.reserve(size, p.Heartbeat) {
		return r.untracked()
	}
	i := n.insert(p.Key)
	e := &n.entries[i]
	if m != nil {
		e.metric, e.attrs = r.namer.name(&t.metrics, n, m, attrs)
	}
	if e.metric == 0 {
		t.unnamed.Add(1)
	}
	e.seen = n.visit
	if e.markSeen(r.ticks); p.End {
		return r.ended(e, false)
	}
	n.store(e, p, coarse(p.Time))
	return r.changed(i, false)
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

// restamp gives a point that is much older than the state the time of receipt, or one just
// after the state's where that is ahead of it. Where the clock here was set back too, the
// point's own stands.
func (p *Point) restamp(state uint32) {
	now := coarse(p.Received)
	ahead := lag(state, now)
	if now == 0 || ahead > maxReorder {
		return
	}
	p.Time = p.Received
	if ahead > 0 {
		p.Time += uint64(ahead+1) << timeShift
	}
}

// Lag is by how much the time of the open node's last report was before its heartbeat.
func (r *Report) Lag() uint64 {
	if n := r.node; n != nil && n.reportTime < n.heartbeat {
		return n.heartbeat - n.reportTime
	}
	return 0
}

// RelayedHeartbeat takes the heartbeat that an upstream tier has of the open node, in Unix
// nanoseconds of that tier's clock, and whether that clock agrees with the one here. It returns
// the node's last heartbeat, 0 for none of that tier, whether this one is newer, and agrees of
// the last one.
func (r *Report) RelayedHeartbeat(unixNano uint64, agrees bool) (last uint64, newer, agreed bool) {
	n := r.node
	if n == nil {
		return 0, false, false
	}
	before, agreed := n.relayedHeartbeat, n.clocksAgreed
	if n.relayedHeartbeat, n.clocksAgreed = unixNano, agrees; before == 0 {
		return 0, false, false
	}
	return n.heartbeat, unixNano > before, agreed
}

// Facts are what a push holds of a node besides its series.
type Facts struct {
	// Time is that of the report by the node's own clock, and Heartbeat when the first tier
	// received it, 0 for none that can be, both in Unix nanoseconds.
	Time, Heartbeat uint64
	// Relayed is set for a report of an upstream tier, which reduced it: a series that is not in
	// the report is not gone, for twice the TTL. After half a TTL without a report that tier may have
	// forgotten series that ended.
	Relayed bool
	Alive   bool          // the node itself reported, and not a gateway about it
	Behind  time.Duration // of the report's newest time before its receipt, with Timed only
	Timed   bool
}

// Close ends the points of the open node. Emit and Done follow.
func (r *Report) Close(f Facts) {
	n := r.node
	if n == nil {
		return
	}
	ttl := r.table.set.TTL
	// A heartbeat that is sent again is no sign of life.
	if f.Relayed && (f.Heartbeat > n.heartbeat || !n.relayed) {
		if r.now-n.relayedAt >= ttl/2 {
			n.tierReturned()
		}
		n.relayed, n.relayedAt = true, max(n.relayedAt, r.now)
	}
	if !f.Alive {
		if n.reportTime == 0 {
			n.reportTime = f.Time
		}
		return
	}
	if f.Heartbeat != 0 && f.Heartbeat >= n.heartbeat {
		n.reportTime, n.heartbeat = f.Time, f.Heartbeat
	}
	if f.Timed && n.clock.observe(f.Behind, r.now) {
		r.reportClock(n)
	}
	if !f.Relayed && n.isNode && r.now >= n.heartbeatAt {
		n.heartbeatDirty = true
		n.markPending()
	}
	if n.scanned == r.ticks {
		return
	}
	n.scanned = r.ticks
	if n.relayed = n.reduced(r.now, ttl); !n.relayed {
		r.vanish(n)
	}
}

// vanish ends the series that the node did not report for VanishedAfter, although it went
// on reporting.
func (r *Report) vanish(n *node) {
	after := r.table.vanishedTicks
	if after == 0 || r.ticks-r.table.ticks(n.reportingSince) <= after {
		return
	}
	for i := range n.entries {
		e := &n.entries[i]
		if e.age(r.ticks) > after && !e.is(gone) {
			e.end(r.ticks)
			n.markPending()
		}
	}
}

// Skim finds the points of a push that Report.Observe would drop, so that they need not be
// decoded. One goroutine uses it, before the report of what is left:
//
//	Open, Known..., Close   for each node of the push
//
// Open takes the node's lock and Close gives it back. Where another push of the node comes
// between, some points go on that need not.
type Skim struct {
	table  *Table
	id     uint64
	now    time.Duration
	ticks  uint64
	node   *node
	cursor int // where in node.entries the next point is expected
}

// Skim starts to look at a push.
func (t *Table) Skim(now time.Duration) Skim {
	return Skim{table: t, id: t.lastID.Add(1), now: now, ticks: t.ticks(now)}
}

// Open reports false, and no node is open, where the table does not have the node or the
// next hop is to get all of it.
func (s *Skim) Open(key NodeKey) bool {
	n := s.table.open(key)
	if n == nil {
		return false
	}
	if n.isPause(s.now-n.lastSeen) || s.table.resyncDue(n, s.now) {
		n.mu.Unlock()
		return false
	}
	if n.lastPush != s.id {
		n.lastPush, n.visit = s.id, (n.visit|1)+1
	}
	s.node, s.cursor = n, 0
	return true
}

// Close ends the points of the open node.
func (s *Skim) Close() { s.node.mu.Unlock() }

// Known reports whether the next hop has the value, or one within the metric's Band. Only
// those that may be known are, and that did not come before in the push: both go on, in order.
func (s *Skim) Known(p *Point, may bool) bool {
	n := s.node
	i, ok := n.find(p.Key, s.cursor)
	if !ok {
		return false
	}
	s.cursor = i + 1
	e, at := &n.entries[i], coarse(p.Time)
	if e.seen == n.visit || e.seen == n.visit+1 || e.seen == unseen {
		return false
	}
	e.seen = n.visit
	if !may || e.metric == 0 || e.is(dirty|gone|repeated) || lag(e.time, at) > 0 || !n.unchanged(e, p) {
		return false
	}
	e.seen++ // the report's visit: it finds the series reported twice if another point is left
	e.markSeen(s.ticks)
	e.setTime(at)
	return true
}
