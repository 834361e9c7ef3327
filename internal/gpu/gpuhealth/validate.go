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
	FieldUUID             Field = "uuid"
	FieldMinor            Field = "minor"
	FieldParent           Field = "parent"
	FieldInstance         Field = "mig.instance"
	FieldPerformanceState Field = "performance_state"
	FieldECC              Field = "ecc"
	FieldECCLocation      Field = "ecc.location"
	FieldRepair           Field = "repair"
	FieldRecoveryAction   Field = "recovery_action"
	FieldThrottle         Field = "throttle"
	FieldIO               Field = "io"
	FieldIORate           Field = "io.rate"
	FieldNVLinks          Field = "nvlink.links"
	FieldNVLinkErrors     Field = "nvlink.errors"
	FieldBitErrorRate     Field = "nvlink.bit_error_rate"
	FieldFabric           Field = "fabric"
)

// limits are, by field, what the catalogue has for the metric that the field becomes.
var limits = func() map[Field]reading.Range {
	m := map[Field]reading.Range{}
	for f, metric := range map[Field]string{
		FieldECC: gpusemconv.MetricErrors, FieldECCLocation: gpusemconv.MetricErrors,
		FieldIO: "hw.gpu.io", FieldIORate: "hw.gpu.io.rate",
		FieldNVLinkErrors: gpusemconv.MetricGPUNVLinkErrors,
		FieldBitErrorRate: "hw.gpu.nvlink.bit_error_rate",
	} {
		m[f] = reading.ByName(metric).Range
	}
	return m
}()

// numberNames are the fields of Readings.Numbers: the metric and the value that selects
// the reading, such as `temperature.memory`. Older ones have the names that they had.
var numberNames = func() (names [reading.EndNumbers]Field) {
	older := map[reading.Field]Field{
		reading.MemoryLimit: "memory.total", reading.MemoryUsed: "memory.used",
		reading.PCIeWidth: "pcie.width", reading.PCIeWidthLimit: "pcie.width.max",
		reading.PCIeGeneration: "pcie.generation", reading.PCIeGenerationLimit: "pcie.generation.max",
	}
	byMetric := map[string]Field{
		gpusemconv.MetricGPUClock: "clock", gpusemconv.MetricGPUClockLimit: "clock.limit", gpusemconv.MetricGPUActivity: "activity",
		gpusemconv.MetricGPUProcesses: "processes", gpusemconv.MetricGPUPCIeReplays: "pcie.replays", "hw.gpu.mode": "mode", gpusemconv.MetricGPUThrottleTime: "throttle.time",
		"hw.temperature.limit": "temperature.limit", "hw.gpu.temperature.margin.limit": "temperature.margin.limit",
		gpusemconv.MetricGPURetiredPages: "retired_pages", gpusemconv.MetricGPURetirementPending: "retired_pages",
		gpusemconv.MetricGPURemappedRows: "remapped_rows", "hw.gpu.memory.remap.pending": "remapped_rows", gpusemconv.MetricGPURemapFailed: "remapped_rows",
		"hw.gpu.ecc.sram.threshold_exceeded": "sram_threshold",
	}
	for f := reading.None + 1; f < reading.EndNumbers; f++ {
		m, e := reading.Of(f)
		name := strings.TrimPrefix(strings.TrimPrefix(m.Name, "hw."), "gpu.")
		if value := e.Values[0]; value != "" && value != reading.Any {
			name += "." + value
		}
		names[f] = cmp.Or(older[f], byMetric[m.Name], Field(name))
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
	each(&v, FieldBitErrorRate, s.NVLink.BitErrorRate[:])
	for l := range NumLinks {
		each(&v, FieldIORate, s.IORate[l][:])
		v.counts(FieldIO, s.IO[l][:])
	}
	v.errors(&s.Readings)

	most(&v, FieldPerformanceState, &s.PerformanceState, maxPerformanceState)
	// All bits at once is NVML_VALUE_NOT_AVAILABLE and not every reason at once.
	most(&v, FieldThrottle, &s.Throttle, throttleReasonsMask-1)
	below(&v, FieldRecoveryAction, &s.RecoveryAction, NumRecoveryActions)
	below(&v, FieldFabric, &s.Fabric.State, NumFabricStates)
	below(&v, FieldFabric, &s.Fabric.Summary, NumFabricSummaries)
	v.pcie(&s.Readings)
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
	within(v, f, o)
	unless(v, f, o, func(n uint64) bool { return !negative32(n) })
}

func negative32(n uint64) bool { return n >= lastNegative32 && n <= notAvailable32 }

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
	unless(v, numberNames[reading.MemoryLimit], &r.Numbers[reading.MemoryLimit], func(n float64) bool { return n > 0 })
	v.atMost(r, reading.MemoryUsed, reading.MemoryLimit)
	v.atMost(r, reading.MemoryReserved, reading.MemoryLimit)
}

// atMost rejects a number that is above its limit.
func (v *validator) atMost(r *Readings, f, limit reading.Field) {
	most := r.Numbers[limit]
	unless(v, numberNames[f], &r.Numbers[f], func(n float64) bool { return !most.OK || n <= most.V })
}

func (v *validator) errors(r *Readings) {
	for c := range NumECCCounters {
		for e := range NumECCErrors {
			v.count(FieldECC, &r.ECC[e][c])
			v.counts(FieldECCLocation, r.ECCLocation[e][c][:])
		}
		most(v, FieldECC, &r.ECC[ECCUncorrected][c], maxUncorrected)
		for l := range NumECCLocations {
			most(v, FieldECCLocation, &r.ECCLocation[ECCUncorrected][c][l], maxUncorrected)
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
	most(v, FieldMinor, &s.Minor, maxMinor)
	most(v, FieldInstance, &s.SliceCapacity, MaxSlices)
	most(v, FieldInstance, &s.GPUInstance, maxInstance)
	most(v, FieldInstance, &s.ComputeInstance, maxInstance)
}

// pcie rejects, of a pair that does not fit, the current value: the maximum is
// a constant of the board and its slot.
func (v *validator) pcie(r *Readings) {
	for _, f := range [...]reading.Field{reading.PCIeWidthLimit, reading.PCIeWidth} {
		// PCI Express has powers of two, and 12.
		unless(v, numberNames[f], &r.Numbers[f], func(n float64) bool { return n == 12 || uint32(n)&(uint32(n)-1) == 0 })
	}
	v.atMost(r, reading.PCIeWidth, reading.PCIeWidthLimit)
	v.atMost(r, reading.PCIeGeneration, reading.PCIeGenerationLimit)
	for _, f := range [...]reading.Field{reading.PCIeReplays, reading.PCIeRollovers} {
		unless(v, numberNames[f], &r.Numbers[f], func(n float64) bool { return !negative32(uint64(n)) })
	}
}

func (v *validator) nvlinks(n *NVLinks, io *[NumDirections]Opt[uint64]) {
	most(v, FieldNVLinks, &n.Up, MaxNVLinks)
	most(v, FieldNVLinks, &n.Down, MaxNVLinks)
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

func most[T uint32 | uint64](v *validator, f Field, o *Opt[T], limit T) {
	unless(v, f, o, func(n T) bool { return n <= limit })
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
