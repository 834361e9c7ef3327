// SPDX-License-Identifier: Apache-2.0

// Package record writes samples of GPUs, and verdicts on them, as the metrics of the nvml
// receiver. It knows no NVML, so that a simulator can write them too.
package record // import "github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/record"

import (
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
)

const vendor = "NVIDIA"

// gpuType is the value of hw.type, which the hardware conventions ask for on
// metrics that other hardware has too.
const gpuType = metadata.AttributeHwTypeGpu

// Recorder adds the points of one validated sample. A missing value has no point.
type Recorder struct {
	mb *metadata.MetricsBuilder
	ts pcommon.Timestamp
	// full asks for every attribute value; without it those that repeat others,
	// or that only a specialist reads, are left out.
	full    bool
	history *History

	s  *gpuhealth.Sample
	id string
	// parent is hw.parent for a MIG slice and nil for a whole GPU.
	parent []metadata.MetricAttributeOption
	states *states
}

// New returns a Recorder that records with a builder.
func New(mb *metadata.MetricsBuilder, full bool) *Recorder { return &Recorder{mb: mb, full: full} }

// NewDefault returns a Recorder of the default metrics, whose counters began at start.
func NewDefault(start time.Time) *Recorder {
	set := receiver.Settings{TelemetrySettings: component.TelemetrySettings{Logger: zap.NewNop()}}
	cfg := metadata.NewDefaultMetricsBuilderConfig()
	return New(metadata.NewMetricsBuilder(cfg, set, metadata.WithStartTime(pcommon.NewTimestampFromTime(start))), false)
}

// Begin starts a report of the GPUs that the history is of.
func (r *Recorder) Begin(ts pcommon.Timestamp, history *History) {
	r.ts, r.history = ts, history
	history.begin()
}

// Emit returns what was recorded since the last call.
func (r *Recorder) Emit(resource pcommon.Resource) pmetric.Metrics {
	md := r.mb.Emit(metadata.WithResource(resource))
	end(md)
	return md
}

// Census counts the whole GPUs of a node: Expected are Found, Lost or Pending.
type Census struct{ Expected, Found, Lost, Pending int }

// Node adds what concerns no single GPU. The pressure is a share of time.
func (r *Recorder) Node(c Census, pressure gpuhealth.Opt[float64]) {
	r.mb.RecordHwGpuDevicesDataPoint(r.ts, int64(c.Expected), metadata.AttributeCountStateExpected)
	r.mb.RecordHwGpuDevicesDataPoint(r.ts, int64(c.Found), metadata.AttributeCountStateFound)
	r.mb.RecordHwGpuDevicesDataPoint(r.ts, int64(c.Lost), metadata.AttributeCountStateLost)
	r.mb.RecordHwGpuDevicesDataPoint(r.ts, int64(c.Pending), metadata.AttributeCountStatePending)
	if pressure.OK {
		r.mb.RecordGpuNodeCPUPressureDataPoint(r.ts, pressure.V)
	}
}

// Xids adds how many Xids of a code a GPU had, or a MIG slice of the parent.
func (r *Recorder) Xids(uuid, parent string, code uint64, class gpuhealth.XidClass, count int64) {
	var options []metadata.MetricAttributeOption
	if parent != "" {
		options = append(options, metadata.WithHwParentMetricAttribute(parent))
	}
	r.mb.RecordHwGpuXidEventsDataPoint(r.ts, count, uuid, int64(code), string(class), options...)
}

// Sample adds everything that the sample has, but for the verdict.
func (r *Recorder) Sample(s *gpuhealth.Sample) {
	r.of(s)
	r.identity()
	if !s.Up() {
		return
	}
	r.load()
	r.temperature()
	r.power()
	r.clocks()
	r.throttle()
	r.memoryErrors()
	r.retirement()
	r.recovery()
	r.pcie()
	r.nvlink()
	r.fabric()
	r.settings()
}

func (r *Recorder) of(s *gpuhealth.Sample) {
	r.s, r.id, r.parent, r.states = s, s.UUID, nil, r.history.of(s.UUID, s.Parent)
	if s.Parent != "" {
		r.parent = []metadata.MetricAttributeOption{metadata.WithHwParentMetricAttribute(s.Parent)}
	}
}

