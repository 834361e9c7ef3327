// SPDX-License-Identifier: Apache-2.0

package slowlink

import (
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

// past is what a communicator could do until now. Against it one communicator of a kind
// can be judged, and all of them: a fabric has no peers.
type past struct {
	level, spread float64 // of the logarithm: its mean, and its mean deviation
	since, at     time.Time
	ticks         int
	below, above  int                   // ticks in a row
	fell          time.Time             // the last tick before those below
	onsets        [flapOnsets]time.Time // the latest that were told, the oldest first
}

// episode is one time in which some communicators of a kind are slower than they were.
type episode struct {
	Event
	of []*communicator
}

const (
	// A level is known after ten ticks and two minutes, and it is a mean of an hour.
	knownTicks  = 10
	knownAfter  = 2 * time.Minute
	levelWindow = time.Hour
	// inRow ticks below the limit are an onset, and as many above half of it the end. One
	// less makes a communicator part of an onset of its kind.
	inRow = 3
	// spreads of a mean deviation that a level may fall by chance: 4 leave one tick of a
	// thousand, and three in a row are needed.
	spreads = 4
	// relearnAfter makes usual what lasts.
	relearnAfter = 6 * time.Hour
	// After flapOnsets within a flapWindow a communicator is told of no more until less
	// of them are. At most maxOnsets are told of a cluster at one tick; the rest waits.
	flapOnsets = 3
	flapWindow = time.Hour
	maxOnsets  = 20
)

// flaps reports whether enough was told of late.
func (p *past) flaps(now time.Time) bool {
	oldest := p.onsets[0]
	return !oldest.IsZero() && now.Sub(oldest) < flapWindow
}

// tell notes an onset.
func (p *past) tell(now time.Time) {
	copy(p.onsets[:], p.onsets[1:])
	p.onsets[flapOnsets-1] = now
}

// limit is the fall that counts, a difference of logarithms.
func (p *past) limit() float64 { return max(-math.Log(1-minGap), spreads*p.spread) }

// learn takes a tick that is as usual.
func (p *past) learn(x float64, now time.Time) {
	p.ticks++
	if p.ticks == 1 {
		p.level, p.since = x, now
		return
	}
	weight := max(1/float64(p.ticks), min(1, float64(now.Sub(p.at))/float64(levelWindow)))
	p.spread += weight * (math.Abs(x-p.level) - p.spread)
	p.level += weight * (x - p.level)
}

// take follows one tick.
func (p *past) take(value float64, now time.Time) {
	x := math.Log(value)
	defer func() { p.at = now }()
	if p.ticks < knownTicks || now.Sub(p.since) < knownAfter {
		p.learn(x, now)
		return
	}
	switch fall := p.level - x; {
	case fall >= p.limit():
		if p.below++; p.below == 1 {
			p.fell = p.at
		}
		p.above = 0
	case fall < p.limit()/2:
		p.above++
		if p.above >= inRow || p.below < inRow {
			p.below = 0
			p.learn(x, now)
		}
	default:
		p.above = 0
		if p.below < inRow {
			p.below = 0
			p.learn(x, now)
		}
	}
}

// fallen looks for communicators that have become slower, and makes one event of those of
// a kind.
func (b *Book) fallen(now time.Time) (events []Event) {
	cluster, told := "", 0
	for i, c := range b.order {
		if c.cluster != cluster {
			cluster, told = c.cluster, 0
		}
		if c.value <= 0 || c.past.below < inRow || c.slow != nil || told == maxOnsets || c.past.flaps(now) {
			continue
		}
		var of []*communicator
		for _, o := range b.order[i:] {
			if o.value > 0 && o.slow == nil && o.past.below >= inRow-1 && o.like(c) {
				of = append(of, o)
			}
		}
		told++
		events = append(events, b.onset(of, now))
	}
	return events
}

func (c *communicator) like(o *communicator) bool {
	return c.cluster == o.cluster && c.job == o.job && c.kind == o.kind
}

func (b *Book) onset(of []*communicator, now time.Time) Event {
	ep := &episode{of: of, Event: Event{Event: straggler.Event{
		Kind: straggler.EventOnset, Subject: straggler.SubjectCommunicator, Cluster: of[0].cluster,
		At: now, Since: of[0].past.fell, Compared: true,
	}, Link: Link{Before: true, Count: len(of)}}}
	ev := &ep.Event
	for _, c := range of {
		c.slow = ep
		c.past.tell(now)
		if len(ev.Communicators) < maxListed {
			ev.Communicators = append(ev.Communicators, c.id)
		}
		fall := c.past.level - math.Log(c.value)
		if gap := 1 - math.Exp(-fall); gap > ev.Gap {
			ev.Gap, ev.Value, ev.Median = gap, c.value, math.Exp(c.past.level)
			ev.Confidence = 1 - math.Exp(-fall/c.past.limit())
		}
	}
	for _, c := range b.order {
		if c.value > 0 && c.like(of[0]) {
			ev.Active++
		}
	}
	ev.Severity = straggler.SeverityOf(ev.Gap)
	ev.ID = episodeID(of[0], ev.Since)
	b.describe(ev, ev.Communicators)
	b.slow = append(b.slow, ep)
	return *ev
}

// risen ends the episodes of communicators that are as before, or have ended.
func (b *Book) risen(now time.Time) (events []Event) {
	b.slow = slices.DeleteFunc(b.slow, func(ep *episode) bool {
		cause := straggler.CauseIdle
		for _, c := range ep.of {
			switch {
			case b.all[c.key] != c:
			case c.past.below > 0 && now.Sub(ep.At) <= relearnAfter:
				return false
			case c.past.below > 0:
				cause, c.past = straggler.CauseRelearned, past{onsets: c.past.onsets}
			default:
				cause = straggler.CauseRecovered
			}
		}
		for _, c := range ep.of {
			c.slow = nil
		}
		ev := ep.Event
		ev.Kind, ev.At, ev.Cause, ev.Nodes, ev.NodeCount = straggler.EventEnd, now, cause, nil, 0
		events = append(events, ev)
		return true
	})
	return events
}

func episodeID(c *communicator, since time.Time) string {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%d\x00%s\x00%s\x00%d", straggler.SubjectCommunicator, c.cluster, c.id, since.UnixMilli()) // never fails
	return fmt.Sprintf("%016x", h.Sum64())
}
