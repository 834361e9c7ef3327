// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// worst returns the worst value of a fact in the node, and which GPU or
// adapter has it; of equals the first.
func (n *Node) worst(f Fact, w window) (worst float64, at int, ok bool) {
	for i := range n.devices(f) {
		if v, known := n.value(f, i, w); known && (!ok || f.worse(v, worst) > 0) {
			worst, at, ok = v, i, true
		}
	}
	return worst, at, ok
}

// devices is of how many GPUs or adapters the node can tell a fact.
func (n *Node) devices(f Fact) int {
	switch facts[f].scope {
	case ofGPU:
		return len(n.gpus)
	case ofAdapter:
		return len(n.adapters)
	default:
		return 1
	}
}

// value returns a fact of the GPU or adapter at that index.
func (n *Node) value(f Fact, i int, w window) (float64, bool) {
	switch facts[f].scope {
	case ofAdapter:
		return n.growth(f, i, w), n.counts(f, i)
	case ofNode:
		return n.nodeValue(f)
	case ofGPU:
	}
	g := &n.gpus[i]
	switch f {
	case GPULost:
		return one(g.up == UpLost), g.up != UpUnknown
	case GPUSilent:
		return one(g.up == UpSilent), g.up != UpUnknown
	case XidOffBus, XidMemory, XidReset, XidNVLink:
		// A GPU without an Xid has no series of them.
		return n.growth(f, i, w), true
	case LastXid:
		return float64(g.xid), g.xid != 0 && g.xidAt >= w.start
	case SMClock:
		return g.fraction(reading.SMClock, reading.SMClockLimit, true)
	case PCIeGeneration:
		v := g.gauges[reading.PCIeGeneration-firstGauge]
		return float64(v), known(v) && !g.rests()
	case PCIeSpeed:
		return g.fraction(reading.PCIeGeneration, reading.PCIeGenerationLimit, true)
	case PCIeWidth:
		return g.fraction(reading.PCIeWidth, reading.PCIeWidthLimit, false)
	}
	field := source[f]
	switch {
	case field < firstGauge:
		flag := field - firstFlag
		bit, at := uint8(1)<<flag, g.held[flag]
		held := g.on&bit != 0 || at != 0 && at >= w.start
		return one(held), g.told&bit != 0 || silentFlags&bit != 0 && g.up == UpAnswers
	case field < firstCounter:
		v := g.gauges[field-firstGauge]
		return float64(v), known(v)
	default:
		return n.growth(f, i, w), g.counts(f)
	}
}

// source is the field of the facts that are one reading; for a fact that
// several counters add to, one of them.
var source = [NumFacts]reading.Field{
	RemapFailed: reading.RemapFailed, RemapPending: reading.RemapPending, RetirementPending: reading.RetirementPending,
	PowerBrake: reading.PowerBrake, HWThermal: reading.HWThermal, SWThermal: reading.SWThermal,
	HWSlowdown: reading.HWSlowdown, PowerCap: reading.PowerCap,
	PCIeGeneration: reading.PCIeGeneration, PCIeSpeed: reading.PCIeGeneration, PCIeWidth: reading.PCIeWidth,
	Temperature: reading.Temperature, Power: reading.Power, PowerLimit: reading.PowerLimit, NVLinksUp: reading.NVLinksUp,
	GPUMemory: reading.MemoryShare, Processes: reading.Processes, Utilization: reading.Utilization,
	ECCUncorrected: reading.ECCUncorrected, PCIeReplays: reading.PCIeReplays,
	NVLinkReplays: reading.NVLinkReplay, NVLinkCRC: reading.NVLinkCRC,
	CPUPressure: reading.CPUPressure, CPUSteal: reading.CPUSteal, LoadAverage: reading.LoadAverage, HostMemory: reading.HostMemory,
	PowerBrakeTime: reading.PowerBrakeTime, HWThermalTime: reading.HWThermalTime, SWThermalTime: reading.SWThermalTime,
}

// silentFlags are those that have no series until they first hold: of a GPU
// that answers, no word is a no.
const silentFlags = 1<<(reading.PowerBrake-firstFlag) | 1<<(reading.HWThermal-firstFlag) |
	1<<(reading.SWThermal-firstFlag) | 1<<(reading.HWSlowdown-firstFlag) | 1<<(reading.PowerCap-firstFlag)

// rests reports whether the GPU is known to do nothing: it lowers its clocks
// and its link then, to save power.
func (g *gpu) rests() bool { return g.gauges[reading.Utilization-firstGauge] == 0 }

// fraction is a reading as a share of its limit; underload, a GPU at rest has
// none.
func (g *gpu) fraction(f, limit reading.Field, underload bool) (float64, bool) {
	if underload && g.rests() {
		return 0, false
	}
	v, l := g.gauges[f-firstGauge], g.gauges[limit-firstGauge]
	if !(v > 0 && l > 0) {
		return 0, false
	}
	return min(1, float64(v)/float64(l)), true
}

// counts reports whether any counter of the fact is known.
func (g *gpu) counts(f Fact) bool {
	for i, fact := range counted {
		if fact == f && g.counters[i] >= 0 {
			return true
		}
	}
	return false
}

// counts reports whether an adapter has told of the fact.
func (n *Node) counts(f Fact, i int) bool {
	for j := range n.series {
		if n.series[j].fact == f && int(n.series[j].of) == i {
			return true
		}
	}
	return false
}

func (n *Node) growth(f Fact, i int, w window) float64 {
	if h := n.history(f, i); h != nil {
		return h.since(w.start)
	}
	return 0
}

func (n *Node) history(f Fact, i int) *history {
	for j := range n.moved {
		if h := &n.moved[j]; h.fact == f && int(h.of) == i {
			return h
		}
	}
	return nil
}

func (n *Node) nodeValue(f Fact) (float64, bool) {
	v := unknown
	if field := source[f]; OfNode(field) {
		v = n.gauges[field-firstOfNode]
	} else if f == NetworkBandwidth {
		for i := range n.adapters {
			if b := n.adapters[i].bandwidth; known(b) {
				if !known(v) {
					v = 0
				}
				v += b
			}
		}
	}
	return float64(v), known(v)
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
