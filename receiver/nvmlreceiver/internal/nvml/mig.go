// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"context"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// readSlices lists the MIG slices anew at each poll: they are made and
// destroyed while the driver runs, and handles do not outlive them.
func (d *device) readSlices(ctx context.Context, request Request, into *Answer, t *tally) {
	if d.wholeMIG {
		return
	}
	mode, code := guarded(d.library, fnMIGMode, func() (int, gonvml.Return) { return first(d.raw.GetMigMode()) })
	if !t.ok(code) {
		d.wholeMIG = code.unsupported()
		return
	}
	into.Numbers[reading.ModeMIG] = whole(uint32(mode))
	if mode != 1 {
		return
	}
	slots, code := guarded(d.library, fnMIGCount, d.raw.GetMaxMigDeviceCount)
	if !t.ok(code) {
		return
	}
	into.SliceCapacity = count32(slots)
	for i := range min(slots, gpuhealth.MaxSlices) {
		handle, code := guarded(d.library, fnMIGDevice, func() (gonvml.Device, gonvml.Return) { return d.raw.GetMigDeviceHandleByIndex(i) }, InvalidArgument)
		if code == NotFound || code == InvalidArgument {
			continue // an empty slot
		}
		if !t.ok(code) {
			continue
		}
		if slice, ok := d.readSlice(&device{library: d.library, index: d.index, raw: handle}, t); ok {
			into.Slices = append(into.Slices, slice)
		}
		if t.gone != Success || ctx.Err() != nil {
			return
		}
	}
	if request.Activity {
		for i := range into.Slices {
			s := &into.Slices[i]
			if gi := s.GPUInstance; gi.OK && t.gone == Success {
				d.measure(gi, &s.Readings, t)
			}
		}
	}
}

// readSlice reads what NVML gives of a slice: memory, processes and the
// uncorrectable errors outside of DRAM (nvml.h, nvmlDeviceGetMemoryErrorCounter).
// Clocks, power and temperature are the whole GPU's.
func (d *device) readSlice(part *device, t *tally) (gpuhealth.Sample, bool) {
	// A slice that was destroyed meanwhile is no failure of the GPU.
	var own tally
	uuid, code := guarded(d.library, fnUUID, part.raw.GetUUID)
	if !own.ok(code) || uuid == "" {
		if code.deviceGone() {
			t.ok(code)
		}
		return gpuhealth.Sample{}, false
	}
	s := gpuhealth.Sample{Identity: gpuhealth.Identity{UUID: uuid, Index: d.index, MIG: gpuhealth.MIG{Parent: d.uuid}}, Reason: gpuhealth.ReasonOK}
	if v, code := guarded(d.library, fnName, part.raw.GetName); own.ok(code) {
		s.Model = v
	}
	put(part, &own, fnGPUInstance, part.raw.GetGpuInstanceId, count32, &s.GPUInstance)
	put(part, &own, fnComputeInstance, part.raw.GetComputeInstanceId, count32, &s.ComputeInstance)
	readMemory(part, &s.Readings, &own)
	readProcesses(part, &s.Readings, &own)
	put(part, &own, fnMemoryErrors, func() (uint64, gonvml.Return) {
		return part.raw.GetMemoryErrorCounter(gonvml.MEMORY_ERROR_TYPE_UNCORRECTED, gonvml.VOLATILE_ECC, gonvml.MEMORY_LOCATION_SRAM) //nolint:forbidigo // guarded by the line above
	}, gpuhealth.Some[uint64], &s.ECCLocation[gpuhealth.ECCUncorrected][gpuhealth.ECCVolatile][gpuhealth.ECCSRAM])
	if own.gone != Success {
		t.ok(own.gone)
		return gpuhealth.Sample{}, false
	}
	return s, true
}
