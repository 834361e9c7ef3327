// SPDX-License-Identifier: Apache-2.0

// Package gpuhealth holds what is known of one GPU at one moment and decides
// which of it can be true. It knows neither NVML nor OpenTelemetry.
package gpuhealth // import "github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"

// Opt is a reading that may be absent: what a GPU does not support is not zero.
type Opt[T any] struct {
	V  T
	OK bool
}

// Some is a reading that is there.
func Some[T any](v T) Opt[T] { return Opt[T]{V: v, OK: true} }

// notAvailable32 is what NVML reports for a reading that it does not have,
// NVML_VALUE_NOT_AVAILABLE, in 32 bits (nvml.h). It is -1 in the width of the field.
const notAvailable32 = 1<<32 - 1

// Ratio turns a raw reading into base units. Two factors, because
// 123456 mW / 1000 is exact where 123456 * 0.001 is not. Ratio passes on NVML's
// marks of a missing value too: Validate removes and reports them.
func Ratio[T uint32 | uint64](raw T, mul, div float64) Opt[float64] {
	return Some(float64(raw) * mul / div)
}

// Reason is why a GPU does not answer.
type Reason string

// The reasons. They are values of the attribute `reason` of `hw.gpu.up`.
const (
	ReasonOK              Reason = "ok"
	ReasonLost            Reason = "lost"
	ReasonHang            Reason = "hang"
	ReasonResetRequired   Reason = "reset_required"
	ReasonNotFound        Reason = "not_found"
	ReasonDriverNotLoaded Reason = "driver_not_loaded"
	ReasonDriverMismatch  Reason = "driver_mismatch"
	ReasonError           Reason = "error"
)

// Identity is what does not change while the driver stays loaded. UUID is the
// identity; Index is only where NVML enumerates the GPU at present.
type Identity struct {
	UUID          string
	Index         int
	Model         string
	Serial        string
	PCIBusID      string
	VBIOS         string
	DriverVersion string
	CUDAVersion   string
	// Minor is the number of the GPU's device file, in an order of the kernel's own. It
	// is not kept: another load of the driver may give another.
	Minor Opt[uint32] `json:"-"`
	MIG
}

// MIG names the slice and its GPU; it is empty for a whole GPU.
type MIG struct {
	// Parent is the UUID of the GPU that the slice is cut from.
	Parent string
	// GPUInstance and ComputeInstance are the ids that Xid events carry.
	GPUInstance, ComputeInstance Opt[uint32]
}

// ECCError is whether ECC could correct an error.
type ECCError int

// The kinds of ECC errors, in NVML's order.
const (
	ECCCorrected ECCError = iota
	ECCUncorrected
	NumECCErrors
)

// ECCCounter is the span that a count of ECC errors covers.
type ECCCounter int

// The spans, in NVML's order: since the driver was loaded, or over the life of the board.
const (
	ECCVolatile ECCCounter = iota
	ECCAggregate
	NumECCCounters
)

// ThrottleReason is a bit of NVML's clocks event reasons (nvml.h, nvmlClocksEventReasons).
type ThrottleReason uint64

// The reasons that hold clocks down. GPU idle (0x1) is left out: it is no fault.
const (
	ThrottleAppClocks     ThrottleReason = 0x2
	ThrottlePowerCap      ThrottleReason = 0x4
	ThrottleHWSlowdown    ThrottleReason = 0x8
	ThrottleSyncBoost     ThrottleReason = 0x10
	ThrottleSWThermal     ThrottleReason = 0x20
	ThrottleHWThermal     ThrottleReason = 0x40
	ThrottlePowerBrake    ThrottleReason = 0x80
	ThrottleDisplayClocks ThrottleReason = 0x100
)

// Sample is one GPU at one moment. A GPU that does not answer still has one,
// with its identity, Reason set and no readings.
type Sample struct {
	Identity
	Reason Reason
	Readings
}

// Up reports whether the GPU answered.
func (s *Sample) Up() bool { return s.Reason == ReasonOK }
