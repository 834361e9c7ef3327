// SPDX-License-Identifier: Apache-2.0

package statetable // import "github.com/gpu-collector/gpu-collector/internal/delta/statetable"

// maxStarts is how many start times a node may have beyond its first, unless
// another tier reports for it. The sums of most nodes began together. A node whose sums
// began one by one must not make every series dearer.
const maxStarts = 16

// starts are the start times of a node's sums by entry.origin, which is a hash of
// them.
type starts struct {
	first  uint64
	origin uint32 // of first, 0 for none
	more   map[uint32]uint64
	full   bool // some are not known, for want of room
}

// of returns the start time of an origin, and false when it is not known.
func (s *starts) of(origin uint32) (start uint64, known bool) {
	switch origin {
	case 0:
		return 0, true
	case s.origin:
		return s.first, true
	}
	start, known = s.more[origin]
	return start, known
}

// began remembers the start of a sum, where there is room.
func (t *Table) began(n *node, p *pending) {
	s := &n.starts
	if p.start == 0 || p.origin == s.origin {
		return
	}
	if s.origin == 0 {
		s.first, s.origin = p.start, p.origin
		return
	}
	if _, known := s.more[p.origin]; known {
		return
	}
	switch {
	case n.relayed && len(s.more) >= 2*len(n.entries):
		n.pruneStarts() // and so many steps it takes to come here again
		t.recount(n)
		t.began(n, p)
		return
	case !n.relayed && len(s.more) >= maxStarts, !t.bytes.TakeAll(n.cluster, startBytes):
		s.full = true // until the next sweep
		return
	}
	if s.more == nil {
		s.more = map[uint32]uint64{}
	}
	s.more[p.origin] = p.start
	n.bytes += startBytes
}

// pruneStarts drops those that no series has any more.
func (n *node) pruneStarts() {
	old := n.starts
	n.starts = starts{}
	for i := range n.entries {
		origin := n.entries[i].origin
		start, known := old.of(origin)
		switch s := &n.starts; {
		case !known:
			s.full = true
		case origin == 0 || origin == s.origin:
		case s.origin == 0:
			s.first, s.origin = start, origin
		case s.more == nil:
			s.more = map[uint32]uint64{origin: start}
		default:
			s.more[origin] = start
		}
	}
}

// startsKnown is for sums whose starts were not remembered while no tier reported for the
// node: they are in doubt until the tier that reports now sends them again.
func (n *node) startsKnown() {
	if !n.starts.full {
		return
	}
	n.starts.full = false
	for i := range n.entries {
		e := &n.entries[i]
		if _, known := n.starts.of(e.origin); !known {
			e.doubt()
		}
	}
}
