// SPDX-License-Identifier: Apache-2.0

// Package reason explains why a node is slow, by the health reasons of its GPUs, then by
// contrasts with its peers. The signal of the verdict plays no part: a slow clock shows as low
// throughput as well. Pure: no pdata, clock or state.
package reason // import "github.com/gpu-collector/gpu-collector/internal/verdict/reason"

import (
	"math"
	"slices"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// scope is the subject of a fact, and form the format of its values.
type (
	scope uint8
	form  uint8
)

const (
	ofGPU  scope = iota
	ofLink       // a network adapter
	ofNode

	yes   form = 1 // a flag: the value is left out
	share form = 2
)

// reader reads the value of the node's GPU or adapter at an index, NaN where it is unknown.
type reader func(n *fleetstate.Node, at int, w window) float64

// fact is how a fact is read from a view.
type fact struct {
	name, unit, what string // the last is for people
	scope            scope
	low              bool // low is bad
	form             form
	value            reader
	// since is when the fact began to hold, Unix seconds, 0 before the first report; nil for
	// values that change all the time.
	since func(n *fleetstate.Node, at int) uint32
}

var (
	healthScore  = &fact{name: "health_score", unit: "1", what: "health score of the GPU", low: true, value: gauge(reading.Health)}
	gpuLost      = held(fleetstate.LostSpell, "the GPU does not answer")
	powerBrake   = held("power_brake", "the power brake held the clocks down")
	hwThermal    = held("hw_thermal", "the hardware held the clocks down because of heat")
	swThermal    = held("sw_thermal", "the driver held the clocks down because of heat")
	hwSlowdown   = held("hw_slowdown", "the hardware held the clocks down")
	powerCap     = held("power_cap", "the power limit held the clocks down")
	smClock      = &fact{name: "sm_clock", unit: "1", what: "SM clock, fraction of its highest, while the GPU works", low: true, form: share, value: working(ratio(reading.SMClock, reading.SMClockLimit))}
	temperature  = &fact{name: "temperature", unit: "Cel", what: "temperature of the GPU", value: gauge(reading.Temperature)}
	power        = &fact{name: "power", unit: "W", what: "power drawn", value: gauge(reading.Power)}
	powerLimit   = step(fact{name: "power_limit", unit: "W", what: "power limit in force", low: true, value: gauge(reading.PowerLimit)}, reading.PowerLimit)
	pcieGen      = step(fact{name: "pcie_link_generation", unit: "1", what: "generation of the PCIe link, while the GPU works", low: true, value: working(gauge(reading.PCIeGeneration))}, reading.PCIeGeneration)
	pcieSpeed    = step(fact{name: "pcie_speed", unit: "1", what: "the same, fraction of the best that GPU and slot can do", low: true, form: share, value: working(ratio(reading.PCIeGeneration, reading.PCIeGenerationLimit))}, reading.PCIeGeneration)
	pcieLanes    = step(fact{name: "pcie_lanes", unit: "1", what: "lanes of the PCIe link, fraction of the most that GPU and slot can do", low: true, form: share, value: ratio(reading.PCIeWidth, reading.PCIeWidthLimit)}, reading.PCIeWidth)
	nvlinksUp    = step(fact{name: "nvlinks_up", unit: "{link}", what: "NVLinks that are up", low: true, value: gauge(reading.NVLinksUp)}, reading.NVLinksUp)
	netErrors    = &fact{name: "network_errors", unit: "{error}", what: "errors of a network adapter", scope: ofLink, value: grown, since: func(n *fleetstate.Node, at int) uint32 { return n.Links[at].Since }}
	netBandwidth = &fact{name: "network_bandwidth", unit: "By/s", what: "bandwidth of the links of all network adapters together", scope: ofNode, low: true, value: bandwidth}
	cpuPressure  = ofTheNode(fact{name: "cpu_pressure", unit: "1", what: "share of time while some task waited for a CPU", form: share}, reading.CPUPressure)
	cpuSteal     = ofTheNode(fact{name: "cpu_steal", unit: "1", what: "share of CPU time that the hypervisor took", form: share}, reading.CPUSteal)
	loadAverage  = ofTheNode(fact{name: "load_average", unit: "{thread}", what: "runnable tasks, mean of a minute"}, reading.LoadAverage)
	hostMemory   = ofTheNode(fact{name: "host_memory", unit: "1", what: "memory of the host in use, fraction", form: share}, reading.HostMemory)
	gpuMemory    = &fact{name: "gpu_memory", unit: "1", what: "memory of the GPU in use, fraction", form: share, value: ratio(reading.MemoryUsed, reading.MemoryLimit)}
	processes    = step(fact{name: "processes", unit: "{process}", what: "processes that compute on the GPU", value: gauge(reading.Processes)}, reading.Processes)
	utilization  = &fact{name: "utilization", unit: "1", what: "share of time while the GPU was busy", low: true, form: share, value: gauge(reading.Utilization)}
)

// facts are in the order of the documentation.
var facts = []*fact{
	healthScore, gpuLost, powerBrake, hwThermal, swThermal, hwSlowdown, powerCap, smClock, temperature, power, powerLimit, pcieGen, pcieSpeed,
	pcieLanes, nvlinksUp, netErrors, netBandwidth, cpuPressure, cpuSteal, loadAverage, hostMemory, gpuMemory, processes, utilization,
}

// named returns the fact of that name, an unknown one as a flag without a text.
func named(name string) *fact {
	if i := slices.IndexFunc(facts, func(f *fact) bool { return f.name == name }); i >= 0 {
		return facts[i]
	}
	return &fact{unit: "1"}
}

// devices is the number of the node's GPUs or adapters, 1 for a fact of the node.
func (f *fact) devices(n *fleetstate.Node) int { return []int{len(n.GPUs), len(n.Links), 1}[f.scope] }

// device is the hw.id of what a value is of, empty for the node.
func (f *fact) device(n *fleetstate.Node, at int) string {
	switch f.scope {
	case ofGPU:
		return n.GPUs[at].UUID
	case ofLink:
		return n.Links[at].Adapter
	}
	return ""
}

// worse returns how far x is on the bad side of y.
func (f *fact) worse(x, y float64) float64 {
	if f.low {
		x, y = y, x
	}
	return x - y
}

// worst returns the worst value of the fact in the node, NaN where none is known, and which
// GPU or adapter has it; of equals the first.
func (f *fact) worst(n *fleetstate.Node, w window) (worst float64, at int) {
	worst = math.NaN()
	for i := range f.devices(n) {
		if v := f.value(n, i, w); v == v && !(f.worse(v, worst) <= 0) {
			worst, at = v, i
		}
	}
	return worst, at
}

func known(v *float64) float64 {
	if v != nil {
		return *v
	}
	return math.NaN()
}

// grown are the errors that an adapter had without a pause until the window.
func grown(n *fleetstate.Node, at int, w window) float64 {
	switch l := &n.Links[at]; {
	case !l.Errors():
		return math.NaN()
	case l.Last >= w.start:
		return l.Grown
	}
	return 0
}

func bandwidth(n *fleetstate.Node, _ int, _ window) float64 {
	sum, total := 0.0, math.NaN()
	for i := range n.Links {
		if l := &n.Links[i]; !l.Errors() {
			sum += l.Value
			total = sum
		}
	}
	return total
}

func gauge(f reading.Field) reader {
	return func(n *fleetstate.Node, at int, _ window) float64 { return known(n.GPUs[at].Live(f)) }
}

// ratio is a gauge as a share of its limit.
func ratio(f, limit reading.Field) reader {
	return func(n *fleetstate.Node, at int, _ window) float64 {
		return min(1, known(n.GPUs[at].Live(f))/known(n.GPUs[at].Live(limit)))
	}
}

// working leaves out GPUs at rest: they lower clocks and links to save power.
func working(value reader) reader {
	return func(n *fleetstate.Node, at int, w window) float64 {
		if busy := n.GPUs[at].Get(reading.Utilization); busy != nil && *busy == 0 {
			return math.NaN()
		}
		return value(n, at, w)
	}
}

// step is a fact that changes when something breaks.
func step(f fact, field reading.Field) *fact {
	f.since = func(n *fleetstate.Node, at int) uint32 { return n.GPUs[at].Stepped(field) }
	return &f
}

func ofTheNode(f fact, field reading.Field) *fact {
	f.scope = ofNode
	f.value = func(n *fleetstate.Node, _ int, _ window) float64 { return known(n.Values.Get(field)) }
	return &f
}

// held is 1 when a throttle reason held in the window, or the GPU did not answer. A reason that
// never held has no series, and not all senders have a series of the answer.
func held(name, what string) *fact {
	answers := func(g *fleetstate.GPU) bool {
		up, reads := g.Get(reading.Up), g.Get(reading.Temperature)
		return up != nil && *up != 0 || up == nil && reads != nil
	}
	return spell(fact{name: name, unit: "1", what: what, form: yes}, name, false, answers)
}

func judged(g *fleetstate.GPU) bool { return g.Health != fleetstate.HealthUnknown }

func spell(f fact, name string, health bool, known func(*fleetstate.GPU) bool) *fact {
	is := func(s fleetstate.Spell) bool { return s.Health == health && s.Name == name }
	f.value = func(n *fleetstate.Node, at int, w window) float64 {
		g := &n.GPUs[at]
		switch {
		case slices.ContainsFunc(g.Spells, func(s fleetstate.Spell) bool { return is(s) && w.has(s) }):
			return 1
		case known(g) || slices.ContainsFunc(g.Spells, is):
			return 0
		}
		return math.NaN()
	}
	f.since = func(n *fleetstate.Node, at int) (since uint32) {
		for _, s := range n.GPUs[at].Spells {
			if is(s) {
				since = s.Since
			}
		}
		return since
	}
	return &f
}
