// SPDX-License-Identifier: Apache-2.0

package record

import (
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
)

// The enumerations of gpuhealth have the order of metadata.yaml, and mdatagen counts its
// attributes from 1: TestEnumerations.

// with adds the point of a reading that an attribute selects.
func with[A any, V uint32 | uint64 | int64 | float64, N int64 | float64](r *Recorder, v gpuhealth.Opt[V], of A, record func(pcommon.Timestamp, N, string, A, ...metadata.MetricAttributeOption)) {
	if v.OK {
		record(r.ts, N(v.V), r.id, of, r.parent...)
	}
}

func oneIf(on bool) int64 {
	if on {
		return 1
	}
	return 0
}

func (r *Recorder) memory() {
	s := r.s
	if total, used := s.Numbers[reading.MemoryLimit], s.Numbers[reading.MemoryUsed]; total.OK && used.OK {
		r.mb.RecordHwGpuMemoryUtilizationDataPoint(r.ts, used.V/total.V, r.id, r.parent...)
	}
	for e := range s.ECC {
		errorType := metadata.AttributeErrorType(e + 1)
		for c, total := range s.ECC[e] {
			counter := metadata.AttributeGpuEccCounter(c + 1)
			// Aggregate counts are the board's history; volatile counts have the present.
			if total.OK && (r.full || counter == metadata.AttributeGpuEccCounterVolatile) {
				r.mb.RecordHwErrorsDataPoint(r.ts, int64(total.V), r.id, gpuType, errorType,
					metadata.AttributeGpuMemoryLocationAll, counter, r.parent...)
			}
			for l, v := range s.ECCLocation[e][c] {
				// A MIG slice has no total.
				if v.OK && (r.full || r.parent != nil && !total.OK) {
					r.mb.RecordHwErrorsDataPoint(r.ts, int64(v.V), r.id, gpuType, errorType,
						metadata.AttributeGpuMemoryLocationAll+1+metadata.AttributeGpuMemoryLocation(l), counter, r.parent...)
				}
			}
		}
	}
}

// recovery always has the point of no action. The actions themselves
// have a point from when they are first asked for: they are rare, and many.
func (r *Recorder) recovery() {
	for i, v := range r.s.RepairPending {
		if v.OK {
			state(r, setRepair, i, v.V, false, metadata.AttributeRepairPart(i+1), r.mb.RecordHwGpuRepairPendingDataPoint)
		}
	}
	if v := r.s.RecoveryAction; v.OK {
		for a := range gpuhealth.NumRecoveryActions {
			state(r, setRecovery, int(a), v.V == a, a == gpuhealth.RecoveryNone, metadata.AttributeRecoveryAction(a+1), r.mb.RecordHwGpuRecoveryActionDataPoint)
		}
	}
}

// slowdownLimit adds it where the GPU has no margin, which is the better comparison.
func (r *Recorder) slowdownLimit() {
	n := &r.s.Numbers
	margin := n[reading.SlowdownMargin].OK && n[reading.TemperatureMargin].OK
	if v := n[reading.TemperatureLimit]; v.OK && !r.full && !margin {
		r.mb.RecordHwTemperatureLimitDataPoint(r.ts, v.V, r.id, metadata.AttributeHwSensorLocationGpu, metadata.AttributeHwLimitTypeThrottled, r.parent...)
	}
}

// throttleReasons are in the order of metadata.yaml: first those that have a clock too,
// where the GPU is new enough, and last those that are no fault. The clock has all that
// the bit does and what was between two polls.
var throttleReasons = [...]gpuhealth.ThrottleReason{
	gpuhealth.ThrottleSWThermal, gpuhealth.ThrottleHWThermal, gpuhealth.ThrottlePowerBrake,
	gpuhealth.ThrottlePowerCap, gpuhealth.ThrottleHWSlowdown,
	gpuhealth.ThrottleSyncBoost, gpuhealth.ThrottleAppClocks, gpuhealth.ThrottleDisplayClocks,
}

const throttleFaults = 5

func (r *Recorder) throttle() {
	n := &r.s.Numbers
	clocks := []gpuhealth.Opt[float64]{n[reading.SWThermalTime], n[reading.HWThermalTime], n[reading.PowerBrakeTime]} // in the same order
	if bits := r.s.Throttle; bits.OK {
		for i, bit := range throttleReasons {
			if i < throttleFaults || r.full {
				clockless := i < len(clocks) && !clocks[i].OK
				state(r, setThrottle, i, bits.V&uint64(bit) != 0, clockless, metadata.AttributeThrottleReason(i+1), r.mb.RecordHwGpuThrottleActiveDataPoint)
			}
		}
	}
	if !r.full && !clocks[0].OK && !clocks[1].OK { // an older GPU has one clock of all heat
		with(r, n[reading.ThermalTime], metadata.AttributeThrottleTimeReasonThermal, r.mb.RecordHwGpuThrottleTimeDataPoint)
	}
}

