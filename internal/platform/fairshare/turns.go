// SPDX-License-Identifier: Apache-2.0

package fairshare

import (
	"context"
	"sync"
)

// Turns have work wait for one of a number of slots. An owner has half of them, rounded up:
// what else it wants waits for its own.
type Turns struct {
	all    chan struct{}
	mu     sync.Mutex
	owners map[string]*turns
}

type turns struct {
	slots chan struct{}
	here  int // pushes at work or waiting
}

// NewTurns returns the turns of so many slots.
func NewTurns(slots int) *Turns {
	return &Turns{all: make(chan struct{}, slots), owners: map[string]*turns{}}
}

// Do has an owner work once there is a slot. It reports whether there was one while the
// context lasted.
func (t *Turns) Do(ctx context.Context, owner string, work func()) bool {
	defer t.count(owner, -1)
	for _, slots := range []chan struct{}{t.count(owner, 1), t.all} {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-ctx.Done():
			return false
		}
	}
	work()
	return true
}

// count counts what is here of an owner, and returns its slots.
func (t *Turns) count(owner string, more int) chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := t.owners[owner]
	if own == nil {
		own = &turns{slots: make(chan struct{}, (cap(t.all)+1)/2)}
		t.owners[owner] = own
	}
	if own.here += more; own.here == 0 {
		delete(t.owners, owner)
	}
	return own.slots
}
