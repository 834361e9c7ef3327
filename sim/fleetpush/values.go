// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
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
	// These held once: from then on the receiver has a point for each.
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

// healthy is the health rubric's verdict on a GPU without a fault.
var healthy = gpuhealth.Verdict{
	Score: gpuhealth.Some(100), State: gpuhealth.StateHealthy, Hardware: gpuhealth.HardwareOK,
}

func flag(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

// shown is what a point that says a field shows, and when it is there. Of a field
// that has a series for each text of an attribute, text is that of this series.
type shown struct {
	field  reading.Field
	text   string
	source source
	facts  facts
}

// told are the points that show something of the simulated hardware. All others
// of a GPU are as the receiver's report has them, while it answers.
var told = [...]shown{
	{reading.MemoryTemperature, "", memoryCelsius, up},
	{reading.Temperature, "", celsius, up},
	{reading.TemperatureMargin, "", margin, up},
	{reading.Power, "", watts, up},
	{reading.PowerLimit, "", limitWatts, up},
	{reading.Energy, "", joules, up},
	{reading.SMClock, "", clockHertz, up},
	{reading.SMClockLimit, "", boostHertz, up},
	{reading.Utilization, "", utilization, up},
	{reading.MemoryUsed, "", memoryUsed, up},
	{reading.MemoryShare, "", memoryShare, up},
	{reading.Processes, "", processes, up},
	{reading.PCIeBytes, "", pcieBytes, up},
	{reading.NVLinkBytes, "", nvlinkBytes, up},
	{reading.PCIeWidth, "", pcieLanes, up},
	{reading.PCIeGeneration, "", pcieGeneration, up},
	{reading.NVLinksUp, "", linksUp, up},
	{reading.NVLinksDown, "", linksDown, up | onceLinksDown},
	{reading.NVLinkReplay, "", linkReplays, up},
	{reading.NVLinkCRC, "", linkCRC, up},
	{reading.ECCCorrected, "", eccCorrected, up},
	{reading.ECCUncorrected, "", eccUncorrected, up},
	{reading.RemappedUncorrected, "", remappedRows, up},
	{reading.RemapPending, "", remapPending, up},
	{reading.RemapFailed, "", remapFailed, up},
	{reading.PowerCap, "", powerCapped, up | onceCapped},
	{reading.HWSlowdown, "", slowedDown, up | onceSlowed},
	{reading.SWThermalTime, "", swThermalTime, up},
	{reading.HWThermalTime, "", hwThermalTime, up},
	{reading.PowerBrakeTime, "", brakeTime, up},
	{reading.Health, "", healthScore, scored},
	{reading.HealthState, string(gpuhealth.StateUnknown), stateUnknown, 0},
	{reading.HealthState, string(gpuhealth.StateHealthy), stateHealthy, 0},
	{reading.HealthState, string(gpuhealth.StateDegraded), stateDegraded, 0},
	{reading.HealthState, string(gpuhealth.StateUnhealthy), stateUnhealthy, 0},
	{reading.HardwareState, string(gpuhealth.HardwareOK), statusOK, 0},
	{reading.HardwareState, string(gpuhealth.HardwareDegraded), statusDegraded, onceDegraded},
	{reading.HardwareState, string(gpuhealth.HardwareFailed), statusFailed, onceFailed},
	{reading.HardwareState, string(gpuhealth.HardwarePredictedFailure), statusPredicted, oncePredicted},
	{reading.Info, "", fixed, 0},
	{reading.Up, string(gpuhealth.ReasonOK), fixed, up},
	{reading.Up, string(gpuhealth.ReasonLost), fixed, down},
	{reading.GPUsFound, "", gpusFound, 0},
	{reading.GPUsLost, "", gpusLost, 0},
	{reading.CPUPressure, "", cpuPressure, 0},
}

// meaning tells what a point of a report shows, and when it is there.
func meaning(p *metricreading.Point) (source, facts) {
	for _, s := range told {
		if s.field == p.Field && (s.text == "" || s.text == p.Texts[0]) {
			return s.source, s.facts
		}
	}
	return fixed, up
}
