// SPDX-License-Identifier: Apache-2.0

package lastvalue // import "github.com/gpu-collector/gpu-collector/internal/lastvalue"

import (
	"math/bits"
	"sync"
	"time"
)

// node is the state of one node. Its series lie in one slice, in the order in which they
// were first reported: a sender keeps its order, so that a report is compared by walking the
// slice. Neither slice nor index holds a pointer, and the garbage collector passes them over.
type node struct {
	key NodeKey

	mu      sync.Mutex
	entries []entry
	// index holds position+1 of an entry, 0 for none: open addressing with linear probing.
	index  []uint16
	layout uint32 // counts the times that entries and sets moved

	// names are those of the series, attrs is the node's own set of attributes. droppedAttrs of
	// them found no room. cluster is the hash of its cluster's name.
	names               names
	bytes               int // that the ledger has for the node, see recount
	attrs, droppedAttrs uint16
	isNode              bool
	inline              bool // points go on with their reports
	cluster             uint64
	starts              []uint64 // of sums, by entry.origin

	lastSeen         time.Duration // the last report, by the table's time
	reportTime       uint64        // its time by the node's clock, in Unix nanoseconds
	heartbeat        uint64        // and its heartbeat: when the first tier received it
	relayedHeartbeat uint64        // and that as the tier upstream has it, 0 for none
	clocksAgreed     bool          // the clock of that tier did with the one here
	clock            clock
	interval         time.Duration // the usual one between reports, 0 until there were two
	intervalKnown    bool          // there were three
	lastPause        time.Duration

	// At resyncAt all of the node goes again, and at opaqueAt what is opaque of it. At retryAt
	// all goes because the next hop has refused something for good. losses are the table's when
	// all was made dirty.
	resyncAt, opaqueAt, retryAt time.Duration
	losses                      uint64

	// At reportingSince the node began to report without a pause, at relayedAt it last reported
	// through an upstream tier, and at scanned, in ticks, gone series were last looked for.
	reportingSince time.Duration
	relayedAt      time.Duration
	relayed        bool
	scanned        uint64

	// lastPush is the last push that opened the node. visit is its mark on the entries that it
	// has seen: 2n for a Skim, 2n+1 for a Report.
	lastPush uint64
	visit    uint16

	// heartbeatDirty: the next hop is to get the heartbeat. It is not due before heartbeatAt.
	heartbeatDirty bool
	heartbeatAt    time.Duration
	// pending: there may be something for Pending, since pendingSince.
	pending      bool
	pendingSince time.Duration
	accepted     bool // the next hop has taken something of the node
	// inFlight are the messages under way with a part of the node, lastMessage is the last of
	// these by its id, and heartbeatMessage the last with a heartbeat. With overlapped several
	// were at once: the last one that the next hop took is not known.
	inFlight                      int32
	lastMessage, heartbeatMessage uint64
	overlapped                    bool

	heartbeatHasRoom bool // see reserve
	evicted          bool
}

// entry is the last value of one series: 32 bytes.
type entry struct {
	key   uint64
	value uint64
	// origin is the position of the sum's start in node.starts plus 1, 0 for none, and in its
	// lowest byte the point's flags.
	origin uint32
	// time is the point's in units of 2^20 ns (about 1 ms), modulo 2^32 (52 days), 0 for none.
	time uint32
	// seen is the visit that last reported this series, or unseen. After 65,536 visits without
	// it, two a push, it may be taken for a series reported twice, and is sent.
	seen uint16
	// bits holds, from the top: kind (2), dirty, sending, repeated, gone, age (10).
	bits uint16
	// metric and attrs name the series, see names; 0 for none.
	metric, attrs uint16
}

// unseen is an entry's visit where the node paused since: it may have reported elsewhere. So
// the series goes on with its next report, and not before.
const unseen = 0

const (
	kindShift = 14
	dirty     = 1 << 13 // the next hop is to get it
	sending   = 1 << 12 // a message has it as it is
	repeated  = 1 << 11 // came more than once in one report: goes on as it comes
	gone      = 1 << 10 // the series ended
	ageMask   = 1<<10 - 1

	// ticksPerTTL is the resolution of entry.age, which thus counts up to 16 TTL. Sweep
	// lets no series become that old.
	ticksPerTTL = 64
	// relayedTTLs is how many TTL a series is remembered that an upstream tier reports only when
	// it changes, and at its own resync.
	relayedTTLs = 8

	timeShift = 20
	// maxReorder is how much older than the state a point may be and still count as overtaken.
	// A sender of the Collector gives up after 5 minutes (configretry, max_elapsed_time).
	// Beyond that a clock has been set back, and its points must not be lost.
	maxReorder = int32(5 * time.Minute >> timeShift)
)

func (e *entry) kind() Kind              { return Kind(e.bits >> kindShift) }
func (e *entry) is(f uint16) bool        { return e.bits&f != 0 }
func (e *entry) set(f uint16)            { e.bits |= f }
func (e *entry) unset(f uint16)          { e.bits &^= f }
func (e *entry) markSeen(ticks uint64)   { e.bits = e.bits&^ageMask | uint16(ticks)&ageMask }
func (e *entry) age(ticks uint64) uint64 { return (ticks - uint64(e.bits)) & ageMask }

// opaque reports whether the point cannot be made of what is known.
func (e *entry) opaque() bool { return e.kind() == KindHash || e.metric == 0 }

