// SPDX-License-Identifier: Apache-2.0

package slowlink

import (
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/packed"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

const maxID = 64

// Engine is what compares the communicators of a kind. It is saved beside the book.
func (b *Book) Engine() *straggler.Engine { return b.engine }

// Save begins to write what is known of the communicators. Each call of the function that
// it returns writes some more of them, and reports whether there are any left; no Tick
// may come in between. It writes no last word of a rank: ranks repeat theirs.
func (b *Book) Save(c *packed.Coder) (next func(communicators int) (more bool)) {
	left := slices.Clone(b.order)
	c.Size(len(b.slow))
	for _, ep := range b.slow {
		ep.pack(c)
	}
	c.Size(len(b.open))
	for id, l := range b.open {
		c.Text(&id, maxID)
		l.pack(c)
	}
	c.Size(len(left))
	return func(n int) bool {
		for ; len(left) > 0 && n > 0; n-- {
			at := 0 // of the episode that it is in, from 1 on
			if left[0].slow != nil {
				at = 1 + slices.Index(b.slow, left[0].slow)
			}
			left[0].pack(c, &at)
			left = left[1:]
		}
		return len(left) > 0
	}
}

// Restore reads what was saved into a book that is empty, but for its engine. The coder
// has the mistakes.
func (b *Book) Restore(c *packed.Coder, now time.Time) {
	b.slow = make([]*episode, c.Size(0))
	for i := range b.slow {
		b.slow[i] = &episode{}
		b.slow[i].pack(c)
	}
	for range c.Size(0) {
		var id string
		var l Link
		c.Text(&id, maxID)
		l.pack(c)
		b.open[id] = l
	}
	for range c.Size(0) {
		var saved communicator
		at := 0
		saved.pack(c, &at)
		c.Check(saved.cluster != "" && saved.id != "" && at <= len(b.slow))
		if c.Err() != nil {
			return
		}
		if b.all[saved.key] != nil || b.count.Room(saved.cluster) < 1 {
			continue // there is less room than there was
		}
		of := b.begin(&Point{Cluster: saved.cluster, ID: saved.id, Name: saved.name})
		of.job, of.kind, of.past, of.resumed = saved.job, saved.kind, saved.past, now
		if at > 0 {
			of.slow = b.slow[at-1]
			of.slow.of = append(of.slow.of, of)
		}
	}
	b.continues = true
}

func (c *communicator) pack(to *packed.Coder, episode *int) {
	for _, s := range [...]*string{&c.cluster, &c.id, &c.job, &c.name} {
		to.Text(s, maxName)
	}
	c.kind.pack(to)
	p := &c.past
	to.Float(&p.level)
	to.Float(&p.spread)
	to.Time(&p.since)
	to.Time(&p.at)
	to.Time(&p.fell)
	for _, x := range [...]*int{&p.ticks, &p.below, &p.above, episode} {
		packed.Count(to, x)
	}
	for i := range p.onsets {
		if to.Version > 1 {
			to.Time(&p.onsets[i])
		}
	}
}

func (k *Kind) pack(c *packed.Coder) {
	c.Text(&k.Operation, maxName)
	for _, x := range [...]*int64{&k.Size, &k.Ranks, &k.Nodes} {
		packed.Int(c, x)
	}
}

func (ep *episode) pack(c *packed.Coder) {
	ep.Pack(c)
	ep.Link.pack(c)
}

func (l *Link) pack(c *packed.Coder) {
	c.Text(&l.Job, maxName)
	l.Op.pack(c)
	c.Texts(&l.Communicators, maxName)
	c.Text(&l.Name, maxName)
	packed.Count(c, &l.Count)
	c.Bool(&l.Before)
	c.Float(&l.Lost)
}

// awaited reports whether the ranks may not have told anything yet, since the process
// began anew.
func (c *communicator) awaited(now time.Time) bool {
	return !c.resumed.IsZero() && now.Sub(c.resumed) <= silence
}

// Open lists what was told of and goes on, as events of a kind: straggler.EventContinues,
// or straggler.EventEnd where nobody can know.
func (b *Book) Open(kind straggler.EventKind, cause string, now time.Time) []Event {
	events := b.openSlow(kind, cause, now)
	for _, ev := range b.engine.Open(kind, cause, now) {
		if out, tell := b.translate(&ev); tell {
			events = append(events, out)
		}
	}
	return events
}

// openSlow is Open of the communicators that are slower than they were.
func (b *Book) openSlow(kind straggler.EventKind, cause string, now time.Time) (events []Event) {
	for _, ep := range b.slow {
		ev := ep.Event
		ev.Kind, ev.At, ev.Cause, ev.Nodes, ev.NodeCount = kind, now, cause, nil, 0
		events = append(events, ev)
	}
	return events
}
