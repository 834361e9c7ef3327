// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"sync"
	"sync/atomic"
	"time"
)

// Feed finds the changes from one frame to the next, once for all watchers. It compares the
// pointers of published views, so that updates pay nothing and wait for no watcher.
type Feed struct {
	s        *Store
	watchers atomic.Int64
	frame    atomic.Pointer[frame]
}

// fed is the state of an entry in the feed's last frame.
type fed struct {
	view    *Node
	seen    int64
	missing bool
	// changed is the last frame with a new view, sighted the last with a sign of life alone.
	changed, sighted atomic.Uint64
}

// frame is immutable once next of the one before it is closed.
type frame struct {
	number  uint64
	at      time.Time
	entries *rows    // all, at that time
	changed []*entry // since the frame before, sightings included
	removed []Key    // since the frame before
	// forgot is the last frame in which a node was removed.
	forgot uint64
	next   chan struct{}
}

// NewFeed returns the feed of a store, which has one.
func NewFeed(s *Store) *Feed {
	f := &Feed{s: s}
	f.frame.Store(&frame{entries: &rows{}, next: make(chan struct{})})
	return f
}

// Watchers returns the number of watchers.
func (f *Feed) Watchers() int { return int(f.watchers.Load()) }

// Advance makes a new frame and wakes the watchers. One goroutine calls it, at the interval of
// the stream; without watchers it does nothing.
func (f *Feed) Advance(now time.Time) {
	if f.Watchers() == 0 {
		return
	}
	last := f.frame.Load()
	next := &frame{number: last.number + 1, at: now, entries: f.s.rows(), forgot: last.forgot, next: make(chan struct{})}
	for _, e := range next.entries.all {
		view, seen := e.view.Load(), e.seen.Load()
		missing := f.s.missing(seen, now.UnixMilli())
		switch {
		case view != e.fed.view || missing != e.fed.missing:
			e.fed.changed.Store(next.number)
		case seen != e.fed.seen:
			e.fed.sighted.Store(next.number)
		default:
			continue
		}
		e.fed.view, e.fed.seen, e.fed.missing = view, seen, missing
		next.changed = append(next.changed, e)
	}
	// The rows are new ones whenever nodes came or went.
	if last.entries != next.entries {
		for _, e := range last.entries.all {
			if e.gone.Load() {
				next.removed, next.forgot = append(next.removed, e.key), next.number
			}
		}
	}
	f.frame.Store(next)
	close(last.next)
}

// Watcher follows a feed at its own speed: it gets a node that changed several times once, in
// its latest state.
type Watcher struct {
	f      *Feed
	filter Filter
	frame  *frame
	// shown are the nodes that the watcher has received, where the selection may change.
	shown map[Key]struct{}
	once  sync.Once
}

// Watch returns a watcher of the selected nodes. It must be closed.
func (f *Feed) Watch(filter Filter) *Watcher {
	f.watchers.Add(1)
	w := &Watcher{f: f, filter: filter, frame: f.frame.Load()}
	if !filter.fixed() {
		w.shown = map[Key]struct{}{}
	}
	return w
}

// Close ends the watch.
func (w *Watcher) Close() { w.once.Do(func() { w.f.watchers.Add(-1) }) }

// Next is closed when there is a newer frame than the watcher has seen.
func (w *Watcher) Next() <-chan struct{} { return w.frame.next }

// Full calls yield for all selected nodes and brings the watcher to the current frame.
func (w *Watcher) Full(now time.Time, yield func(View) bool) {
	w.frame = w.f.frame.Load()
	clear(w.shown)
	for v := range w.f.s.Each(&w.filter, w.frame.notBefore(now)) {
		w.show(v.Key)
		if !yield(v) {
			return
		}
	}
}

// notBefore returns now, or the time of the frame if that is later: a watcher that gets an
// earlier state would not get the change to missing.
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

// Change is the change of one selected node since the watcher's last frame.
type Change struct {
	Kind ChangeKind
	View // of a removed node its key alone
}

// ChangeKind is the kind of a node's change.
type ChangeKind uint8

// The kinds: a new view; only a sign of life, after which the node may no longer be missing;
// forgotten, or no longer selected.
const (
	Changed ChangeKind = iota
	Seen
	Removed
)

// Changes brings the watcher to the current frame and calls yield for each change since its
// last one, until yield returns false: then the watch is over. Changes returns false when the
// watcher missed a removal and must take the full view.
func (w *Watcher) Changes(now time.Time, yield func(Change) bool) bool {
	from, to := w.frame, w.f.frame.Load()
	w.frame = to
	if from.number == to.number {
		return true
	}
	// A watcher one frame behind takes that frame's changes. A later one compares all nodes,
	// which lack the removed ones.
	entries, removals := to.changed, to.removed
	if from.number+1 != to.number {
		if to.forgot > from.number {
			return false
		}
		entries, removals = to.entries.all, nil
	}
	ms := to.notBefore(now).UnixMilli()
	for _, e := range entries {
		if c, ok := w.change(e, from.number, ms); ok && !yield(c) {
			return true
		}
	}
	for _, k := range removals {
		if w.gone(k) && !yield(removed(k)) {
			return true
		}
	}
	return true
}

// change returns the change of a node after a frame, false for none.
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

// gone reports whether the watcher has yet to receive a node's removal.
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
