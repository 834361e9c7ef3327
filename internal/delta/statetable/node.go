// SPDX-License-Identifier: Apache-2.0

package statetable // import "github.com/gpu-collector/gpu-collector/internal/delta/statetable"

import (
	"math/bits"
	"sync"
	"time"
)

// node is the state of one node. Its series lie in one slice, in the order in
// which they were first reported: a sender keeps its order, so a report is
// compared by walking that slice, and the index is only asked when it is not.
// Neither holds a pointer, so the garbage collector does not look inside.
type node struct {
	key NodeKey

	mu      sync.Mutex
	entries []entry
	// index holds position+1 of an entry, 0 for none: open addressing with
	// linear probing, at most three quarters full.
	index []uint16

	// layout counts the times that entries and sets moved.
	layout uint32

	// names are the series' in words, attrs the node's own set of them, without as
	// many as found no room; label and cluster are hashes of what the node is called.
	names          names
	bytes          int // that the ledger has for the node, see recount
	attrs, without uint16
	brought        brought
	described      bool
	kept           bool // a report of it was accepted
	accepted       bool // the next hop has taken something of it
	label, cluster uint64

	heard    time.Duration
	said     uint64 // the time of the last report by the node's clock, in Unix nanoseconds
	beat     uint64 // and its heartbeat: when the first tier received it
	told     uint64 // and that as the tier before told it, 0 for none
	clock    clock
	usual    time.Duration // between reports, 0 until there were two
	paced    bool          // there were three
	paused   time.Duration // the last pause
	resyncAt time.Duration
	opaqueAt time.Duration
	// epoch is the table's when the series were last made known.
	epoch uint64

	// since is when the node began to report without a pause. At relayedAt it last
	// reported through another tier, at scanned gone series were last looked for.
	since     time.Duration
	relayedAt time.Duration
	relayed   bool
	scanned   uint64

	// lost: since the node's last report the next hop said that it lacks the node.
	// lacking: the next hop is to get the whole state.
	lost    bool
	lacking bool
	starts  starts

	// The next heartbeat's earliest time, the report that last had one, accepted or
	// not, and the last accepted one's timestamp, as in entry.time.
	heartbeatAt   time.Duration
	heartbeatBy   uint64
	heartbeatTime uint32

	// generation counts the reports that have changed what is known here, and
	// committer is the last of them. A report that forwarded a series while
	// another did cannot tell which of the two the next hop took last.
	generation uint64
	committer  uint64

	// owner is the last report that looked at this node; visit is its mark on the
	// entries that it has seen. scanner is the last report that looked for vanished
	// entries. They mean nothing to another report.
	owner    uint64
	scanner  uint64
	visit    uint16
	inflight int32
	// reserved is how many series reports under way have room for. Beats says that
	// holdBeat has made room.
	reserved int
	beats    bool
	evicted  bool
	owes     bool // an entry may be owed
}

// entry is the last value of one series: 32 bytes.
type entry struct {
	key   uint64
	value uint64
	// origin is Point.Origin in 32 bits, see short.
	origin uint32
	// time is the point's timestamp in units of 2^20 ns (about 1 ms), modulo
	// 2^32 (52 days), never 0; 0 stands for none.
	time uint32
	// seen is the visit that last reported this series. After 65,536 visits
	// without it, it may be taken for a series reported twice, and is sent.
	seen uint16
	// bits holds, from the top: kind (2), unknown, repeated, gone, heard (11).
	bits uint16
	// metric and attrs name the series, see dictionary and names; 0 for none.
	metric, attrs uint16
}

