// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"slices"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// view is what a condition looks at.
type view struct {
	s   *Sample
	t   *track
	now time.Time
	// active is whether the rule of the condition is, and threshold is the rule's.
	active    bool
	threshold float64
	others    others
}

// others summarises the other GPUs of the node.
type others struct {
	// gpus is how many there are, faults the most occasions of one of them.
	gpus, faults int
	// Of those of the same model, the most NVLinks that were up at one of them, and
	// how many of them had as many as this GPU.
	links uint32
	alike int
}

// answers is met while the GPU does not answer for this reason, and not met
// once it answers. It is absent while the GPU does not answer for another reason.
func answers(r Reason) func(*view) finding {
	return func(v *view) finding {
		switch v.s.Reason {
		case r:
			return yes
		case ReasonOK:
			return no
		default:
			return absent
		}
	}
}

// recovery is the rule of a recovery action that the driver asks for.
func recovery(name, when string, action Action, asked RecoveryAction) Rule {
	return Rule{Name: name, When: when, Cap: 20, Action: action, Clears: whileTrue, Source: "NVML field 230", condition: func(v *view) finding {
		r := v.s.RecoveryAction
		return foundIf(Opt[bool]{r.V == asked, r.OK})
	}}
}

// flag is met while one of the readings is above 0.
func flag(fields ...reading.Field) func(*view) finding {
	return func(v *view) finding {
		var on Opt[bool]
		for _, f := range fields {
			one := v.s.On(f)
			on.V, on.OK = on.V || one.V, on.OK || one.OK
		}
		return foundIf(on)
	}
}

// less is met while a reading is below another one.
func less(f, than reading.Field) func(*view) finding {
	return func(v *view) finding {
		a, b := v.s.Numbers[f], v.s.Numbers[than]
		return foundIf(Opt[bool]{a.V < b.V, a.OK && b.OK})
	}
}

func perMinute(c count, over func(n, threshold float64) bool) func(*view) finding {
	return func(v *view) finding {
		n := v.t.history.grew(v.now, c, time.Minute)
		return foundIf(Opt[bool]{over(n.V, v.threshold), n.OK})
	}
}

func atLeast(n, threshold float64) bool { return n >= threshold }

func above(n, threshold float64) bool { return n > threshold }

func retiredPages(v *view) finding {
	sbe, dbe := v.s.count(reading.RetiredSBE), v.s.count(reading.RetiredDBE)
	if !sbe.OK && !dbe.OK {
		return absent
	}
	return found(sbe.V+dbe.V >= maxRetiredPages || dbe.V > maxRetiredDBE && v.t.week.grew(dbe.V) > maxDBEPerWeek)
}

// fabricNotJoined is met by a GPU that has yet to join its fabric for too long,
// that had joined it and has to again, or that joined it with an error.
func fabricNotJoined(v *view) finding {
	f := &v.s.Fabric
	wrong := f.Conditions[FabricIncorrectConfiguration]
	if wrong.V || f.Failed.V {
		return yes
	}
	switch {
	case !f.State.OK || f.State.V == FabricNotSupported:
		return foundIf(wrong)
	case f.State.V == FabricCompleted:
		return no
	default:
		return found(v.t.FabricCompleted || v.now.Sub(v.t.FabricSince).Minutes() > v.threshold)
	}
}

// fabricHealth is met while the driver's summary is this one or one of the
// conditions holds.
func fabricHealth(bad FabricSummary, conditions ...FabricCondition) func(*view) finding {
	return func(v *view) finding {
		f := &v.s.Fabric
		known, met := f.Summary.OK, f.Summary == Some(bad)
		for _, c := range conditions {
			known, met = known || f.Conditions[c].OK, met || f.Conditions[c].V
		}
		return foundIf(Opt[bool]{met, known})
	}
}

// fewerLinks is whether fewer than so many NVLinks are up. A GPU in MIG mode may
// have none up: slices have no use for them.
func fewerLinks(s *Sample, than uint32) bool {
	up := s.NVLink.Up.V
	return up < than && (up > 0 || !s.On(reading.ModeMIG).V)
}

// linksFewer compares a GPU that never had more links with its siblings; nvlink_down is
// for the others. No link at all is a fault where a switch joins all GPUs of the node.
// Bridges join cards in twos or fours, some with fewer links than others: a card
// misses links where an odd number of cards have as many as it has.
func linksFewer(v *view) finding {
	up, o := v.s.NVLink.Up, &v.others
	if !up.OK {
		return absent
	}
	switched := v.s.Fabric.State.OK && v.s.Fabric.State.V != FabricNotSupported || strings.Contains(v.s.Model, "SXM")
	missing := switched || up.V > 0 && o.alike%2 == 0
	return found(missing && !v.t.LinksAccepted && fewerLinks(v.s, o.links) && up.V >= v.t.LinksUp)
}

// A job that is started again and again within a half hour faults once.
func halfHourOf(t time.Time) int64 { return t.Unix() / (30 * 60) }

const halfHoursPerDay = 48

// occasions is how often of late an application's Xid came after a half hour
// of the clock without one.
func (t *track) occasions(now time.Time) int {
	return spells(t.Faults.last(halfHourOf(now), halfHoursPerDay))
}

// repeatedFaults is met by a GPU that faults more often than the others: an application
// faults on all of them. Without another GPU it is not met.
func repeatedFaults(v *view) finding {
	n := v.t.occasions(v.now)
	return found(v.others.gpus > 0 && float64(n) >= v.threshold && n >= 2*v.others.faults)
}

// pcieGeneration is absent for a GPU at rest, which slows its link down.
func pcieGeneration(v *view) finding {
	g, m := v.s.Numbers[reading.PCIeGeneration], v.s.Numbers[reading.PCIeGenerationLimit]
	atWork := v.s.Numbers[reading.Utilization].V > 0 || v.s.PerformanceState == Some[uint32](0)
	switch {
	case !g.OK || !m.OK:
		return absent
	case g.V >= m.V:
		return no
	case atWork:
		return yes
	default:
		return absent
	}
}

// datacentre reports whether a GPU of this name is not one for a desk, where
// ECC is off when it leaves the factory.
func datacentre(model string) bool {
	desks := []string{"GeForce", "RTX", "Quadro", "TITAN", "T1000", "T600", "T400"}
	return model != "" && !slices.ContainsFunc(desks, func(desk string) bool { return strings.Contains(model, desk) })
}
