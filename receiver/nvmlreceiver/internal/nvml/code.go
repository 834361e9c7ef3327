// SPDX-License-Identifier: Apache-2.0

// Package nvml polls the GPUs of a node through NVML and survives what NVML
// does to its callers: hangs, lost GPUs, missing symbols, drivers that go and
// come back. It is the only package that imports go-nvml.
package nvml // import "github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/nvml"

import (
	"slices"
	"strconv"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
)

// Code is a return code of NVML (nvml.h, nvmlReturn_t). Its names are ours and
// never come from nvmlErrorString: that is one more symbol which may be missing.
type Code int

// The codes that decide something here.
const (
	Success              Code = 0
	Uninitialized        Code = 1
	InvalidArgument      Code = 2
	NotSupported         Code = 3
	NoPermission         Code = 4
	NotFound             Code = 6
	DriverNotLoaded      Code = 9
	Timeout              Code = 10
	LibraryNotFound      Code = 12
	FunctionNotFound     Code = 13
	GPUIsLost            Code = 15
	ResetRequired        Code = 16
	LibRMVersionMismatch Code = 18
	NoData               Code = 21
	VersionMismatch      Code = 25
	Deprecated           Code = 26
	NotReady             Code = 27
	Unknown              Code = 999
	// Panicked is ours: the call did not survive its answer.
	Panicked Code = -1
)

var codeNames = map[Code]string{
	Success:              "success",
	Uninitialized:        "uninitialized",
	InvalidArgument:      "invalid_argument",
	NotSupported:         "not_supported",
	NoPermission:         "no_permission",
	5:                    "already_initialized",
	NotFound:             "not_found",
	7:                    "insufficient_size",
	8:                    "insufficient_power",
	DriverNotLoaded:      "driver_not_loaded",
	Timeout:              "timeout",
	11:                   "irq_issue",
	LibraryNotFound:      "library_not_found",
	FunctionNotFound:     "function_not_found",
	14:                   "corrupted_inforom",
	GPUIsLost:            "gpu_is_lost",
	ResetRequired:        "reset_required",
	17:                   "operating_system",
	LibRMVersionMismatch: "lib_rm_version_mismatch",
	19:                   "in_use",
	20:                   "memory",
	NoData:               "no_data",
	22:                   "vgpu_ecc_not_supported",
	23:                   "insufficient_resources",
	24:                   "freq_not_supported",
	VersionMismatch:      "argument_version_mismatch",
	Deprecated:           "deprecated",
	NotReady:             "not_ready",
	28:                   "gpu_not_found",
	29:                   "invalid_state",
	30:                   "reset_type_not_supported",
	Unknown:              "unknown",
	Panicked:             "panic",
}

// String is the name that telemetry carries.
func (c Code) String() string {
	if name, ok := codeNames[c]; ok {
		return name
	}
	return "code_" + strconv.Itoa(int(c))
}

// error is the name with NVML's number, which people look for.
func (c Code) error() string { return c.String() + " (" + strconv.Itoa(int(c)) + ")" }

// unsupported reports whether the code means that this GPU or driver does not
// know the call: an answer, and no failure.
func (c Code) unsupported() bool {
	return c == NotSupported || c == FunctionNotFound
}

// failure reports whether a call that gave this code failed: no event within
// the time of a wait is an answer, as an empty slot in an enumeration is.
func (c Code) failure() bool {
	return c != Success && c != Timeout && c != NotFound && !c.unsupported()
}

// outdated are the answers of a driver that does not know a call's version. They are
// no failures where an older version follows.
var outdated = []Code{InvalidArgument, VersionMismatch, Deprecated}

// tryOlder reports whether an older call may still answer where a newer one
// gave this code.
func (c Code) tryOlder() bool {
	return c.unsupported() || slices.Contains(outdated, c)
}

// deviceGone reports whether no further call on the device can succeed.
func (c Code) deviceGone() bool {
	return c == GPUIsLost || c == ResetRequired || c == Uninitialized || c == DriverNotLoaded || c == LibRMVersionMismatch
}

// driverSuspect reports whether the code, when every device gives it, is that of
// a driver that was unloaded or replaced rather than of a broken GPU.
func (c Code) driverSuspect() bool {
	return c == Uninitialized || c == DriverNotLoaded || c == LibRMVersionMismatch || c == Unknown
}

// reason is the `reason` of `hw.gpu.up` for a GPU that failed with the code.
func (c Code) reason() gpuhealth.Reason {
	switch c {
	case Success:
		return gpuhealth.ReasonOK
	case GPUIsLost:
		return gpuhealth.ReasonLost
	case ResetRequired:
		return gpuhealth.ReasonResetRequired
	case NotFound:
		return gpuhealth.ReasonNotFound
	case Uninitialized, DriverNotLoaded, LibraryNotFound:
		return gpuhealth.ReasonDriverNotLoaded
	case LibRMVersionMismatch:
		return gpuhealth.ReasonDriverMismatch
	default:
		return gpuhealth.ReasonError
	}
}
