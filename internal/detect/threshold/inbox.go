// SPDX-License-Identifier: Apache-2.0

package threshold

import (
	"sync"
	"time"
)

// maxInboxEntries bounds what a client keeps of the answers it got; a node
// asks for a handful of groups, a head node for some hundred.
const maxInboxEntries = 4096

// Inbox keeps the newest threshold per cluster and peer group that came back
// with pushes. Answers race when pushes overlap, so an older version never
// replaces a newer one unless that one has expired: the clock of a
// gateway may go back. The zero value is ready.
type Inbox struct {
	mu      sync.RWMutex
	entries map[inboxKey]Received
}

type inboxKey struct{ cluster, group string }

// Put stores v and reports whether it was new.
func (b *Inbox) Put(cluster string, v Value, now time.Time) bool {
	key := inboxKey{cluster, v.Group}
	b.mu.Lock()
	defer b.mu.Unlock()
	r, ok := b.entries[key]
	changed := r.Update(v, now)
	if b.entries == nil {
		b.entries = make(map[inboxKey]Received)
	}
	if !ok && len(b.entries) >= maxInboxEntries {
		b.evictOldest()
	}
	b.entries[key] = r
	return changed
}

// Update takes a value that came back with a push, and reports whether it was
// new. The zero Received has no value.
func (r *Received) Update(v Value, now time.Time) bool {
	if !r.At.IsZero() && v.Version <= r.Version && r.Fresh(now) {
		// The same computation seen again is a proof of life, unless a middle
		// tier hands it down with what is left of it.
		if v.Version == r.Version && now.Add(v.TTL).After(r.At.Add(r.TTL)) {
			r.Value, r.At = v, now
		}
		return false
	}
	*r = Received{v, now}
	return true
}

// Get returns the newest value of a group, however old; see Received.Fresh.
func (b *Inbox) Get(cluster, group string) (Received, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	r, ok := b.entries[inboxKey{cluster, group}]
	return r, ok
}

func (b *Inbox) evictOldest() {
	var oldest inboxKey
	var at time.Time
	for key, r := range b.entries {
		if at.IsZero() || r.At.Before(at) {
			oldest, at = key, r.At
		}
	}
	delete(b.entries, oldest)
}

// Cluster returns what a middle tier can hand down to a client of these
// groups: the fresh values, with what is left of their lives. It returns nil
// when there are none.
func (b *Inbox) Cluster(cluster string, groups []string, now time.Time) *Cluster {
	c := &Cluster{Wide: b.entry(cluster, "", now)}
	for _, g := range groups {
		if e := b.entry(cluster, g, now); e != nil {
			if c.Groups == nil {
				c.Groups = make(map[string]*Entry, len(groups))
			}
			c.Groups[g] = e
		}
	}
	if c.Wide == nil && c.Groups == nil {
		return nil
	}
	return c
}

func (b *Inbox) entry(cluster, group string, now time.Time) *Entry {
	r, ok := b.Get(cluster, group)
	if !ok {
		return nil
	}
	v := r.Value
	v.TTL -= now.Sub(r.At)
	// Less than a second has no wire form: it would be rounded up.
	if v.TTL < time.Second {
		return nil
	}
	e, err := NewEntry(v)
	if err != nil {
		return nil
	}
	return e
}
