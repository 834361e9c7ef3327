// SPDX-License-Identifier: Apache-2.0

package reading

// Field is one thing that can be known of a subject.
type Field uint8

// The fields, in the units of the metrics that say them.
const (
	None Field = iota

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
	RemapFailed
	RemapPending
	RetirementPending
	PowerBrake
	HWThermal
	SWThermal
	HWSlowdown
	PowerCap

	SMClock
	SMClockLimit
	PCIeGeneration
	PCIeGenerationLimit
	PCIeWidth
	PCIeWidthLimit
	NVLinksUp
	MemoryShare
	Temperature
	Utilization
	Power
	PowerLimit
	Processes

	ECCUncorrected
	PCIeReplays
	NVLinkReplay
	NVLinkRecovery
	NVLinkCRCFlit
	NVLinkCRCData
	NVLinkCRC
	PowerBrakeTime
	HWThermalTime
	SWThermalTime

	Info
	Up
	Health
	HealthState
	HealthReason
	RecoveryAction
	Xid
	Allocation
	MemoryTemperature
	TemperatureLimit
	TemperatureMargin
	TensorActivity
	SMActivity
	MemoryUsed
	MemoryLimit
	// OtherThrottle is any other reason that holds the clocks down.
	OtherThrottle
	ECCCorrected
	ECCCorrectedTotal
	ECCUncorrectedTotal
	RemappedCorrected
	RemappedUncorrected
	// No reader takes these yet. The simulator shows them.
	Energy
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
