// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// gpmMetrics are what GPM is asked for (nvml.h, nvmlGpmMetricId_t).
var gpmMetrics = [...]gpmMetric{
	unit(gonvml.GPM_METRIC_GRAPHICS_UTIL, reading.GraphicsActivity),
	unit(gonvml.GPM_METRIC_SM_UTIL, reading.SMActivity),
	unit(gonvml.GPM_METRIC_SM_OCCUPANCY, reading.SMOccupancy),
	unit(gonvml.GPM_METRIC_ANY_TENSOR_UTIL, reading.TensorActivity),
	unit(gonvml.GPM_METRIC_DRAM_BW_UTIL, reading.DRAMActivity),
	unit(gonvml.GPM_METRIC_FP64_UTIL, reading.FP64Activity),
	unit(gonvml.GPM_METRIC_FP32_UTIL, reading.FP32Activity),
	unit(gonvml.GPM_METRIC_FP16_UTIL, reading.FP16Activity),
	bus(gonvml.GPM_METRIC_PCIE_TX_PER_SEC, gpuhealth.LinkPCIe, gpuhealth.Transmit),
	bus(gonvml.GPM_METRIC_PCIE_RX_PER_SEC, gpuhealth.LinkPCIe, gpuhealth.Receive),
	bus(gonvml.GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, gpuhealth.LinkNVLink, gpuhealth.Transmit),
	bus(gonvml.GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, gpuhealth.LinkNVLink, gpuhealth.Receive),
}

type gpmMetric struct {
	id  gonvml.GpmMetricId
	set func(*gpuhealth.Readings, float64)
}

// unit is in percent of peak.
func unit(id gonvml.GpmMetricId, which reading.Field) gpmMetric {
	return gpmMetric{id, func(r *gpuhealth.Readings, v float64) { r.Numbers[which] = gpuhealth.Some(v / 100) }}
}

// bus is in MiB per second.
func bus(id gonvml.GpmMetricId, link gpuhealth.Link, d gpuhealth.Direction) gpmMetric {
	return gpmMetric{id, func(r *gpuhealth.Readings, v float64) { r.IORate[link][d] = gpuhealth.Some(v * (1 << 20)) }}
}

// wholeGPU is the key of the GPU's own activity beside those of GPU instances.
const wholeGPU = 1<<32 - 1

// activity is GPM's two samples of a GPU or GPU instance, taken in turn.
type activity struct {
	samples [2]gonvml.GpmSample
	taken   int  // samples that exist, fewer where GPM is not supported
	next    int  // the one to take next
	primed  bool // the other one holds the last poll's sample
	used    bool // in this poll
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
	if a.taken < len(a.samples) {
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
	get := gonvml.GpmMetricsGetType{NumMetrics: uint32(len(gpmMetrics)), Sample1: before, Sample2: now}
	for i := range gpmMetrics {
		get.Metrics[i].MetricId = uint32(gpmMetrics[i].id)
	}
	_, code = guarded(d.library, fnGPMMetrics, func() (struct{}, gonvml.Return) { return struct{}{}, d.library.binding.raw.GpmMetricsGet(&get) })
	if !t.ok(code) {
		return
	}
	for i := range gpmMetrics {
		if m := &get.Metrics[i]; Code(m.NvmlReturn) == Success {
			gpmMetrics[i].set(r, m.Value)
		}
	}
}

func (d *device) newActivity(t *tally) *activity {
	a := &activity{}
	support, code := guarded(d.library, fnGPMSupport, d.raw.GpmQueryDeviceSupport)
	if !t.ok(code) || support.IsSupportedDevice == 0 {
		return a
	}
	for i := range a.samples {
		sample, code := guarded(d.library, fnGPMAlloc, d.library.binding.raw.GpmSampleAlloc)
		if code != Success {
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
