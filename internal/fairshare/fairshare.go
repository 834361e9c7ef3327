// SPDX-License-Identifier: Apache-2.0

// Package fairshare divides a bounded number of places among an unknown number of
// owners. An owner may hold no more than a share of the places that the others do
// not hold. It needs no configuration per owner, no history and no clock. An owner
// without a place is refused only when no place is left.
//
// With a share of a half an owner holds no more than is still free. That is the
// dynamic threshold of Choudhury and Hahne (Dynamic queue length thresholds for
// shared-memory packet switches, IEEE/ACM Transactions on Networking 6, 1998)
// with their alpha of 1: a lone owner gets half, k that all want more get
// 1/(k+1) each, and however greedy k of them are, 2^-k is free for the next.
package fairshare // import "github.com/gpu-collector/gpu-collector/internal/fairshare"

import (
	"math"
	"sync"
)

// Half is the share that is the rule.
const Half = 0.5

// Limit is how many of so many places an owner may hold while the others hold
// some; share is in (0,1].
func Limit(share float64, places, others int) int {
	return int(math.Ceil(share * float64(places-others)))
}

// Ledger counts what each owner holds of a number of places. It is safe for
// concurrent use, and remembers only owners that hold something.
type Ledger[K comparable] struct {
	share  float64
	places int

	mu    sync.Mutex
	taken int
	held  map[K]int
}

// New returns a ledger of so many places; a share of 0 stands for 1, which
// bounds nobody but by what is left.
func New[K comparable](places int, share float64) *Ledger[K] {
	if share <= 0 || share > 1 {
		share = 1
	}
	return &Ledger[K]{share: share, places: places, held: map[K]int{}}
}

// Take gives an owner up to so many more places and returns how many.
func (l *Ledger[K]) Take(owner K, want int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(want, l.room(owner))
	if n <= 0 {
		return 0
	}
	l.held[owner] += n
	l.taken += n
	return n
}

// TakeAll gives an owner all of so many more places, or none.
func (l *Ledger[K]) TakeAll(owner K, want int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if want == 0 {
		return true // also of one that holds too many
	}
	if want > l.room(owner) {
		return false
	}
	l.held[owner] += want
	l.taken += want
	return true
}

// Room is how many more places an owner may hold now; at or below 0 there is none.
func (l *Ledger[K]) Room(owner K) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.room(owner)
}

func (l *Ledger[K]) room(owner K) int {
	held := l.held[owner]
	return Limit(l.share, l.places, l.taken-held) - held
}

// Hold gives an owner places that it had before the ledger was, whether or not
// they are within its share.
func (l *Ledger[K]) Hold(owner K, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held[owner] += n
	l.taken += n
}

// Pass hands a place that one owner holds to another, whose share is not asked.
func (l *Ledger[K]) Pass(from, to K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held[to]++
	if l.held[from]--; l.held[from] <= 0 {
		delete(l.held, from)
	}
}

// Give takes back places that the owner holds.
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

// Most is how many places an owner may hold that is alone.
func (l *Ledger[K]) Most() int { return Limit(l.share, l.places, 0) }

// Full reports whether no place is left for anybody.
func (l *Ledger[K]) Full() bool { return l.Taken() >= l.places }

// Taken is how many places are taken.
func (l *Ledger[K]) Taken() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.taken
}

// Held is how many places an owner holds.
func (l *Ledger[K]) Held(owner K) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held[owner]
}
