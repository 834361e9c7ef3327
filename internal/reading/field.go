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

	// Of a GPU.
	Info
	Up
	Health
	HealthState
	HealthReason
	RecoveryAction
	Xid
	Power
	PowerLimit
	Temperature
	MemoryTemperature
	TemperatureLimit
	TemperatureMargin
	Utilization
	TensorActivity
	SMActivity
	SMClock
	SMClockLimit
	MemoryUsed
	MemoryLimit
	MemoryShare
	Processes
	PowerBrake
	HWThermal
	SWThermal
	HWSlowdown
	PowerCap
	// OtherThrottle is any other reason that holds the clocks down.
	OtherThrottle
	PowerBrakeTime
	HWThermalTime
	SWThermalTime
	ECCCorrected
	ECCUncorrected
	ECCCorrectedTotal
	ECCUncorrectedTotal
	RemappedCorrected
	RemappedUncorrected
	RemapPending
	RemapFailed
	RetirementPending
	PCIeGeneration
	PCIeGenerationLimit
	PCIeWidth
	PCIeWidthLimit
	PCIeReplays
	NVLinksUp
	NVLinkReplay
	NVLinkRecovery
	NVLinkCRC
	NVLinkCRCFlit
	NVLinkCRCData

	// Of a network interface.
	NetworkErrors
	NetworkBandwidth

	// Of a rank of a job.
	StepDuration
	StepRate

	// What an agent finds out about its node, and the gateway about both.
	NodeState
	NodeHealthScore
	NodeSignal
	NodeCulprit
	Heartbeat
	AgentStraggler
	AgentSuspicion
	AgentThreshold
	AgentMode
	AgentReachable
	NodeStraggler
	NodeSuspicion
	NodeRank
	GroupThreshold
	GroupMedian
	GroupMAD
	GroupNodes
	GroupQuorum
	GroupCoverageLow
	GroupPanic
	GroupStragglers
	GroupIncident
	SignalMedian
	SignalScale
	SignalThreshold
	SignalFall

	// NumFields counts the fields.
	NumFields
)
