// SPDX-License-Identifier: Apache-2.0

package fleetsim

import (
	"math"
	"time"
)

// effect is what the faults of a moment do to a GPU; wholeEffect what they do
// to the node.
type effect struct {
	speed   float64 // left of its speed by what no clock shows
	cooling float64 // left of the cooling
	cap     float64 // of the power limit
	clock   float64 // of the highest clock, by a setting
	brake   float64 // of the highest clock, by the power brake
	lost    bool
	lanes   float64 // left of the PCIe lanes
	speedup float64 // left of the PCIe generations
	links   float64 // left of the NVLinks

	processes         int
	pending, broken   bool // a row of the memory that waits, or that cannot be remapped
	corrected, errors float64
	replays, crc      float64
	rows              int
	xids              []uint64
}

type wholeEffect struct {
	starved  float64 // part of the time in which the host does not feed the GPUs
	pressure float64 // part of the time in which tasks wait for a CPU, beyond the usual
}

const (
	minSpeed = 0.01
	// exchangeLoss and hostLoss are the parts of a step that the NVLinks and the
	// PCIe link take: a link of half the bandwidth makes them twice as long. The
	// exchange is the model's own, the other our judgement.
	exchangeLoss, hostLoss = exchangePart, 0.05
	// How often what happens now and then happens again.
	xidEvery = time.Minute
	eccEvery = 2 * time.Minute

	correctedPerSecond = 100.0 // at full severity
	replaysPerSecond   = 20.0
	crcPerSecond       = 400.0
	xidLoss            = 0.3
	cannotRemap        = 0.8 // severity from which on a row cannot be remapped
)

// effect works out what is wrong in the dt before now, of each GPU and of the
// node.
func (n *Node) effect(dt time.Duration) wholeEffect {
	var whole wholeEffect
	for i := range n.effects {
		n.effects[i] = effect{speed: 1, cooling: 1, cap: 1, clock: 1, brake: 1, lanes: 1, speedup: 1, links: 1, processes: 1}
	}
	for i := range n.faults {
		f := &n.faults[i]
		if !f.active(n.at) {
			continue
		}
		if f.Kind == CPU {
			whole.pressure += f.severity()
			whole.starved = min(0.95, whole.starved+f.severity()/2)
		}
		for g := range n.effects {
			if f.hits(g) {
				n.effects[g].add(f, n.at, dt)
			}
		}
	}
	// The others do the work of a lost GPU.
	up := 0
	for i := range n.effects {
		if !n.effects[i].lost {
			up++
		}
	}
	for i := range n.effects {
		e := &n.effects[i]
		e.speed *= float64(up) / float64(len(n.effects)) * (1 - whole.starved)
	}
	return whole
}

// add puts a fault into the effect that it has on one GPU.
func (e *effect) add(f *Fault, at, dt time.Duration) {
	s := f.severity()
	// A recurring event happens in the first moment too.
	again := func(every time.Duration) bool { return f.since(at)%every < dt }
	switch f.Kind {
	case SlowNode, Flapping:
		e.speed *= 1 - s
	case Drift:
		e.speed *= max(minSpeed, 1-s*f.since(at).Hours())
	case ThermalThrottle:
		e.cooling *= 1 - s
	case PowerLimit:
		e.cap *= 1 - s
	case Brake:
		e.brake *= 1 - s
	case ClockLock:
		e.clock *= 1 - s
	case ECC:
		e.speed *= 1 - s
		e.corrected += correctedPerSecond / 10 * dt.Seconds()
		e.pending = true
		if again(eccEvery) {
			e.errors++
			e.rows++
			e.xids = append(e.xids, 94, 63)
		}
		if s >= cannotRemap {
			e.broken = true
			if again(eccEvery) {
				e.xids = append(e.xids, 64)
			}
		}
	case ECCCorrected:
		e.corrected += correctedPerSecond * s * dt.Seconds()
	case XidError:
		if uint64(s) == 79 {
			e.lost = true
		} else {
			e.speed *= 1 - xidLoss
		}
		if again(xidEvery) && (!e.lost || f.since(at) < dt) {
			e.xids = append(e.xids, uint64(s))
		}
	case LostGPU:
		e.lost = true
		if f.since(at) < dt {
			e.xids = append(e.xids, 79)
		}
	case NVLink:
		e.links *= 1 - s
		e.speed /= 1 + exchangeLoss*(1/max(0.1, 1-s)-1)
	case NVLinkErrors:
		e.speed /= 1 + exchangeLoss*(1/max(0.1, 1-s)-1)
		e.replays += replaysPerSecond * s * dt.Seconds()
		e.crc += crcPerSecond * s * dt.Seconds()
	case PCIe:
		e.lanes *= 1 - s
		e.speed /= 1 + hostLoss*(1/max(0.05, 1-s)-1)
	case PCIeSlow:
		e.speedup *= 1 - s
		e.speed /= 1 + hostLoss*(1/max(0.05, 1-s)-1)
	case Neighbour:
		e.speed *= 1 - s
		e.processes++
	case CPU: // of the node
	}
}

// fail writes what is wrong into the readings, as far as it shows there
// directly.
func (g *gpu) fail(e *effect, busy bool) {
	r := &g.now
	r.Up = !e.lost
	for _, code := range e.xids {
		r.count(code)
	}
	r.ECCCorrected += e.corrected
	r.ECCUncorrected += e.errors
	r.RemappedRows += e.rows
	r.RemapPending, r.RemapFailed = e.pending, e.broken
	r.NVLinkReplays += e.replays
	r.NVLinkCRC += e.crc
	r.NVLinksUp = int(math.Round(float64(NVLinks) * e.links))
	r.PCIeLanes = lanes(PCIeLanes, e.lanes)
	r.PCIeGeneration = max(1, int(math.Floor(float64(PCIeGeneration)*e.speedup+1e-9)))
	r.Processes = e.processes
	if !busy {
		r.PCIeGeneration = 1
		r.Processes--
	}
}

// count adds an event to the GPU's Xids, and drops it when there is no room.
func (r *Reading) count(code uint64) {
	for i := range r.Xids {
		if x := &r.Xids[i]; x.Code == code || x.Code == 0 {
			x.Code = code
			x.Count++
			return
		}
	}
}

// lanes is the widest link that a part of the lanes gives, a power of two.
func lanes(all int, part float64) int {
	n := 1
	for float64(2*n) <= float64(all)*part+1e-9 {
		n *= 2
	}
	return n
}
