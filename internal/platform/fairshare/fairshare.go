// SPDX-License-Identifier: Apache-2.0

// Package fairshare divides a bounded number of slots among an unknown number of
// owners. An owner may hold no more than a share of the slots that the others do
// not hold. It needs no configuration per owner and no history. An owner without a slot
// is refused only when no slot is left.
//
// With a share of a half an owner holds no more than is still free. That is the
// dynamic threshold of Choudhury and Hahne (Dynamic queue length thresholds for
// shared-memory packet switches, IEEE/ACM Transactions on Networking 6, 1998)
// with their alpha of 1: a lone owner gets half, k that all want more get
// 1/(k+1) each, and however greedy k of them are, 2^-k is free for the next.
//
// A ledger of slots (NewSlots) gives three quarters of them to any owner, and holds
// owners to their share of the rest.
//
// A ledger that lends gives an owner all that is free, and holds it to its share only
// while another owner wants a slot. An owner wants from when it was refused below its
// share, or Want was called, until a minute after its last try.
package fairshare // import "github.com/gpu-collector/gpu-collector/internal/platform/fairshare"

import (
	"errors"
	"maps"
	"math"
	"sync"
	"time"
)

// Half is the share that is the rule.
const Half = 0.5

// ErrFull is for a TakeAll where no slot is left for an owner, or that it holds its share.
var ErrFull = errors.New("no slot is left, or the owner holds its share")

const (
	// wantFor is how long an owner wants after its last try. Nodes push every 10 s by
	// default, and come back from a refusal within a minute.
	wantFor = time.Minute
	// maxWanting bounds the owners that are known to want. So many bind all.
	maxWanting = 1024
)

// Limit is how many of so many slots an owner may hold while the others hold
// some; share is in (0,1].
func Limit(share float64, slots, others int) int {
	return int(math.Ceil(share * float64(slots-others)))
}

// Ledger counts what each owner holds of a number of slots. It is safe for
// concurrent use, and remembers only owners that hold or want something.
type Ledger[K comparable] struct {
	share float64
	slots int
	free  int              // slots that are given to anybody
	now   func() time.Time // nil where the share always binds

	mu    sync.Mutex
	taken int
	held  map[K]int
	// wants is until when an owner wants.
	wants map[K]time.Time
	swept time.Time
}

// New returns a ledger of so many slots; a share of 0 stands for 1, which
// bounds no owner but by what is left.
func New[K comparable](slots int, share float64) *Ledger[K] {
	if share <= 0 || share > 1 {
		share = 1
	}
	return &Ledger[K]{share: share, slots: slots, held: map[K]int{}}
}

// NewSlots returns a ledger whose share binds only under pressure, once three quarters of the
// slots are taken. No owner ever loses a slot to another.
func NewSlots[K comparable](slots int, share float64) *Ledger[K] {
	l := New[K](slots, share)
	l.free = threeQuarters(slots)
	return l
}

// NewLending returns a ledger whose share binds only while another owner wants a slot. It is
// for slots that come back soon: an owner that comes late gets nothing before that.
func NewLending[K comparable](slots int, share float64, now func() time.Time) *Ledger[K] {
	l := New[K](slots, share)
	l.now, l.wants = now, map[K]time.Time{}
	return l
}

// TakeAll gives an owner all of so many more slots, or none.
func (l *Ledger[K]) TakeAll(owner K, n int) bool {
	if n == 0 {
		return true // also for one that holds too many
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	fits := n <= l.room(owner)
	if _, wants := l.wants[owner]; wants || !fits && l.now != nil && l.low(owner) {
		l.want(owner)
	}
	if fits {
		l.held[owner] += n
		l.taken += n
	}
	return fits
}

// Want notes for an owner of a ledger that lends that it will want slots, whether or not
// it is refused.
func (l *Ledger[K]) Want(owner K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.want(owner)
}

func (l *Ledger[K]) want(owner K) {
	if _, wants := l.wants[owner]; wants || len(l.wants) < maxWanting {
		l.wants[owner] = l.now().Add(wantFor)
	}
}

// low reports whether an owner holds less than each of two get that both want more.
func (l *Ledger[K]) low(owner K) bool {
	return float64(l.held[owner])*(1+l.share) < l.share*float64(l.slots)
}

// bound reports whether an owner is held to its share.
func (l *Ledger[K]) bound(owner K) bool {
	if l.now == nil {
		return true
	}
	if len(l.wants) == 0 {
		return false
	}
	if now := l.now(); now.Sub(l.swept) >= time.Second { // not at each of many tries
		l.swept = now
		maps.DeleteFunc(l.wants, func(_ K, until time.Time) bool { return !now.Before(until) })
	}
	others := len(l.wants)
	if _, own := l.wants[owner]; own {
		others--
	}
	return others > 0
}

// Room is how many more slots an owner may hold now; at or below 0 there is none.
func (l *Ledger[K]) Room(owner K) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.room(owner)
}

func (l *Ledger[K]) room(owner K) int {
	if l.bound(owner) {
		return max(-l.over(owner), l.free-l.taken)
	}
	return l.slots - l.taken
}

// over is how many slots an owner holds beyond its share, negative below it.
func (l *Ledger[K]) over(owner K) int {
	held := l.held[owner]
	return held - Limit(l.share, l.slots, l.taken-held)
}

// Hold gives an owner slots that it had before the ledger was, whether or not
// they are within its share.
func (l *Ledger[K]) Hold(owner K, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held[owner] += n
	l.taken += n
}

// Give takes back slots that the owner holds.
func (l *Ledger[K]) Give(owner K, n int) {
	if n == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken -= n
	if l.held[owner] -= n; l.held[owner] <= 0 {
		delete(l.held, owner)
	}
}

// Due reports whether an owner that was missing for so long, after so long a life, gives its slots back:
// after the expiry, and under pressure once it was missing for longer than it lived. So a
// flood of made-up names keeps no owner out for long, and costs no established owner a slot.
func (l *Ledger[K]) Due(lived, missing, expiry time.Duration) bool {
	return missing > expiry || missing > lived && l.Pressed()
}

// Pressed reports whether more than three quarters of the slots are taken.
func (l *Ledger[K]) Pressed() bool { return l.Taken() > threeQuarters(l.slots) }

// threeQuarters is in floating point, since slots may be near the largest int.
func threeQuarters(slots int) int { return int(0.75 * float64(slots)) }

// Most is the share of an owner that is alone.
func (l *Ledger[K]) Most() int { return Limit(l.share, l.slots, 0) }

// Full reports whether no slot is left for anybody.
func (l *Ledger[K]) Full() bool { return l.Taken() >= l.slots }

// Taken is how many slots are taken.
func (l *Ledger[K]) Taken() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.taken
}

// Held is how many slots an owner holds.
func (l *Ledger[K]) Held(owner K) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held[owner]
}
