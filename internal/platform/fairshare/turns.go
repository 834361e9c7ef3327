// SPDX-License-Identifier: Apache-2.0

package fairshare

import (
	"context"
	"sync"
)

// Turns have work wait for one of a number of places. An owner has half of them, rounded up:
// what else it wants waits for its own.
type Turns struct {
	all    chan struct{}
	mu     sync.Mutex
	owners map[string]*turns
}

type turns struct {
	places chan struct{}
	here   int // who work or wait
}

// NewTurns returns the turns of so many places.
func NewTurns(places int) *Turns {
	return &Turns{all: make(chan struct{}, places), owners: map[string]*turns{}}
}

// Do has an owner work once there is a place. It reports whether there was one while the
// context lasted.
func (t *Turns) Do(ctx context.Context, owner string, work func()) bool {
	defer t.count(owner, -1)
	for _, places := range []chan struct{}{t.count(owner, 1), t.all} {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		case <-ctx.Done():
			return false
		}
	}
	work()
	return true
}

// count counts who is here of an owner, and returns its places.
func (t *Turns) count(owner string, more int) chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := t.owners[owner]
	if own == nil {
		own = &turns{places: make(chan struct{}, (cap(t.all)+1)/2)}
		t.owners[owner] = own
	}
	if own.here += more; own.here == 0 {
		delete(t.owners, owner)
	}
	return own.places
}