// identity adds the points that every GPU has, a lost GPU too.
func (r *Recorder) identity() {
	s := r.s
	facts := append(make([]metadata.MetricAttributeOption, 0, 8), r.parent...)
	for _, f := range [...]struct {
		value string
		with  func(string) metadata.MetricAttributeOption
	}{
		{s.Model, metadata.WithHwModelMetricAttribute},
		{s.Serial, metadata.WithHwSerialNumberMetricAttribute},
		{s.DriverVersion, metadata.WithHwDriverVersionMetricAttribute},
		{s.VBIOS, metadata.WithHwFirmwareVersionMetricAttribute},
		{s.PCIBusID, metadata.WithGpuPciBusIDMetricAttribute},
		{s.CUDAVersion, metadata.WithGpuCudaVersionMetricAttribute},
	} {
		if f.value != "" {
			facts = append(facts, f.with(f.value))
		}
	}
	if s.GPUInstance.OK {
		facts = append(facts, metadata.WithGpuMigGpuInstanceIDMetricAttribute(int64(s.GPUInstance.V)))
	}
	r.mb.RecordHwGpuInfoDataPoint(r.ts, 1, s.UUID, vendor, int64(s.Index), facts...)
	// One series at a time: a GPU is not up and down at once.
	if before := r.states.up; before != "" && before != s.Reason {
		r.mb.RecordHwGpuUpDataPoint(r.ts, Ended, s.UUID, metadata.MapAttributeUpReason[string(before)], r.parent...)
	}
	r.states.up = s.Reason
	r.mb.RecordHwGpuUpDataPoint(r.ts, oneIf(s.Up()), s.UUID, metadata.MapAttributeUpReason[string(s.Reason)], r.parent...)
}

func (r *Recorder) load() {
	s := r.s
	one(r, s.MemoryTotal, r.mb.RecordHwGpuMemoryLimitDataPoint)
	one(r, s.MemoryUsed, r.mb.RecordHwGpuMemoryUsageDataPoint)
	one(r, s.MemoryReserved, r.mb.RecordHwGpuMemoryReservedDataPoint)
	if s.MemoryTotal.OK && s.MemoryUsed.OK {
		r.mb.RecordHwGpuMemoryUtilizationDataPoint(r.ts, float64(s.MemoryUsed.V)/float64(s.MemoryTotal.V), r.id, r.parent...)
	}
	with(r, s.Utilization, metadata.AttributeHwGpuTaskGeneral, r.mb.RecordHwGpuUtilizationDataPoint)
	if r.full {
		with(r, s.MemoryUtilization, metadata.AttributeHwGpuTaskMemory, r.mb.RecordHwGpuUtilizationDataPoint)
		with(r, s.Encoder, metadata.AttributeHwGpuTaskEncoder, r.mb.RecordHwGpuUtilizationDataPoint)
		with(r, s.Decoder, metadata.AttributeHwGpuTaskDecoder, r.mb.RecordHwGpuUtilizationDataPoint)
	}
	for unit, attribute := range activities {
		with(r, s.Activity[unit], attribute, r.mb.RecordHwGpuActivityDataPoint)
	}
	for kind, attribute := range processTypes {
		if r.full || kind == int(gpuhealth.ProcessCompute) {
			with(r, s.Processes[kind], attribute, r.mb.RecordHwGpuProcessesDataPoint)
		}
	}
}

var activities = [gpuhealth.NumActivities]metadata.AttributeActivityUnit{
	gpuhealth.ActivityGraphics:    metadata.AttributeActivityUnitGraphics,
	gpuhealth.ActivitySM:          metadata.AttributeActivityUnitSm,
	gpuhealth.ActivitySMOccupancy: metadata.AttributeActivityUnitSmOccupancy,
	gpuhealth.ActivityTensor:      metadata.AttributeActivityUnitTensor,
	gpuhealth.ActivityDRAM:        metadata.AttributeActivityUnitDram,
	gpuhealth.ActivityFP64:        metadata.AttributeActivityUnitFp64,
	gpuhealth.ActivityFP32:        metadata.AttributeActivityUnitFp32,
	gpuhealth.ActivityFP16:        metadata.AttributeActivityUnitFp16,
}

