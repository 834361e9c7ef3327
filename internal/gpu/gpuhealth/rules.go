// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"math/bits"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// Thresholds, and where they are from.
const (
	// DCGM's health watch fails a GPU at 63 retired pages, or above 15 for
	// uncorrectable errors while more come: NVIDIA's criteria for replacement.
	maxRetiredPages = 63
	maxRetiredDBE   = 15
	maxDBEPerWeek   = 1
	// gpud: 0.6 slowdown events per minute over 10 minutes; fewer are noise.
	hotMinutes, lastMinutes = 6, 10
	// DCGM: NVLink CRC errors per second, replays per minute, PCIe replays per
	// minute; its limit of 10 single bit errors is weak evidence.
	nvlinkCRCPerSecond = 100
	nvlinkPerMinute    = 1
	pcieReplaysMinute  = 8
	correctedPerMinute = 10
	// More than a tenth of ten minutes slowed down by software.
	softThermalWindow  = 10 * time.Minute
	softThermalSeconds = 60
	// A GPU joins its fabric within seconds of the fabric manager's start, which
	// may come minutes after the driver's: a container waits for its image.
	fabricMinutes = 5
	// Two may be chance, and more take a bad GPU a day of jobs.
	faultOccasions = 3

	cleanFor = 10 * time.Minute
)

var (
	whileTrue = Clears{By: ClearsCondition}
	tenClean  = Clears{By: ClearsCondition, After: cleanFor}
	hourClean = Clears{By: ClearsCondition, After: time.Hour}
	service   = Clears{By: ClearsService}
	reload    = Clears{By: ClearsGeneration}
)

