// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
)

// activityMetrics are GPM's ids of the units, in percent of peak (nvml.h,
// nvmlGpmMetricId_t).
var activityMetrics = [gpuhealth.NumActivities]gonvml.GpmMetricId{
	gpuhealth.ActivitySM:          gonvml.GPM_METRIC_SM_UTIL,
	gpuhealth.ActivitySMOccupancy: gonvml.GPM_METRIC_SM_OCCUPANCY,
	gpuhealth.ActivityTensor:      gonvml.GPM_METRIC_ANY_TENSOR_UTIL,
	gpuhealth.ActivityDRAM:        gonvml.GPM_METRIC_DRAM_BW_UTIL,
	gpuhealth.ActivityFP64:        gonvml.GPM_METRIC_FP64_UTIL,
	gpuhealth.ActivityFP32:        gonvml.GPM_METRIC_FP32_UTIL,
	gpuhealth.ActivityFP16:        gonvml.GPM_METRIC_FP16_UTIL,
	gpuhealth.ActivityGraphics:    gonvml.GPM_METRIC_GRAPHICS_UTIL,
}

// wholeGPU is the key of the GPU's own activity beside those of GPU instances.
const wholeGPU = 1<<32 - 1

// activity is GPM's two samples of a GPU or GPU instance, taken in turn.
type activity struct {
	unsupported bool
	samples     [2]gonvml.GpmSample
	taken       int  // samples that exist
	next        int  // the one to take next
	primed      bool // the other one holds the last poll's sample
	used        bool // in this poll
}

// readActivity measures the whole GPU, and forgets instances that are gone.
func (d *device) readActivity(into *Answer, t *tally) {
	d.measure(gpuhealth.Opt[uint32]{}, &into.Readings, t)
	for id, a := range d.activity {
		if !a.used {
			d.forget(a)
			delete(d.activity, id)
		}
		a.used = false
	}
}

// measure compares a sample of now with the last poll's.
func (d *device) measure(gi gpuhealth.Opt[uint32], r *gpuhealth.Readings, t *tally) {
	key := uint32(wholeGPU)
	if gi.OK {
		key = gi.V
	}
	a := d.activity[key]
	if a == nil {
		a = d.newActivity(t)
		if d.activity == nil {
			d.activity = map[uint32]*activity{}
		}
		d.activity[key] = a
	}
	a.used = true
	if a.unsupported || a.taken < len(a.samples) {
		return
	}
	now := a.samples[a.next]
	var code Code
	if gi.OK {
		_, code = guarded(d.library, fnGPMSliceSample, func() (struct{}, gonvml.Return) { return struct{}{}, d.raw.GpmMigSampleGet(int(gi.V), now) })
	} else {
		_, code = guarded(d.library, fnGPMSample, func() (struct{}, gonvml.Return) { return struct{}{}, d.raw.GpmSampleGet(now) })
	}
	if !t.ok(code) {
		a.primed = false
		return
	}
	before := a.samples[1-a.next]
	a.next = 1 - a.next
	if !a.primed {
		a.primed = true
		return
	}
	get := gonvml.GpmMetricsGetType{NumMetrics: uint32(len(activityMetrics)), Sample1: before, Sample2: now}
	for i, id := range activityMetrics {
		get.Metrics[i].MetricId = uint32(id)
	}
	_, code = guarded(d.library, fnGPMMetrics, func() (struct{}, gonvml.Return) { return struct{}{}, d.library.binding.raw.GpmMetricsGet(&get) })
	if !t.ok(code) {
		return
	}
	for i := range activityMetrics {
		if m := &get.Metrics[i]; Code(m.NvmlReturn) == Success {
			r.Activity[i] = gpuhealth.Some(m.Value / 100)
		}
	}
}

func (d *device) newActivity(t *tally) *activity {
	a := &activity{}
	support, code := guarded(d.library, fnGPMSupport, d.raw.GpmQueryDeviceSupport)
	if !t.ok(code) || support.IsSupportedDevice == 0 {
		a.unsupported = true
		return a
	}
	for i := range a.samples {
		sample, code := guarded(d.library, fnGPMAlloc, d.library.binding.raw.GpmSampleAlloc)
		if code != Success {
			a.unsupported = true
			break
		}
		a.samples[i] = sample
		a.taken++
	}
	return a
}

func (d *device) forget(a *activity) {
	for _, sample := range a.samples[:a.taken] {
		guarded(d.library, fnGPMFree, func() (struct{}, gonvml.Return) { return struct{}{}, d.library.binding.raw.GpmSampleFree(sample) })
	}
	a.taken = 0
}

func (d *device) Close() {
	for _, a := range d.activity {
		d.forget(a)
	}
	d.activity = nil
}
