// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
)

// The errors of Library.Open.
var (
	// ErrNotBuilt means that this binary cannot load NVML at all.
	ErrNotBuilt = errors.New("this binary was built without NVML support: it needs linux and CGO_ENABLED=1")
	// ErrLibraryNotFound means that the library is not there now; it may come.
	ErrLibraryNotFound = errors.New("NVML library not found")
	// ErrOtherLibrary means that the process has another NVML library loaded:
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
	// NewEvents returns an event set, good until Shutdown.
	NewEvents() (Events, Code)
}

// Request is what one reading is to hold.
type Request struct {
	// Slow asks for the readings that rarely change too. Without it they are
	// those of the last slow reading of the same handle.
	Slow bool
	// Activity asks for GPM's readings, PerLink for each NVLink by itself,
	// Detail for what only a specialist reads of the links.
	Activity, PerLink, Detail bool
}

// Answer is what one reading found.
type Answer struct {
	gpuhealth.Readings
	// Slices are the MIG slices that the GPU is cut into now.
	Slices []gpuhealth.Sample
}

// Events is an event set of NVML. Register may be called by any goroutine,
// also while another one waits.
type Events interface {
	// Register adds a GPU of the same library. Its UUID is kept, because a GPU
	// that is lost no longer reports it.
	Register(device Device, uuid string) Code
	// Wait returns an Xid without its time, Timeout, or another code.
	Wait(timeout time.Duration) (gpuhealth.XidEvent, Code)
	// Free must not be called while Wait or Register is.
	Free()
}

// Device is one GPU. Its methods are called by one goroutine at a time and may
// hang for ever.
type Device interface {
	// Identity reads what does not change. Only the UUID is sure to be there
	// when the code is Success, and only the PCI address may be there otherwise.
	Identity() (gpuhealth.Identity, Code)
	// Read fills in what the GPU reports now. A code other than Success means
	// that the GPU as a whole does not answer, and the answer is void. It
	// returns early, with Timeout, when ctx is done. The first reading of a handle is slow.
	Read(ctx context.Context, request Request, into *Answer) Code
	// Close gives back what the handle holds. It is the last call on it.
	Close()
}

// Failure is called for each call that failed, with the name of the C function. Calls
// that are not supported are no failures. It may be called from any goroutine.
type Failure func(function string, code Code)

// Timing is called with the duration of each call that returned, but for waits for
// events. It may be called from any goroutine.
type Timing func(time.Duration)
