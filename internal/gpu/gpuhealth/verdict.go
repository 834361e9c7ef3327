// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import "time"

// XidEvent is one critical error that the driver reported for a GPU, or, with
// instance ids, for slices of it.
type XidEvent struct {
	// UUID is the GPU's.
	UUID string
	Code uint64
	Time time.Time
	// GPUInstance and ComputeInstance are absent for an error of the whole GPU.
	GPUInstance, ComputeInstance Opt[uint32]
}

// State is a GPU's health.
type State string

// The states. They are values of the attribute `state` of `hw.gpu.health.state`.
const (
	StateUnknown   State = "unknown"
	StateHealthy   State = "healthy"
	StateDegraded  State = "degraded"
	StateUnhealthy State = "unhealthy"
)

// HardwareState is a GPU's health in the words of the hardware conventions.
type HardwareState string

// The hardware states. They are values of the attribute `hw.state` of
// `hw.status`; HardwareUnknown is none of them: all points are 0 then.
const (
	HardwareUnknown          HardwareState = ""
	HardwareOK               HardwareState = "ok"
	HardwareDegraded         HardwareState = "degraded"
	HardwareFailed           HardwareState = "failed"
	HardwarePredictedFailure HardwareState = "predicted_failure"
)

// ActiveReason is one rule that holds a GPU's score down at present.
type ActiveReason struct {
	// Reason is the rule's name; for a Xid `xid_` and its code.
	Reason string
	Action Action
	// Cap is the highest score that the rule allows.
	Cap   int
	Since time.Time
}

// Verdict is what is thought of one GPU after a poll.
type Verdict struct {
	UUID string
	// Score is 0 to 100, the least cap of the reasons, absent while State is unknown.
	Score Opt[int]
	State State
	// Hardware is State for the hardware conventions.
	Hardware HardwareState
	// Reasons are sorted by cap, then by name. The slice is the monitor's and
	// good until the next call of Observe for the same GPU.
	Reasons []ActiveReason
	// Changed: this poll moved the GPU from Previous to State.
	// Previous is empty for a GPU that was not known before.
	Changed  bool
	Previous State
	// Since is when the GPU entered State.
	Since time.Time
}
