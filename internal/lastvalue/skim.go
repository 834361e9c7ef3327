// SPDX-License-Identifier: Apache-2.0

package lastvalue // import "github.com/gpu-collector/gpu-collector/internal/lastvalue"

import "time"

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
	if n.pauses(s.now-n.heard) || s.table.whole(n, s.now) {
		n.mu.Unlock()
		return false
	}
	if n.owner != s.id {
		n.owner, n.visit = s.id, (n.visit|1)+1
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
	if !may || e.metric == 0 || e.is(dirty|gone|repeated) || lag(e.time, at) > 0 || !n.serves(e, p) {
		return false
	}
	e.seen++ // the report's visit: it finds the series reported twice if another point is left
	e.hear(s.ticks)
	e.setTime(at)
	return true
}
