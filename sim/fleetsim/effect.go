// SPDX-License-Identifier: Apache-2.0

package fleetsim

import (
	"math"
	"time"
)

// part is something of a GPU that faults leave a part of.
type part int

const (
	nothing part = iota
	speed        // by what no clock shows
	cooling
	powerLimit
	clockLimit // by a setting
	brake      // of the highest clock, by the power brake
	pcieLanes
	pcieGenerations
	nvlinks
	numParts
)

// effect is what the faults of a moment do to a GPU, wholeEffect to the node.
type effect struct {
	left            [numParts]float64 // 1 without a fault
	lost            bool
	processes       int
	pending, broken bool // a row of the memory that waits, or that cannot be remapped
	corrected       float64
	uncorrected     int
	replays, crc    float64
	xids            []uint64
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
	minNVLinks, minPCIe    = 0.1, 0.05 // of the bandwidth: there are slower ways
	// How often what happens now and then happens again.
	xidEvery = time.Minute
	eccEvery = 2 * time.Minute

	correctedPerSecond = 100.0 // at full severity
	replaysPerSecond   = 20.0
	crcPerSecond       = 400.0
	xidLoss            = 0.3
	cannotRemap        = 0.8 // severity from which on a row cannot be remapped
	lostXid            = 79
)

// effect works out what is wrong in the dt before now, of each GPU and of the node.
func (n *Node) effect(dt time.Duration) wholeEffect {
	var whole wholeEffect
	for i := range n.effects {
		n.effects[i] = effect{left: [numParts]float64{1, 1, 1, 1, 1, 1, 1, 1, 1}, processes: 1}
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
			if f.GPU == AllGPUs || f.GPU == g {
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
		n.effects[i].left[speed] *= float64(up) / float64(len(n.effects)) * (1 - whole.starved)
	}
	return whole
}

func (e *effect) add(f *Fault, at, dt time.Duration) {
	s, since := f.severity(), f.since(at)
	e.left[kinds[f.Kind].takes] *= 1 - s
	// A recurring event happens in the first moment too.
	again := func(every time.Duration) bool { return since%every < dt }
	// What takes a part of a step takes longer with a part of its bandwidth.
	longer := func(part, least float64) { e.left[speed] /= 1 + part*(1/max(least, 1-s)-1) }
	switch f.Kind {
	case Drift:
		e.left[speed] *= max(minSpeed, 1-s*since.Hours())
	case ECC:
		e.corrected += correctedPerSecond / 10 * dt.Seconds()
		e.pending, e.broken = true, e.broken || s >= cannotRemap
		if again(eccEvery) {
			e.uncorrected++
			if e.xids = append(e.xids, 94, 63); e.broken {
				e.xids = append(e.xids, 64)
			}
		}
	case ECCCorrected:
		e.corrected += correctedPerSecond * s * dt.Seconds()
	case XidError:
		if s != lostXid {
			e.left[speed] *= 1 - xidLoss
			if again(xidEvery) {
				e.xids = append(e.xids, uint64(s))
			}
			return
		}
		fallthrough
	case LostGPU:
		if e.lost = true; since < dt {
			e.xids = append(e.xids, lostXid)
		}
	case NVLink:
		longer(exchangeLoss, minNVLinks)
	case NVLinkErrors:
		longer(exchangeLoss, minNVLinks)
		e.replays += replaysPerSecond * s * dt.Seconds()
		e.crc += crcPerSecond * s * dt.Seconds()
	case PCIe, PCIeSlow:
		longer(hostLoss, minPCIe)
	case Neighbour:
		e.processes++
	default:
	}
}

// fail writes what is wrong into the readings, as far as it shows there directly.
func (g *gpu) fail(e *effect, busy bool) {
	r := &g.now
	r.Up = !e.lost
	for _, code := range e.xids {
		r.count(code)
	}
	r.ECCCorrected += e.corrected
	r.ECCUncorrected += float64(e.uncorrected)
	r.RemappedRows += e.uncorrected
	r.RemapPending, r.RemapFailed = e.pending, e.broken
	r.NVLinkReplays += e.replays
	r.NVLinkCRC += e.crc
	r.NVLinksUp = int(math.Round(NVLinks * e.left[nvlinks]))
	r.PCIeLanes = lanes(e.left[pcieLanes])
	r.PCIeGeneration = max(1, int(math.Floor(PCIeGeneration*e.left[pcieGenerations]+1e-9)))
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
func lanes(part float64) int {
	n := 1
	for float64(2*n) <= PCIeLanes*part+1e-9 {
		n *= 2
	}
	return n
}
