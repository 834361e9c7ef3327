// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"time"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// maxEvents bounds the Xids that count for one GPU at a time.
const maxEvents = 64

// event is a Xid that still counts. It is kept with the whole GPU.
type event struct {
	xid    Xid
	reason string
	// sliced: the GPU had slices then. polls counts the polls since.
	sliced bool
	polls  int
	keptEvent
}

// keptEvent is what a restart takes up of an event as it is.
type keptEvent struct {
	Code        uint64
	First, Last time.Time
	// Slice is the UUID of the slice that the event counts for, empty for the GPU.
	// An event with GI and CI waits until a poll finds the slice of these instances.
	Slice  string      `json:",omitempty"`
	GI, CI Opt[uint32] `json:",omitzero"`
	// ClearsAnswer waits until Silent ends, ClearsRemap until Pending does.
	Silent, Pending bool `json:",omitempty"`
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
		return e.Slice == "" && !e.GI.OK
	}
	return e.Slice == s.UUID
}

// over reports whether an event no longer counts after this poll of the GPU.
func (e *event) over(s *Sample, t *track, now time.Time) bool {
	clears := e.xid.Clears
	switch clears.By {
	case ClearsQuiet:
		return now.Sub(e.Last) >= clears.After
	case ClearsAnswer:
		e.Silent = e.Silent || !s.Up()
		return e.Silent && t.answered >= cleanPolls
	case ClearsRemap:
		if p := s.On(reading.RemapPending); p.OK {
			if e.Pending && !p.V {
				return true
			}
			e.Pending = p.V
		}
		return !e.Pending && now.Sub(e.Last) >= clears.After
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
		if o := &t.events[i]; o.Code == e.Code && o.Slice == e.Slice && o.GI == e.GI && o.CI == e.CI {
			o.Last = later(o.Last, e.Last)
			o.Silent, o.Pending = false, false
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
