// SPDX-License-Identifier: Apache-2.0

package reason

import "math"

// Reason names a rule.
type Reason string

// Action names what an operator is to do.
type Action string

// The actions.
const (
	ActionReboot      Action = "drain_and_reboot"
	ActionReset       Action = "drain_and_reset_gpu"
	ActionService     Action = "service"
	ActionCheckPower  Action = "check_power"
	ActionCheckCool   Action = "check_cooling"
	ActionCheckLimit  Action = "check_power_limit"
	ActionCheckClock  Action = "check_clocks"
	ActionCheckPCIe   Action = "check_pcie"
	ActionCheckNVLink Action = "check_nvlink"
	ActionCheckNet    Action = "check_network"
	ActionCheckCPU    Action = "check_cpu"
	ActionCheckMemory Action = "check_memory"
	ActionCheckOthers Action = "check_neighbours"
	ActionBurnIn      Action = "burn_in"
	ActionCheckShared Action = "check_shared"
)

// Unexplained is the reason of a node that no rule explains.
const Unexplained Reason = "unexplained"

// unexplainedAdvice goes with Unexplained.
const unexplainedAdvice = "Drain the node and run a burn-in."

// sharedAdvice goes with Unexplained of many nodes.
const sharedAdvice = "Look for what the nodes share, such as rack, power, cooling, switch, storage or a step of the job."

// Test is one condition on one fact.
type Test struct {
	Fact Fact
	// Limit is the value from which on, in the bad direction, the test holds.
	Limit float64
	// PerMinute compares what was counted per minute of the window.
	PerMinute bool
	// A contrast is a value at least Margin, and Share of the peers' median,
	// worse than that median; any difference when both are zero.
	Margin, Share float64
	// NeedsPeers makes the test fail without a contrast.
	NeedsPeers bool
	// While and Now are flags that have to hold of the same GPU, at any time in
	// the window and at present.
	While, Now []Fact
}

// Rule is one row of the table.
type Rule struct {
	Reason Reason
	// When says the tests in words.
	When   string
	Action Action
	Advice string
	// Tests are alternatives: the rule holds when any of them does.
	Tests []Test
	// Evidence is listed beside the facts of Tests that hold.
	Evidence []Fact
	// Source of the thresholds.
	Source string

	// lowersClock marks causes of low clocks, isLowClock what they lead to.
	lowersClock, isLowClock bool
}