const (
	kindShift = 14
	unknown   = 1 << 13 // not known to be what the next hop has
	repeated  = 1 << 12 // came more than once in one report
	gone      = 1 << 11 // the next hop has been told that the series ended, see owed
	heardMask = 1<<11 - 1

	// ticksPerTTL is the resolution of entry.heard, which thus counts up to 32
	// TTL; Sweep lets no series become that old.
	ticksPerTTL = 64
	// relayedTTLs is how many TTL a series is remembered that another tier reports
	// for, which does so when it changes and at its own resync.
	relayedTTLs = 8

	timeShift = 20
	// maxReorder is how much older than the state a point may be and still count as
	// overtaken. A sender of the Collector gives up
	// retrying after 5 minutes (configretry, max_elapsed_time); beyond that, a
	// clock has been set back, and its points must not be lost.
	maxReorder = uint32(5 * time.Minute >> timeShift)
)

func (e *entry) kind() Kind        { return Kind(e.bits >> kindShift) }
func (e *entry) heard() uint16     { return e.bits & heardMask }
func (e *entry) hear(tick uint16)  { e.bits = e.bits&^heardMask | tick }
func (e *entry) is(f uint16) bool  { return e.bits&f != 0 }
func (e *entry) set(f uint16)      { e.bits |= f }
func (e *entry) unset(f uint16)    { e.bits &^= f }
func (e *entry) setTime(at uint32) { e.time = later(e.time, at) }

// owed reports whether the next hop has to be told again that the series ended.
// Other series that are gone are unknown too.
func (e *entry) owed() bool { return e.bits&(gone|unknown) == gone }

// doubt makes the series one to be sent when it is next reported.
func (e *entry) doubt() {
	if !e.is(gone) {
		e.set(unknown)
	}
}

// opaque reports whether the point cannot be made of what is known.
func (e *entry) opaque() bool { return e.kind() == KindHash || e.metric == 0 }

// serves reports whether what the next hop has will do for p.
func (e *entry) serves(p *Point) bool {
	if e.origin != short(p.Origin) || e.kind() != p.Kind {
		return false
	}
	return e.value == p.Value || p.Band.holds(p.Kind, e.value, p.Value)
}

// short brings an origin to 32 bits. That two are taken for one has a chance of
// 2^-32 and is noticed with the next change of the value.
func short(origin uint64) uint32 {
	if origin == 0 {
		return 0
	}
	return uint32(finish(origin) >> 32)
}

// older reports whether a point at the given time was overtaken by the state's.
func older(state, at uint32) bool {
	if state == 0 || at == 0 {
		return false
	}
	d := state - at // modulo 2^32: a later point gives a large number
	return d != 0 && d <= maxReorder
}

// setBack reports whether a point is so much older than the state that a clock
// must have been set back. Beyond half of the range of times, 26 days, an
// older point looks like a later point.
func setBack(state, at uint32) bool {
	d := state - at
	return state != 0 && at != 0 && d > maxReorder && d < 1<<31
}

// later returns the later of two times; after a clock was set back by more than
// maxReorder, the new one.
func later(old, at uint32) uint32 {
	if at == 0 || (old != 0 && old-at <= maxReorder) {
		return old
	}
	return at
}

// coarse brings a Unix time in nanoseconds to the resolution of entry.time.
func coarse(unixNano uint64) uint32 {
	if unixNano == 0 {
		return 0
	}
	return max(uint32(unixNano>>timeShift), 1)
}

// find returns the position of a series; hint is where it is expected.
func (n *node) find(key uint64, hint int) (int, bool) {
	if uint(hint) < uint(len(n.entries)) && n.entries[hint].key == key {
		return hint, true
	}
	if len(n.index) == 0 {
		return 0, false
	}
	for slot := n.slot(key); ; slot++ {
		if slot == len(n.index) {
			slot = 0
		}
		at := n.index[slot]
		if at == 0 {
			return 0, false
		}
		if n.entries[at-1].key == key {
			return int(at - 1), true
		}
	}
}

// slot maps a key to the index by its high bits, for any length of the index
// (D. Lemire, "Fast Random Integer Generation in an Interval", 2019).
func (n *node) slot(key uint64) int {
	hi, _ := bits.Mul64(key, uint64(len(n.index)))
	return int(hi)
}

