// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"cmp"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// Field names a reading in what Validate reports.
type Field string

// The fields that Validate may reject, beside those of Readings.Numbers.
const (
	FieldUUID              Field = "uuid"
	FieldMinor             Field = "minor"
	FieldParent            Field = "parent"
	FieldInstance          Field = "mig.instance"
	FieldMemoryTotal       Field = "memory.total"
	FieldMemoryUsed        Field = "memory.used"
	FieldMode              Field = "mode"
	FieldClock             Field = "clock"
	FieldClockLimit        Field = "clock.limit"
	FieldActivity          Field = "activity"
	FieldTemperatureLimit  Field = "temperature.limit"
	FieldMarginLimit       Field = "temperature.margin.limit"
	FieldPerformanceState  Field = "performance_state"
	FieldECC               Field = "ecc"
	FieldECCLocation       Field = "ecc.location"
	FieldSRAM              Field = "sram_threshold"
	FieldRetiredPages      Field = "retired_pages"
	FieldRemappedRows      Field = "remapped_rows"
	FieldRepair            Field = "repair"
	FieldRecoveryAction    Field = "recovery_action"
	FieldThrottle          Field = "throttle"
	FieldThrottleTime      Field = "throttle.time"
	FieldIO                Field = "io"
	FieldIORate            Field = "io.rate"
	FieldPCIeWidth         Field = "pcie.width"
	FieldPCIeWidthMax      Field = "pcie.width.max"
	FieldPCIeGeneration    Field = "pcie.generation"
	FieldPCIeGenerationMax Field = "pcie.generation.max"
	FieldPCIeReplays       Field = "pcie.replays"
	FieldNVLinks           Field = "nvlink.links"
	FieldNVLinkErrors      Field = "nvlink.errors"
	FieldBitErrorRate      Field = "nvlink.bit_error_rate"
	FieldFabric            Field = "fabric"
	FieldProcesses         Field = "processes"
)

// limits are, by field, what the catalogue has for the metric that the field becomes.
var limits = func() map[Field]reading.Range {
	m := map[Field]reading.Range{}
	for f, metric := range map[Field]string{
		FieldClock: gpusemconv.MetricGPUClock, FieldClockLimit: gpusemconv.MetricGPUClockLimit, FieldActivity: gpusemconv.MetricGPUActivity,
		FieldTemperatureLimit: "hw.temperature.limit", FieldMarginLimit: "hw.gpu.temperature.margin.limit",
		FieldECC: gpusemconv.MetricErrors, FieldECCLocation: gpusemconv.MetricErrors,
		FieldRetiredPages: gpusemconv.MetricGPURetiredPages, FieldRemappedRows: gpusemconv.MetricGPURemappedRows,
		FieldThrottleTime: gpusemconv.MetricGPUThrottleTime, FieldIO: "hw.gpu.io", FieldIORate: "hw.gpu.io.rate",
		FieldPCIeWidth: gpusemconv.MetricGPUPCIeLinkWidth, FieldPCIeWidthMax: gpusemconv.MetricGPUPCIeLinkWidth,
		FieldPCIeGeneration: gpusemconv.MetricGPUPCIeLinkGeneration, FieldPCIeGenerationMax: gpusemconv.MetricGPUPCIeLinkGeneration,
		FieldPCIeReplays: gpusemconv.MetricGPUPCIeReplays, FieldNVLinkErrors: gpusemconv.MetricGPUNVLinkErrors,
		FieldBitErrorRate: "hw.gpu.nvlink.bit_error_rate", FieldProcesses: gpusemconv.MetricGPUProcesses,
	} {
		m[f] = reading.ByName(metric).Range
	}
	return m
}()

// numberNames are the fields of Readings.Numbers: the metric and the value that selects
// the reading, such as `temperature.memory`.
var numberNames = func() (names [reading.EndNumbers]Field) {
	older := map[reading.Field]Field{reading.MemoryLimit: FieldMemoryTotal, reading.MemoryUsed: FieldMemoryUsed}
	for f := reading.None + 1; f < reading.EndNumbers; f++ {
		m, e := reading.Of(f)
		name := strings.TrimPrefix(strings.TrimPrefix(m.Name, "hw."), "gpu.")
		if value := e.Values[0]; value != "" && value != reading.Any {
			name += "." + value
		}
		names[f] = cmp.Or(older[f], Field(name))
	}
	return names
}()

