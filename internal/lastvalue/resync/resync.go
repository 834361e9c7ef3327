// SPDX-License-Identifier: Apache-2.0

// Package resync is how one component learns that the next hop has lost its state. The extension
// that reads the answers of the next hop, and its epochs, is a Source to which the diff processor
// subscribes.
package resync // import "github.com/gpu-collector/gpu-collector/internal/lastvalue/resync"

import (
	"slices"
	"strings"
	"sync"

	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
)

// Source is implemented by the extension that reads the answers of the next hop.
type Source interface {
	// Subscribe calls fn whenever the next hop has lost its state, until cancel is called.
	// fn may be called from several goroutines at once and must not block. No
	// call to fn starts after cancel has returned.
	Subscribe(fn func()) (cancel func())
}

// Subscribers is a Source. The zero value is ready.
type Subscribers struct {
	mu  sync.RWMutex
	fns []*func()
}

// Subscribe implements Source. Neither fn nor what it calls may cancel.
func (s *Subscribers) Subscribe(fn func()) (cancel func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fns = append(s.fns, &fn)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.fns = slices.DeleteFunc(s.fns, func(f *func()) bool { return f == &fn })
	}
}

// Publish calls every subscriber. The lock is held meanwhile, so that
// no call can outlast a cancel; subscribers do not block.
func (s *Subscribers) Publish() {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, fn := range s.fns {
		(*fn)()
	}
}

// MaxEpochLength bounds the text of an epoch.
const MaxEpochLength = 64

// ValidEpoch reports whether s can be an epoch: 1 to MaxEpochLength printable
// ASCII characters without meaning.
func ValidEpoch(s string) bool { return len(s) <= MaxEpochLength && pushheaders.ValidName(s) }

// maxRecent is how many processes are distinguished in answers to pushes without a node.
const maxRecent = 8

// Epochs remembers which processes of the next hop answered: each has an epoch, and what
// was pushed to it and nothing else. The zero value is ready.
//
//   - The pushes of one node go to one process after another. Any change is a loss, also back to
//     an epoch of before: that process missed what the others got.
//   - Pushes without a node may be spread over several processes, whose epochs alternate.
//     Only an epoch not seen before is a loss. A process that was out of reach for a while is
//     not noticed: that is for periodic resyncs.
type Epochs struct {
	mu     sync.Mutex
	recent []string // newest first
}

// Observe notes the epoch in the answer to a push, and reports whether the process that answered
// lacks state. With oneNode the process pushes for one node alone.
func (e *Epochs) Observe(oneNode bool, epoch string) (lost bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	at := slices.Index(e.recent, epoch)
	lost = len(e.recent) > 0 && (at < 0 || oneNode && at > 0)
	if at >= 0 {
		e.recent = slices.Delete(e.recent, at, at+1)
	}
	e.recent = slices.Insert(e.recent, 0, strings.Clone(epoch))
	e.recent = e.recent[:min(len(e.recent), maxRecent)]
	return lost
}