// rules in the order of their tries: a broken part before a part that protects
// itself, that before a slow part; the GPU before the links, the links before the
// host.
var rules = []Rule{
	{
		Reason: "gpu_lost", When: "a GPU is lost or no longer found, or Xid 79",
		Action: ActionReboot, Advice: "Drain the node and reboot it; have the GPU serviced if it is lost again.",
		Tests:    []Test{{Fact: GPULost, Limit: 1}, {Fact: XidOffBus, Limit: 1}},
		Evidence: []Fact{LastXid}, Source: "NVIDIA Xid catalogue: RESTART_BM for Xid 79",
	},
	{
		Reason: "gpu_silent", When: "a GPU does not answer",
		Action: ActionReboot, Advice: "Look at the kernel log of the node, then drain and reboot it: a GPU does not answer the driver.",
		Tests:    []Test{{Fact: GPUSilent, Limit: 1}},
		Evidence: []Fact{LastXid}, Source: "NVML: every call fails or hangs",
	},
	{
		Reason: "row_remap_failed", When: "a row of GPU memory could not be remapped",
		Action: ActionService, Advice: "Drain the node and have the GPU replaced: its memory can no longer be repaired.",
		Tests:    []Test{{Fact: RemapFailed, Limit: 1}},
		Evidence: []Fact{ECCUncorrected, LastXid}, Source: "NVIDIA GPU memory error management: criterion for replacement; DCGM FAIL",
	},
	{
		Reason: "gpu_memory_fault", When: "uncorrectable memory errors, an Xid of the memory, or a repair of the memory that waits for a reset",
		Action: ActionReset, Advice: "Drain the node and reset the GPU, so that its memory is repaired.",
		Tests: []Test{
			{Fact: ECCUncorrected, Limit: 1},
			{Fact: XidMemory, Limit: 1},
			{Fact: RemapPending, Limit: 1},
			{Fact: RetirementPending, Limit: 1},
		},
		Evidence: []Fact{LastXid}, Source: "DCGM health watch: FAIL at any volatile DBE, WARN while a retirement is pending",
	},
	{
		Reason: "gpu_xid", When: "an Xid whose advice by NVIDIA is a reset or service",
		Action: ActionReset, Advice: "Drain the node and reset the GPU; look up the Xid in NVIDIA's catalogue.",
		Tests:    []Test{{Fact: XidReset, Limit: 1}},
		Evidence: []Fact{LastXid}, Source: "NVIDIA Xid catalogue: RESET_GPU, CHECK_MECHANICALS, RESTART_VM",
	},
	{
		Reason: "hw_power_brake", When: "the power brake holds the clocks down",
		Action: ActionCheckPower, Advice: "Check the power supplies and the rack's power budget: the brake signal slows the GPU down.",
		Tests:    []Test{{Fact: PowerBrake, Limit: 1}, {Fact: PowerBrakeTime, Limit: throttledSeconds}},
		Evidence: []Fact{SMClock, Power}, Source: "NVML clocks event reason 0x80; DCGM warns when throttling time grows",
		lowersClock: true,
	},
	{
		Reason: "hw_thermal", When: "the hardware lowers the clocks because of heat",
		Action: ActionCheckCool, Advice: "Check fans, airflow and coolant of the node: the GPU is too hot and its hardware slows it down.",
		Tests:    []Test{{Fact: HWThermal, Limit: 1}, {Fact: HWThermalTime, Limit: throttledSeconds}},
		Evidence: []Fact{Temperature, SMClock}, Source: "NVML clocks event reason 0x40; DCGM warns when throttling time grows",
		lowersClock: true,
	},
	{
		Reason: "sw_thermal", When: "the driver lowers the clocks because of heat",
		Action: ActionCheckCool, Advice: "Check fans, airflow and coolant of the node: the driver lowers the clocks to keep the GPU cool.",
		Tests:    []Test{{Fact: SWThermal, Limit: 1}, {Fact: SWThermalTime, Limit: throttledSeconds}},
		Evidence: []Fact{Temperature, SMClock}, Source: "NVML clocks event reason 0x20; DCGM warns when throttling time grows",
		lowersClock: true,
	},
	{
		Reason: "hw_slowdown", When: "the hardware lowers the clocks and says neither heat nor the power brake",
		Action: ActionCheckPower, Advice: "Check power and cooling of the GPU, and its seating: the hardware slows it down.",
		Tests:    []Test{{Fact: HWSlowdown, Limit: 1}},
		Evidence: []Fact{SMClock, Temperature, Power}, Source: "NVML clocks event reason 0x8",
		lowersClock: true,
	},
	{
		Reason: "sw_power_cap", When: "the power limit holds the clocks down, and is 5 % lower than the peers' or keeps the SM clock 5 % of its maximum below theirs",
		Action: ActionCheckLimit, Advice: "Compare the power limit of the GPU with its peers' and set it to theirs.",
		// That a GPU meets its limit says nothing: those of a job in lockstep that
		// wait for a slow one draw less, and so only the slow one meets its own.
		Tests: []Test{
			{Fact: PowerLimit, Limit: peersDecide, Share: 0.05, NeedsPeers: true, While: []Fact{PowerCap}},
			{Fact: SMClock, Limit: peersDecide, Margin: 0.05, NeedsPeers: true, Now: []Fact{PowerCap}},
		},
		Evidence: []Fact{PowerCap, PowerLimit, Power, SMClock}, Source: "NVML clocks event reason 0x4; a whole fleet at its limit is normal; the least gaps of the signals throughput and compute",
		lowersClock: true,
	},
	{
		Reason: "sm_clock_low", When: "the SM clock is 5 % of its maximum below the peers', for none of the reasons above",
		Action: ActionCheckClock, Advice: "Check application clocks and locked clocks of the GPU; reset it if none are set.",
		Tests:    []Test{{Fact: SMClock, Limit: peersDecide, Margin: 0.05, NeedsPeers: true}},
		Evidence: []Fact{PowerLimit, Power, Temperature, Utilization}, Source: "the least gap of the signal compute",
		isLowClock: true,
	},
	{
		Reason: "pcie_link_degraded", When: "the PCIe link has less lanes than GPU and slot can do, or, while the GPU works, a lower generation than they can do or the peers have",
		Action: ActionCheckPCIe, Advice: "Drain the node and reseat the GPU or its riser: the PCIe link is below what it can do.",
		Tests: []Test{
			{Fact: PCIeWidth, Limit: belowFull},
			{Fact: PCIeSpeed, Limit: belowFull},
			{Fact: PCIeGeneration, Limit: peersDecide, NeedsPeers: true},
		},
		Evidence: []Fact{PCIeReplays, Utilization}, Source: "DCGM: PCIe width and generation below the maximum",
	},
	{
		Reason: "pcie_replays", When: "more than 8 PCIe replays per minute",
		Action: ActionCheckPCIe, Advice: "Drain the node and reseat the GPU or its riser: the PCIe link repeats what it sends.",
		Tests:    []Test{{Fact: PCIeReplays, Limit: pcieReplaysPerMinute, PerMinute: true}},
		Evidence: []Fact{PCIeWidth, PCIeGeneration}, Source: "DCGM health watch: WARN above 8 per minute",
	},
	{
		Reason: "nvlink_errors", When: "NVLink replays, recoveries or CRC errors, or an Xid of NVLink",
		Action: ActionCheckNVLink, Advice: "Drain the node and reset its GPUs; have the NVLink connection checked if the errors come back.",
		Tests:    []Test{{Fact: NVLinkReplays, Limit: 1}, {Fact: NVLinkCRC, Limit: 1}, {Fact: XidNVLink, Limit: 1}},
		Evidence: []Fact{NVLinksUp, LastXid}, Source: "DCGM health watch: FAIL at one replay or recovery, WARN at one CRC error",
	},
	{
		Reason: "nvlink_down", When: "fewer NVLinks are up than with the peers",
		Action: ActionCheckNVLink, Advice: "Drain the node and reset its GPUs; have the NVLink connection checked if the link stays down.",
		Tests:    []Test{{Fact: NVLinksUp, Limit: peersDecide, NeedsPeers: true}},
		Evidence: []Fact{NVLinkReplays, NVLinkCRC}, Source: "DCGM health watch: FAIL at any link down; boards without a bridge have links that are down",
	},
	{
		Reason: "network_errors", When: "more errors of a network adapter than with the peers",
		Action: ActionCheckNet, Advice: "Check cable, transceiver and switch port of the network adapter.",
		Tests:    []Test{{Fact: NetworkErrors, Limit: 1, NeedsPeers: true}},
		Evidence: []Fact{NetworkBandwidth}, Source: "a healthy link has none; our judgement",
	},
	{
		Reason: "network_link_slow", When: "the network adapters of the node have less bandwidth than the peers'",
		Action: ActionCheckNet, Advice: "Check that each network adapter runs at its full speed; replace the cable of a slower one.",
		Tests:    []Test{{Fact: NetworkBandwidth, Limit: peersDecide, Share: 0.01, NeedsPeers: true}},
		Evidence: []Fact{NetworkErrors}, Source: "equal nodes have equal links; our judgement",
	},
	{
		Reason: "cpu_contention", When: "tasks wait for a CPU, the hypervisor takes CPU time, or the run queue is long, each against the peers",
		Action: ActionCheckCPU, Advice: "Look for other work on the node's CPUs, and check their governor and the container's CPU limits.",
		Tests: []Test{
			{Fact: CPUPressure, Limit: 0.20, Margin: 0.20, NeedsPeers: true},
			{Fact: CPUSteal, Limit: 0.05, Margin: 0.05, NeedsPeers: true},
			{Fact: LoadAverage, Limit: 1, Share: 1, NeedsPeers: true},
		},
		Evidence: []Fact{Processes}, Source: "the least gap of the signal cpu; steal and run queue are our judgement",
	},
	{
		Reason: "memory_pressure", When: "the memory of the host or of a GPU is nearly full, and not that of the peers",
		Action: ActionCheckMemory, Advice: "Look for what fills the node's memory, and check that the job's processes run on the GPU's NUMA node.",
		Tests: []Test{
			{Fact: HostMemory, Limit: 0.95, Margin: 0.10, NeedsPeers: true},
			{Fact: GPUMemory, Limit: 0.95, Margin: 0.10, NeedsPeers: true},
		},
		Evidence: []Fact{Processes}, Source: "our judgement",
	},
	{
		Reason: "noisy_neighbour", When: "more processes compute on a GPU than with the peers",
		Action: ActionCheckOthers, Advice: "End or move what else runs on the GPU.",
		Tests:    []Test{{Fact: Processes, Limit: 2, Margin: 1, NeedsPeers: true}},
		Evidence: []Fact{Utilization, GPUMemory}, Source: "a training job has one process per GPU; our judgement",
	},
}

const (
	// throttledSeconds in the window: DCGM warns at any, but drivers count the
	// microseconds of a clock change; a second is none of those.
	throttledSeconds = 1
	// belowFull is less than full and more than any link can lose: a generation
	// of 6 that lost one has 0.83.
	belowFull = 0.95
)

var (
	// DCGM's limit is more than 8.
	pcieReplaysPerMinute = math.Nextafter(8, 9)
	// peersDecide is a limit that any low value keeps.
	peersDecide = math.Inf(1)
)
