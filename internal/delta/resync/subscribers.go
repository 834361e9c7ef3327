// SPDX-License-Identifier: Apache-2.0

package resync

import (
	"slices"
	"sync"
)

// Subscribers hands requests to whoever subscribed. The zero value is ready.
type Subscribers struct {
	mu  sync.RWMutex
	fns []*func(Request)
}

var _ Source = (*Subscribers)(nil)

// Subscribe implements Source. Neither fn nor what it calls may cancel.
func (s *Subscribers) Subscribe(fn func(Request)) (cancel func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fns = append(s.fns, &fn)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.fns = slices.DeleteFunc(s.fns, func(f *func(Request)) bool { return f == &fn })
	}
}

// Publish calls every subscriber with r. The lock is held meanwhile, so that
// no call can outlast a cancel; subscribers do not block.
func (s *Subscribers) Publish(r Request) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, fn := range s.fns {
		(*fn)(r)
	}
}
