// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

func linkState(d *device, link int, answers ...Code) (gonvml.EnableState, Code) {
	return guarded(d.library, fnNVLinkState, func() (gonvml.EnableState, gonvml.Return) { return d.raw.GetNvLinkState(link) }, answers...)
}

// readNVLinks asks for the states of the links that are not in the batch of
// fields, and counts them all. There is no count where one failed to answer: it
// would look like a link that is gone.
func readNVLinks(d *device, r *gpuhealth.Readings, t *tally) {
	var batched [gpuhealth.MaxNVLinks]bool
	for _, f := range d.fields.batch {
		if f.id == gonvml.FI_DEV_NVLINK_GET_STATE {
			batched[f.scope] = true
		}
	}
	var up, down uint32
	whole := true
	for i := range r.NVLink.PerLink {
		link := &r.NVLink.PerLink[i]
		if !batched[i] {
			state, code := linkState(d, i)
			switch {
			case t.ok(code):
				link.Up = r.YesNo(gpuhealth.FieldNVLinks, uint32(state))
			case t.gone != Success:
				return
			case code.unsupported():
				continue
			}
		}
		switch {
		case !link.Up.OK:
			whole = false
		case link.Up.V:
			up++
		default:
			down++
		}
	}
	if whole && up+down > 0 {
		r.NVLink.Up, r.NVLink.Down = gpuhealth.Some(up), gpuhealth.Some(down)
	}
}

// readFabric asks a GPU that has no fabric only as often as slow readings.
func readFabric(d *device, r *gpuhealth.Readings, t *tally) {
	if d.noFabric {
		return
	}
	v3, code := guarded(d.library, fnFabricV, func() (gonvml.GpuFabricInfo_v3, gonvml.Return) { return d.raw.GetGpuFabricInfoV().V3() }, outdated...)
	if t.ok(code) {
		fabric(r, v3.State, v3.Status, v3.HealthMask)
		if s := gpuhealth.FabricSummary(v3.HealthSummary); s != gpuhealth.FabricSummaryNotSupported {
			r.Fabric.Summary = gpuhealth.Some(s)
		}
		return
	}
	if !code.tryOlder() {
		return
	}
	v2, code := guarded(d.library, fnFabricV, func() (gonvml.GpuFabricInfo_v2, gonvml.Return) { return d.raw.GetGpuFabricInfoV().V2() }, outdated...)
	if t.ok(code) {
		fabric(r, v2.State, v2.Status, v2.HealthMask)
		return
	}
	if !code.tryOlder() {
		return
	}
	v1, code := guarded(d.library, fnFabric, d.raw.GetGpuFabricInfo)
	if t.ok(code) {
		fabric(r, v1.State, v1.Status, 0)
		return
	}
	d.noFabric = code.unsupported()
}

const (
	allBits2 = 1<<2 - 1
	allBits4 = 1<<4 - 1
)

// fabric reads the health mask: two bits for each condition, 0 not supported,
// 1 true, 2 false, and four for the configuration, where 1 is correct and more
// is wrong (nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*). All bits are garbage. The
// status is one of a GPU that has joined only.
func fabric(r *gpuhealth.Readings, state uint8, status, mask uint32) {
	r.Fabric = gpuhealth.Fabric{}
	f := &r.Fabric
	if s := gpuhealth.FabricState(state); s != gpuhealth.FabricNotSupported {
		f.State = gpuhealth.Some(s)
		if s == gpuhealth.FabricCompleted {
			f.Failed = gpuhealth.Some(gonvml.Return(status) != gonvml.SUCCESS)
		}
	}
	condition := func(c gpuhealth.FabricCondition, shift int, all uint32, bad func(bits uint32) bool) {
		switch bits := mask >> shift & all; bits {
		case 0:
		case all:
			r.Garbage = append(r.Garbage, gpuhealth.FieldFabric)
		default:
			f.Conditions[c] = gpuhealth.Some(bad(bits))
		}
	}
	for c := range gpuhealth.FabricIncorrectConfiguration {
		condition(c, 2*int(c), allBits2, func(bits uint32) bool { return bits == 1 })
	}
	condition(gpuhealth.FabricIncorrectConfiguration, 8, allBits4, func(bits uint32) bool { return bits != 1 })
	condition(gpuhealth.FabricNoPartition, 12, allBits2, func(bits uint32) bool { return bits == 2 })
}

func readProcesses(d *device, r *gpuhealth.Readings, t *tally) {
	if list, code := guarded(d.library, fnCompute, func() (processes, gonvml.Return) { return direct(d, fnCompute, d.library.binding.listProcesses) }); t.ok(code) {
		r.Numbers[reading.Processes] = whole(list.n)
		r.PIDs = list.pids
	}
	put(d, t, fnGraphics, func() (uint32, gonvml.Return) { return direct(d, fnGraphics, countList) }, whole, &r.Numbers[reading.GraphicsProcesses])
}
