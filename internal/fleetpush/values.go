// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/fleetsim"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// source is where the value of a point comes from.
type source uint8

// The sources; those of a node are after those of a GPU.
const (
	fixed source = iota // as the receiver's report has it
	celsius
	memoryCelsius
	margin
	watts
	joules
	clockHertz
	utilization
	memoryUsed
	memoryShare
	pcieBytes
	nvlinkBytes
	powerCapped
	gpusFound
	numSources
)

// facts are what may hold of a GPU and decides which points it has.
type facts uint32

const (
	// up: it answers.
	up facts = 1 << iota
	// cappedOnce: its power met the cap at some time. The receiver has a point for
	// such a state from when it first holds.
	cappedOnce
)

// values are what the points of one GPU show, and facts which there are.
type values struct {
	v     [numSources]float64
	facts facts
}

// read takes a reading. had is what held of the GPU before.
func (v *values) read(r fleetsim.Reading, spec *fleetsim.Spec, had facts) {
	v.facts = had | up
	if r.PowerCapped {
		v.facts |= cappedOnce
	}
	v.v = [numSources]float64{
		celsius:       r.Celsius,
		memoryCelsius: r.MemoryCelsius,
		// To the slowdown temperature of an H100.
		margin:      87 - r.Celsius,
		watts:       r.Watts,
		joules:      r.Joules,
		clockHertz:  r.ClockHertz,
		utilization: r.Utilization,
		memoryUsed:  r.MemoryUsed,
		memoryShare: r.MemoryUsed / spec.MemoryBytes,
		pcieBytes:   r.PCIeBytes,
		nvlinkBytes: r.NVLinkBytes,
		powerCapped: flag(r.PowerCapped),
	}
}

func flag(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

// meaning tells what a series of the receiver's report shows, and when it is
// there. Most series of a healthy node never change.
func meaning(name string, attrs pcommon.Map) (source, facts) {
	is := func(attr, value string) bool {
		v, ok := attrs.Get(attr)
		return ok && v.Str() == value
	}
	switch name {
	case gpusemconv.MetricTemperature:
		if is(gpusemconv.AttrSensorLocation, "memory") {
			return memoryCelsius, up
		}
		return celsius, up
	case "hw.gpu.temperature.margin":
		return margin, up
	case gpusemconv.MetricPower:
		return watts, up
	case gpusemconv.MetricEnergy:
		return joules, up
	case gpusemconv.MetricGPUClock:
		return clockHertz, up
	case gpusemconv.MetricGPUUtilization:
		return utilization, up
	case gpusemconv.MetricGPUMemoryUsage:
		return memoryUsed, up
	case gpusemconv.MetricGPUMemoryUtil:
		return memoryShare, up
	case "hw.gpu.io":
		if is("gpu.link", "pcie") {
			return pcieBytes, up
		}
		return nvlinkBytes, up
	case gpusemconv.MetricGPUThrottleActive:
		return powerCapped, up | cappedOnce
	case gpusemconv.MetricGPUCount:
		if is(gpusemconv.AttrState, "found") {
			return gpusFound, 0
		}
	case gpusemconv.MetricNodeCPUPressure:
		return fixed, 0
	case gpusemconv.MetricGPUInfo:
		return fixed, 0
	}
	return fixed, up
}

// addRare adds the series that a GPU has once something has happened to it,
// which the receiver's report of a healthy one lacks.
func addRare(metrics pmetric.MetricSlice) {
	m := metrics.AppendEmpty()
	m.SetName(gpusemconv.MetricGPUThrottleActive)
	m.SetUnit("1")
	m.SetDescription("1 while the reason holds the clocks down, else 0. An idle GPU is not throttled.")
	p := m.SetEmptyGauge().DataPoints().AppendEmpty()
	p.SetIntValue(0)
	p.Attributes().PutStr(gpusemconv.AttrHWID, "")
	p.Attributes().PutStr(gpusemconv.AttrReason, "power_cap")
}
