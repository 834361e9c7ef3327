// SPDX-License-Identifier: Apache-2.0

package statetable // import "github.com/gpu-collector/gpu-collector/internal/delta/statetable"

// Commit makes the report the state: the next hop has accepted it.
func (r *Report) Commit() {
	for i := range r.visits {
		r.commit(&r.visits[i])
	}
	t := r.table
	t.untracked.Add(r.untracked)
	t.stale.Add(r.stale)
	t.unnamed.Add(r.unnamed)
	t.resyncs.Add(r.resyncs)
	t.unrepeatable.Add(r.unrepeatable)
	if r.pressed {
		t.press()
	}
	for i := range r.clocks {
		t.set.OnClock(&r.clocks[i])
	}
	r.clocks = nil
	r.finish()
}

// Miss notes before Commit that something of these nodes found no room on its way:
// they were heard of, and their next reports carry again what this one forwards. A
// tier that sends only changes does so at its resync.
func (r *Report) Miss(nodes map[NodeKey]struct{}) {
	for i := range r.visits {
		v := &r.visits[i]
		_, v.missed = nodes[v.node.key]
	}
}

func (r *Report) commit(v *visit) {
	n := v.node
	n.mu.Lock()
	defer n.mu.Unlock()
	n.inflight--
	if !v.held {
		r.hear(n, v)
	}
	points := r.pending[v.from:v.to]
	if len(points) == 0 {
		return // and nothing is reserved
	}
	doubt := r.settle(n, v)
	if v.missed {
		n.doubtAll(points, r.tick, doubt)
		n.beats = n.beats && !v.beats
		r.table.release(v)
		return
	}
	n.accepted = true
	if v.repeated && !doubt {
		n.lacking = false
	}
	n.grow(v.series)
	r.namer.next()
	r.named = 0
	for i := range points {
		p := &points[i]
		at, found := n.find(p.key, int(p.at))
		switch {
		case p.forget:
			switch {
			case !found && !p.placed:
			case found && doubt:
				n.entries[at].doubt()
			default:
				if !found {
					at = r.insert(n, v, p)
				}
				n.entries[at].set(unknown | gone)
				n.entries[at].hear(r.tick) // its TTL begins
			}
			continue
		case p.stands:
			// Not heard of: nobody but this table said it.
			switch {
			case !found:
			case doubt: // it may have come after what the other report brought
				n.entries[at].doubt()
			default:
				n.entries[at].unset(unknown)
			}
			r.table.repeated.Add(1)
			continue
		case found && p.at < 0 && !doubt:
			p.repeated = true // entered by this very report
		case !found && !p.placed:
			r.untracked++
			continue
		case !found:
			at = r.insert(n, v, p)
		}
		n.entries[at].store(p, r.tick, doubt)
		r.table.began(n, p)
	}
	n.names.trim()
	if n.owes {
		n.settleOwed()
	}
	r.table.recount(n)
	r.table.release(v)
}

// insert makes an entry in the room that the visit has reserved. Some of it may be
// left, for a new series may come twice.
func (r *Report) insert(n *node, v *visit, p *pending) int {
	at := n.insert(p.key)
	n.entries[at].seen = n.visit
	r.christen(n, &n.entries[at], p)
	v.reserve(-1, 0)
	r.table.series.Add(1)
	return at
}

// hear takes note of all that the report says besides what it forwards.
func (r *Report) hear(n *node, v *visit) {
	n.kept = true
	if v.first {
		r.arrive(n, v)
	}
	if v.heartbeat && !v.missed {
		n.heartbeatTime = later(n.heartbeatTime, v.beat)
		if n.heartbeatBy == r.id { // and no resync since
			n.heartbeatAt = max(n.heartbeatAt, r.now+r.table.set.HeartbeatInterval)
		}
	}
	if v.received != 0 && v.received >= n.beat {
		n.said, n.beat = v.said, v.received
	}
	if v.told != 0 {
		n.told = v.told
	}
	if v.timed && n.clock.hear(v.behind, r.now) {
		r.tellClock(n)
	}
	r.mark(n, v)
	if v.scanned {
		n.scanned = r.ticks
		n.relayed = r.relays(n)
	}
	if v.relayed {
		if r.silent(n) {
			n.returned()
		}
		if !n.relayed {
			n.startsKnown()
		}
		n.relayed, n.relayedAt = true, max(n.relayedAt, r.now)
	}
}

// arrive takes note that the node reports, and of what is due at such times.
func (r *Report) arrive(n *node, v *visit) {
	set := &r.table.set
	silent := r.now - n.heard
	if silent > set.VanishedAfter {
		n.since = r.now
	}
	usual, paused := n.pace(silent)
	if n.paced, n.usual = n.usual > 0, usual; paused {
		n.paused = silent
	}
	n.heard = max(n.heard, r.now)
	if v.resync {
		if r.due(set.ResyncInterval, n.resyncAt) {
			n.resyncAt = r.past(set.ResyncInterval, n.resyncAt)
		}
		// Lost anew while this was under way: the next report is for that.
		n.lost = n.lost && n.generation != v.generation
		n.epoch, n.lacking = v.epoch, !v.paused
		n.forgetAll()
		r.resyncs++
	}
	if v.opaque && r.due(set.OpaqueInterval, n.opaqueAt) {
		n.opaqueAt = r.past(set.OpaqueInterval, n.opaqueAt)
		for i := range n.entries {
			if e := &n.entries[i]; e.opaque() {
				e.set(unknown)
			}
		}
	}
}