var processTypes = [gpuhealth.NumProcessTypes]metadata.AttributeProcessType{
	gpuhealth.ProcessCompute:  metadata.AttributeProcessTypeCompute,
	gpuhealth.ProcessGraphics: metadata.AttributeProcessTypeGraphics,
}

// one adds the point of a reading, and with that of a reading with an attribute.
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

var errorTypes = [gpuhealth.NumECCErrors]metadata.AttributeErrorType{
	gpuhealth.ECCCorrected:   metadata.AttributeErrorTypeCorrected,
	gpuhealth.ECCUncorrected: metadata.AttributeErrorTypeUncorrected,
}

var eccCounters = [gpuhealth.NumECCCounters]metadata.AttributeGpuEccCounter{
	gpuhealth.ECCVolatile:  metadata.AttributeGpuEccCounterVolatile,
	gpuhealth.ECCAggregate: metadata.AttributeGpuEccCounterAggregate,
}

var eccLocations = [gpuhealth.NumECCLocations]metadata.AttributeGpuMemoryLocation{
	gpuhealth.ECCDRAM: metadata.AttributeGpuMemoryLocationDram,
	gpuhealth.ECCSRAM: metadata.AttributeGpuMemoryLocationSram,
}

func (r *Recorder) memoryErrors() {
	for e, errorType := range errorTypes {
		for c, counter := range eccCounters {
			total := r.s.ECC[e][c]
			// Aggregate counts are the board's history; volatile counts have the present.
			if v := total; v.OK && (r.full || c == int(gpuhealth.ECCVolatile)) {
				r.mb.RecordHwErrorsDataPoint(r.ts, int64(v.V), r.id, gpuType, errorType,
					metadata.AttributeGpuMemoryLocationAll, counter, r.parent...)
			}
			for l, location := range eccLocations {
				// A MIG slice has no total.
				if v := r.s.ECCLocation[e][c][l]; v.OK && (r.full || r.parent != nil && !total.OK) {
					r.mb.RecordHwErrorsDataPoint(r.ts, int64(v.V), r.id, gpuType, errorType, location, counter, r.parent...)
				}
			}
		}
	}
	one(r, yesNo(r.s.SRAMThresholdExceeded), r.mb.RecordHwGpuEccSramThresholdExceededDataPoint)
}

var retirementCauses = [gpuhealth.NumRetirementCauses]metadata.AttributeRetirementCause{
	gpuhealth.RetiredSBE: metadata.AttributeRetirementCauseSbe,
	gpuhealth.RetiredDBE: metadata.AttributeRetirementCauseDbe,
}

func (r *Recorder) retirement() {
	for i, cause := range retirementCauses {
		with(r, r.s.RetiredPages[i], cause, r.mb.RecordHwGpuMemoryRetiredPagesDataPoint)
	}
	one(r, yesNo(r.s.RetirementPending), r.mb.RecordHwGpuMemoryRetirementPendingDataPoint)
	rows := &r.s.RemappedRows
	if r.full {
		with(r, rows.Corrected, metadata.AttributeRemapCauseCorrected, r.mb.RecordHwGpuMemoryRemappedRowsDataPoint)
	}
	with(r, rows.Uncorrected, metadata.AttributeRemapCauseUncorrected, r.mb.RecordHwGpuMemoryRemappedRowsDataPoint)
	one(r, yesNo(rows.Pending), r.mb.RecordHwGpuMemoryRemapPendingDataPoint)
	one(r, yesNo(rows.Failed), r.mb.RecordHwGpuMemoryRemapFailedDataPoint)
}

var repairParts = [gpuhealth.NumRepairs]metadata.AttributeRepairPart{
	gpuhealth.RepairChannel: metadata.AttributeRepairPartMemoryChannel,
	gpuhealth.RepairTPC:     metadata.AttributeRepairPartTpc,
}

