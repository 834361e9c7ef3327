// SPDX-License-Identifier: Apache-2.0

package statetable // import "github.com/gpu-collector/gpu-collector/internal/delta/statetable"

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
	if v.heartbeat && n.heartbeatBy == r.id { // and no resync since
		n.heartbeatAt = max(n.heartbeatAt, r.now+r.table.set.HeartbeatInterval)
	}
	points := r.pending[v.from:v.to]
	if len(points) == 0 {
		return
	}
	n.accepted = true
	doubt := r.settle(n, v)
	if v.repeated && !doubt {
		n.lacking = false
	}
	room := r.table.reserve(n, countNew(points))
	n.grow(room)
	r.namer.next()
	r.named = 0
	for i := range points {
		p := &points[i]
		at, found := n.find(p.key, int(p.at))
		switch {
		case p.forget:
			switch {
			case !found:
			case doubt:
				n.entries[at].doubt()
			default:
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
		case !found:
			if room == 0 { // over the bound, or expired while under way
				room = r.table.reserve(n, 1)
				n.grow(room)
			}
			if room == 0 {
				r.untracked++
				n.lacks()
				continue
			}
			at = n.insert(p.key)
			n.entries[at].seen = n.visit
			r.christen(n, &n.entries[at], p)
			room--
		}
		n.entries[at].store(p, r.tick, doubt)
		n.began(p)
	}
	r.table.vacate(n, room)
	n.names.trim()
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
// report did so on the same node since this one was compared, or whether the
// next hop changed. What it has is then anyone's guess.
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
					n.entries[at].doubt()
				}
			}
		}
		n.mu.Unlock()
	}
	r.finish()
}

// Lose is Abort for a report that was accepted and of which something found no room
// all the same: a tier that sends only what changed is asked for all of its nodes.
func (r *Report) Lose() {
	for i := range r.visits {
		n := r.visits[i].node
		n.mu.Lock()
		n.lacks()
		n.mu.Unlock()
	}
	r.Abort()
}

func (r *Report) finish() {
	r.table.stale.Add(r.stale)
	r.table.unnamed.Add(r.unnamed)
	r.table.resyncs.Add(r.resyncs)
	clear(r.visits) // no node is kept alive by the pool
	r.again, r.first, r.accepted = 0, nil, false
	r.visits, r.pending, r.text, r.metric = r.visits[:0], r.pending[:0], r.text[:0], span{}
	if cap(r.text) > keepText {
		r.text, r.namer, r.pending = nil, namer{dict: r.table.dict}, nil
	}
	r.stale, r.untracked, r.unnamed, r.resyncs = 0, 0, 0, 0
	r.table.reports.Put(r)
}