// Bounds that the catalogue does not have: no metric has the P state, and the range of
// hw.errors is wider, since it is for errors of all sorts.
const (
	// NVML's P states end at 15; 32 is NVML_PSTATE_UNKNOWN.
	maxPerformanceState = 15
	maxInstance         = 1 << 10
	maxMinor            = 1<<20 - 1 // Linux has 20 bits for it
	// Each uncorrected error ends what runs on the GPU, so that a board
	// cannot have had two billion.
	maxUncorrected = 1 << 31
	// lastNegative32 is -256: what is above is a small negative number in 32 bits.
	lastNegative32      = 1<<32 - 256
	throttleReasonsMask = 1<<32 - 1
)

// Validate takes out of the sample what cannot be true and returns the names
// of what it took, nil when all is well. Without a usable UUID the sample has
// no identity: the caller has to drop it when FieldUUID is among the rejected.
func (s *Sample) Validate() []Field {
	v := validator{}
	if !ValidUUID(s.UUID) {
		v.rejected = append(v.rejected, FieldUUID)
	}
	v.rejected = append(v.rejected, s.Garbage...)
	s.Garbage = nil

	v.numbers(&s.Readings)
	each(&v, FieldClock, s.Clocks[:])
	each(&v, FieldClockLimit, s.ClockLimits[:])
	each(&v, FieldActivity, s.Activity[:])
	each(&v, FieldTemperatureLimit, s.TemperatureLimits[:])
	each(&v, FieldMarginLimit, s.MarginLimits[:])
	each(&v, FieldThrottleTime, s.ThrottleTime[:])
	each(&v, FieldBitErrorRate, s.NVLink.BitErrorRate[:])
	for l := range NumLinks {
		each(&v, FieldIORate, s.IORate[l][:])
		v.counts(FieldIO, s.IO[l][:])
	}
	v.counts(FieldRetiredPages, s.RetiredPages[:])
	v.counts(FieldProcesses, s.Processes[:])
	v.count(FieldRemappedRows, &s.RemappedRows.Corrected)
	v.count(FieldRemappedRows, &s.RemappedRows.Uncorrected)
	v.errors(&s.Readings)

	atMost(&v, FieldPerformanceState, &s.PerformanceState, maxPerformanceState)
	// All bits at once is NVML_VALUE_NOT_AVAILABLE and not every reason at once.
	atMost(&v, FieldThrottle, &s.Throttle, throttleReasonsMask-1)
	below(&v, FieldRecoveryAction, &s.RecoveryAction, NumRecoveryActions)
	below(&v, FieldFabric, &s.Fabric.State, NumFabricStates)
	below(&v, FieldFabric, &s.Fabric.Summary, NumFabricSummaries)
	v.pcie(&s.PCIe)
	v.nvlinks(&s.NVLink, &s.IO[LinkNVLink])
	v.slice(s)
	return v.rejected
}

const slicePrefix = "MIG-"

// ValidUUID reports whether the text has the shape of a GPU's or a MIG
// slice's UUID.
func ValidUUID(uuid string) bool {
	rest, ok := strings.CutPrefix(uuid, "GPU-")
	if !ok {
		rest, ok = strings.CutPrefix(uuid, slicePrefix)
	}
	if !ok || rest == "" {
		return false
	}
	return !strings.ContainsFunc(rest, func(r rune) bool { return r <= ' ' || r > '~' })
}

type validator struct{ rejected []Field }

func within[T float64 | uint32 | uint64](v *validator, f Field, o *Opt[T]) {
	unless(v, f, o, func(n T) bool { return limits[f].Holds(float64(n)) })
}

func each[T float64 | uint32 | uint64](v *validator, f Field, list []Opt[T]) {
	for i := range list {
		within(v, f, &list[i])
	}
}

// count is within for counts. NVML has -1 for a missing value, and some drivers
// widen the negative number of a 32-bit field.
func (v *validator) count(f Field, o *Opt[uint64]) {
	if within(v, f, o); o.OK && o.V >= lastNegative32 && o.V <= notAvailable32 {
		reject(v, f, o)
	}
}

func (v *validator) counts(f Field, list []Opt[uint64]) {
	for i := range list {
		v.count(f, &list[i])
	}
}

// numbers judges as the gateway does. It rejects a total of zero, and of a pair that does
// not fit the used bytes: the total is a constant of the board and the likelier of the two.
func (v *validator) numbers(r *Readings) {
	for f := range reading.EndNumbers {
		m, _ := reading.Of(f) // nil of reading.None
		unless(v, numberNames[f], &r.Numbers[f], func(n float64) bool { return m != nil && m.Judge(n, 1) == reading.Accepted })
	}
	total := &r.Numbers[reading.MemoryLimit]
	unless(v, FieldMemoryTotal, total, func(n float64) bool { return n > 0 })
	for _, f := range [...]reading.Field{reading.MemoryUsed, reading.MemoryReserved} {
		unless(v, numberNames[f], &r.Numbers[f], func(n float64) bool { return !total.OK || n <= total.V })
	}
}