var recoveryActions = [gpuhealth.NumRecoveryActions]metadata.AttributeRecoveryAction{
	gpuhealth.RecoveryNone:       metadata.AttributeRecoveryActionNone,
	gpuhealth.RecoveryReset:      metadata.AttributeRecoveryActionReset,
	gpuhealth.RecoveryReboot:     metadata.AttributeRecoveryActionReboot,
	gpuhealth.RecoveryDrainP2P:   metadata.AttributeRecoveryActionDrainP2p,
	gpuhealth.RecoveryDrainReset: metadata.AttributeRecoveryActionDrainReset,
	gpuhealth.RecoveryIMEX:       metadata.AttributeRecoveryActionImex,
}

// recovery always says whether there is nothing to do. The actions themselves
// have a point from when they are first asked for: they are rare, and many.
func (r *Recorder) recovery() {
	for i, part := range repairParts {
		if v := r.s.RepairPending[i]; v.OK {
			state(r, setRepair, i, v.V, false, part, r.mb.RecordHwGpuRepairPendingDataPoint)
		}
	}
	if v := r.s.RecoveryAction; v.OK {
		for i, action := range recoveryActions {
			none := i == int(gpuhealth.RecoveryNone)
			state(r, setRecovery, i, v.V == gpuhealth.RecoveryAction(i), none, action, r.mb.RecordHwGpuRecoveryActionDataPoint)
		}
	}
}

var modes = [gpuhealth.NumModes]struct {
	mode     metadata.AttributeMode
	standard bool
}{
	gpuhealth.ModePersistence:         {metadata.AttributeModePersistence, true},
	gpuhealth.ModeECC:                 {metadata.AttributeModeEcc, true},
	gpuhealth.ModeMIG:                 {metadata.AttributeModeMig, true},
	gpuhealth.ModeGSP:                 {metadata.AttributeModeGsp, false},
	gpuhealth.ModeConfidentialCompute: {metadata.AttributeModeCc, false},
}

func (r *Recorder) settings() {
	for i, m := range modes {
		if r.full || m.standard {
			with(r, yesNo(r.s.Modes[i]), m.mode, r.mb.RecordHwGpuModeDataPoint)
		}
	}
}

var temperatureLimits = [gpuhealth.NumTemperatureLimits]struct {
	sensor metadata.AttributeHwSensorLocation
	kind   metadata.AttributeHwLimitType
}{
	gpuhealth.LimitSlowdown:  {metadata.AttributeHwSensorLocationGpu, metadata.AttributeHwLimitTypeThrottled},
	gpuhealth.LimitShutdown:  {metadata.AttributeHwSensorLocationGpu, metadata.AttributeHwLimitTypeCritical},
	gpuhealth.LimitGPUMax:    {metadata.AttributeHwSensorLocationGpu, metadata.AttributeHwLimitTypeMax},
	gpuhealth.LimitMemoryMax: {metadata.AttributeHwSensorLocationMemory, metadata.AttributeHwLimitTypeMax},
}

// temperatureLimit reports whether a limit has a point: people compare it with a
// temperature. Where the GPU tells its margin, that is the better comparison.
func (r *Recorder) temperatureLimit(limit gpuhealth.TemperatureLimit) bool {
	switch limit {
	case gpuhealth.LimitMemoryMax:
		return true
	case gpuhealth.LimitSlowdown:
		return r.full || !r.s.MarginLimits[limit].OK || !r.s.TemperatureMargin.OK
	default:
		return r.full
	}
}

func (r *Recorder) temperature() {
	s := r.s
	with(r, s.Temperature, metadata.AttributeHwSensorLocationGpu, r.mb.RecordHwTemperatureDataPoint)
	with(r, s.MemoryTemperature, metadata.AttributeHwSensorLocationMemory, r.mb.RecordHwTemperatureDataPoint)
	for i, limit := range temperatureLimits {
		if v := s.TemperatureLimits[i]; v.OK && r.temperatureLimit(gpuhealth.TemperatureLimit(i)) {
			r.mb.RecordHwTemperatureLimitDataPoint(r.ts, v.V, r.id, limit.sensor, limit.kind, r.parent...)
		}
		if v := s.MarginLimits[i]; v.OK && (r.full || i == int(gpuhealth.LimitSlowdown)) {
			r.mb.RecordHwGpuTemperatureMarginLimitDataPoint(r.ts, v.V, r.id, limit.sensor, limit.kind, r.parent...)
		}
	}
	one(r, s.TemperatureMargin, r.mb.RecordHwGpuTemperatureMarginDataPoint)
}

