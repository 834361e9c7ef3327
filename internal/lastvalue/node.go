// SPDX-License-Identifier: Apache-2.0

package lastvalue // import "github.com/gpu-collector/gpu-collector/internal/lastvalue"

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
	isNode         bool
	inline         bool // points go on with their reports
	label, cluster uint64
	starts         []uint64 // of sums, by entry.origin

	heard    time.Duration // the last report, by the table's time
	said     uint64        // its time by the node's clock, in Unix nanoseconds
	beat     uint64        // and its heartbeat: when the first tier received it
	told     uint64        // and that as the tier before has it, 0 for none
	agreed   bool          // the tier's clock did with the one here
	clock    clock
	usual    time.Duration // between reports, 0 until there were two
	paced    bool          // there were three
	paused   time.Duration // the last pause
	resyncAt time.Duration
	opaqueAt time.Duration
	// epoch and requests are the table's when the series were last made dirty.
	epoch, requests uint64
	// gaveUp: the next hop has refused something for good. At retryAt all goes again.
	gaveUp  bool
	retryAt time.Duration
	// unsure: the node paused, and may have reported elsewhere. A series that was not
	// reported after visit sureAfter goes on with its next report.
	unsure    bool
	sureAfter uint16

	// since is when the node began to report without a pause. At relayedAt it last
	// reported through another tier, at scanned gone series were last looked for.
	since     time.Duration
	relayedAt time.Duration
	relayed   bool
	scanned   uint64

	// owner is the last report that opened the node; visit is its mark on the entries
	// that it has seen.
	owner uint64
	visit uint16

	// beatDirty: the next hop is to get the heartbeat. It is not due before beatAt.
	beatDirty bool
	beatAt    time.Duration
	// pending: there may be something for Pending, since waitsSince.
	pending    bool
	waitsSince time.Duration
	accepted   bool // the next hop has taken something of the node
	// messages are those under way with something of the node, the last of them and the last
	// with a heartbeat by their ids. With overlap there were several at once: nobody knows
	// which the next hop took last.
	messages             int32
	message, beatMessage uint64
	overlap              bool

	beats   bool // see holdBeat
	evicted bool
}

// entry is the last value of one series: 32 bytes.
type entry struct {
	key   uint64
	value uint64
	// origin is the place of the sum's start in node.starts plus 1, 0 for none, and in
	// its lowest byte the point's flags.
	origin uint32
	// time is the point's timestamp in units of 2^20 ns (about 1 ms), modulo
	// 2^32 (52 days), never 0; 0 stands for none.
	time uint32
	// seen is the visit that last reported this series. After 65,536 visits without it,
	// three a push, it may be taken for a series reported twice, and is sent.
	seen uint16
	// bits holds, from the top: kind (2), dirty, sending, repeated, gone, heard (10).
	bits uint16
	// metric and attrs name the series, see names; 0 for none.
	metric, attrs uint16
}

