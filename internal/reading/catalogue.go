// SPDX-License-Identifier: Apache-2.0

package reading

import (
	"math"

	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	semconv "github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// Field is one thing that can be known of a subject.
type Field uint8

// The fields, in the units of their metrics.
const (
	None Field = iota

	// Numbers of a GPU that gpuhealth holds by field, checks by the range of their row, and
	// the nvml receiver records as they are. Each has one point: metricdoc writes the code.
	MemoryLimit
	MemoryUsed
	MemoryReserved
	Utilization
	MemoryUtilization
	EncoderUtilization
	DecoderUtilization
	Temperature
	MemoryTemperature
	TemperatureMargin
	// TemperatureLimit is where the hardware slows down. It shuts down at the next one, and
	// the software slows down at a maximum.
	TemperatureLimit
	ShutdownTemperature
	MaxTemperature
	MaxMemoryTemperature
	// The same as margins (Ada and newer; slowdown is -2 on H100, -3 on B200).
	SlowdownMargin
	ShutdownMargin
	MaxMargin
	MaxMemoryMargin
	Power
	PowerLimit
	PowerLimitMax
	Energy
	GraphicsClock
	SMClock
	MemoryClock
	VideoClock
	GraphicsClockLimit
	SMClockLimit
	MemoryClockLimit
	VideoClockLimit
	GraphicsActivity
	SMActivity
	SMOccupancy
	TensorActivity
	DRAMActivity
	FP64Activity
	FP32Activity
	FP16Activity
	Processes
	GraphicsProcesses
	PCIeGeneration
	PCIeGenerationLimit
	PCIeWidth
	PCIeWidthLimit
	PCIeReplays
	// PCIeRollovers is how often that counter in the hardware wrapped.
	PCIeRollovers
	RetiredSBE
	RetiredDBE
	RetirementPending
	RemappedCorrected
	RemappedUncorrected
	RemapPending
	RemapFailed
	// Since the driver was loaded, the clocks of lowered clocks.
	PowerCapTime
	ThermalTime
	SyncBoostTime
	BoardLimitTime
	LowUtilizationTime
	ReliabilityTime
	SWThermalTime
	HWThermalTime
	PowerBrakeTime
	// SRAMThreshold is NVIDIA's criterion for replacing the board.
	SRAMThreshold
	// Settings that may drift unnoticed.
	ModePersistence
	ModeECC
	ModeMIG
	ModeGSP
	ModeConfidentialCompute

	// Of a node.
	CPUPressure
	CPUSteal
	LoadAverage
	HostMemory
	GPUsExpected
	GPUsFound
	GPUsLost
	GPUsPending

	// Of a GPU: flags, gauges and counters.
	PowerBrake
	HWThermal
	SWThermal
	HWSlowdown
	PowerCap

	NVLinksUp
	MemoryShare

	ECCUncorrected
	NVLinkReplay
	NVLinkRecovery
	NVLinkCRCFlit
	NVLinkCRCData
	NVLinkCRC

	Info
	Up
	Health
	HealthState
	HealthReason
	RecoveryAction
	Xid
	Allocation
	// OtherThrottle is any other reason that holds the clocks down.
	OtherThrottle
	ECCCorrected
	ECCCorrectedTotal
	ECCUncorrectedTotal
	// No reader takes these yet. The simulator shows them.
	PCIeBytes
	NVLinkBytes
	NVLinksDown
	HardwareState

	// Of a network interface.
	NetworkErrors
	NetworkBandwidth

	// Of a rank of a job.
	StepDuration
	StepOwnDuration
	StepRate
	CollectiveTimeShare
	CollectiveStalled
	CollectiveLaggard
	CommunicatorBandwidth

	// The findings of an agent about its node, and of the gateway about both.
	NodeState
	NodeHealthScore
	NodeSignal
	Heartbeat
	AgentStraggler
	AgentThreshold
	AgentMode
	AgentReachable
	NodeStraggler
	NodeSuspicion
	NodeUnjudged
	NodeUnjudgedUntil
	RankShare // of time in collectives
	RankShareMedian
	RankRate // own steps per second
	RankRateMedian
	NodeRank
	GroupThreshold
	GroupMedian
	GroupMAD
	GroupNodes
	GroupQuorum
	GroupCoverageLow
	GroupStragglers
	GroupIncident
	GroupUnjudged
	GroupDetectable
	SignalMedian
	SignalScale
	SignalThreshold
	SignalFall

	// The findings of Ingero's agent about its node.
	IngeroScore
	IngeroThroughput

	// NumFields counts the fields.
	NumFields
)

// EndNumbers is behind the numbers of a GPU.
const EndNumbers = CPUPressure

// The ranges hold what can be true of any machine, with room for those to come.
var (
	flag = Range{0, 1}
	// share is a fraction of time or of memory.
	share = Range{0, 1}
	// activity is a ratio of two counters that are read one after the other. So it
	// comes out a little over 1 (DCGM, profiling metrics).
	activity = Range{0, 1.01}
	// counts stay exact in a float64 up to 2^53.
	counts = Range{0, 1 << 53}
	// few counts what a node has of something.
	few = Range{0, 1e6}
	// watts: an NVL72 rack takes 120 kW, no board 100 kW.
	watts = Range{0, 1e5}
	// celsius: sensors read from -40, and silicon does not live at 150.
	celsius = Range{-50, 200}
	// degrees are the difference of two such temperatures.
	degrees = Range{-250, 250}
	// hertz: no clock reaches 100 GHz.
	hertz = Range{0, 1e11}
	// bytes: 1 PiB of memory is a thousand times the largest board. DCGM's blank in MiB is more.
	bytes = Range{0, 1 << 50}
	// link: 1 PB/s is a thousand times the fastest network adapter.
	link = Range{0, 1e15}
	// lanes: PCIe has at most 32; generations are at 7.
	lanes, generations = Range{1, 32}, Range{1, 16}
	// rows: a board retires at most 64 pages or remaps 512 rows (NVIDIA GPU memory
	// error management).
	rows = Range{0, 1 << 16}
	// loaded is seconds, 50 years: no driver stays loaded as long.
	loaded = Range{0, 50 * 365 * 24 * 3600}
	// seconds of a step: not shorter than a nanosecond, not longer than 11 days.
	step = Range{1e-9, 1e6}
	rate = Range{0, 1e9}
	// overlapped: streams of one rank run beside one another, at most so many.
	overlapped = Range{0, 128}
	// signals are in any unit: FLOPS of a fleet are below 1e30.
	signals, ratios = Range{0, 1e30}, Range{-1e30, 1e30}
	// unix: no year after 2500.
	unix = Range{0, 8 * math.MaxInt32}
)

// The foldings.
var (
	// byGPU: the score combines GPUs itself, signal by signal.
	levels = Folding{FoldMean, FoldMean, "a level between two evaluations is its mean; boards of a node are alike"}
	worst  = Folding{FoldWorst, FoldMean, "all GPUs of a synchronous job wait for the worst"}
	total  = Folding{FoldSum, FoldMean, "the node has what its GPUs have together"}
	grows  = Folding{FoldWorst, FoldLast, "a counter has grown to its last value; one bad link holds all GPUs"}
	states = Folding{FoldWorst, FoldLast, "a state is what was told last; the worst GPU is the node's"}
	ranks  = Folding{FoldWorst, FoldMean, "each rank waits for the slowest at the end of a step; steps of one rank average"}
	last   = Folding{FoldLast, FoldLast, "one point at a time says it"}
)

const (
	byRubric = "the rubric"
	forLooks = "people"
)

func key(name string) []Key { return []Key{{Name: name}} }
func of(s Subject, fields ...Entry) []Entry {
	for i := range fields {
		fields[i].Subject = s
	}
	return fields
}
func gpu(fields ...Entry) []Entry    { return of(GPU, fields...) }
func is(value string, f Field) Entry { return Entry{Field: f, Values: [maxKeys]string{value}} }
func full(e Entry) Entry             { e.Full = true; return e }
func each(f Field) Entry             { return Entry{Field: f, Values: [maxKeys]string{Any}} }
func at(sensor, limit string, f Field) Entry {
	return Entry{Field: f, Values: [maxKeys]string{sensor, limit}}
}

func ecc(kind, counter string, f Field) Entry {
	return Entry{Field: f, Subject: GPU, Values: [maxKeys]string{kind, counter, "all"}}
}

// catalogue is sorted by name.
var catalogue = []Metric{
	{Name: semconv.MetricAgentDetectionMode, About: "1 for what the node judges itself by: fleet, cached, local or none.", Integer: true, Range: flag, Keys: key(semconv.AttrDetectionMode), Entries: of(Node, each(AgentMode)), Fold: last, For: View},
	{Name: semconv.MetricAgentGatewayReachable, About: "1 while the gateway answers the pushes.", Integer: true, Range: flag, Entries: of(Node, each(AgentReachable)), Fold: last, For: View},
	{Name: semconv.MetricAgentStraggler, About: "1 while the node takes itself for a straggler.", Integer: true, Range: flag, Entries: of(Node, each(AgentStraggler)), Fold: last, For: View},
	{Name: semconv.MetricAgentThreshold, Unit: "1", About: "Threshold that the node judges itself by.", Range: share, Entries: of(Node, each(AgentThreshold)), Fold: last, For: View},
	{Name: semconv.MetricAppStepDuration, Unit: "s", About: "Time of one training step.", Range: step, Entries: of(Rank, each(StepDuration)), Fold: ranks, For: Score | View | Ranks},
	{Name: semconv.MetricAppStepOwnDuration, Unit: "s", About: "A rank's own time of one training step, without the wait for other ranks.", Range: step, Entries: of(Rank, each(StepOwnDuration)), Fold: ranks, For: Score | View | Ranks},
	{Name: semconv.MetricAppStepRate, Unit: "{step}/s", About: "Training steps per second.", Range: rate, Low: true, Entries: of(Rank, each(StepRate)), Fold: ranks, For: Score | View | Ranks},
	{Name: semconv.MetricCollectiveLaggard, Unit: "1", Integer: true, Range: flag, Keys: key(semconv.AttrState), Entries: of(Rank, each(CollectiveLaggard)), Fold: last, For: Ranks},
	{Name: semconv.MetricCollectiveStalled, Unit: "s", Integer: true, Range: unix, Entries: of(Rank, each(CollectiveStalled)), Fold: last, For: Ranks},
	{Name: semconv.MetricCollectiveTimeShare, Unit: "1", Range: overlapped, Low: true, Entries: of(Rank, each(CollectiveTimeShare)), Fold: last, For: Ranks},
	{Name: semconv.MetricCommunicatorBandwidth, Unit: "By/s", Range: link, Low: true, Entries: of(Rank, each(CommunicatorBandwidth)), Fold: last, For: Ranks},
	{Name: semconv.MetricCommunicatorLatency, Unit: "s", Range: step, Entries: of(Rank, each(None)), Unread: "for charts: it holds the waiting, which the share of time tells"},
	{Name: semconv.MetricCommunicatorOperations, Unit: "{operation}", Kind: Counter, Integer: true, Range: counts, Entries: of(Rank, each(None)), Unread: "whether they end is told by gpu.collective.stalled"},
	{Name: "gpu.node.cpu.pressure", Unit: "1", Range: share, Entries: of(Node, each(CPUPressure)), Fold: levels, For: Score | View},
	{Name: semconv.MetricNodeHealthScore, Unit: "1", About: "Health score of the node, 1 is as fast as its peers or its own best.", Range: share, Low: true, Entries: of(Node, each(NodeHealthScore)), Fold: last, For: Verdict | View},
	{Name: semconv.MetricNodeHeartbeat, Unit: "s", About: "Time of the node's last report.", Integer: true, Range: unix, Entries: of(Node, each(Heartbeat)), Fold: last, For: Verdict | View},
	{Name: semconv.MetricNodeSignal, Unit: "1", About: "What is measured of the node's work: throughput in its own unit, power in watts, the others as fractions.", Range: signals, Low: true, Keys: key(semconv.AttrSignal), Entries: of(Node, each(NodeSignal)), Fold: last, For: Verdict | View},
	{
		// The state is a metric of its own: as an attribute of the score each change
		// would leave the old score standing beside the new one.
		Name: semconv.MetricNodeState, About: "1 for the state of the node: active, idle or calibrating.",
		Integer: true, Range: flag, Keys: key(semconv.AttrNodeState), Entries: of(Node, each(NodeState)), Fold: last, For: Verdict | View,
	},
	{Name: semconv.MetricNodeStraggler, About: "1 while the gateway takes the node for a straggler.", Gateway: true, Integer: true, Range: flag, Entries: of(Node, each(NodeStraggler)), Fold: last, For: View},
	{Name: semconv.MetricNodeSuspicion, Unit: "1", About: "How close the node is to a verdict: from 1 on it is a straggler if that lasts.", Gateway: true, Range: Range{0, 2}, Entries: of(Node, each(NodeSuspicion)), Fold: last, For: View},
	{Name: semconv.MetricNodeUnjudged, About: "Why there is no verdict on the node, 0 where there is one. " + unjudged.Legend(), Gateway: true, Integer: true, Range: Range{0, float64(unjudged.Count - 1)}, Entries: of(Node, each(NodeUnjudged)), Fold: last, For: View},
	{Name: semconv.MetricNodeUnjudgedUntil, Unit: "s", About: "Until when there is none, where that is known.", Gateway: true, Integer: true, Range: unix, Entries: of(Node, each(NodeUnjudgedUntil)), Fold: last, For: View},
	{Name: semconv.MetricStragglerCoverageLow, About: "1 while too many of the known nodes are missing.", Integer: true, Range: flag, Entries: of(Group, each(GroupCoverageLow)), Fold: last, For: View},
	{Name: semconv.MetricStragglerDetectable, Unit: "%", About: "Smallest loss of a node that is found within an hour now.", Range: ratios, Entries: of(Group, each(GroupDetectable)), Fold: last, For: View},
	{Name: semconv.MetricStragglerIncident, About: "1 while many nodes of the group are slow.", Integer: true, Range: flag, Entries: of(Group, each(GroupIncident)), Fold: last, For: View},
	{Name: semconv.MetricStragglerMAD, Unit: "1", About: "Median absolute deviation of the active nodes' scores.", Range: share, Entries: of(Group, each(GroupMAD)), Fold: last, For: View},
	{Name: semconv.MetricStragglerMedian, Unit: "1", About: "Median score of the active nodes.", Range: share, Entries: of(Group, each(GroupMedian)), Fold: last, For: View},
	{Name: semconv.MetricStragglerMissing, Unit: "s", About: "Time of the last report of a node that is missing.", Integer: true, Range: unix, Keys: key(semconv.AttrHostName), Entries: of(Group, each(None)), Unread: "for alerts: the view sees by itself who is missing"},
	{Name: semconv.MetricStragglerNodes, Unit: "{node}", About: "Nodes by state.", Integer: true, Range: counts, Keys: key(semconv.AttrNodeState), Entries: of(Group, each(GroupNodes)), Fold: last, For: View},
	{Name: semconv.MetricStragglerQuorumMet, About: "1 while enough nodes are active to compute a threshold.", Integer: true, Range: flag, Entries: of(Group, each(GroupQuorum)), Fold: last, For: View},
	{Name: semconv.MetricStragglerRank, About: "Place of a node among the most suspicious ones of its cluster, 1 for the worst.", Integer: true, Range: counts, Keys: key(semconv.AttrHostName), Entries: of(Group, each(NodeRank)), Fold: last, For: View},
	{Name: semconv.MetricStragglerRankMedian, Unit: "1", About: "Median of the ranks that the node's ranks are compared with.", Gateway: true, Range: rate, Keys: key(semconv.AttrSignal), Entries: of(Node, is("communication", RankShareMedian), is("throughput", RankRateMedian)), Fold: last, For: View},
	{Name: semconv.MetricStragglerRankValue, Unit: "1", About: "Signal of the node's rank that is furthest behind: its share of time in collectives, or its own steps per second.", Gateway: true, Range: rate, Low: true, Keys: key(semconv.AttrSignal), Entries: of(Node, is("communication", RankShare), is("throughput", RankRate)), Fold: last, For: View},
	{Name: semconv.MetricStragglerSignalFall, Unit: "1", About: "How far the median is below the group's usual level, as a fraction of it; negative above.", Range: ratios, Keys: key(semconv.AttrSignal), Entries: of(Group, each(SignalFall)), Fold: last, Unread: "for charts of a group that slows down as a whole"},
	{Name: semconv.MetricStragglerSignalMedian, Unit: "1", About: "Median of the active nodes' signal, in its own unit.", Range: ratios, Keys: key(semconv.AttrSignal), Entries: of(Group, each(SignalMedian)), Fold: last, For: View},
	{Name: semconv.MetricStragglerSignalScale, Unit: "1", About: "Spread of the active nodes' signal as a fraction of its level, smoothed.", Range: ratios, Keys: key(semconv.AttrSignal), Entries: of(Group, each(SignalScale)), Fold: last, For: View},
	{Name: semconv.MetricStragglerSignalThreshold, Unit: "1", About: "Value below which a node is a straggler within a minute, in the signal's own unit; its lasting difference shifts it.", Range: ratios, Keys: key(semconv.AttrSignal), Entries: of(Group, each(SignalThreshold)), Fold: last, For: View},
	{Name: semconv.MetricStragglers, Unit: "{node}", About: "Stragglers.", Integer: true, Range: counts, Entries: of(Group, each(GroupStragglers)), Fold: last, For: View},
	{Name: semconv.MetricStragglerThreshold, Unit: "1", About: "Score below which a node is a straggler: median - max(k*1.4826*MAD, min_gap), smoothed.", Range: ratios, Entries: of(Group, each(GroupThreshold)), Fold: last, For: View},
	{Name: semconv.MetricStragglerUnjudged, Unit: "{node}", About: "Nodes without a verdict, by the reason.", Integer: true, Range: counts, Keys: key(semconv.AttrUnjudged), Entries: of(Group, each(GroupUnjudged)), Fold: last, For: View},
	{Name: semconv.MetricEnergy, Unit: "J", Kind: Counter, About: "Energy used.", Range: counts, Shared: true, Typed: true, Entries: gpu(each(Energy)), Unread: "nobody: hw.power is sooner"},
	{
		Name: semconv.MetricErrors, Unit: "{error}", Kind: Counter, Integer: true, About: "Errors of the hardware.",
		Range: counts, Shared: true, Typed: true,
		// Shares of single memories are part of all.
		Keys: []Key{{Name: semconv.AttrErrorType}, {Name: semconv.AttrECCCounter, Absent: "volatile"}, {Name: semconv.AttrMemoryLocation, Absent: "all"}},
		Entries: []Entry{
			ecc("corrected", "volatile", ECCCorrected), ecc("uncorrected", "volatile", ECCUncorrected),
			ecc("corrected", "aggregate", ECCCorrectedTotal), ecc("uncorrected", "aggregate", ECCUncorrectedTotal),
			{Field: NetworkErrors, Subject: Network, Values: [maxKeys]string{Any, Any, Any}},
		},
		Fold: grows, For: View,
	},
	{Name: semconv.MetricGPUActivity, Unit: "1", About: "Fraction of cycles a unit of the GPU was active.", Range: activity, Low: true, Keys: key(semconv.AttrActivityUnit), Entries: gpu(is("graphics", GraphicsActivity), is("sm", SMActivity), is("sm_occupancy", SMOccupancy), is("tensor", TensorActivity), is("dram", DRAMActivity), is("fp64", FP64Activity), is("fp32", FP32Activity), is("fp16", FP16Activity)), Fold: levels, For: Score | View},
	{Name: semconv.MetricGPUAllocation, Unit: "1", Integer: true, Range: flag, Entries: gpu(each(Allocation)), Fold: states, For: View},
	{Name: semconv.MetricGPUClock, Unit: "Hz", Integer: true, About: "Clock frequency.", Range: hertz, Low: true, Keys: []Key{{Name: semconv.AttrClock, Absent: "sm"}}, Entries: gpu(full(is("graphics", GraphicsClock)), is("sm", SMClock), full(is("memory", MemoryClock)), full(is("video", VideoClock))), Fold: worst, For: Score | View},
	{Name: semconv.MetricGPUClockLimit, Unit: "Hz", Range: hertz, Low: true, Keys: []Key{{Name: semconv.AttrClock, Absent: "sm"}}, Entries: gpu(full(is("graphics", GraphicsClockLimit)), is("sm", SMClockLimit), full(is("memory", MemoryClockLimit)), full(is("video", VideoClockLimit))), Fold: worst, For: Score | View},
	{Name: semconv.MetricGPUDevices, Unit: "{gpu}", Integer: true, Range: few, Keys: key(semconv.AttrState), Entries: of(Node, is("expected", GPUsExpected), is("found", GPUsFound), is("lost", GPUsLost), is("pending", GPUsPending)), Fold: last, For: View},
	{Name: "hw.gpu.ecc.sram.threshold_exceeded", Unit: "1", Integer: true, Range: flag, Entries: gpu(each(SRAMThreshold)), Unread: byRubric},
	{Name: "hw.gpu.fabric.health", Unit: "1", Integer: true, Range: flag, Entries: gpu(each(None)), Unread: byRubric},
	{Name: "hw.gpu.fabric.state", Unit: "1", Integer: true, Range: flag, Entries: gpu(each(None)), Unread: byRubric},
	{Name: semconv.MetricGPUHealthReason, Unit: "1", Integer: true, Range: flag, Keys: key(semconv.AttrReason), Entries: gpu(each(HealthReason)), Fold: states, For: View},
	{Name: semconv.MetricGPUHealthScore, Unit: "1", Integer: true, Range: Range{0, 100}, Low: true, Entries: gpu(each(Health)), Fold: states, For: View},
	{Name: semconv.MetricGPUHealthState, Unit: "1", Integer: true, Range: flag, Keys: key(semconv.AttrState), Entries: gpu(each(HealthState)), Fold: states, For: View},
	{Name: semconv.MetricGPUInfo, Unit: "1", Integer: true, About: "Static facts of the GPU; always 1.", Range: flag, Entries: gpu(each(Info)), Fold: last, For: Score | View},
	{Name: "hw.gpu.io", Unit: "By", Kind: Counter, Integer: true, Range: counts, Keys: key("gpu.link"), Entries: gpu(is("pcie", PCIeBytes), is("nvlink", NVLinkBytes)), Unread: "people"},
	{Name: "hw.gpu.io.rate", Unit: "By/s", Range: link, Keys: key("gpu.link"), Entries: gpu(each(None)), Unread: "people"},
	{Name: semconv.MetricGPUMemoryLimit, Unit: "By", Kind: UpDownCounter, Integer: true, About: "Size of the memory.", Range: bytes, Entries: gpu(each(MemoryLimit)), Fold: total, For: Score | View},
	{Name: semconv.MetricGPURemapFailed, Unit: "1", Integer: true, About: "Whether a row remap has failed.", Range: flag, Entries: gpu(each(RemapFailed)), Unread: byRubric},
	{Name: "hw.gpu.memory.remap.pending", Unit: "1", Integer: true, About: "Whether a row remap waits for a reset.", Range: flag, Entries: gpu(each(RemapPending)), Unread: byRubric},
	{Name: semconv.MetricGPURemappedRows, Unit: "{row}", Integer: true, About: "Remapped memory rows.", Range: rows, Keys: key(semconv.AttrCause), Entries: gpu(full(is("corrected", RemappedCorrected)), is("uncorrected", RemappedUncorrected)), Fold: states, For: View},
	{Name: "hw.gpu.memory.reserved", Unit: "By", Kind: UpDownCounter, Integer: true, Range: bytes, Entries: gpu(each(MemoryReserved)), Unread: forLooks},
	{Name: semconv.MetricGPURetiredPages, Unit: "{page}", Integer: true, About: "Retired memory pages.", Range: rows, Keys: key(semconv.AttrCause), Entries: gpu(is("sbe", RetiredSBE), is("dbe", RetiredDBE)), Unread: byRubric},
	{Name: semconv.MetricGPURetirementPending, Unit: "1", Integer: true, Range: flag, Entries: gpu(each(RetirementPending)), Unread: byRubric},
	{
		Name: semconv.MetricGPUMemoryUsage, Unit: "By", Kind: UpDownCounter, Integer: true, About: "Memory in use.",
		// Only what is used: other exporters write free memory by the same metric.
		Range: bytes, Keys: []Key{{Name: "gpu.memory.state", Absent: "used"}}, Entries: gpu(is("used", MemoryUsed)), Fold: total, For: Score | View,
	},
	{Name: semconv.MetricGPUMemoryUtil, Unit: "1", About: "Fraction of the memory in use.", Range: share, Entries: gpu(each(MemoryShare)), Unread: "usage and size are read"},
	{Name: "hw.gpu.mode", Unit: "1", Integer: true, Range: flag, Keys: key("mode"), Entries: gpu(is("persistence", ModePersistence), is("ecc", ModeECC), is("mig", ModeMIG), full(is("gsp", ModeGSP)), full(is("cc", ModeConfidentialCompute))), Unread: forLooks},
	{Name: "hw.gpu.nvlink.bit_error_rate", Unit: "1", Range: share, Entries: gpu(each(None)), Unread: forLooks},
	{Name: semconv.MetricGPUNVLinkErrors, Unit: "{error}", Kind: Counter, Integer: true, About: "NVLink errors of all links.", Range: counts, Keys: key(semconv.AttrErrorType), Entries: gpu(is("replay", NVLinkReplay), is("recovery", NVLinkRecovery), is("crc", NVLinkCRC), is("crc_flit", NVLinkCRCFlit), is("crc_data", NVLinkCRCData)), Fold: grows, For: Score},
	{Name: "hw.gpu.nvlink.link.errors", Unit: "{error}", Kind: Counter, Integer: true, Range: counts, Entries: gpu(each(None)), Unread: "people"},
	{Name: "hw.gpu.nvlink.link.up", Unit: "1", Integer: true, Range: flag, Entries: gpu(each(None)), Unread: "people"},
	{Name: semconv.MetricGPUNVLinkLinks, Unit: "{link}", Integer: true, Range: few, Low: true, Keys: key(semconv.AttrState), Entries: gpu(is("up", NVLinksUp), is("down", NVLinksDown)), Fold: worst, For: Score | View},
	{Name: semconv.MetricGPUPCIeLinkGeneration, Unit: "1", Integer: true, About: "Generation of the PCIe link.", Range: generations, Low: true, Keys: key(semconv.AttrKind), Entries: gpu(is("current", PCIeGeneration), full(is("max", PCIeGenerationLimit))), Fold: worst, For: Score | View},
	{Name: semconv.MetricGPUPCIeLinkWidth, Unit: "{lane}", Integer: true, About: "Width of the PCIe link.", Range: lanes, Low: true, Keys: key(semconv.AttrKind), Entries: gpu(is("current", PCIeWidth), is("max", PCIeWidthLimit)), Fold: worst, For: Score | View},
	{Name: semconv.MetricGPUPCIeReplays, Unit: "{replay}", Kind: Counter, Integer: true, About: "PCIe replays.", Range: counts, Keys: []Key{{Name: semconv.AttrKind, Absent: "replay"}}, Entries: gpu(is("replay", PCIeReplays), full(is("rollover", PCIeRollovers))), Fold: grows, For: Score | View},
	{Name: semconv.MetricGPUPowerLimit, Unit: "W", About: "Power limit.", Range: watts, Low: true, Keys: key(semconv.AttrLimit), Entries: gpu(is("enforced", PowerLimit), full(is("max", PowerLimitMax))), Fold: worst, For: View},
	{Name: semconv.MetricGPUProcesses, Unit: "{process}", Integer: true, Range: few, Keys: key("type"), Entries: gpu(is("compute", Processes), full(is("graphics", GraphicsProcesses))), Fold: worst, For: View},
	{Name: semconv.MetricGPURecoveryAction, Unit: "1", Integer: true, Range: flag, Keys: key(semconv.AttrAction), Entries: gpu(each(RecoveryAction)), Fold: states, For: View},
	{Name: "hw.gpu.repair.pending", Unit: "1", Integer: true, Range: flag, Entries: gpu(each(None)), Unread: byRubric},
	{Name: "hw.gpu.temperature.margin", Unit: "Cel", Range: degrees, Low: true, Entries: gpu(each(TemperatureMargin)), Fold: worst, For: View},
	{Name: "hw.gpu.temperature.margin.limit", Unit: "Cel", Range: degrees, Keys: []Key{{Name: semconv.AttrSensorLocation}, {Name: "hw.limit_type"}}, Entries: gpu(at("gpu", "throttled", SlowdownMargin), full(at("gpu", "critical", ShutdownMargin)), full(at("gpu", "max", MaxMargin)), full(at("memory", "max", MaxMemoryMargin))), Unread: forLooks},
	{
		Name: semconv.MetricGPUThrottleActive, Unit: "1", Integer: true, About: "Whether the clock is held down for the reason.",
		Range: flag, Keys: key(semconv.AttrReason),
		Entries: gpu(is("power_brake", PowerBrake), is("hw_thermal", HWThermal), is("sw_thermal", SWThermal),
			is("hw_slowdown", HWSlowdown), is("power_cap", PowerCap), each(OtherThrottle)),
		Fold: states, For: View,
	},
	{Name: semconv.MetricGPUThrottleTime, Unit: "s", Kind: Counter, Range: loaded, Keys: key(semconv.AttrReason), Entries: gpu(is("power_brake", PowerBrakeTime), is("hw_thermal", HWThermalTime), is("sw_thermal", SWThermalTime), full(is("power", PowerCapTime)), full(is("thermal", ThermalTime)), full(is("sync_boost", SyncBoostTime)), full(is("board_limit", BoardLimitTime)), full(is("low_utilization", LowUtilizationTime)), full(is("reliability", ReliabilityTime))), Fold: grows, For: View},
	{Name: semconv.MetricGPUUp, Unit: "1", Integer: true, Range: flag, Low: true, Keys: key(semconv.AttrReason), Entries: gpu(each(Up)), Fold: states, For: View},
	{Name: semconv.MetricGPUUtilization, Unit: "1", About: "Fraction of time the GPU was busy with the task.", Range: share, Low: true, Keys: []Key{{Name: semconv.AttrGPUTask, Absent: "general"}}, Entries: gpu(is("general", Utilization), full(is("memory", MemoryUtilization)), full(is("encoder", EncoderUtilization)), full(is("decoder", DecoderUtilization))), Fold: levels, For: Score | View},
	{Name: semconv.MetricGPUXIDEvents, Unit: "{event}", Kind: Counter, Integer: true, About: "Xid events seen since the start.", Range: counts, Entries: gpu(each(Xid)), Fold: grows, For: View},
	{Name: "hw.gpu.xid.last", Unit: "1", Integer: true, Range: Range{-1, 1 << 53}, Entries: gpu(each(None)), Unread: forLooks},
	{Name: "hw.network.bandwidth.limit", Unit: "By/s", Kind: UpDownCounter, Range: link, Low: true, Entries: of(Network, each(NetworkBandwidth)), Fold: Folding{FoldSum, FoldLast, "a job uses all adapters of its node"}, For: View},
	{Name: semconv.MetricPower, Unit: "W", About: "Power draw.", Range: watts, Shared: true, Typed: true, Entries: gpu(each(Power)), Fold: total, For: Score | View},
	{Name: "hw.status", Unit: "1", Kind: UpDownCounter, Integer: true, Range: flag, Shared: true, Typed: true, Keys: key("hw.state"), Entries: gpu(each(HardwareState)), Unread: "nobody: hw.gpu.health.* say more"},
	{Name: semconv.MetricTemperature, Unit: "Cel", About: "Temperature of a sensor.", Range: celsius, Shared: true, Keys: key(semconv.AttrSensorLocation), Entries: gpu(is("gpu", Temperature), is("memory", MemoryTemperature)), Fold: states, For: View},
	{Name: "hw.temperature.limit", Unit: "Cel", Range: celsius, Shared: true, Keys: []Key{{Name: semconv.AttrSensorLocation}, {Name: "hw.limit_type"}}, Entries: gpu(full(at("gpu", "throttled", TemperatureLimit)), full(at("gpu", "critical", ShutdownTemperature)), full(at("gpu", "max", MaxTemperature)), at("memory", "max", MaxMemoryTemperature)), Fold: states, For: View},
	// The metrics of Ingero's agent (its pkg/contract), with the state beside the score.
	{Name: "ingero.node.health_score", Unit: "1", Range: share, Low: true, Keys: key("ingero.node.state"), Entries: of(Node, each(IngeroScore)), Fold: last, For: Ingero},
	{Name: "ingero.node.throughput_ratio", Unit: "1", Range: signals, Low: true, Entries: of(Node, each(IngeroThroughput)), Fold: last, For: Ingero},
	{Name: "system.cpu.load_average.15m", Unit: "{thread}", Range: few, Unread: "the mean of one minute is read"},
	{Name: "system.cpu.load_average.1m", Unit: "{thread}", Range: few, Entries: of(Node, each(LoadAverage)), Fold: levels, For: View},
	{Name: "system.cpu.load_average.5m", Unit: "{thread}", Range: few, Unread: "the mean of one minute is read"},
	{
		// The host's mean: those of single CPUs mean little. The conventions and the
		// host metrics receiver differ in names.
		Name: "system.cpu.utilization", Unit: "1", Range: share,
		Keys:    []Key{{Name: "cpu.mode", Alias: semconv.AttrState}, {Name: "cpu.logical_number", Alias: "cpu"}},
		Entries: of(Node, is("steal", CPUSteal)), Fold: levels, For: View,
	},
	{Name: "system.memory.utilization", Unit: "1", Range: share, Keys: []Key{{Name: "system.memory.state", Alias: semconv.AttrState}}, Entries: of(Node, is("used", HostMemory)), Fold: levels, For: View},
}