func (r *Recorder) power() {
	s := r.s
	with(r, s.Power, gpuType, r.mb.RecordHwPowerDataPoint)
	with(r, s.PowerLimit, metadata.AttributePowerLimitKindEnforced, r.mb.RecordHwGpuPowerLimitDataPoint)
	if r.full {
		with(r, s.PowerLimitMax, metadata.AttributePowerLimitKindMax, r.mb.RecordHwGpuPowerLimitDataPoint)
	}
	with(r, s.Energy, gpuType, r.mb.RecordHwEnergyDataPoint)
}

var clocks = [gpuhealth.NumClocks]struct {
	domain   metadata.AttributeClock
	standard bool
}{
	// The graphics clock is the SM clock on every GPU since Fermi.
	gpuhealth.ClockGraphics: {metadata.AttributeClockGraphics, false},
	gpuhealth.ClockSM:       {metadata.AttributeClockSm, true},
	// The memory's clock has no steps to speak of while a job runs.
	gpuhealth.ClockMemory: {metadata.AttributeClockMemory, false},
	gpuhealth.ClockVideo:  {metadata.AttributeClockVideo, false},
}

func (r *Recorder) clocks() {
	for c, clock := range clocks {
		if r.full || clock.standard {
			with(r, r.s.Clocks[c], clock.domain, r.mb.RecordHwGpuClockFrequencyDataPoint)
			with(r, r.s.ClockLimits[c], clock.domain, r.mb.RecordHwGpuClockFrequencyLimitDataPoint)
		}
	}
}

// throttleReasons are by bit. A clock of the same reason, where the GPU has it,
// says all that the bit does and what was between two polls.
var throttleReasons = [...]struct {
	bit    gpuhealth.ThrottleReason
	reason metadata.AttributeThrottleReason
	clock  gpuhealth.ThrottleTime
	kind   reasonKind
}{
	{gpuhealth.ThrottleSWThermal, metadata.AttributeThrottleReasonSwThermal, gpuhealth.ThrottleTimeSWThermal, reasonClocked},
	{gpuhealth.ThrottleHWThermal, metadata.AttributeThrottleReasonHwThermal, gpuhealth.ThrottleTimeHWThermal, reasonClocked},
	{gpuhealth.ThrottlePowerBrake, metadata.AttributeThrottleReasonPowerBrake, gpuhealth.ThrottleTimePowerBrake, reasonClocked},
	{gpuhealth.ThrottlePowerCap, metadata.AttributeThrottleReasonPowerCap, 0, reasonRare},
	{gpuhealth.ThrottleHWSlowdown, metadata.AttributeThrottleReasonHwSlowdown, 0, reasonRare},
	{gpuhealth.ThrottleSyncBoost, metadata.AttributeThrottleReasonSyncBoost, 0, reasonNoFault},
	{gpuhealth.ThrottleAppClocks, metadata.AttributeThrottleReasonAppClocks, 0, reasonNoFault},
	{gpuhealth.ThrottleDisplayClocks, metadata.AttributeThrottleReasonDisplayClocks, 0, reasonNoFault},
}

// reasonKind is when a reason has a point at the standard detail.
type reasonKind int

const (
	// reasonClocked: always where there is no clock, else from when it first holds.
	reasonClocked reasonKind = iota
	// reasonRare: from when it first holds.
	reasonRare
	// reasonNoFault: never.
	reasonNoFault
)

var throttleTimes = [gpuhealth.NumThrottleTimes]metadata.AttributeThrottleTimeReason{
	gpuhealth.ThrottleTimePower:          metadata.AttributeThrottleTimeReasonPower,
	gpuhealth.ThrottleTimeThermal:        metadata.AttributeThrottleTimeReasonThermal,
	gpuhealth.ThrottleTimeSyncBoost:      metadata.AttributeThrottleTimeReasonSyncBoost,
	gpuhealth.ThrottleTimeBoardLimit:     metadata.AttributeThrottleTimeReasonBoardLimit,
	gpuhealth.ThrottleTimeLowUtilization: metadata.AttributeThrottleTimeReasonLowUtilization,
	gpuhealth.ThrottleTimeReliability:    metadata.AttributeThrottleTimeReasonReliability,
	gpuhealth.ThrottleTimeSWThermal:      metadata.AttributeThrottleTimeReasonSwThermal,
	gpuhealth.ThrottleTimeHWThermal:      metadata.AttributeThrottleTimeReasonHwThermal,
	gpuhealth.ThrottleTimePowerBrake:     metadata.AttributeThrottleTimeReasonPowerBrake,
}