const (
	kindShift = 14
	dirty     = 1 << 13 // the next hop is to get it
	sending   = 1 << 12 // a message has it as it is
	repeated  = 1 << 11 // came more than once in one report: goes on as it comes
	gone      = 1 << 10 // the series ended
	heardMask = 1<<10 - 1

	// ticksPerTTL is the resolution of entry.heard, which thus counts up to 16
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

// opaque reports whether the point cannot be made of what is known.
func (e *entry) opaque() bool { return e.kind() == KindHash || e.metric == 0 }

// serves reports whether what the next hop has will do for p.
func (n *node) serves(e *entry, p *Point) bool {
	if e.kind() != p.Kind || uint8(e.origin) != p.Flags || n.startOf(e) != p.Start {
		return false
	}
	return e.value == p.Value || e.metric != 0 && n.band(e).holds(p.Kind, e.value, p.Value)
}

// doubted reports whether the series was not reported since the node paused.
func (n *node) doubted(e *entry) bool {
	return n.unsure && int16(e.seen-n.sureAfter) <= 0
}

// store takes the value of a point at a time, which the next hop is to get.
func (n *node) store(e *entry, p *Point, at uint32) {
	if n.startOf(e) != p.Start {
		e.origin = n.start(p.Start) << 8
	}
	e.origin = e.origin&^0xff | uint32(p.Flags)
	e.value = p.Value
	e.setTime(at)
	e.bits = e.bits&^(3<<kindShift|gone|sending|repeated) | uint16(p.Kind)<<kindShift | dirty
}

// end takes note that a series ended, which the next hop is to get where it has a name.
func (e *entry) end(tick uint16) {
	e.hear(tick) // its TTL begins
	e.unset(sending | dirty)
	if e.set(gone); e.metric != 0 {
		e.set(dirty)
	}
}

// startOf is the start time of a sum, 0 for none.
func (n *node) startOf(e *entry) uint64 {
	if at := e.origin >> 8; at != 0 {
		return n.starts[at-1]
	}
	return 0
}

// lookBack is how many of the last start times are searched: the sums of most nodes began
// together, or in few groups.
const lookBack = 16

// start returns the place of a start time, plus 1.
func (n *node) start(at uint64) uint32 {
	if at == 0 {
		return 0
	}
	if len(n.starts) >= 2*len(n.entries)+lookBack {
		n.pruneStarts() // and so many starts it takes to come here again
	}
	for i := len(n.starts) - 1; i >= max(0, len(n.starts)-lookBack); i-- {
		if n.starts[i] == at {
			return uint32(i) + 1
		}
	}
	n.starts = append(n.starts, at)
	return uint32(len(n.starts))
}

// pruneStarts drops those that no series has any more.
func (n *node) pruneStarts() {
	old := n.starts
	n.starts = nil
	places := map[uint64]uint32{}
	for i := range n.entries {
		e := &n.entries[i]
		if e.origin>>8 == 0 {
			continue
		}
		at := old[e.origin>>8-1]
		if places[at] == 0 {
			n.starts = append(n.starts, at)
			places[at] = uint32(len(n.starts))
		}
		e.origin = places[at]<<8 | e.origin&0xff
	}
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

// trim gives back the room that inserting took ahead: memory per series is what bounds a
// fleet.
func (n *node) trim() {
	if cap(n.entries)-len(n.entries) > len(n.entries)/32 {
		n.entries = append(make([]entry, 0, len(n.entries)), n.entries...)
		n.reindex()
	}
	n.names.trim()
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

// insert appends an entry.
func (n *node) insert(key uint64) int {
	full := len(n.entries) == cap(n.entries)
	n.entries = append(n.entries, entry{key: key})
	i := len(n.entries) - 1
	if full || len(n.entries) > len(n.index)/4*3 {
		n.reindex()
	} else {
		n.link(i)
	}
	return i
}

// markAll makes every series dirty, and the heartbeat due. What ended is so for the next
// hop too, unless it has refused something for good.
func (n *node) markAll() {
	n.beatAt = 0
	for i := range n.entries {
		if e := &n.entries[i]; !e.is(gone) || n.gaveUp && e.metric != 0 {
			e.set(dirty)
			e.unset(sending)
		}
	}
	n.unsure, n.gaveUp = false, false
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

// silent reports whether the node's last report is longer ago than a few of its
// intervals; once is what a node that reported once has.
func (n *node) silent(now, once time.Duration) bool {
	patience := once
	if n.usual > 0 {
		patience = fewReports*n.usual + pauseSlack
	}
	return now-n.heard > patience
}

// A node may be silent for fewReports of its usual intervals and still count as
// reporting. A node that has reported once may be silent for onceReported, the interval
// of the slowest usual source.
const (
	fewReports   = 3
	onceReported = time.Minute
)

// most is how many ticks a series that has not ended may be silent.
func (n *node) most(now, ttl time.Duration) uint16 {
	if n.relayed && now-n.relayedAt < 2*ttl {
		return relayedTTLs * ticksPerTTL
	}
	return ticksPerTTL
}

// returned is for a node whose tier before was silent for so long that series may have
// ended without a marker. Series that this report does not hold have ended until that tier
// reports them again.
func (n *node) returned() {
	for i := range n.entries {
		if e := &n.entries[i]; e.seen != n.visit {
			e.set(gone)
			e.unset(dirty | sending)
		}
	}
}

// when is the time at which the node is known to have reported what the entry holds. What
// another tier did not send again was so until that tier's last report.
func (n *node) when(e *entry) uint64 {
	behind := int32(coarse(n.said) - e.time)
	if e.time == 0 || e.is(gone) || n.relayed && behind > 0 {
		return n.said
	}
	return n.said - uint64(int64(behind)<<timeShift)
}

// compact drops series and returns how many: those silent for more than most ticks, and
// those that ended a TTL ago. With tell, the next message ends expired series first.
func (n *node) compact(tick, most uint16, tell bool) int {
	before := len(n.entries)
	kept := n.entries[:0]
	for _, e := range n.entries {
		age, ended := (tick-e.heard())&heardMask, e.is(gone)
		if !ended && age > most && tell && e.metric != 0 {
			e.end(tick)
		} else if age > most || ended && age > ticksPerTTL {
			continue
		}
		kept = append(kept, e)
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
	n.pruneStarts()
	return before - len(kept)
}
