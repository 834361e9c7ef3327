// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"math"
	"sync"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
)

// events is an event set with the names of its GPUs.
type events struct {
	library *library
	raw     gonvml.EventSet

	mu    sync.Mutex
	uuids map[any]string // by go-nvml's device handle
}

func (e *events) Register(dev Device, uuid string) Code {
	d := dev.(*device)
	// Named first: the first event may come before the call returns.
	e.mu.Lock()
	e.uuids[d.raw] = uuid
	e.mu.Unlock()
	_, code := guarded(e.library, fnEventRegister, func() (struct{}, gonvml.Return) {
		return struct{}{}, d.raw.RegisterEvents(gonvml.EventTypeXidCriticalError, e.raw) //nolint:forbidigo // guarded by the line above
	})
	return code
}

func (e *events) Wait(timeout time.Duration) (gpuhealth.XidEvent, Code) {
	data, code := guarded(e.library, fnEventWait, func() (gonvml.EventData, gonvml.Return) {
		return e.library.binding.raw.EventSetWait(e.raw, uint32(timeout.Milliseconds())) //nolint:forbidigo // guarded by the line above
	})
	if code == Success && data.EventType&gonvml.EventTypeXidCriticalError == 0 {
		code = Timeout // what nobody registered for is not about a GPU
	}
	if code != Success {
		return gpuhealth.XidEvent{}, code
	}
	e.mu.Lock()
	uuid := e.uuids[data.Device]
	e.mu.Unlock()
	return gpuhealth.XidEvent{
		UUID: uuid, Code: data.EventData,
		// 0xFFFFFFFF where the event is of the whole GPU (nvml.h).
		GPUInstance:     instance(data.GpuInstanceId),
		ComputeInstance: instance(data.ComputeInstanceId),
	}, Success
}

func (e *events) Free() {
	guarded(e.library, fnEventFree, func() (struct{}, gonvml.Return) {
		return struct{}{}, e.library.binding.raw.EventSetFree(e.raw) //nolint:forbidigo // guarded by the line above
	})
}

func instance(id uint32) gpuhealth.Opt[uint32] {
	return gpuhealth.Opt[uint32]{V: id, OK: id != math.MaxUint32}
}