func (v *validator) errors(r *Readings) {
	for c := range NumECCCounters {
		for e := range NumECCErrors {
			v.count(FieldECC, &r.ECC[e][c])
			v.counts(FieldECCLocation, r.ECCLocation[e][c][:])
		}
		atMost(v, FieldECC, &r.ECC[ECCUncorrected][c], maxUncorrected)
		for l := range NumECCLocations {
			atMost(v, FieldECCLocation, &r.ECCLocation[ECCUncorrected][c][l], maxUncorrected)
		}
	}
}

func reject[T any](v *validator, f Field, o *Opt[T]) {
	*o = Opt[T]{}
	v.rejected = append(v.rejected, f)
}

// slice checks the fields that name a sample's slice and its GPU.
func (v *validator) slice(s *Sample) {
	if s.Parent != "" && (!ValidUUID(s.Parent) || s.Parent == s.UUID) {
		s.Parent = ""
		v.rejected = append(v.rejected, FieldParent)
	}
	atMost(v, FieldMinor, &s.Minor, maxMinor)
	atMost(v, FieldInstance, &s.SliceCapacity, MaxSlices)
	atMost(v, FieldInstance, &s.GPUInstance, maxInstance)
	atMost(v, FieldInstance, &s.ComputeInstance, maxInstance)
}

// pcie rejects, of a pair that does not fit, the current value: the maximum is
// a constant of the board and its slot.
func (v *validator) pcie(p *PCIe) {
	lanes(v, FieldPCIeWidthMax, &p.WidthMax)
	lanes(v, FieldPCIeWidth, &p.Width)
	within(v, FieldPCIeGenerationMax, &p.GenerationMax)
	within(v, FieldPCIeGeneration, &p.Generation)
	unless(v, FieldPCIeWidth, &p.Width, func(n uint32) bool { return !p.WidthMax.OK || n <= p.WidthMax.V })
	unless(v, FieldPCIeGeneration, &p.Generation, func(n uint32) bool { return !p.GenerationMax.OK || n <= p.GenerationMax.V })
	v.count(FieldPCIeReplays, &p.Replays)
	v.count(FieldPCIeReplays, &p.Rollovers)
}

// lanes takes the widths that PCI Express has, powers of two and 12.
func lanes(v *validator, f Field, o *Opt[uint32]) {
	within(v, f, o)
	unless(v, f, o, func(n uint32) bool { return n == 12 || n&(n-1) == 0 })
}

func (v *validator) nvlinks(n *NVLinks, io *[NumDirections]Opt[uint64]) {
	atMost(v, FieldNVLinks, &n.Up, MaxNVLinks)
	atMost(v, FieldNVLinks, &n.Down, MaxNVLinks)
	if n.Up.OK && n.Down.OK && n.Up.V+n.Down.V > MaxNVLinks {
		reject(v, FieldNVLinks, &n.Up)
		reject(v, FieldNVLinks, &n.Down)
	}
	v.counts(FieldNVLinkErrors, n.Errors[:])
	if len(n.PerLink) > MaxNVLinks {
		n.PerLink = nil
		v.rejected = append(v.rejected, FieldNVLinks)
	}
	for e := range NumNVLinkErrors {
		v.links(FieldNVLinkErrors, n.PerLink, &n.Errors[e], func(l *NVLink) *Opt[uint64] { return &l.Errors[e] })
	}
	for d := range NumDirections {
		v.links(FieldIO, n.PerLink, &io[d], func(l *NVLink) *Opt[uint64] { return &l.IO[d] })
	}
	if n.SumsOnly {
		n.PerLink = nil
	}
}

// links sums a count up over the links where the driver does not. Where that
// of one link cannot be true there is no sum: one without it would go back.
func (v *validator) links(f Field, links []NVLink, sum *Opt[uint64], of func(*NVLink) *Opt[uint64]) {
	before := len(v.rejected)
	var all Opt[uint64]
	for i := range links {
		if o := of(&links[i]); o.OK {
			if v.count(f, o); o.OK {
				all = Some(all.V + o.V)
			}
		}
	}
	if !sum.OK && len(v.rejected) == before {
		*sum = all
		v.count(f, sum)
	}
}

func atMost[T uint32 | uint64](v *validator, f Field, o *Opt[T], most T) {
	unless(v, f, o, func(n T) bool { return n <= most })
}

func unless[T any](v *validator, f Field, o *Opt[T], possible func(T) bool) {
	if o.OK && !possible(o.V) {
		reject(v, f, o)
	}
}

// below keeps a value of the driver's inside the enumeration that this code knows.
func below[T ~int](v *validator, f Field, o *Opt[T], end T) {
	unless(v, f, o, func(n T) bool { return n >= 0 && n < end })
}
