// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"slices"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// migSlice is a MIG slice that a GPU has. Instance ids are given out again when
// slices are cut anew; a UUID is not another slice's.
type migSlice struct {
	uuid   string
	gi, ci Opt[uint32]
	// unseen counts the polls of the GPU since the slice was last reported.
	unseen int
}

// is reports whether instance ids mean this slice. Without a compute instance
// they mean all that share the GPU instance.
func (p *migSlice) is(gi, ci Opt[uint32]) bool {
	return gi.OK && p.gi == gi && (!ci.OK || p.ci == ci)
}

// addXid keeps an event with the slices that have its instance ids now. Where
// none is known to, the next polls decide: slices are cut between two of them.
func (t *track) addXid(e event) bool {
	if !e.GI.OK {
		return t.addEvent(e)
	}
	e.sliced = t.mig.OK && t.mig.V
	bound, kept := false, true
	for i := range t.migSlices {
		if p := &t.migSlices[i]; p.is(e.GI, e.CI) {
			bound, kept = true, t.addEvent(e.of(p.uuid)) && kept
		}
	}
	return bound && kept || !bound && t.addEvent(e)
}

// of is the event for one slice.
func (e event) of(slice string) event {
	e.Slice, e.GI, e.CI, e.sliced, e.polls = slice, Opt[uint32]{}, Opt[uint32]{}, false, 0
	return e
}

// findSlice returns the record of the slice, nil for none.
func (t *track) findSlice(uuid string) *migSlice {
	if i := slices.IndexFunc(t.migSlices, func(p migSlice) bool { return p.uuid == uuid }); i >= 0 {
		return &t.migSlices[i]
	}
	return nil
}

// addSlice returns the record of the slice. It makes one where there is room, else it returns nil.
func (t *track) addSlice(uuid string) *migSlice {
	if p := t.findSlice(uuid); p != nil || uuid == "" || len(t.migSlices) >= MaxSlices {
		return p
	}
	t.migSlices = append(t.migSlices, migSlice{uuid: uuid})
	return &t.migSlices[len(t.migSlices)-1]
}

// settleSlices takes the MIG mode of a usable sample of the GPU: an
// event ends with its slice, and one of instance ids that no slice had is of
// the GPU where there are none.
func (t *track) settleSlices(s *Sample) {
	if mode := s.On(reading.ModeMIG); mode.OK {
		t.mig = mode
	} else if t.mig.OK || len(t.migSlices) > 0 {
		return // it has a mode, which is not known this time
	}
	on := t.mig.V
	for i := range t.migSlices {
		t.migSlices[i].unseen++
	}
	t.migSlices = slices.DeleteFunc(t.migSlices, func(p migSlice) bool { return !on || p.unseen > cleanPolls })
	t.events = dropEvents(t.events, func(e *event) bool {
		switch {
		case e.Slice != "":
			return t.findSlice(e.Slice) == nil
		case !e.GI.OK:
			return false
		case on:
			e.polls++
			return e.polls > 1
		case e.sliced:
			return true
		default:
			e.GI, e.CI = Opt[uint32]{}, Opt[uint32]{}
			return false
		}
	})
}

// seeSlice takes note that the GPU has the slice, which ends another that had
// its instance ids, and gives it the events that wait for it.
func (t *track) seeSlice(s *Sample) {
	p := t.addSlice(s.UUID)
	if p == nil {
		return
	}
	p.unseen = 0
	if s.GPUInstance.OK {
		p.gi, p.ci = s.GPUInstance, s.ComputeInstance
	}
	for i := range t.migSlices {
		old := &t.migSlices[i]
		if old.uuid != s.UUID && p.gi.OK && old.gi == p.gi && old.ci == p.ci {
			old.gi, old.ci, old.unseen = Opt[uint32]{}, Opt[uint32]{}, cleanPolls
		}
	}
	for i := range t.events {
		if e := t.events[i]; e.Slice == "" && p.is(e.GI, e.CI) {
			t.addEvent(e.of(s.UUID))
		}
	}
}
