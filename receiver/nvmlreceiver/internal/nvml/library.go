// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
)

// The errors of Library.Open.
var (
	// ErrNotBuilt says that this binary cannot load NVML at all.
	ErrNotBuilt = errors.New("this binary was built without NVML support: it needs linux and CGO_ENABLED=1")
	// ErrLibraryNotFound says that the library is not there now; it may come.
	ErrLibraryNotFound = errors.New("NVML library not found")
	// ErrOtherLibrary says that the process has another NVML library loaded:
	// the dynamic linker binds each symbol once per process.
	ErrOtherLibrary = errors.New("another NVML library is already loaded in this process")
)

// Library is NVML as this package needs it. Init, Shutdown, Versions and
// DeviceCount are called by one goroutine at a time.
type Library interface {
	// Open loads the library and finds out which of its symbols are there. It
	// may be called again after an error.
	Open() error
	Init() Code
	Shutdown() Code
	// Versions returns the driver's and CUDA's version, empty where unknown.
	Versions() (driver, cuda string)
	DeviceCount() (int, Code)
	// Device returns a handle that is good until Shutdown.
	Device(index int) (Device, Code)
}

// Device is one GPU. Its methods are called by one goroutine at a time and may
// hang for ever.
type Device interface {
	// Identity reads what does not change. Only the UUID is sure to be there
	// when the code is Success.
	Identity() (gpuhealth.Identity, Code)
	// Read fills in what the GPU reports now. A code other than Success says
	// that the GPU as a whole does not answer, and the readings are void. It
	// returns early when ctx is done.
	Read(ctx context.Context, into *gpuhealth.Readings) Code
}

// Failure is told each call that failed, by the name of the C function. Calls
// that are not supported are no failures. It may be called from any goroutine.
type Failure func(function string, code Code)