func (r *Recorder) bytes() {
	for l := range r.s.IO {
		link := metadata.AttributeGpuLink(l + 1)
		for d := range r.s.IO[l] {
			direction := metadata.AttributeNetworkIoDirection(d + 1)
			if v := r.s.IO[l][d]; v.OK && (r.full || link != metadata.AttributeGpuLinkNvlinkRaw) {
				r.mb.RecordHwGpuIoDataPoint(r.ts, int64(v.V), r.id, direction, link, r.parent...)
			}
			if v := r.s.IORate[l][d]; v.OK {
				r.mb.RecordHwGpuIoRateDataPoint(r.ts, v.V, r.id, direction, link, r.parent...)
			}
		}
	}
}

// linkErrors reports whether a kind of errors has a point. The older counters
// of CRC errors add nothing beside the newest.
func (r *Recorder) linkErrors(kind gpuhealth.NVLinkError) bool {
	switch kind {
	case gpuhealth.NVLinkEffective:
		return r.full
	case gpuhealth.NVLinkCRCFlit, gpuhealth.NVLinkCRCData:
		return r.full || !r.s.NVLink.Errors[gpuhealth.NVLinkCRC].OK
	default:
		return true
	}
}

func (r *Recorder) nvlink() {
	n := &r.s.NVLink
	with(r, n.Up, metadata.AttributeNvlinkStateUp, r.mb.RecordHwGpuNvlinkLinksDataPoint)
	if r.reports(setLinks, 0, n.Down.V > 0, false) {
		with(r, n.Down, metadata.AttributeNvlinkStateDown, r.mb.RecordHwGpuNvlinkLinksDataPoint)
	}
	for i, v := range n.Errors {
		if r.linkErrors(gpuhealth.NVLinkError(i)) {
			with(r, v, metadata.AttributeNvlinkErrorType(i+1), r.mb.RecordHwGpuNvlinkErrorsDataPoint)
		}
	}
	for i, v := range n.BitErrorRate {
		with(r, v, metadata.AttributeBitErrors(i+1), r.mb.RecordHwGpuNvlinkBitErrorRateDataPoint)
	}
	for id := range n.PerLink {
		link := &n.PerLink[id]
		with(r, gpuhealth.Opt[int64]{V: oneIf(link.Up.V), OK: link.Up.OK}, int64(id), r.mb.RecordHwGpuNvlinkLinkUpDataPoint)
		for i, v := range link.Errors {
			if v.OK {
				r.mb.RecordHwGpuNvlinkLinkErrorsDataPoint(r.ts, int64(v.V), r.id, int64(id), metadata.AttributeNvlinkErrorType(i+1), r.parent...)
			}
		}
	}
}

// fabric always has points for whether the GPU has joined and is well. Other
// states and conditions have a point from when they first hold.
func (r *Recorder) fabric() {
	f := &r.s.Fabric
	if f.State.OK && (f.State.V != gpuhealth.FabricNotSupported || r.full) {
		for st := range gpuhealth.NumFabricStates {
			state(r, setFabricState, int(st), f.State.V == st, st == gpuhealth.FabricCompleted, metadata.AttributeFabricState(st+1), r.mb.RecordHwGpuFabricStateDataPoint)
		}
	}
	health := func(i int, holds, always bool, condition metadata.AttributeFabricCondition) {
		state(r, setFabricHealth, i, holds, always, condition, r.mb.RecordHwGpuFabricHealthDataPoint)
	}
	for i, v := range f.Conditions {
		if v.OK {
			health(i, v.V, false, metadata.AttributeFabricCondition(i+1))
		}
	}
	if f.Summary.OK && f.Summary.V != gpuhealth.FabricSummaryNotSupported {
		health(len(f.Conditions)+1, f.Summary.V == gpuhealth.FabricSummaryUnhealthy, true, metadata.AttributeFabricConditionUnhealthy)
		health(len(f.Conditions), f.Summary.V == gpuhealth.FabricSummaryLimitedCapacity, false, metadata.AttributeFabricConditionLimitedCapacity)
	}
}