// grow makes room for more entries. It is exact for a first report and then
// takes little more, since memory per series is what bounds a fleet.
func (n *node) grow(more int) {
	need := len(n.entries) + more
	if need <= cap(n.entries) && need <= len(n.index)/4*3 {
		return
	}
	if need > cap(n.entries) {
		entries := make([]entry, len(n.entries), max(need, len(n.entries)+len(n.entries)/32))
		copy(entries, n.entries)
		n.entries = entries
	}
	n.reindex()
}

func (n *node) reindex() {
	size := (cap(n.entries)+2)/3*4 + 4
	if len(n.index) == size {
		clear(n.index)
	} else {
		n.index = make([]uint16, size)
	}
	for i := range n.entries {
		n.link(i)
	}
}

// link enters the entry at position i into the index.
func (n *node) link(i int) {
	slot := n.slot(n.entries[i].key)
	for n.index[slot] != 0 {
		if slot++; slot == len(n.index) {
			slot = 0
		}
	}
	n.index[slot] = uint16(i) + 1
}

// insert appends an entry; grow has made room.
func (n *node) insert(key uint64) int {
	n.entries = append(n.entries, entry{key: key})
	i := len(n.entries) - 1
	n.link(i)
	return i
}

// forgetAll makes every series unknown, so that each is sent when it is next
// reported, in whichever push that is, and the heartbeat with it.
func (n *node) forgetAll() {
	n.heartbeatAt = 0
	for i := range n.entries {
		n.entries[i].doubt()
	}
}

// pace takes the time since the node's last report, and returns its usual interval from
// then on. It also tells whether the node paused: it may have reported to another
// instance meanwhile, whose news this table does not know.
//
// Usual is the longest interval of late, since a sender may spread its series over some
// pushes. A report that went elsewhere doubles the interval; less than three quarters
// more is only late. A single interval is no pace: where many nodes begin at once, the
// first report is late, and the second is in time.
func (n *node) pace(d time.Duration) (usual time.Duration, paused bool) {
	usual = max(d, n.usual-n.usual/64)
	if !n.paced || d <= n.usual+max(n.usual/4*3, pauseSlack) {
		return usual, false
	}
	// One long silence is no pace; the second of that length is.
	return max(n.usual, min(d, n.paused)), true
}

// pauseSlack is how much any report may be late.
const pauseSlack = 500 * time.Millisecond

// reports tells whether the node's last report is not longer ago than a few of
// its intervals.
func (n *node) reports(now time.Duration) bool {
	return n.kept && now-n.heard <= n.patience(onceReported)
}

// left tells the same of a node that others need the room of. Nobody has to come back
// under a name that was made up, so one report buys little time.
func (n *node) left(now time.Duration) bool { return now-n.heard > n.patience(onceReported/2) }

func (n *node) patience(once time.Duration) time.Duration {
	if n.usual > 0 {
		return fewReports*n.usual + pauseSlack
	}
	return once
}

// compact drops series and returns how many: those silent for more than most ticks,
// those that ended a TTL ago, and with unnamed those without a name. With tell, the
// next report ends expired series first, since later tiers may remember them for longer.
func (n *node) compact(tick, most uint16, tell, unnamed bool) int {
	before := len(n.entries)
	kept := n.entries[:0]
	for _, e := range n.entries {
		age, ended := (tick-e.heard())&heardMask, e.is(gone)
		switch {
		case ended && age > ticksPerTTL:
		case !ended && age > most && tell && e.metric != 0:
			e.set(gone)
			e.unset(unknown)
			e.hear(tick) // its TTL begins
			n.owes = true
			kept = append(kept, e)
		case age > most || (unnamed && e.metric == 0):
		default:
			kept = append(kept, e)
		}
	}
	n.entries = kept
	if len(kept) == before {
		return 0
	}
	n.layout++
	if len(kept) < cap(kept)/2 {
		n.entries = append(make([]entry, 0, len(kept)), kept...)
	}
	n.reindex()
	return before - len(kept)
}
