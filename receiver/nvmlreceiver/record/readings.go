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

// one adds the point of a reading, with that of a reading with an attribute, and list those
// of readings by an enumeration.
func one[V uint32 | uint64 | int64 | float64, N int64 | float64](r *Recorder, v gpuhealth.Opt[V], record func(pcommon.Timestamp, N, string, ...metadata.MetricAttributeOption)) {
	if v.OK {
		record(r.ts, N(v.V), r.id, r.parent...)
	}
}

func with[A any, V uint32 | uint64 | int64 | float64, N int64 | float64](r *Recorder, v gpuhealth.Opt[V], of A, record func(pcommon.Timestamp, N, string, A, ...metadata.MetricAttributeOption)) {
	if v.OK {
		record(r.ts, N(v.V), r.id, of, r.parent...)
	}
}

func list[A ~int, V uint64 | float64, N int64 | float64](r *Recorder, readings []gpuhealth.Opt[V], record func(pcommon.Timestamp, N, string, A, ...metadata.MetricAttributeOption)) {
	for i, v := range readings {
		with(r, v, A(i+1), record)
	}
}

// yesNo is a reading of yes or no as its point has it.
func yesNo(v gpuhealth.Opt[bool]) gpuhealth.Opt[int64] {
	return gpuhealth.Opt[int64]{V: oneIf(v.V), OK: v.OK}
}

func oneIf(on bool) int64 {
	if on {
		return 1
	}
	return 0
}

func (r *Recorder) load() {
	s := r.s
	if total, used := s.Numbers[reading.MemoryLimit], s.Numbers[reading.MemoryUsed]; total.OK && used.OK {
		r.mb.RecordHwGpuMemoryUtilizationDataPoint(r.ts, used.V/total.V, r.id, r.parent...)
	}
	list(r, s.Activity[:], r.mb.RecordHwGpuActivityDataPoint)
	processes, modes := s.Processes[:gpuhealth.ProcessCompute+1], s.Modes[:gpuhealth.ModeMIG+1]
	if r.full {
		processes, modes = s.Processes[:], s.Modes[:]
	}
	list(r, processes, r.mb.RecordHwGpuProcessesDataPoint)
	for i, mode := range modes {
		with(r, yesNo(mode), metadata.AttributeMode(i+1), r.mb.RecordHwGpuModeDataPoint)
	}
	for i := range s.Clocks {
		// The graphics clock is the SM clock on every GPU since Fermi. The memory's clock
		// hardly changes while a job runs.
		if clock := metadata.AttributeClock(i + 1); r.full || clock == metadata.AttributeClockSm {
			with(r, s.Clocks[i], clock, r.mb.RecordHwGpuClockFrequencyDataPoint)
			with(r, s.ClockLimits[i], clock, r.mb.RecordHwGpuClockFrequencyLimitDataPoint)
		}
	}
}

