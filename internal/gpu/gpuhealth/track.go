// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"time"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

const (
	// missedPolls without a usable reading make a GPU unknown.
	missedPolls = 3
	// cleanPolls without the condition end a rule.
	cleanPolls = 2
	// staleAfter ends a rule whose reading is gone while the GPU answers: row
	// remapping is no longer reported once MIG instances exist.
	staleAfter = 10 * time.Minute
)

// track is what a monitor knows of one GPU or slice.
type track struct {
	seen    time.Time
	verdict Verdict
	// evidence: something that needs no reading makes it unhealthy.
	evidence bool
	reasons  []ActiveReason
	rules    []ruleState
	events   []event
	// mig is the last known mode of the GPU.
	mig       Opt[bool]
	migSlices []migSlice

	// missed counts polls in a row without a usable reading, answered those with one.
	missed, answered int
	read             bool

	// history is nil for a slice: device rules belong to its GPU.
	history  *history
	week     week
	throttle throttle
	lastPoll time.Time
	kept
	// reopened is when NVML was opened anew on the same load of the driver,
	// until the next usable sample.
	reopened time.Time
}

// kept is what a restart takes up of a track as it is.
type kept struct {
	Model           string `json:",omitempty"`
	LinksUp         uint32 `json:",omitempty"`
	LinksAccepted   bool   `json:",omitempty"` // by an operator, however many the siblings have
	FabricCompleted bool   `json:",omitempty"`
	// FabricSince is when the GPU was first seen not to have joined its fabric.
	FabricSince time.Time `json:",omitzero"`
	// Faults are the half hours with an application's Xid.
	Faults slots      `json:",omitzero"`
	Signs  resetSigns `json:",omitzero"`
}

type ruleState struct {
	active        bool
	yes, no       int
	since         time.Time
	met, answered time.Time
}

// step takes the finding of the condition at this poll.
func (st *ruleState) step(r *Rule, f finding, now time.Time) {
	switch f {
	case yes:
		st.yes, st.no = min(st.yes+1, r.polls+1), 0
		st.met, st.answered = now, now
		if !st.active && st.yes >= r.polls {
			st.active, st.since = true, now
		}
		return
	case no:
		st.yes, st.no = 0, min(st.no+1, cleanPolls)
		st.answered = now
	default:
		st.yes = 0
	}
	if st.active && st.over(r.Clears, f, now) {
		*st = ruleState{}
	}
}

func (st *ruleState) over(c Clears, f finding, now time.Time) bool {
	switch c.By {
	case ClearsFirstAnswer:
		return f == no
	case ClearsCondition:
		if f == absent {
			return now.Sub(st.answered) >= max(staleAfter, c.After)
		}
		return st.no >= cleanPolls && now.Sub(st.met) >= c.After
	default:
		return false
	}
}

// throttle is when the hardware slowed the GPU down.
type throttle struct {
	known   bool
	thermal finding
	minutes slots
	last    [2]Opt[float64] // of the clocks of heat and brake
}

func minuteOf(t time.Time) int64 { return t.Unix() / 60 }

func (th *throttle) update(r *Readings, now time.Time) {
	thermal := held(r, ThrottleHWThermal, reading.HWThermalTime, &th.last[0])
	brake := held(r, ThrottlePowerBrake, reading.PowerBrakeTime, &th.last[1])
	if thermal == yes || brake == yes {
		th.minutes.add(minuteOf(now))
	}
	th.thermal, th.known = thermal, thermal != absent || brake != absent
}

// held reports whether the reason holds at this moment or did since the last poll.
func held(r *Readings, bit ThrottleReason, clock reading.Field, last *Opt[float64]) finding {
	f := absent
	if r.Throttle.OK {
		f = found(r.Throttle.V&uint64(bit) != 0)
	}
	if v := r.Numbers[clock]; v.OK {
		if grew := last.OK && v.V > last.V; grew || f == absent {
			f = found(grew)
		}
		*last = v
	}
	return f
}

// learn takes a usable reading of a whole GPU.
func (t *track) learn(s *Sample, now time.Time) {
	if t.history == nil {
		t.history = &history{}
	}
	h := t.history
	h.add(countPCIeReplays, s.count(reading.PCIeReplays))
	h.add(countPCIeRollovers, s.count(reading.PCIeRollovers))
	h.add(countCorrected, s.ECC[ECCCorrected][ECCVolatile])
	h.add(countLinkReplays, sum(s.NVLink.Errors[NVLinkReplay], s.NVLink.Errors[NVLinkRecovery]))
	h.add(countLinkFailures, s.NVLink.Errors[NVLinkRecoveryFailed])
	crc := s.NVLink.Errors[NVLinkCRC]
	if !crc.OK {
		crc = sum(s.NVLink.Errors[NVLinkCRCFlit], s.NVLink.Errors[NVLinkCRCData])
	}
	h.add(countLinkCRC, crc)
	switch seconds := s.Numbers[reading.SWThermalTime]; {
	case seconds.OK:
		h.add(countSoftThermal, Some(uint64(seconds.V*1000)))
	case s.Throttle.OK:
		var held uint64
		if s.Throttle.V&uint64(ThrottleSWThermal) != 0 && !t.lastPoll.IsZero() {
			held = uint64(max(0, min(now.Sub(t.lastPoll), maxGap)).Milliseconds())
		}
		h.addTo(countSoftThermal, held)
	}
	t.throttle.update(&s.Readings, now)
	t.lastPoll = now

	if dbe := s.count(reading.RetiredDBE); dbe.OK {
		t.week.add(now, dbe.V)
	}
	if up := s.NVLink.Up; up.OK {
		t.LinksUp = max(t.LinksUp, up.V)
	}
	switch f := s.Fabric.State; {
	case !f.OK:
	case f.V == FabricCompleted:
		t.FabricCompleted = true
	case f.V == FabricNotSupported:
		t.FabricSince = time.Time{}
	case t.FabricSince.IsZero() || now.Before(t.FabricSince):
		t.FabricSince = now
	}
}

// count is a number that is a count.
func (s *Sample) count(f reading.Field) Opt[uint64] {
	return Opt[uint64]{uint64(s.Numbers[f].V), s.Numbers[f].OK}
}

func sum(a, b Opt[uint64]) Opt[uint64] { return Opt[uint64]{a.V + b.V, a.OK || b.OK} }

// usable reports whether a poll read anything of the GPU.
func usable(s *Sample) bool {
	number := false
	for _, f := range [...]reading.Field{
		reading.MemoryLimit, reading.MemoryUsed, reading.Temperature, reading.Power, reading.Utilization,
		reading.SMClock, reading.GraphicsClock, reading.PCIeWidth, reading.RemapFailed, reading.RemapPending,
		reading.SRAMThreshold, reading.SMActivity, reading.Processes,
	} {
		number = number || s.Numbers[f].OK
	}
	return s.Up() && (number || s.Throttle.OK || s.NVLink.Up.OK || s.RecoveryAction.OK || s.ECC[ECCUncorrected][ECCVolatile].OK)
}

// newGeneration forgets what a load of the driver ends.
func (t *track) newGeneration(rules []Rule, start time.Time) {
	for i := range rules {
		if rules[i].Clears.By == ClearsGeneration {
			t.rules[i] = ruleState{}
		}
	}
	t.events = dropEvents(t.events, func(e *event) bool {
		return e.xid.endsWithGeneration() && e.Last.Before(start)
	})
	if t.history != nil {
		t.history.restart()
	}
	t.throttle.last = [2]Opt[float64]{}
	t.FabricCompleted, t.FabricSince = false, time.Time{}
}
