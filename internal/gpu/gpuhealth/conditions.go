// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"strings"
	"time"
)

// view is what a condition looks at.
type view struct {
	s   *Sample
	t   *track
	now time.Time
	// active tells a condition whether its rule is, and threshold is the rule's.
	active    bool
	threshold float64
	others    others
}

// others is what the other GPUs of the node say.
type others struct {
	// gpus is how many there are, faults the most occasions of one of them.
	gpus, faults int
	// Of those of the same model, the most NVLinks that were up at one of them, and
	// how many of them had as many as this GPU.
	links uint32
	alike int
}

// answers is met while the GPU does not answer for this reason, and not met
// once it answers. Another silence does not tell.
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

func recovery(a RecoveryAction) func(*view) finding {
	return func(v *view) finding {
		r := v.s.RecoveryAction
		return foundIf(Opt[bool]{r.V == a, r.OK})
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
	sbe, dbe := v.s.RetiredPages[RetiredSBE], v.s.RetiredPages[RetiredDBE]
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
		told, met := f.Summary.OK, f.Summary == Some(bad)
		for _, c := range conditions {
			told, met = told || f.Conditions[c].OK, met || f.Conditions[c].V
		}
		return foundIf(Opt[bool]{met, told})
	}
}

// fewerLinks is whether fewer than so many NVLinks are up. A GPU in MIG mode may
// have none up: slices have no use for them.
func fewerLinks(s *Sample, than uint32) bool {
	up := s.NVLink.Up.V
	return up < than && (up > 0 || !s.Modes[ModeMIG].V)
}

// linksFewer compares with siblings what had no more before: nvlink_down tells
// the rest. No link at all is a fault where a switch joins all GPUs of the node.
// Bridges join cards in twos or fours, some with fewer links than others: a card
// lacks links where the cards that have as many as it has are odd in number.
func linksFewer(v *view) finding {
	up, o := v.s.NVLink.Up, &v.others
	if !up.OK {
		return absent
	}
	switched := v.s.Fabric.State.OK && v.s.Fabric.State.V != FabricNotSupported || strings.Contains(v.s.Model, "SXM")
	lacks := switched || up.V > 0 && o.alike%2 == 0
	return found(lacks && !v.t.LinksAccepted && fewerLinks(v.s, o.links) && up.V >= v.t.LinksUp)
}

// A job that is started again and again within a half hour faults once.
func halfHourOf(t time.Time) int64 { return t.Unix() / (30 * 60) }

const halfHoursPerDay = 48

// occasions is how often of late an application's Xid came after a half hour
// of the clock without one.
func (t *track) occasions(now time.Time) int {
	return spells(t.Faults.last(halfHourOf(now), halfHoursPerDay))
}

// repeatedFaults tells the GPU from the application, which faults on other GPUs
// too. Without another GPU nobody can tell.
func repeatedFaults(v *view) finding {
	n := v.t.occasions(v.now)
	return found(v.others.gpus > 0 && float64(n) >= v.threshold && n >= 2*v.others.faults)
}

// pcieGeneration does not tell of a GPU at rest.
func pcieGeneration(v *view) finding {
	g, m := v.s.PCIe.Generation, v.s.PCIe.GenerationMax
	if !g.OK || !m.OK {
		return absent
	}
	if g.V >= m.V {
		return no
	}
	busy := v.s.Utilization.OK && v.s.Utilization.V > 0
	fullSpeed := v.s.PerformanceState.OK && v.s.PerformanceState.V == 0
	if !busy && !fullSpeed {
		return absent
	}
	return yes
}

// datacentre reports whether a GPU of this name is not one for a desk, where
// ECC is off when it leaves the factory.
func datacentre(model string) bool {
	if model == "" {
		return false
	}
	for _, desk := range []string{"GeForce", "RTX", "Quadro", "TITAN", "T1000", "T600", "T400"} {
		if strings.Contains(model, desk) {
			return false
		}
	}
	return true
}
