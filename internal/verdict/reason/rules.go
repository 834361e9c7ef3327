// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
)

// Reason names why a node is slow: a health reason of a GPU, or one of the contrasts.
type Reason string

// Unexplained is the reason of a node that no rule explains.
const Unexplained Reason = "unexplained"

// test is one condition on one fact.
type test struct {
	fact  *fact
	limit float64 // the value from which on, in the bad direction, it holds
	// A contrast is a value at least margin, and share of the peers' median, worse than that
	// median; any difference when both are zero.
	margin, share float64
	peers         bool                               // it fails without a contrast
	on            func(*fleetstate.GPU, window) bool // of which GPUs it is, nil for all
}

// rule is one row of the table.
type rule struct {
	reason   Reason
	when     string // the tests as text, empty for a health reason
	action   gpuhealth.Action
	tests    []test  // alternatives: the rule holds when any of them does
	evidence []*fact // beside the facts of tests that hold
	source   string  // of the thresholds
	order    int     // of the tries
}

const (
	belowFull   = 0.95            // more than any link can lose: a generation of 6 that lost one has 0.83
	alike       = 0.03            // GPUs of one node
	quietCap    = 85              // of health reasons without an effect on speed: memory_history, ecc_off
	peersDecide = math.MaxFloat64 // a limit that any low value keeps
)

// contrasts in the order of their tries: a part that protects itself before a slow part, the
// GPU before the links, the links before the host. What the rubric sees too has its name and
// its action.
var contrasts = []rule{
	{reason: "gpu_lost", when: "a GPU does not answer, and its agent does not say why", action: gpuhealth.ActionReboot, tests: []test{{fact: gpuLost, limit: 1}}, source: "NVML: every call fails or hangs"},
	{reason: "hw_power_brake", when: "the power brake holds the clocks down", action: gpuhealth.ActionCheckPower, tests: []test{{fact: powerBrake, limit: 1}}, evidence: []*fact{smClock, power}, source: "NVML clocks event reason 0x80"},
	{reason: "hw_thermal", when: "the hardware lowers the clocks because of heat", action: gpuhealth.ActionCheckCooling, tests: []test{{fact: hwThermal, limit: 1}}, evidence: []*fact{temperature, smClock}, source: "NVML clocks event reason 0x40"},
	{reason: "sw_thermal", when: "the driver lowers the clocks because of heat", action: gpuhealth.ActionCheckCooling, tests: []test{{fact: swThermal, limit: 1}}, evidence: []*fact{temperature, smClock}, source: "NVML clocks event reason 0x20"},
	{reason: "hw_slowdown", when: "the hardware lowers the clocks and says neither heat nor the power brake", action: gpuhealth.ActionCheckPower, tests: []test{{fact: hwSlowdown, limit: 1}}, evidence: []*fact{smClock, temperature, power}, source: "NVML clocks event reason 0x8"},
	{
		reason: "sw_power_cap", when: "the power limit holds the clocks down, and is 5 % lower than the peers' or keeps the SM clock 5 % of its maximum below theirs",
		action: gpuhealth.ActionCheckPowerLimit,
		// A GPU at its limit alone proves nothing: in a job in lockstep the waiting GPUs draw
		// less, so that only the slow one meets its limit.
		tests: []test{
			{fact: powerLimit, limit: peersDecide, share: 0.05, peers: true, on: func(g *fleetstate.GPU, w window) bool { return throttled(g, w, powerCap) }},
			{fact: smClock, limit: peersDecide, margin: 0.05, peers: true, on: func(g *fleetstate.GPU, _ window) bool { return slices.Contains(g.Throttles(), powerCap.name) }},
		},
		evidence: []*fact{powerCap, powerLimit, power, smClock}, source: "NVML clocks event reason 0x4; the least gaps of throughput and compute",
	},
	{
		reason: "sm_clock_low", when: "the SM clock is 5 % of its maximum below the peers', for none of the reasons above", action: gpuhealth.ActionCheckClocks,
		tests: []test{{fact: smClock, limit: peersDecide, margin: 0.05, peers: true, on: func(g *fleetstate.GPU, w window) bool {
			return !throttled(g, w, powerBrake, hwThermal, swThermal, hwSlowdown)
		}}},
		evidence: []*fact{powerLimit, power, temperature, utilization}, source: "the least gap of the signal compute",
	},
	{reason: "pcie_width", when: "the PCIe link has less lanes than GPU and slot can do", action: gpuhealth.ActionService, tests: []test{{fact: pcieLanes, limit: belowFull}}, evidence: []*fact{utilization}, source: "DCGM: PCIe width below the maximum"},
	{reason: "pcie_generation", when: "the PCIe link of a GPU at work has a lower generation than GPU and slot can do, or than the peers'", action: gpuhealth.ActionService, tests: []test{{fact: pcieSpeed, limit: belowFull}, {fact: pcieGen, limit: peersDecide, peers: true}}, evidence: []*fact{utilization}, source: "DCGM: PCIe generation below the maximum"},
	{reason: "nvlink_down", when: "fewer NVLinks are up than with the peers", action: gpuhealth.ActionReboot, tests: []test{{fact: nvlinksUp, limit: peersDecide, peers: true}}, source: "DCGM health watch: FAIL at any link down"},
	{reason: "network_errors", when: "more errors of a network adapter than with the peers", action: gpuhealth.ActionCheckNetwork, tests: []test{{fact: netErrors, limit: 1, peers: true}}, evidence: []*fact{netBandwidth}, source: "a healthy link has none; our judgement"},
	{reason: "network_link_slow", when: "the network adapters of the node have less bandwidth than the peers'", action: gpuhealth.ActionCheckNetwork, tests: []test{{fact: netBandwidth, limit: peersDecide, share: 0.01, peers: true}}, evidence: []*fact{netErrors}, source: "equal nodes have equal links; our judgement"},
	{
		reason: "cpu_contention", when: "tasks wait for a CPU, the hypervisor takes CPU time, or the run queue is long, each against the peers", action: gpuhealth.ActionCheckCPU,
		tests: []test{
			{fact: cpuPressure, limit: 0.20, margin: 0.20, peers: true},
			{fact: cpuSteal, limit: 0.05, margin: 0.05, peers: true},
			{fact: loadAverage, limit: 1, share: 1, peers: true},
		},
		evidence: []*fact{processes}, source: "the least gap of the signal cpu; steal and run queue are our judgement",
	},
	{reason: "memory_pressure", when: "the memory of the host or of a GPU is nearly full, and not that of the peers", action: gpuhealth.ActionCheckMemory, tests: []test{{fact: hostMemory, limit: 0.95, margin: 0.10, peers: true}, {fact: gpuMemory, limit: 0.95, margin: 0.10, peers: true}}, evidence: []*fact{processes}, source: "our judgement"},
	{reason: "noisy_neighbour", when: "more processes compute on a GPU than with the peers", action: gpuhealth.ActionCheckNeighbours, tests: []test{{fact: processes, limit: 2, margin: 1, peers: true}}, evidence: []*fact{utilization, gpuMemory}, source: "a training job has one process per GPU; our judgement"},
}

