// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// slowReaders run once a minute. Their readings change with a reset, a repair or an
// operator, or are details of a reading of each poll (where ECC errors were).
var slowReaders = []reader{
	readLimits,
	readModes,
	readMemoryHealth,
	readECCLocations,
	countNVLinks,
}

// clockLimits are in NVML's order.
var clockLimits = [...]reading.Field{reading.GraphicsClockLimit, reading.SMClockLimit, reading.MemoryClockLimit, reading.VideoClockLimit}

func readLimits(d *device, r *gpuhealth.Readings, t *tally) {
	put(d, t, fnPowerLimit, d.raw.GetEnforcedPowerLimit, thousandths, &r.Numbers[reading.PowerLimit])
	put(d, t, fnPowerLimitRange, func() (uint32, gonvml.Return) { return second(d.raw.GetPowerManagementLimitConstraints()) },
		thousandths, &r.Numbers[reading.PowerLimitMax])
	for c, limit := range clockLimits {
		put(d, t, fnMaxClock, func() (uint32, gonvml.Return) { return d.raw.GetMaxClockInfo(gonvml.ClockType(c)) },
			megahertz, &r.Numbers[limit])
	}
	for limit, threshold := range map[reading.Field]gonvml.TemperatureThresholds{
		reading.ShutdownTemperature:  gonvml.TEMPERATURE_THRESHOLD_SHUTDOWN,
		reading.TemperatureLimit:     gonvml.TEMPERATURE_THRESHOLD_SLOWDOWN,
		reading.MaxMemoryTemperature: gonvml.TEMPERATURE_THRESHOLD_MEM_MAX,
		reading.MaxTemperature:       gonvml.TEMPERATURE_THRESHOLD_GPU_MAX,
	} {
		put(d, t, fnThreshold, func() (uint32, gonvml.Return) { return d.raw.GetTemperatureThreshold(threshold) },
			whole, &r.Numbers[limit])
	}
	put(d, t, fnPCIeWidthMax, d.raw.GetMaxPcieLinkWidth, count, &r.Numbers[reading.PCIeWidthLimit])
	put(d, t, fnPCIeGenerationMax, d.raw.GetMaxPcieLinkGeneration, count, &r.Numbers[reading.PCIeGenerationLimit])
}

// enabled is a setting that is on or off; Validate rejects anything else.
func enabled(s gonvml.EnableState) gpuhealth.Opt[float64] { return whole(uint32(s)) }

func readModes(d *device, r *gpuhealth.Readings, t *tally) {
	put(d, t, fnPersistence, d.raw.GetPersistenceMode, enabled, &r.Numbers[reading.ModePersistence])
	put(d, t, fnECCMode, func() (gonvml.EnableState, gonvml.Return) { return first(d.raw.GetEccMode()) },
		enabled, &r.Numbers[reading.ModeECC])
	put(d, t, fnGSPMode, func() (bool, gonvml.Return) { return first(d.raw.GetGspFirmwareMode()) },
		gpuhealth.Flag, &r.Numbers[reading.ModeGSP])
	if s, code := guarded(d.library, fnConfidential, d.library.binding.raw.SystemGetConfComputeState); t.ok(code) {
		r.Numbers[reading.ModeConfidentialCompute] = whole(s.CcFeature)
	}
}

// memoryHealth are what readMemoryHealth reads beside repairs. Above 0 all are bad.
var memoryHealth = [...]reading.Field{
	reading.RetiredSBE, reading.RetiredDBE, reading.RetirementPending, reading.SRAMThreshold,
	reading.RemappedCorrected, reading.RemappedUncorrected, reading.RemapPending, reading.RemapFailed,
}

func readMemoryHealth(d *device, r *gpuhealth.Readings, t *tally) {
	for cause, pages := range [...]reading.Field{reading.RetiredSBE, reading.RetiredDBE} { // in NVML's order
		put(d, t, fnRetiredPages, func() (uint32, gonvml.Return) { return direct(d, fnRetiredPages, countPages(cause)) }, whole, &r.Numbers[pages])
	}
	put(d, t, fnRetirementPending, d.raw.GetRetiredPagesPendingStatus, enabled, &r.Numbers[reading.RetirementPending])
	if rows, code := guarded(d.library, fnRemappedRows, func() (remappedRows, gonvml.Return) { return direct(d, fnRemappedRows, readRemappedRows) }); t.ok(code) {
		r.Numbers[reading.RemappedCorrected], r.Numbers[reading.RemappedUncorrected] = whole(rows.corrected), whole(rows.uncorrected)
		r.Numbers[reading.RemapPending], r.Numbers[reading.RemapFailed] = whole(rows.pending), whole(rows.failed)
	}
	if s, code := guarded(d.library, fnRepair, d.raw.GetRepairStatus); t.ok(code) {
		r.RepairPending[gpuhealth.RepairChannel] = r.YesNo(gpuhealth.FieldRepair, s.BChannelRepairPending)
		r.RepairPending[gpuhealth.RepairTPC] = r.YesNo(gpuhealth.FieldRepair, s.BTpcRepairPending)
	}
	if s, code := guarded(d.library, fnSRAM, d.raw.GetSramEccErrorStatus); t.ok(code) {
		r.Numbers[reading.SRAMThreshold] = whole(s.BThresholdExceeded)
	}
}

// worseMemory reports whether a reading of memory health is bad, and another than before.
func worseMemory(before, now *gpuhealth.Readings) bool {
	bad := now.RepairPending[gpuhealth.RepairChannel].V || now.RepairPending[gpuhealth.RepairTPC].V
	changed := now.RepairPending != before.RepairPending
	for _, f := range memoryHealth {
		bad = bad || now.Numbers[f].V > 0
		changed = changed || now.Numbers[f] != before.Numbers[f]
	}
	return bad && changed
}

func readECCLocations(d *device, r *gpuhealth.Readings, t *tally) {
	locations := [gpuhealth.NumECCLocations]gonvml.MemoryLocation{gonvml.MEMORY_LOCATION_DRAM, gonvml.MEMORY_LOCATION_SRAM}
	for e := range gpuhealth.NumECCErrors {
		for c := range gpuhealth.NumECCCounters {
			for l, location := range locations {
				put(d, t, fnMemoryErrors, func() (uint64, gonvml.Return) {
					return d.raw.GetMemoryErrorCounter(gonvml.MemoryErrorType(e), gonvml.EccCounterType(c), location) //nolint:forbidigo // guarded by the line above
				}, gpuhealth.Some[uint64], &r.ECCLocation[e][c][l])
			}
		}
	}
}

// countNVLinks asks link by link until the driver knows no more of them, once
// for a handle: a board keeps its links, up or down. PerLink is as long as
// there are links.
func countNVLinks(d *device, r *gpuhealth.Readings, t *tally) {
	if !d.linksCounted {
		d.links, d.linksCounted = 0, true
		for ; d.links < gpuhealth.MaxNVLinks; d.links++ {
			// That there is no such link is the end of the list.
			_, code := linkState(d, d.links, InvalidArgument)
			if code == InvalidArgument || d.links == 0 && code.unsupported() {
				break
			}
			if !t.ok(code) && !code.unsupported() {
				// A GPU in trouble may not show where the list ends: next time.
				d.linksCounted = false
			}
			if t.gone != Success {
				return
			}
		}
	}
	if d.links > 0 {
		r.NVLink.PerLink = make([]gpuhealth.NVLink, d.links)
	}
}
