// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
)

// slowReaders run once a minute. Their readings change with a reset, a repair or an
// operator, or are details of a reading of each poll (the places of ECC errors).
var slowReaders = []reader{
	readLimits,
	readModes,
	readMemoryHealth,
	readECCLocations,
	countNVLinks,
}

func readLimits(d *device, r *gpuhealth.Readings, t *tally) {
	if mw, code := guarded(d.library, fnPowerLimit, d.raw.GetEnforcedPowerLimit); t.ok(code) {
		r.PowerLimit = gpuhealth.Ratio(mw, 1, 1000)
	}
	if mw, code := guarded(d.library, fnPowerLimitRange, func() (uint32, gonvml.Return) { return second(d.raw.GetPowerManagementLimitConstraints()) }); t.ok(code) {
		r.PowerLimitMax = gpuhealth.Ratio(mw, 1, 1000)
	}
	for c := range gpuhealth.NumClocks {
		if mhz, code := guarded(d.library, fnMaxClock, func() (uint32, gonvml.Return) { return d.raw.GetMaxClockInfo(gonvml.ClockType(c)) }); t.ok(code) {
			r.ClockLimits[c] = gpuhealth.Ratio(mhz, 1e6, 1)
		}
	}
	for limit, threshold := range map[gpuhealth.TemperatureLimit]gonvml.TemperatureThresholds{
		gpuhealth.LimitShutdown:  gonvml.TEMPERATURE_THRESHOLD_SHUTDOWN,
		gpuhealth.LimitSlowdown:  gonvml.TEMPERATURE_THRESHOLD_SLOWDOWN,
		gpuhealth.LimitMemoryMax: gonvml.TEMPERATURE_THRESHOLD_MEM_MAX,
		gpuhealth.LimitGPUMax:    gonvml.TEMPERATURE_THRESHOLD_GPU_MAX,
	} {
		if c, code := guarded(d.library, fnThreshold, func() (uint32, gonvml.Return) { return d.raw.GetTemperatureThreshold(threshold) }); t.ok(code) {
			r.TemperatureLimits[limit] = gpuhealth.Ratio(c, 1, 1)
		}
	}
	if n, code := guarded(d.library, fnPCIeWidthMax, d.raw.GetMaxPcieLinkWidth); t.ok(code) {
		r.PCIe.WidthMax = count32(n)
	}
	if n, code := guarded(d.library, fnPCIeGenerationMax, d.raw.GetMaxPcieLinkGeneration); t.ok(code) {
		r.PCIe.GenerationMax = count32(n)
	}
}

func readModes(d *device, r *gpuhealth.Readings, t *tally) {
	if m, code := guarded(d.library, fnPersistence, d.raw.GetPersistenceMode); t.ok(code) {
		r.Modes[gpuhealth.ModePersistence] = r.Flag(gpuhealth.FieldMode, uint32(m))
	}
	if m, code := guarded(d.library, fnECCMode, func() (gonvml.EnableState, gonvml.Return) { return first(d.raw.GetEccMode()) }); t.ok(code) {
		r.Modes[gpuhealth.ModeECC] = r.Flag(gpuhealth.FieldMode, uint32(m))
	}
	if m, code := guarded(d.library, fnGSPMode, func() (bool, gonvml.Return) { return first(d.raw.GetGspFirmwareMode()) }); t.ok(code) {
		r.Modes[gpuhealth.ModeGSP] = gpuhealth.Some(m)
	}
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

// badMemory reports whether memory health has anything to tell.
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
				n, code := guarded(d.library, fnMemoryErrors, func() (uint64, gonvml.Return) {
					return d.raw.GetMemoryErrorCounter(gonvml.MemoryErrorType(e), gonvml.EccCounterType(c), location)
				})
				if t.ok(code) {
					r.ECCLocation[e][c][l] = gpuhealth.Some(n)
				}
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
				// A GPU in trouble may not say where the list ends: next time.
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
