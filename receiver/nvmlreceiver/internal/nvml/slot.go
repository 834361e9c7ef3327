// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/roster"
)

// slot is one index of NVML's enumeration in one generation.
type slot struct {
	index  int
	worker *worker[slotResult]
	// device belongs to the worker's job while one is in flight.
	device Device
	id     gpuhealth.Identity

	slow  time.Time  // when the slow readings are due
	asked bool       // in this round
	last  slotResult // of the last round; its identity survives rounds that fail
}

type slotResult struct {
	id     gpuhealth.Identity
	code   Code
	hung   bool
	noUUID bool // the GPU answered with an empty one
	answer Answer
}

// read runs on the slot's worker. A panic over a malformed answer costs that GPU's
// sample and not the process.
func (s *slot) read(ctx context.Context, lib Library, w *watch, request Request) (result slotResult) {
	defer func() {
		if recover() != nil {
			result = slotResult{code: Panicked}
		}
	}()
	if s.device == nil {
		device, code := lib.Device(s.index)
		if code != Success {
			return slotResult{code: code}
		}
		id, code := device.Identity()
		if code != Success {
			return slotResult{id: id, code: code, noUUID: code == NoData}
		}
		s.device, s.id = device, id
		if w != nil {
			// A GPU that cannot be registered has no Xids, and still has readings.
			w.events.Register(device, id.UUID)
		}
	}
	result = slotResult{id: s.id}
	result.code = s.device.Read(ctx, request, &result.answer)
	if result.code == Timeout {
		result.hung = true // until just now: the handle is good
		return result
	}
	if result.code != Success {
		// After a reset the same index may need a new handle.
		s.device.Close()
		s.device = nil
	}
	return result
}

// note keeps the result of a round, or that there was none in time.
func (s *slot) note(result slotResult, inTime bool) {
	if !inTime {
		result = slotResult{hung: true}
	}
	if result.id.UUID == "" && (s.last.id.UUID != "" || result.id.PCIBusID == "") {
		result.id = s.last.id
	}
	s.last = result
}

func (r *slotResult) reason() gpuhealth.Reason {
	if r.hung {
		return gpuhealth.ReasonHang
	}
	return r.code.reason()
}

// reported returns whether the driver has reported this GPU, if only with an error. A
// driver that hangs, is not ready or is gone has not.
func (r *slotResult) reported(driverGone bool) bool {
	if r.hung || driverGone || r.code == Timeout || r.code == NotReady {
		return false
	}
	reason := r.code.reason()
	return reason == gpuhealth.ReasonLost || reason == gpuhealth.ReasonResetRequired || reason == gpuhealth.ReasonError
}

// noReading is what is known of the GPU at the slot, which has no reading.
func (s *slot) noReading(driverGone bool) NoReading {
	unread := NoReading{Index: s.index, PCIBusID: s.last.id.PCIBusID, Reason: s.last.reason(), Reported: s.last.reported(driverGone)}
	switch {
	case s.last.hung:
	case s.last.noUUID:
		unread.Why = "its UUID is empty"
	default:
		unread.Why = s.last.code.error()
	}
	return unread
}

// down reports all known GPUs when the driver as a whole does not answer.
func (p *Poller) down() Report {
	r := Report{Generation: p.generation, Err: p.driver.err}
	reason := p.driver.code.reason()
	switch {
	case r.Err == nil:
		r.Err = fmt.Errorf("%w: %v", ErrDriver, p.driver.code)
	case p.control.busy:
		reason = gpuhealth.ReasonHang
	default:
		reason = gpuhealth.ReasonDriverNotLoaded
	}
	r.Down = reason
	r.Samples = p.cfg.Roster.Down(reason)
	sortSamples(r.Samples)
	return r
}

// report turns the last round into samples.
func (p *Poller) report() Report {
	r := Report{Generation: p.generation, Err: p.driver.err, Listed: len(p.slots), Samples: make([]gpuhealth.Sample, 0, len(p.slots))}
	if r.Err == nil && p.driver.code != Success {
		r.Err = fmt.Errorf("%w: %v", ErrDriver, p.driver.code)
	}
	roster := p.cfg.Roster
	roster.Begin()
	for _, s := range p.slots {
		if s.last.noUUID {
			r.InvalidUUIDs++
		}
		id := s.last.id
		if id.UUID == "" {
			continue
		}
		id.DriverVersion, id.CUDAVersion = p.driver.version, p.driver.cuda
		valid, reason := gpuhealth.ValidUUID(id.UUID), s.last.reason()
		claimed := valid && roster.Claim(id)
		if claimed && reason == gpuhealth.ReasonOK {
			r.answers(id, &s.last.answer, roster)
			continue
		}
		unread := s.noReading(p.gone)
		switch {
		case claimed:
			unread.UUID = id.UUID
			r.Samples = append(r.Samples, roster.NoAnswer(id.UUID, reason, unread.Reported)...)
		case valid:
			r.InvalidUUIDs++
			unread.Why, unread.Reported = "its UUID is another GPU's", true
		default: // Validate counts it as garbage
			unread.Why, unread.Reported = "its UUID is malformed", true
			r.Samples = append(r.Samples, gpuhealth.Sample{Identity: id, Reason: reason})
		}
		r.NoReadings = append(r.NoReadings, unread)
	}
	// A slot that failed before its UUID was read counts as the GPU that had its
	// index, if no other slot has claimed that GPU.
	for _, s := range p.slots {
		if s.last.id.UUID != "" {
			continue
		}
		unread := s.noReading(p.gone)
		if unread.UUID = roster.ClaimAt(s.index); unread.UUID != "" {
			r.Samples = append(r.Samples, roster.NoAnswer(unread.UUID, unread.Reason, unread.Reported)...)
		}
		r.NoReadings = append(r.NoReadings, unread)
	}
	r.Samples = append(r.Samples, roster.End()...)
	sortSamples(r.Samples)
	return r
}

// answers reports a GPU that answers, and its slices.
func (r *Report) answers(id gpuhealth.Identity, answer *Answer, roster *roster.Roster) {
	r.Samples = append(r.Samples, gpuhealth.Sample{Identity: id, Reason: gpuhealth.ReasonOK, Readings: answer.Readings})
	var parts []gpuhealth.Identity
	for i := range answer.Slices {
		part := &answer.Slices[i]
		part.DriverVersion, part.CUDAVersion = id.DriverVersion, id.CUDAVersion
		parts = append(parts, part.Identity)
	}
	r.Samples = append(r.Samples, answer.Slices...)
	roster.Answers(id.UUID, parts)
}

func sortSamples(samples []gpuhealth.Sample) {
	slices.SortFunc(samples, func(a, b gpuhealth.Sample) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.Parent, b.Parent), cmp.Compare(a.UUID, b.UUID))
	})
}