// throttleTime reports whether the clock is one to look at: those of heat and of
// the power brake, and on older GPUs, which lack these, the one of all heat.
func (r *Recorder) throttleTime(which gpuhealth.ThrottleTime) bool {
	switch which {
	case gpuhealth.ThrottleTimeSWThermal, gpuhealth.ThrottleTimeHWThermal, gpuhealth.ThrottleTimePowerBrake:
		return true
	case gpuhealth.ThrottleTimeThermal:
		return r.full || !r.s.ThrottleTime[gpuhealth.ThrottleTimeSWThermal].OK && !r.s.ThrottleTime[gpuhealth.ThrottleTimeHWThermal].OK
	default:
		return r.full
	}
}

func (r *Recorder) throttle() {
	if bits := r.s.Throttle; bits.OK {
		for i, t := range throttleReasons {
			if t.kind != reasonNoFault || r.full {
				clockless := t.kind == reasonClocked && !r.s.ThrottleTime[t.clock].OK
				state(r, setThrottle, i, bits.V&uint64(t.bit) != 0, clockless, t.reason, r.mb.RecordHwGpuThrottleActiveDataPoint)
			}
		}
	}
	for i, reason := range throttleTimes {
		if r.throttleTime(gpuhealth.ThrottleTime(i)) {
			with(r, r.s.ThrottleTime[i], reason, r.mb.RecordHwGpuThrottleTimeDataPoint)
		}
	}
}

var links = [gpuhealth.NumLinks]metadata.AttributeGpuLink{
	gpuhealth.LinkPCIe:      metadata.AttributeGpuLinkPcie,
	gpuhealth.LinkNVLink:    metadata.AttributeGpuLinkNvlink,
	gpuhealth.LinkNVLinkRaw: metadata.AttributeGpuLinkNvlinkRaw,
}

var directions = [gpuhealth.NumDirections]metadata.AttributeNetworkIoDirection{
	gpuhealth.Transmit: metadata.AttributeNetworkIoDirectionTransmit,
	gpuhealth.Receive:  metadata.AttributeNetworkIoDirectionReceive,
}