func (r *Recorder) memory() {
	s := r.s
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
	one(r, yesNo(s.SRAMThresholdExceeded), r.mb.RecordHwGpuEccSramThresholdExceededDataPoint)
	list(r, s.RetiredPages[:], r.mb.RecordHwGpuMemoryRetiredPagesDataPoint)
	one(r, yesNo(s.RetirementPending), r.mb.RecordHwGpuMemoryRetirementPendingDataPoint)
	rows := &s.RemappedRows
	if r.full {
		with(r, rows.Corrected, metadata.AttributeRemapCauseCorrected, r.mb.RecordHwGpuMemoryRemappedRowsDataPoint)
	}
	with(r, rows.Uncorrected, metadata.AttributeRemapCauseUncorrected, r.mb.RecordHwGpuMemoryRemappedRowsDataPoint)
	one(r, yesNo(rows.Pending), r.mb.RecordHwGpuMemoryRemapPendingDataPoint)
	one(r, yesNo(rows.Failed), r.mb.RecordHwGpuMemoryRemapFailedDataPoint)
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

var limits = [gpuhealth.NumTemperatureLimits]struct {
	sensor metadata.AttributeHwSensorLocation
	kind   metadata.AttributeHwLimitType
}{
	gpuhealth.LimitSlowdown:  {metadata.AttributeHwSensorLocationGpu, metadata.AttributeHwLimitTypeThrottled},
	gpuhealth.LimitShutdown:  {metadata.AttributeHwSensorLocationGpu, metadata.AttributeHwLimitTypeCritical},
	gpuhealth.LimitGPUMax:    {metadata.AttributeHwSensorLocationGpu, metadata.AttributeHwLimitTypeMax},
	gpuhealth.LimitMemoryMax: {metadata.AttributeHwSensorLocationMemory, metadata.AttributeHwLimitTypeMax},
}

// temperatureLimits adds the limits that people compare with a temperature. Where the GPU
// has a margin, that is the better comparison.
func (r *Recorder) temperatureLimits() {
	s := r.s
	for i, of := range limits {
		slowdown := i == int(gpuhealth.LimitSlowdown)
		margin := s.MarginLimits[i]
		wanted := r.full || i == int(gpuhealth.LimitMemoryMax) || slowdown && (!margin.OK || !s.Numbers[reading.TemperatureMargin].OK)
		if v := s.TemperatureLimits[i]; v.OK && wanted {
			r.mb.RecordHwTemperatureLimitDataPoint(r.ts, v.V, r.id, of.sensor, of.kind, r.parent...)
		}
		if margin.OK && (r.full || slowdown) {
			r.mb.RecordHwGpuTemperatureMarginLimitDataPoint(r.ts, margin.V, r.id, of.sensor, of.kind, r.parent...)
		}
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

const throttleClocks, throttleFaults = 3, 5

func (r *Recorder) throttle() {
	clocks := r.s.ThrottleTime[gpuhealth.ThrottleTimeSWThermal:][:throttleClocks] // in the same order
	if bits := r.s.Throttle; bits.OK {
		for i, bit := range throttleReasons {
			if i < throttleFaults || r.full {
				clockless := i < throttleClocks && !clocks[i].OK
				state(r, setThrottle, i, bits.V&uint64(bit) != 0, clockless, metadata.AttributeThrottleReason(i+1), r.mb.RecordHwGpuThrottleActiveDataPoint)
			}
		}
	}
	older := !clocks[0].OK && !clocks[1].OK // it has one clock of all heat
	for i, v := range r.s.ThrottleTime {
		which := gpuhealth.ThrottleTime(i)
		if r.full || which >= gpuhealth.ThrottleTimeSWThermal || which == gpuhealth.ThrottleTimeThermal && older {
			with(r, v, metadata.AttributeThrottleTimeReason(i+1), r.mb.RecordHwGpuThrottleTimeDataPoint)
		}
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

func (r *Recorder) pcie() {
	p := &r.s.PCIe
	with(r, p.Width, metadata.AttributeLinkKindCurrent, r.mb.RecordHwGpuPcieLinkWidthDataPoint)
	with(r, p.WidthMax, metadata.AttributeLinkKindMax, r.mb.RecordHwGpuPcieLinkWidthDataPoint)
	with(r, p.Generation, metadata.AttributeLinkKindCurrent, r.mb.RecordHwGpuPcieLinkGenerationDataPoint)
	with(r, p.Replays, metadata.AttributeReplayKindReplay, r.mb.RecordHwGpuPcieReplaysDataPoint)
	if r.full {
		with(r, p.GenerationMax, metadata.AttributeLinkKindMax, r.mb.RecordHwGpuPcieLinkGenerationDataPoint)
		with(r, p.Rollovers, metadata.AttributeReplayKindRollover, r.mb.RecordHwGpuPcieReplaysDataPoint)
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
	list(r, n.BitErrorRate[:], r.mb.RecordHwGpuNvlinkBitErrorRateDataPoint)
	for id := range n.PerLink {
		link := &n.PerLink[id]
		with(r, yesNo(link.Up), int64(id), r.mb.RecordHwGpuNvlinkLinkUpDataPoint)
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