// throttled reports whether one of the reasons held in the window.
func throttled(g *fleetstate.GPU, w window, by ...*fact) bool {
	return slices.ContainsFunc(g.Spells, func(s fleetstate.Spell) bool {
		return !s.Health && w.has(s) && slices.ContainsFunc(by, func(f *fact) bool { return f.name == s.Name })
	})
}

// rulesOf are the rules for a node in the order of their tries: its health reasons with an
// action, the worst first, the contrasts, and the health reasons that are only to be watched.
func rulesOf(n *fleetstate.Node, w window) []rule {
	var list []rule
	for i := range n.GPUs {
		for _, s := range n.GPUs[i].Spells {
			name, action, order := Reason(s.Name), gpuhealth.Action(s.Action), gpuhealth.CapOf(s.Name)
			watch := action.Advice() == "" || action == gpuhealth.ActionNone
			if watch && order >= quietCap || !s.Health || !w.has(s) || slices.ContainsFunc(list, func(r rule) bool { return r.reason == name }) {
				continue
			}
			if watch {
				order += 1000 // behind the contrasts
			}
			list = append(list, rule{reason: name, action: action, tests: []test{{fact: spell(fact{name: "health " + s.Name}, s.Name, true, judged), limit: 1}}, evidence: []*fact{healthScore, smClock}, order: order})
		}
	}
	for i, r := range contrasts {
		r.order = gpuhealth.NoCap + 1 + i
		list = append(list, r)
	}
	slices.SortStableFunc(list, compare)
	return list
}

func compare(a, b rule) int {
	return cmp.Or(cmp.Compare(a.order, b.order), strings.Compare(string(a.reason), string(b.reason)))
}
