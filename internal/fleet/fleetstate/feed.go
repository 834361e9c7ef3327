// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"sync"
	"sync/atomic"
	"time"
)

// maxRemoved bounds the forgotten nodes that a feed remembers; a watcher that missed
// more gets a full view again.
const maxRemoved = 10_000

// Feed finds out what changed from one frame to the next, once for all who
// watch. It compares published views by their pointers, so it costs those who
// publish nothing; nobody waits for those who watch.
type Feed struct {
	s *Store

	mu       sync.Mutex
	watchers int
	frame    *frame

	// Used by Advance alone.
	number  uint64
	last    *rows
	removed []removal
}

// fed is what a feed keeps at an entry: what it last announced.
type fed struct {
	view    *Node
	seen    int64
	missing bool
	// changed and sighted are the last frames in which the view changed, or
	// only the time of the last sign of life did.
	changed, sighted atomic.Uint64
}

type removal struct {
	frame uint64
	key   Key
}

// frame is immutable once next of the one before it is closed.
type frame struct {
	number  uint64
	at      time.Time
	entries *rows    // all, at that time
	changed []*entry // since the frame before, sightings included
	removed []removal
	known   uint64 // all removals after that frame are in removed
	next    chan struct{}
}

// NewFeed returns the feed of a store. A store has one.
func NewFeed(s *Store) *Feed {
	return &Feed{s: s, frame: &frame{next: make(chan struct{})}}
}

// Watchers returns how many watch.
func (f *Feed) Watchers() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.watchers
}

// Advance makes a new frame and wakes those who wait for it. One goroutine
// calls it, as often as watchers are to hear of changes; it does nothing while
// nobody watches.
func (f *Feed) Advance(now time.Time) {
	if f.Watchers() == 0 {
		return
	}
	f.number++
	next := &frame{number: f.number, at: now, entries: f.s.index.get(), next: make(chan struct{})}
	ms, missing := now.UnixMilli(), f.s.cfg.MissingAfter.Milliseconds()
	for _, e := range next.entries.all {
		view, seen := e.view.Load(), e.seen.Load()
		gone := ms-seen > missing
		switch {
		case view != e.fed.view || gone != e.fed.missing:
			e.fed.changed.Store(f.number)
		case seen != e.fed.seen:
			e.fed.sighted.Store(f.number)
		default:
			continue
		}
		e.fed.view, e.fed.seen, e.fed.missing = view, seen, gone
		next.changed = append(next.changed, e)
	}
	// The rows are new ones whenever nodes came or went.
	if f.last != nil && f.last != next.entries {
		for _, e := range f.last.all {
			if e.gone.Load() {
				f.removed = append(f.removed, removal{f.number, e.key})
			}
		}
	}
	f.last = next.entries
	if over := len(f.removed) - maxRemoved; over > 0 {
		next.known = f.removed[over-1].frame
		f.removed = append([]removal(nil), f.removed[over:]...)
	} else {
		next.known = f.current().known
	}
	next.removed = f.removed[:len(f.removed):len(f.removed)]

	f.mu.Lock()
	before := f.frame
	f.frame = next
	f.mu.Unlock()
	close(before.next)
}

// Watcher follows a feed at its own speed: what changed several times since it
// last looked, it sees once, in its latest state.
type Watcher struct {
	f      *Feed
	filter Filter
	frame  *frame
	// shown are the nodes that the watcher has been told of, where being
	// selected may change.
	shown map[Key]struct{}
	once  sync.Once
}

// Watch returns a watcher of the selected nodes. It must be closed.
func (f *Feed) Watch(filter Filter) *Watcher {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watchers++
	w := &Watcher{f: f, filter: filter, frame: f.frame}
	if !filter.fixed() {
		w.shown = map[Key]struct{}{}
	}
	return w
}

// Close ends the watch.
func (w *Watcher) Close() {
	w.once.Do(func() {
		w.f.mu.Lock()
		defer w.f.mu.Unlock()
		w.f.watchers--
	})
}

// Next is closed when there is a newer frame than the watcher has seen.
func (w *Watcher) Next() <-chan struct{} { return w.frame.next }

// Full calls yield for all selected nodes and brings the watcher to the
// current frame.
func (w *Watcher) Full(now time.Time, yield func(View) bool) {
	w.frame = w.f.current()
	clear(w.shown)
	w.f.s.Each(&w.filter, w.frame.notBefore(now), func(v View) bool {
		w.show(v.Key)
		return yield(v)
	})
}

func (f *Feed) current() *frame {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.frame
}

// notBefore returns now, or the time of the frame if that is later: whoever is
// told an earlier state is not told again that a node went missing since.
func (f *frame) notBefore(now time.Time) time.Time {
	if f.at.After(now) {
		return f.at
	}
	return now
}

func (w *Watcher) show(k Key) {
	if w.shown != nil {
		w.shown[k] = struct{}{}
	}
}

// Change is what became of one selected node since a watcher last looked.
type Change struct {
	Kind ChangeKind
	View // of a node that is gone its key alone
}

// ChangeKind says what became of a node.
type ChangeKind uint8

// The kinds: a new view; only a sign of life, after which the node may no longer
// be missing; gone, or no longer selected.
const (
	Changed ChangeKind = iota
	Seen
	Removed
)

// Changes brings the watcher to the current frame and calls yield for what
// changed since the one before, until it returns false: then the watch is over.
// It returns false when the watcher lost track and must take the full view.
func (w *Watcher) Changes(now time.Time, yield func(Change) bool) bool {
	from, to := w.frame, w.f.current()
	w.frame = to
	if from.number == to.number {
		return true
	}
	if from.number < to.known {
		return false
	}
	ms := to.notBefore(now).UnixMilli()
	// A watcher one frame behind looks at that frame's changes, a later one at all.
	entries := to.entries.all
	if from.number+1 == to.number {
		entries = to.changed
	}
	for _, e := range entries {
		if c, ok := w.change(e, from.number, ms); ok && !yield(c) {
			return true
		}
	}
	for _, r := range to.removed {
		if r.frame > from.number && w.gone(r.key) && !yield(removed(r.key)) {
			return true
		}
	}
	return true
}

// change looks at what became of a node after a frame.
func (w *Watcher) change(e *entry, after uint64, now int64) (Change, bool) {
	changed := e.fed.changed.Load() > after
	if !changed && e.fed.sighted.Load() <= after || !w.filter.matchKey(e.key) || e.gone.Load() {
		return Change{}, false
	}
	v := w.f.s.view(e, now)
	if w.shown != nil {
		_, shown := w.shown[e.key]
		selected := w.filter.matchNode(&v)
		switch {
		case shown && !selected:
			delete(w.shown, e.key)
			return removed(e.key), true
		case !selected:
			return Change{}, false
		case !shown:
			w.show(e.key)
			changed = true
		}
	}
	if changed {
		return Change{Changed, v}, true
	}
	return Change{Seen, v}, true
}

// gone reports whether the end of a node is news to the watcher.
func (w *Watcher) gone(k Key) bool {
	// It may have come back since.
	if !w.filter.matchKey(k) || w.f.s.find(k) != nil {
		return false
	}
	if w.shown != nil {
		if _, shown := w.shown[k]; !shown {
			return false
		}
		delete(w.shown, k)
	}
	return true
}

func removed(k Key) Change { return Change{Removed, View{Node: &Node{Key: k}}} }
