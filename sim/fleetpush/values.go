// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
)

// source is where the value of a point comes from.
type source uint8

// The sources; fixed is what the receiver's report has.
const (
	fixed source = iota
	celsius
	memoryCelsius
	margin
	watts
	limitWatts
	joules
	clockHertz
	boostHertz
	utilization
	memoryUsed
	memoryShare
	processes
	pcieBytes
	nvlinkBytes
	pcieLanes
	pcieGeneration
	linksUp
	linksDown
	linkReplays
	linkCRC
	eccCorrected
	eccUncorrected
	remappedRows
	remapPending
	remapFailed
	powerCapped
	slowedDown
	swThermalTime
	hwThermalTime
	brakeTime
	healthScore
	stateUnknown
	stateHealthy
	stateDegraded
	stateUnhealthy
	statusOK
	statusDegraded
	statusFailed
	statusPredicted
	// Those of the node.
	gpusFound
	gpusLost
	cpuPressure
	stepSeconds
	numSources
)

// facts are what holds of a GPU and decides which points it has.
type facts uint32

const (
	// up: it answers.
	up facts = 1 << iota
	down
	// wentDown and cameUp: it did, or did not, in the report before.
	wentDown
	cameUp
	scored
	// What was the case once, from when on the receiver has a point for it.
	onceCapped
	onceSlowed
	onceLinksDown
	onceDegraded
	onceFailed
	oncePredicted

	once = onceCapped | onceSlowed | onceLinksDown | onceDegraded | onceFailed | oncePredicted
)

// values are what the points of one GPU, or of the node, show, and facts which
// there are.
type values struct {
	v       [numSources]float64
	facts   facts
	xids    [fleetsim.MaxXids]xid
	reasons []reason
}

// reason is one of a GPU's health that held once.
type reason struct {
	reason, action string
	holds          bool
}

type xid = fleetsim.Xid

// read takes a reading; had is what held of the GPU in the report before.
func (v *values) read(r *fleetsim.Reading, spec *fleetsim.Spec, had facts) {
	f := had & once
	set := func(on bool, of facts) {
		if on {
			f |= of
		}
	}
	set(r.Up, up)
	set(!r.Up, down)
	set(!r.Up && had&up != 0, wentDown)
	set(r.Up && had&down != 0, cameUp)
	set(r.Throttled[fleetsim.PowerCap], onceCapped)
	set(r.Throttled[fleetsim.HWSlowdown], onceSlowed)
	set(r.NVLinksUp < spec.NVLinks, onceLinksDown)
	*v = values{facts: f, xids: r.Xids, reasons: v.reasons[:0]}
	v.v = [numSources]float64{
		celsius:       r.Celsius,
		memoryCelsius: r.MemoryCelsius,
		margin:        spec.MaxCelsius - r.Celsius,
		watts:         r.Watts,
		limitWatts:    r.LimitWatts,
		joules:        r.Joules,
		clockHertz:    r.ClockHertz,
		boostHertz:    r.BoostHertz,
		utilization:   r.Utilization,
		memoryUsed:    r.MemoryUsed,
		memoryShare:   r.MemoryUsed / spec.MemoryBytes,
		processes:     float64(max(0, r.Processes)),

		pcieBytes:      r.PCIeBytes,
		nvlinkBytes:    r.NVLinkBytes,
		pcieLanes:      float64(r.PCIeLanes),
		pcieGeneration: float64(r.PCIeGeneration),
		linksUp:        float64(r.NVLinksUp),
		linksDown:      float64(spec.NVLinks - r.NVLinksUp),
		linkReplays:    r.NVLinkReplays,
		linkCRC:        r.NVLinkCRC,

		eccCorrected:   r.ECCCorrected,
		eccUncorrected: r.ECCUncorrected,
		remappedRows:   float64(r.RemappedRows),
		remapPending:   flag(r.RemapPending),
		remapFailed:    flag(r.RemapFailed),

		powerCapped:   flag(r.Throttled[fleetsim.PowerCap]),
		slowedDown:    flag(r.Throttled[fleetsim.HWSlowdown]),
		swThermalTime: r.ThrottledSeconds[fleetsim.SWThermal],
		hwThermalTime: r.ThrottledSeconds[fleetsim.HWThermal],
		brakeTime:     r.ThrottledSeconds[fleetsim.PowerBrake],
	}
}

// judge takes what is thought of the GPU.
func (v *values) judge(verdict *gpuhealth.Verdict) {
	if verdict.Score.OK {
		v.facts |= scored
		v.v[healthScore] = float64(verdict.Score.V)
	}
	v.v[stateUnknown] = flag(verdict.State == gpuhealth.StateUnknown)
	v.v[stateHealthy] = flag(verdict.State == gpuhealth.StateHealthy)
	v.v[stateDegraded] = flag(verdict.State == gpuhealth.StateDegraded)
	v.v[stateUnhealthy] = flag(verdict.State == gpuhealth.StateUnhealthy)
	v.v[statusOK] = flag(verdict.Hardware == gpuhealth.HardwareOK)
	switch verdict.Hardware {
	case gpuhealth.HardwareDegraded:
		v.v[statusDegraded] = 1
		v.facts |= onceDegraded
	case gpuhealth.HardwareFailed:
		v.v[statusFailed] = 1
		v.facts |= onceFailed
	case gpuhealth.HardwarePredictedFailure:
		v.v[statusPredicted] = 1
		v.facts |= oncePredicted
	}
}

// healthy is what the health rubric says of a GPU of which nothing is wrong.
var healthy = gpuhealth.Verdict{
	Score: gpuhealth.Some(100), State: gpuhealth.StateHealthy, Hardware: gpuhealth.HardwareOK,
}