// mark takes note of the series that the report holds.
func (r *Report) mark(n *node, v *visit) {
	if n.owner != r.id { // another report looked at the node since
		n.owner = r.id
		n.visit++
		for i := v.from; i < v.to; i++ {
			if at := r.pending[i].at; at >= 0 {
				n.entries[at].seen = n.visit
			}
		}
	}
	for _, run := range r.runs[v.runFrom:v.runTo] {
		for i := run.from; i < run.to; i++ {
			e := &n.entries[i]
			if run.ended {
				e.set(unknown | gone)
				continue
			}
			if e.seen = n.visit; r.now >= n.heard { // no later report was before this one
				e.hear(r.tick)
			}
			e.setTime(run.time)
		}
	}
}

// settleOwed looks for ends that are still to be told. A series without a name has none.
func (n *node) settleOwed() {
	n.owes = false
	for i := range n.entries {
		if e := &n.entries[i]; e.owed() && e.metric == 0 {
			e.set(unknown)
		} else if e.owed() {
			n.owes = true
		}
	}
}

// doubtAll has the node's next report carry the points again. A series that ended, and a
// series that had ended, stay so for readers, and their ends are told again: the values of
// before are nobody's. With doubt another report may have said otherwise meanwhile.
func (n *node) doubtAll(points []pending, tick uint16, doubt bool) {
	for i := range points {
		p := &points[i]
		at, found := n.find(p.key, int(p.at))
		if !found {
			continue
		}
		e := &n.entries[at]
		switch ended := e.is(gone); {
		case doubt && p.forget:
			e.doubt()
		case doubt || (!ended && !p.forget):
			e.unset(gone)
			e.set(unknown)
		default:
			e.set(gone)
			if e.unset(unknown); !ended {
				e.hear(tick) // its TTL begins
			}
			n.owes = true
		}
	}
	if n.owes {
		n.settleOwed()
	}
}

// christen gives a new entry its name. Points of one metric follow each other.
func (r *Report) christen(n *node, e *entry, p *pending) {
	if p.metric == 0 {
		return
	}
	if r.named != p.metric {
		m := decodeMetric(r.text[p.metric-1:])
		r.named, r.number = p.metric, r.table.dict.metric(&m, n)
	}
	if r.number != 0 {
		e.attrs = r.namer.add(n, r.text[p.from:p.to])
	}
	if e.attrs == 0 {
		r.unnamed++
		return
	}
	e.metric = r.number
}

// settle closes a visit that forwarded something. It reports a doubt where another report
// forwarded something of the node since this one was compared, or the next hop changed.
func (r *Report) settle(n *node, v *visit) bool {
	own := n.committer == r.id
	doubt := n.generation != v.generation && (!own || n.generation != v.generation+1)
	doubt = doubt || v.epoch != r.table.epoch.Load()
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

// Abort is for a report that went on and was refused. The next hop may have taken some of
// it all the same: one of two exporters, or all of it before a timeout. So its forwarded
// series are unknown, and the next report carries them again. Those that it ended are not
// told as alive until then. Nothing else changes.
func (r *Report) Abort() { r.leave(true) }

// Discard is for a report that did not go on. Nothing changes.
func (r *Report) Discard() { r.leave(false) }

func (r *Report) leave(doubt bool) {
	for i := range r.visits {
		v := &r.visits[i]
		n := v.node
		n.mu.Lock()
		n.inflight--
		if points := r.pending[v.from:v.to]; doubt && len(points) > 0 {
			n.doubtAll(points, r.tick, r.settle(n, v))
		}
		r.table.release(v)
		n.beats = n.beats && !v.beats
		// A node that no report has made known is not known.
		unknown := !n.kept && !n.evicted && n.inflight == 0
		n.evicted = n.evicted || unknown
		n.mu.Unlock()
		if unknown {
			r.table.remove(n)
		}
	}
	r.finish()
}

func (r *Report) finish() {
	clear(r.visits) // no node is kept alive by the pool
	r.visits, r.pending, r.runs = r.visits[:0], r.pending[:0], r.runs[:0]
	r.text, r.metric, r.again, r.pressed = r.text[:0], span{}, 0, false
	if cap(r.text) > keepText {
		r.text, r.namer, r.pending, r.runs = nil, namer{dict: r.table.dict}, nil, nil
	}
	r.stale, r.untracked, r.unnamed, r.resyncs, r.unrepeatable = 0, 0, 0, 0, 0
	r.table.reports.Put(r)
}
