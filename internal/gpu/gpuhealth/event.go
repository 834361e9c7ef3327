// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import "time"

// maxEvents bounds the Xids that count for one GPU at a time.
const maxEvents = 64

// event is a Xid that still counts. It is kept with the whole GPU.
type event struct {
	xid         Xid
	reason      string
	first, last time.Time
	// slice is the UUID of the slice that the event counts for, empty for the GPU.
	// An event with gi and ci waits until a poll finds the slice of these instances.
	// sliced: the GPU had slices then. polls counts the polls since.
	slice  string
	gi, ci Opt[uint32]
	sliced bool
	polls  int
	// ClearsAnswer waits until unanswered ends, ClearsRemap until pending does.
	unanswered, pending bool
}

func (x Xid) endsWithGeneration() bool {
	switch x.Clears.By {
	case ClearsGeneration, ClearsAnswer, ClearsRemap:
		return true
	default:
		return false
	}
}

func (e *event) hits(s *Sample) bool {
	if s.Parent == "" {
		return e.slice == "" && !e.gi.OK
	}
	return e.slice == s.UUID
}

// over reports whether an event no longer counts after this poll of the GPU.
func (e *event) over(s *Sample, t *track, now time.Time) bool {
	clears := e.xid.Clears
	switch clears.By {
	case ClearsQuiet:
		return now.Sub(e.last) >= clears.After
	case ClearsAnswer:
		e.unanswered = e.unanswered || !s.Up()
		return e.unanswered && t.answered >= cleanPolls
	case ClearsRemap:
		if p := s.RemappedRows.Pending; p.OK {
			if e.pending && !p.V {
				return true
			}
			e.pending = p.V
		}
		return !e.pending && now.Sub(e.last) >= clears.After
	default:
		return false
	}
}

func dropEvents(events []event, over func(*event) bool) []event {
	kept := events[:0]
	for i := range events {
		if !over(&events[i]) {
			kept = append(kept, events[i])
		}
	}
	clear(events[len(kept):])
	return kept
}

// addEvent reports false when it dropped an event for want of room: the new
// event, or the old event with the highest cap.
func (t *track) addEvent(e event) bool {
	for i := range t.events {
		if o := &t.events[i]; o.xid.Code == e.xid.Code && o.slice == e.slice && o.gi == e.gi && o.ci == e.ci {
			o.last = later(o.last, e.last)
			o.unanswered, o.pending = false, false
			return true
		}
	}
	if len(t.events) < maxEvents {
		t.events = append(t.events, e)
		return true
	}
	least := 0
	for i := range t.events {
		if t.events[i].xid.Cap > t.events[least].xid.Cap {
			least = i
		}
	}
	if e.xid.Cap < t.events[least].xid.Cap {
		t.events[least] = e
	}
	return false
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