func flag(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

// series selects points: those of a metric that have the attribute, all without one.
type series struct {
	metric, attr, value string
	source              source
	facts               facts
}

// told are the series that show something of the simulated hardware. All others
// of a GPU are as the receiver's report has them, while it answers.
var told = []series{
	{gpusemconv.MetricTemperature, gpusemconv.AttrSensorLocation, "memory", memoryCelsius, up},
	{gpusemconv.MetricTemperature, gpusemconv.AttrSensorLocation, "gpu", celsius, up},
	{"hw.gpu.temperature.margin", "", "", margin, up},
	{gpusemconv.MetricPower, "", "", watts, up},
	{gpusemconv.MetricGPUPowerLimit, gpusemconv.AttrLimit, "enforced", limitWatts, up},
	{gpusemconv.MetricEnergy, "", "", joules, up},
	{gpusemconv.MetricGPUClock, gpusemconv.AttrClock, "sm", clockHertz, up},
	{gpusemconv.MetricGPUClockLimit, gpusemconv.AttrClock, "sm", boostHertz, up},
	{gpusemconv.MetricGPUUtilization, gpusemconv.AttrGPUTask, "general", utilization, up},
	{gpusemconv.MetricGPUMemoryUsage, "", "", memoryUsed, up},
	{gpusemconv.MetricGPUMemoryUtil, "", "", memoryShare, up},
	{gpusemconv.MetricGPUProcesses, gpusemconv.AttrProcessType, "compute", processes, up},
	{"hw.gpu.io", "gpu.link", "pcie", pcieBytes, up},
	{"hw.gpu.io", "gpu.link", "nvlink", nvlinkBytes, up},
	{gpusemconv.MetricGPUPCIeLinkWidth, gpusemconv.AttrKind, "current", pcieLanes, up},
	{gpusemconv.MetricGPUPCIeLinkGeneration, gpusemconv.AttrKind, "current", pcieGeneration, up},
	{gpusemconv.MetricGPUNVLinkLinks, gpusemconv.AttrState, "up", linksUp, up},
	{gpusemconv.MetricGPUNVLinkLinks, gpusemconv.AttrState, "down", linksDown, up | onceLinksDown},
	{gpusemconv.MetricGPUNVLinkErrors, gpusemconv.AttrErrorType, "replay", linkReplays, up},
	{gpusemconv.MetricGPUNVLinkErrors, gpusemconv.AttrErrorType, "crc", linkCRC, up},
	{gpusemconv.MetricErrors, gpusemconv.AttrErrorType, "corrected", eccCorrected, up},
	{gpusemconv.MetricErrors, gpusemconv.AttrErrorType, "uncorrected", eccUncorrected, up},
	{gpusemconv.MetricGPURemappedRows, gpusemconv.AttrCause, "uncorrected", remappedRows, up},
	{gpusemconv.MetricGPURemapPending, "", "", remapPending, up},
	{gpusemconv.MetricGPURemapFailed, "", "", remapFailed, up},
	{gpusemconv.MetricGPUThrottleActive, gpusemconv.AttrReason, "power_cap", powerCapped, up | onceCapped},
	{gpusemconv.MetricGPUThrottleActive, gpusemconv.AttrReason, "hw_slowdown", slowedDown, up | onceSlowed},
	{gpusemconv.MetricGPUThrottleTime, gpusemconv.AttrReason, "sw_thermal", swThermalTime, up},
	{gpusemconv.MetricGPUThrottleTime, gpusemconv.AttrReason, "hw_thermal", hwThermalTime, up},
	{gpusemconv.MetricGPUThrottleTime, gpusemconv.AttrReason, "power_brake", brakeTime, up},
	{gpusemconv.MetricGPUHealthScore, "", "", healthScore, scored},
	{gpusemconv.MetricGPUHealthState, gpusemconv.AttrState, "unknown", stateUnknown, 0},
	{gpusemconv.MetricGPUHealthState, gpusemconv.AttrState, "healthy", stateHealthy, 0},
	{gpusemconv.MetricGPUHealthState, gpusemconv.AttrState, "degraded", stateDegraded, 0},
	{gpusemconv.MetricGPUHealthState, gpusemconv.AttrState, "unhealthy", stateUnhealthy, 0},
	{gpusemconv.MetricHWStatus, gpusemconv.AttrHWState, "ok", statusOK, 0},
	{gpusemconv.MetricHWStatus, gpusemconv.AttrHWState, "degraded", statusDegraded, onceDegraded},
	{gpusemconv.MetricHWStatus, gpusemconv.AttrHWState, "failed", statusFailed, onceFailed},
	{gpusemconv.MetricHWStatus, gpusemconv.AttrHWState, "predicted_failure", statusPredicted, oncePredicted},
	{gpusemconv.MetricGPUInfo, "", "", fixed, 0},
	{gpusemconv.MetricGPUUp, gpusemconv.AttrReason, "ok", fixed, up},
	{gpusemconv.MetricGPUUp, gpusemconv.AttrReason, "lost", fixed, down},
	{gpusemconv.MetricGPUCount, gpusemconv.AttrState, "found", gpusFound, 0},
	{gpusemconv.MetricGPUCount, gpusemconv.AttrState, "lost", gpusLost, 0},
	{gpusemconv.MetricNodeCPUPressure, "", "", cpuPressure, 0},
}

// meaning tells what a series of a report shows, and when it is there.
func meaning(name string, attrs pcommon.Map) (source, facts) {
	for _, s := range told {
		if s.metric != name {
			continue
		}
		if v, ok := attrs.Get(s.attr); s.attr == "" || ok && v.Str() == s.value {
			return s.source, s.facts
		}
	}
	return fixed, up
}
