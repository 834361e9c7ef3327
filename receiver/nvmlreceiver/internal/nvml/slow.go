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

func readLimits(d *device, r *gpuhealth.Readings, t *tally) {
	put(d, t, fnPowerLimit, d.raw.GetEnforcedPowerLimit, thousandths, &r.Numbers[reading.PowerLimit])
	put(d, t, fnPowerLimitRange, func() (uint32, gonvml.Return) { return second(d.raw.GetPowerManagementLimitConstraints()) },
		thousandths, &r.Numbers[reading.PowerLimitMax])
	for c := range gpuhealth.NumClocks {
		put(d, t, fnMaxClock, func() (uint32, gonvml.Return) { return d.raw.GetMaxClockInfo(gonvml.ClockType(c)) },
			megahertz, &r.ClockLimits[c])
	}
	for limit, threshold := range map[gpuhealth.TemperatureLimit]gonvml.TemperatureThresholds{
		gpuhealth.LimitShutdown:  gonvml.TEMPERATURE_THRESHOLD_SHUTDOWN,
		gpuhealth.LimitSlowdown:  gonvml.TEMPERATURE_THRESHOLD_SLOWDOWN,
		gpuhealth.LimitMemoryMax: gonvml.TEMPERATURE_THRESHOLD_MEM_MAX,
		gpuhealth.LimitGPUMax:    gonvml.TEMPERATURE_THRESHOLD_GPU_MAX,
	} {
		put(d, t, fnThreshold, func() (uint32, gonvml.Return) { return d.raw.GetTemperatureThreshold(threshold) },
			whole, &r.TemperatureLimits[limit])
	}
	put(d, t, fnPCIeWidthMax, d.raw.GetMaxPcieLinkWidth, count32, &r.PCIe.WidthMax)
	put(d, t, fnPCIeGenerationMax, d.raw.GetMaxPcieLinkGeneration, count32, &r.PCIe.GenerationMax)
}

func readModes(d *device, r *gpuhealth.Readings, t *tally) {
	mode := func(m gonvml.EnableState) gpuhealth.Opt[bool] { return r.Flag(gpuhealth.FieldMode, uint32(m)) }
	put(d, t, fnPersistence, d.raw.GetPersistenceMode, mode, &r.Modes[gpuhealth.ModePersistence])
	put(d, t, fnECCMode, func() (gonvml.EnableState, gonvml.Return) { return first(d.raw.GetEccMode()) },
		mode, &r.Modes[gpuhealth.ModeECC])
	put(d, t, fnGSPMode, func() (bool, gonvml.Return) { return first(d.raw.GetGspFirmwareMode()) },
		gpuhealth.Some[bool], &r.Modes[gpuhealth.ModeGSP])
	if s, code := guarded(d.library, fnConfidential, d.library.binding.raw.SystemGetConfComputeState); t.ok(code) {
		r.Modes[gpuhealth.ModeConfidentialCompute] = r.Flag(gpuhealth.FieldMode, s.CcFeature)
	}
}

func readMemoryHealth(d *device, r *gpuhealth.Readings, t *tally) {
	for cause := range gpuhealth.NumRetirementCauses {
		if n, code := guarded(d.library, fnRetiredPages, func() (uint32, gonvml.Return) { return direct(d, fnRetiredPages, countPages(cause)) }); t.ok(code) {
			r.RetiredPages[cause] = gpuhealth.Some(uint64(n))
		}
	}
	if p, code := guarded(d.library, fnRetirementPending, d.raw.GetRetiredPagesPendingStatus); t.ok(code) {
		r.RetirementPending = r.Flag(gpuhealth.FieldRetiredPages, uint32(p))
	}
	if rows, code := guarded(d.library, fnRemappedRows, func() (remappedRows, gonvml.Return) { return direct(d, fnRemappedRows, readRemappedRows) }); t.ok(code) {
		r.RemappedRows = gpuhealth.RemappedRows{
			Corrected: gpuhealth.Some(uint64(rows.corrected)), Uncorrected: gpuhealth.Some(uint64(rows.uncorrected)),
			Pending: r.Flag(gpuhealth.FieldRemappedRows, rows.pending), Failed: r.Flag(gpuhealth.FieldRemappedRows, rows.failed),
		}
	}
	if s, code := guarded(d.library, fnRepair, d.raw.GetRepairStatus); t.ok(code) {
		r.RepairPending[gpuhealth.RepairChannel] = r.Flag(gpuhealth.FieldRepair, s.BChannelRepairPending)
		r.RepairPending[gpuhealth.RepairTPC] = r.Flag(gpuhealth.FieldRepair, s.BTpcRepairPending)
	}
	if s, code := guarded(d.library, fnSRAM, d.raw.GetSramEccErrorStatus); t.ok(code) {
		r.SRAMThresholdExceeded = r.Flag(gpuhealth.FieldSRAM, s.BThresholdExceeded)
	}
}

// memoryHealth is what readMemoryHealth reads, to be compared.
func memoryHealth(r *gpuhealth.Readings) [5]any {
	return [...]any{r.RetiredPages, r.RetirementPending, r.RemappedRows, r.RepairPending, r.SRAMThresholdExceeded}
}

// badMemory reports whether any reading of memory health is bad.
func badMemory(r *gpuhealth.Readings) bool {
	pages, rows, repairs := &r.RetiredPages, &r.RemappedRows, &r.RepairPending
	return max(pages[gpuhealth.RetiredSBE].V, pages[gpuhealth.RetiredDBE].V, rows.Corrected.V, rows.Uncorrected.V) > 0 ||
		r.RetirementPending.V || rows.Pending.V || rows.Failed.V || r.SRAMThresholdExceeded.V ||
		repairs[gpuhealth.RepairChannel].V || repairs[gpuhealth.RepairTPC].V
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