func (r *Recorder) pcie() {
	for l, link := range links {
		for d, direction := range directions {
			if v := r.s.IO[l][d]; v.OK && (r.full || l != int(gpuhealth.LinkNVLinkRaw)) {
				r.mb.RecordHwGpuIoDataPoint(r.ts, int64(v.V), r.id, direction, link, r.parent...)
			}
			if v := r.s.IORate[l][d]; v.OK {
				r.mb.RecordHwGpuIoRateDataPoint(r.ts, v.V, r.id, direction, link, r.parent...)
			}
		}
	}
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

var nvlinkErrors = [gpuhealth.NumNVLinkErrors]metadata.AttributeNvlinkErrorType{
	gpuhealth.NVLinkReplay:         metadata.AttributeNvlinkErrorTypeReplay,
	gpuhealth.NVLinkRecovery:       metadata.AttributeNvlinkErrorTypeRecovery,
	gpuhealth.NVLinkCRCFlit:        metadata.AttributeNvlinkErrorTypeCrcFlit,
	gpuhealth.NVLinkCRCData:        metadata.AttributeNvlinkErrorTypeCrcData,
	gpuhealth.NVLinkCRC:            metadata.AttributeNvlinkErrorTypeCrc,
	gpuhealth.NVLinkEffective:      metadata.AttributeNvlinkErrorTypeEffective,
	gpuhealth.NVLinkSymbol:         metadata.AttributeNvlinkErrorTypeSymbol,
	gpuhealth.NVLinkRecoveryFailed: metadata.AttributeNvlinkErrorTypeRecoveryFailed,
}

var bitErrors = [gpuhealth.NumBitErrors]metadata.AttributeBitErrors{
	gpuhealth.BitErrorsSymbol:    metadata.AttributeBitErrorsSymbol,
	gpuhealth.BitErrorsEffective: metadata.AttributeBitErrorsEffective,
}

// linkErrors reports whether a kind of errors has a point. The older counters
// of CRC errors say nothing new beside the newest.
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
	if r.tells(setLinks, 0, n.Down.V > 0, false) {
		with(r, n.Down, metadata.AttributeNvlinkStateDown, r.mb.RecordHwGpuNvlinkLinksDataPoint)
	}
	for i, kind := range nvlinkErrors {
		if r.linkErrors(gpuhealth.NVLinkError(i)) {
			with(r, n.Errors[i], kind, r.mb.RecordHwGpuNvlinkErrorsDataPoint)
		}
	}
	for i, kind := range bitErrors {
		with(r, n.BitErrorRate[i], kind, r.mb.RecordHwGpuNvlinkBitErrorRateDataPoint)
	}
	for id := range n.PerLink {
		link := &n.PerLink[id]
		with(r, yesNo(link.Up), int64(id), r.mb.RecordHwGpuNvlinkLinkUpDataPoint)
		for i, kind := range nvlinkErrors {
			if v := link.Errors[i]; v.OK {
				r.mb.RecordHwGpuNvlinkLinkErrorsDataPoint(r.ts, int64(v.V), r.id, int64(id), kind, r.parent...)
			}
		}
	}
}

var fabricStates = [gpuhealth.NumFabricStates]metadata.AttributeFabricState{
	gpuhealth.FabricNotSupported: metadata.AttributeFabricStateNotSupported,
	gpuhealth.FabricNotStarted:   metadata.AttributeFabricStateNotStarted,
	gpuhealth.FabricInProgress:   metadata.AttributeFabricStateInProgress,
	gpuhealth.FabricCompleted:    metadata.AttributeFabricStateCompleted,
}

var fabricConditions = [gpuhealth.NumFabricConditions]metadata.AttributeFabricCondition{
	gpuhealth.FabricDegradedBandwidth:      metadata.AttributeFabricConditionDegradedBandwidth,
	gpuhealth.FabricRouteRecovery:          metadata.AttributeFabricConditionRouteRecovery,
	gpuhealth.FabricRouteUnhealthy:         metadata.AttributeFabricConditionRouteUnhealthy,
	gpuhealth.FabricAccessTimeout:          metadata.AttributeFabricConditionAccessTimeout,
	gpuhealth.FabricIncorrectConfiguration: metadata.AttributeFabricConditionIncorrectConfiguration,
	gpuhealth.FabricNoPartition:            metadata.AttributeFabricConditionNoPartition,
}

// fabric always says whether the GPU has joined and whether all is well. Other
// states and conditions have a point from when they first hold.
func (r *Recorder) fabric() {
	f := &r.s.Fabric
	if f.State.OK && (f.State.V != gpuhealth.FabricNotSupported || r.full) {
		for i, of := range fabricStates {
			state(r, setFabricState, i, f.State.V == gpuhealth.FabricState(i), i == int(gpuhealth.FabricCompleted), of, r.mb.RecordHwGpuFabricStateDataPoint)
		}
	}
	health := func(i int, holds, always bool, condition metadata.AttributeFabricCondition) {
		state(r, setFabricHealth, i, holds, always, condition, r.mb.RecordHwGpuFabricHealthDataPoint)
	}
	for i, condition := range fabricConditions {
		if v := f.Conditions[i]; v.OK {
			health(i, v.V, false, condition)
		}
	}
	if f.Summary.OK && f.Summary.V != gpuhealth.FabricSummaryNotSupported {
		health(len(fabricConditions)+1, f.Summary.V == gpuhealth.FabricSummaryUnhealthy, true, metadata.AttributeFabricConditionUnhealthy)
		health(len(fabricConditions), f.Summary.V == gpuhealth.FabricSummaryLimitedCapacity, false, metadata.AttributeFabricConditionLimitedCapacity)
	}
}