// unchanged reports whether what the next hop has will do for p.
func (n *node) unchanged(e *entry, p *Point) bool {
	if e.kind() != p.Kind || uint8(e.origin) != p.Flags || n.startOf(e) != p.Start {
		return false
	}
	return e.value == p.Value || e.metric != 0 && n.names.metrics[e.metric-1].band.within(p.Kind, e.value, p.Value)
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
func (e *entry) end(ticks uint64) {
	e.markSeen(ticks) // its TTL begins
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

// lookBack is how many of the last start times are searched: most sums began in few groups.
const lookBack = 16

// start returns the position of a start time, plus 1.
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
	for i := range n.entries {
		if e := &n.entries[i]; e.origin>>8 != 0 {
			e.origin = n.start(old[e.origin>>8-1])<<8 | e.origin&0xff
		}
	}
}

// lag is by how much a point's time is before the state's, negative for a later point, and 0
// where one of them has none. Beyond half of the range of times, 26 days, a point that is
// older looks like a later one.
func lag(state, at uint32) int32 {
	if state == 0 || at == 0 {
		return 0
	}
	return int32(state - at)
}

// older reports whether a point was overtaken by the state's.
func older(state, at uint32) bool {
	d := lag(state, at)
	return d > 0 && d <= maxReorder
}

// setTime takes the time of a point that was not overtaken.
func (e *entry) setTime(at uint32) {
	if at != 0 && !older(e.time, at) {
		e.time = at
	}
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
	at := n.index[n.slot(key)]
	return int(at) - 1, at != 0
}

// slot is where the index has a key, or has room for it. A key's high bits are where to begin,
// for any length (D. Lemire, "Fast Random Integer Generation in an Interval", 2019).
func (n *node) slot(key uint64) int {
	hi, _ := bits.Mul64(key, uint64(len(n.index)))
	for slot := int(hi); ; slot++ {
		if slot == len(n.index) {
			slot = 0
		}
		if at := n.index[slot]; at == 0 || n.entries[at-1].key == key {
			return slot
		}
	}
}

// trim gives back the room that inserting took ahead: memory per series bounds a fleet.
func (n *node) trim() {
	if before := cap(n.entries); before > len(n.entries) {
		if n.entries = trimmed(n.entries, 32); cap(n.entries) < before {
			n.reindex()
		}
		n.names.trim()
	}
}

func (n *node) reindex() {
	n.index = make([]uint16, (cap(n.entries)+2)/3*4+4)
	for i := range n.entries {
		n.index[n.slot(n.entries[i].key)] = uint16(i) + 1
	}
}

// insert appends an entry.
func (n *node) insert(key uint64) int {
	i, full := len(n.entries), len(n.entries) == cap(n.entries)
	n.entries = append(n.entries, entry{key: key})
	if full {
		n.reindex() // its size is by the capacity
	} else {
		n.index[n.slot(key)] = uint16(i) + 1
	}
	return i
}

// isPause reports whether a node that reports again after so long has paused. It may have
// reported to another instance once, which doubles the interval; less than three quarters more
// is only late. One interval is no pace: where many nodes begin at once, the first is longer.
func (n *node) isPause(gap time.Duration) bool {
	return n.intervalKnown && gap > n.interval+max(n.interval/4*3, pauseSlack)
}

// observeInterval takes the time since the node's last report, and reports whether it paused.
// The interval is the longest one of late, since a sender may spread its series over some
// pushes. One long gap is no pace, and the second of that length is.
func (n *node) observeInterval(gap time.Duration) (paused bool) {
	paused, n.intervalKnown = n.isPause(gap), n.interval > 0
	if !paused {
		n.interval = max(gap, n.interval-n.interval/64)
		return false
	}
	n.interval, n.lastPause = max(n.interval, min(gap, n.lastPause)), gap
	return true
}

// missing reports whether the node's last report is longer ago than a few of its intervals,
// or than once for a node that reported once.
func (n *node) missing(now, once time.Duration) bool {
	patience := once
	if n.interval > 0 {
		patience = fewReports*n.interval + pauseSlack
	}
	return now-n.lastSeen > patience
}

const (
	// pauseSlack is how much any report may be late.
	pauseSlack = 500 * time.Millisecond
	// A node counts as reporting that was missing for fewReports of its usual intervals.
	fewReports = 3
	// onceReported is that for a node that reported once: the interval of slow sources.
	onceReported = time.Minute
)

// reduced reports whether a tier reports for the node that leaves out what did not change.
func (n *node) reduced(now, ttl time.Duration) bool { return n.relayed && now-n.relayedAt < 2*ttl }

// tierReturned is for a node whose tier upstream was missing for so long that series may have
// ended without a marker. So those that this report does not hold are gone until that tier
// reports them again.
func (n *node) tierReturned() {
	for i := range n.entries {
		if e := &n.entries[i]; e.seen != n.visit {
			e.seen = unseen
			e.set(gone)
			e.unset(dirty | sending)
		}
	}
}

// when is the time at which the node is known to have reported what the entry holds. What
// an upstream tier did not send again was so until that tier's last report.
func (n *node) when(e *entry) uint64 {
	behind := int32(coarse(n.reportTime) - e.time)
	if e.time == 0 || e.is(gone) || n.relayed && behind > 0 {
		return n.reportTime
	}
	return n.reportTime - uint64(int64(behind)<<timeShift)
}