// defaultRules is the rubric: one row for each thing that can be wrong.
var defaultRules = []Rule{
	{
		Name: "gpu_lost", When: "the driver says that the GPU is lost", Cap: 0, Action: ActionReboot, Clears: whileTrue,
		Source: "NVML_ERROR_GPU_IS_LOST; NVIDIA's action for Xid 79 is RESTART_BM", always: true,
		condition: answers(ReasonLost),
	},
	{
		Name: "gpu_missing", When: "a GPU that was there is no longer found", Cap: 0, Action: ActionReboot, Clears: whileTrue,
		Source: "the driver no longer lists it", always: true,
		condition: answers(ReasonNotFound),
	},
	{
		Name: "nvml_hang", When: "the driver did not answer within the deadline", Cap: NoCap, Action: ActionReboot,
		Clears: Clears{By: ClearsFirstAnswer}, Source: "a hang is no proof of a broken GPU (NVSentinel)", Unknown: true, always: true,
		condition: func(v *view) finding { return found(v.s.Reason == ReasonHang) },
	},
	{
		Name: "no_reading", When: "no usable reading in 3 polls", Cap: NoCap, Action: ActionNone,
		Clears: Clears{By: ClearsFirstAnswer}, Source: "what nobody measured is not healthy", Unknown: true, always: true,
		condition: func(v *view) finding { return found(v.t.missed >= missedPolls && v.s.Reason != ReasonHang) },
	},
	{
		Name: "remap_failed", When: "a row could not be remapped, twice", Cap: 10, Action: ActionService, Clears: service,
		Source: "NVIDIA's criterion for replacement; DCGM FAIL", Predicted: true,
		slow: true, polls: 2, condition: flag(reading.RemapFailed),
	},
	{
		Name: "sram_threshold_exceeded", When: "uncorrectable SRAM errors are over NVIDIA's threshold, twice", Cap: 10, Action: ActionService, Clears: service,
		Source: "NVIDIA's criterion for replacement", Predicted: true,
		slow: true, polls: 2, condition: flag(reading.SRAMThreshold),
	},
	{
		Name: "retired_pages", When: "63 or more retired pages, or more than 15 uncorrectable with more than 1 new in a week, twice",
		Cap: 10, Action: ActionService, Clears: service, Source: "DCGM health watch FAIL", Predicted: true,
		slow: true, polls: 2, condition: retiredPages,
	},
	recovery("recovery_reset", "the driver asks for a GPU reset", ActionResetGPU, RecoveryReset),
	recovery("recovery_reboot", "the driver asks for a reboot of the node", ActionReboot, RecoveryReboot),
	recovery("recovery_drain_p2p", "the driver asks to end peer-to-peer traffic", ActionRestartApp, RecoveryDrainP2P),
	recovery("recovery_drain_reset", "the driver asks to drain and reset the GPU", ActionResetGPU, RecoveryDrainReset),
	recovery("recovery_imex", "the driver asks to recover the IMEX domain", ActionRestartApp, RecoveryIMEX),
	{
		Name: "reset_required", When: "calls fail because the GPU has to be reset", Cap: 20, Action: ActionResetGPU, Clears: whileTrue,
		Source: "NVML_ERROR_RESET_REQUIRED", always: true, condition: answers(ReasonResetRequired),
	},
	{
		Name: "ecc_uncorrected", When: "an uncorrectable memory error since the driver was loaded", Cap: 30, Action: ActionResetGPU, Clears: reload,
		Source: "DCGM health watch FAIL: volatile DBE > 0", condition: func(v *view) finding {
			n := v.s.ECC[ECCUncorrected][ECCVolatile]
			return foundIf(Opt[bool]{n.V > 0, n.OK})
		},
	},
	{
		Name: "nvlink_down", When: "fewer NVLinks are up than there were before", Cap: 30, Action: ActionReboot, Clears: whileTrue,
		Source: "DCGM health watch FAIL; NVSentinel reboots", condition: func(v *view) finding {
			return foundIf(Opt[bool]{fewerLinks(v.s, v.t.LinksUp), v.s.NVLink.Up.OK})
		},
	},
	{
		Name: "nvlink_fewer", When: "fewer NVLinks are up than at a sibling, for 6 polls", Cap: 50, Action: ActionService, Clears: whileTrue,
		Source: "DCGM health watch FAIL at any link down; links come up one GPU at a time", polls: 6, condition: linksFewer,
	},
	{
		Name: "fabric_not_joined", When: "the GPU has not joined its fabric for 5 minutes, left it, or joined with an error or wrong configuration",
		Cap: 30, Action: ActionCheckFabricManager, Clears: whileTrue, Threshold: fabricMinutes,
		Source: "NVML_GPU_FABRIC_STATE_*; CUDA fails with error 802 until then (NVSentinel #883)", condition: fabricNotJoined,
	},
	{
		Name: "fabric_unhealthy", When: "the fabric or a route of it is unhealthy", Cap: 30, Action: ActionResetGPU, Clears: whileTrue,
		Source: "NVIDIA Health Validation CRITICAL", condition: fabricHealth(FabricSummaryUnhealthy, FabricRouteUnhealthy),
	},
	{
		Name: "nvlink_errors_rising", When: "NVLink replays and recoveries rise over 3 minutes, 1 or more in each", Cap: 30, Action: ActionResetGPU, Clears: tenClean,
		Source:    "DCGM health watch FAIL",
		Threshold: nvlinkPerMinute, condition: func(v *view) finding {
			return foundIf(v.t.history.rising(v.now, countLinkReplays, v.threshold))
		},
	},
	{
		Name: "remap_pending", When: "a row remapping waits for a GPU reset", Cap: 50, Action: ActionResetGPU, Clears: whileTrue,
		Source: "DCGM health watch WARN", slow: true, condition: flag(reading.RemapPending),
	},
	{
		Name: "retirement_pending", When: "a page retirement waits for a GPU reset", Cap: 50, Action: ActionResetGPU, Clears: whileTrue,
		Source: "DCGM health watch WARN", slow: true, condition: flag(reading.RetirementPending),
	},
	{
		Name: "repair_pending", When: "a repair of a memory channel or of a TPC waits for a GPU reset", Cap: 50, Action: ActionResetGPU, Clears: whileTrue,
		Source: "nvmlDeviceGetRepairStatus", slow: true, condition: func(v *view) finding {
			c, t := v.s.RepairPending[RepairChannel], v.s.RepairPending[RepairTPC]
			return foundIf(Opt[bool]{c.V || t.V, c.OK || t.OK})
		},
	},
	{
		Name: "hw_throttle_lasting", When: "slowed down by hardware for heat or power in 6 of 10 minutes, until 10 minutes without", Cap: 55, Action: ActionService, Clears: whileTrue,
		Source: "gpud: 0.6 events per minute", Threshold: hotMinutes, condition: func(v *view) finding {
			minutes := bits.OnesCount64(v.t.throttle.minutes.last(minuteOf(v.now), lastMinutes))
			return foundIf(Opt[bool]{float64(minutes) >= v.threshold || v.active && minutes > 0, v.t.throttle.known})
		},
	},
	{
		Name: "thermal_margin", When: "the thermal margin is below the slowdown offset, twice", Cap: 55, Action: ActionService, Clears: tenClean,
		Source: "NVML field 194, NVSentinel ADR-042; one reading may be wrong (gpud)", polls: 2, condition: less(reading.TemperatureMargin, reading.SlowdownMargin),
	},
	{
		Name: "nvlink_errors", When: "an NVLink replay or recovery within a minute", Cap: 60, Action: ActionNone, Clears: tenClean,
		Source: "DCGM health watch; does not always end a job (arXiv 2503.11901)", Threshold: nvlinkPerMinute,
		condition: perMinute(countLinkReplays, atLeast),
	},
	{
		Name: "nvlink_recovery_failed", When: "an NVLink could not be recovered", Cap: 60, Action: ActionResetGPU, Clears: tenClean,
		Source: "NVML field 214 (Blackwell)", condition: perMinute(countLinkFailures, above),
	},
	{
		Name: "nvlink_crc", When: "100 or more NVLink CRC errors per second over a minute", Cap: 60, Action: ActionResetGPU, Clears: tenClean,
		Source: "DCGM health watch", Threshold: nvlinkCRCPerSecond,
		condition: perMinute(countLinkCRC, func(n, perSecond float64) bool { return n/60 >= perSecond }),
	},
	{
		Name: "fabric_limited", When: "the fabric has limited capacity or bandwidth, recovers a route or from an access timeout, or has no partition for the GPU",
		Cap: 60, Action: ActionNone, Clears: tenClean, Source: "NVML_GPU_FABRIC_HEALTH_*",
		condition: fabricHealth(FabricSummaryLimitedCapacity, FabricDegradedBandwidth, FabricRouteRecovery, FabricAccessTimeout, FabricNoPartition),
	},
	{
		Name: "application_xids", When: "Xids of applications on 3 occasions within 24 hours, half an hour apart; at most half as many on each other GPU of the node",
		Cap: 70, Action: ActionRunDiagnostics, Clears: whileTrue, Threshold: faultOccasions,
		Source: "NVIDIA's workflow for Xid 31", condition: repeatedFaults,
	},
	{
		Name: "pcie_width", When: "the PCIe link is narrower than it can be", Cap: 60, Action: ActionService, Clears: whileTrue,
		Source: "DCGM_FR_PCIE_WIDTH", condition: less(reading.PCIeWidth, reading.PCIeWidthLimit),
	},
	{
		Name: "pcie_generation", When: "the PCIe link of a GPU at work is slower than it can be, twice", Cap: 60, Action: ActionService, Clears: whileTrue,
		Source: "DCGM_FR_PCIE_GENERATION; an idle link slows down to save power", polls: 2, condition: pcieGeneration,
	},
	{
		Name: "pcie_replays", When: "more than 8 PCIe replays per minute", Cap: 70, Action: ActionService, Clears: tenClean,
		Source: "DCGM health watch WARN", Threshold: pcieReplaysMinute, condition: perMinute(countPCIeReplays, above),
	},
	{
		Name: "pcie_replay_rollover", When: "the PCIe replay counter rolled over", Cap: 70, Action: ActionService, Clears: tenClean,
		Source: "NVML field 95", condition: perMinute(countPCIeRollovers, above),
	},
	{
		Name: "ecc_corrected_rate", When: "more than 10 corrected memory errors per minute", Cap: 70, Action: ActionNone, Clears: hourClean,
		Source: "DCGM's limit, weak evidence", Threshold: correctedPerMinute, condition: perMinute(countCorrected, above),
	},
	{
		Name: "hw_thermal_slowdown", When: "slowed down by hardware for heat", Cap: 75, Action: ActionNone, Clears: tenClean,
		Source: "DCGM health watch WARN", condition: func(v *view) finding { return v.t.throttle.thermal },
	},
	{
		Name: "sw_thermal_slowdown", When: "slowed down by software for heat for more than 60 of 600 s", Cap: 75, Action: ActionNone, Clears: tenClean,
		Source: "DCGM health watch WARN", Threshold: softThermalSeconds, condition: func(v *view) finding {
			ms := v.t.history.grew(v.now, countSoftThermal, softThermalWindow)
			return foundIf(Opt[bool]{ms.V > v.threshold*1000, ms.OK})
		},
	},
	{
		Name: "memory_hot", When: "the memory is hotter than its maximum", Cap: 75, Action: ActionNone, Clears: tenClean,
		Source: "nvmlDeviceGetTemperatureThreshold, MEM_MAX", condition: less(reading.MaxMemoryTemperature, reading.MemoryTemperature),
	},
	{
		Name: "memory_history", When: "a page was once retired, or a row remapped, for an uncorrectable error", Cap: 85, Action: ActionNone, Clears: whileTrue,
		Source: "NVSentinel ignores it: informational", slow: true, condition: flag(reading.RetiredDBE, reading.RemappedUncorrected),
	},
	{
		Name: "ecc_off", When: "ECC is off on a datacentre GPU", Cap: 85, Action: ActionNone, Clears: whileTrue,
		Source: "NVSentinel ignores it: informational", slow: true, condition: func(v *view) finding {
			ecc := v.s.On(reading.ModeECC)
			return foundIf(Opt[bool]{!ecc.V && datacentre(v.s.Model), ecc.OK})
		},
	},
}
