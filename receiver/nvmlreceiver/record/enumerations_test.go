// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
)

// enumeration compares the first n values of an attribute with those of gpuhealth's constants.
func enumeration[A interface {
	~int
	fmt.Stringer
}](t *testing.T, n int, want []string) {
	t.Helper()
	var got []string
	for i := range n {
		got = append(got, A(i+1).String())
	}
	assert.Equal(t, want, got, "an enum in metadata.yaml must have the order of gpuhealth's constants")
}

// Record makes attributes of gpuhealth's constants by their order alone.
func TestEnumerations(t *testing.T) {
	enumeration[metadata.AttributeActivityUnit](t, int(gpuhealth.NumActivities),
		[]string{
			gpuhealth.ActivityGraphics: "graphics", gpuhealth.ActivitySM: "sm", gpuhealth.ActivitySMOccupancy: "sm_occupancy",
			gpuhealth.ActivityTensor: "tensor", gpuhealth.ActivityDRAM: "dram", gpuhealth.ActivityFP64: "fp64",
			gpuhealth.ActivityFP32: "fp32", gpuhealth.ActivityFP16: "fp16",
		})
	enumeration[metadata.AttributeClock](t, int(gpuhealth.NumClocks),
		[]string{
			gpuhealth.ClockGraphics: "graphics", gpuhealth.ClockSM: "sm", gpuhealth.ClockMemory: "memory",
			gpuhealth.ClockVideo: "video",
		})
	enumeration[metadata.AttributeProcessType](t, int(gpuhealth.NumProcessTypes), []string{
		gpuhealth.ProcessCompute: "compute", gpuhealth.ProcessGraphics: "graphics",
	})
	enumeration[metadata.AttributeMode](t, int(gpuhealth.NumModes),
		[]string{
			gpuhealth.ModePersistence: "persistence", gpuhealth.ModeECC: "ecc", gpuhealth.ModeMIG: "mig",
			gpuhealth.ModeGSP: "gsp", gpuhealth.ModeConfidentialCompute: "cc",
		})
	enumeration[metadata.AttributeErrorType](t, int(gpuhealth.NumECCErrors), []string{
		gpuhealth.ECCCorrected: "corrected", gpuhealth.ECCUncorrected: "uncorrected",
	})
	enumeration[metadata.AttributeGpuEccCounter](t, int(gpuhealth.NumECCCounters), []string{
		gpuhealth.ECCVolatile: "volatile", gpuhealth.ECCAggregate: "aggregate",
	})
	enumeration[metadata.AttributeGpuMemoryLocation](t, 1+int(gpuhealth.NumECCLocations), []string{
		0: "all", 1 + gpuhealth.ECCDRAM: "dram", 1 + gpuhealth.ECCSRAM: "sram",
	})
	enumeration[metadata.AttributeRetirementCause](t, int(gpuhealth.NumRetirementCauses), []string{
		gpuhealth.RetiredSBE: "sbe", gpuhealth.RetiredDBE: "dbe",
	})
	enumeration[metadata.AttributeRepairPart](t, int(gpuhealth.NumRepairs), []string{
		gpuhealth.RepairChannel: "memory_channel", gpuhealth.RepairTPC: "tpc",
	})
	enumeration[metadata.AttributeRecoveryAction](t, int(gpuhealth.NumRecoveryActions),
		[]string{
			gpuhealth.RecoveryNone: "none", gpuhealth.RecoveryReset: "reset", gpuhealth.RecoveryReboot: "reboot",
			gpuhealth.RecoveryDrainP2P: "drain_p2p", gpuhealth.RecoveryDrainReset: "drain_reset",
			gpuhealth.RecoveryIMEX: "imex",
		})
	enumeration[metadata.AttributeGpuLink](t, int(gpuhealth.NumLinks), []string{
		gpuhealth.LinkPCIe: "pcie", gpuhealth.LinkNVLink: "nvlink", gpuhealth.LinkNVLinkRaw: "nvlink_raw",
	})
	enumeration[metadata.AttributeNetworkIoDirection](t, int(gpuhealth.NumDirections), []string{
		gpuhealth.Transmit: "transmit", gpuhealth.Receive: "receive",
	})
	enumeration[metadata.AttributeNvlinkErrorType](t, int(gpuhealth.NumNVLinkErrors),
		[]string{
			gpuhealth.NVLinkReplay: "replay", gpuhealth.NVLinkRecovery: "recovery", gpuhealth.NVLinkCRCFlit: "crc_flit",
			gpuhealth.NVLinkCRCData: "crc_data", gpuhealth.NVLinkCRC: "crc", gpuhealth.NVLinkSymbol: "symbol",
			gpuhealth.NVLinkEffective: "effective", gpuhealth.NVLinkRecoveryFailed: "recovery_failed",
		})
	enumeration[metadata.AttributeBitErrors](t, int(gpuhealth.NumBitErrors), []string{
		gpuhealth.BitErrorsSymbol: "symbol", gpuhealth.BitErrorsEffective: "effective",
	})
	enumeration[metadata.AttributeFabricState](t, int(gpuhealth.NumFabricStates),
		[]string{
			gpuhealth.FabricNotSupported: "not_supported", gpuhealth.FabricNotStarted: "not_started",
			gpuhealth.FabricInProgress: "in_progress", gpuhealth.FabricCompleted: "completed",
		})
	enumeration[metadata.AttributeFabricCondition](t, int(gpuhealth.NumFabricConditions),
		[]string{
			gpuhealth.FabricDegradedBandwidth: "degraded_bandwidth", gpuhealth.FabricRouteRecovery: "route_recovery",
			gpuhealth.FabricRouteUnhealthy: "route_unhealthy", gpuhealth.FabricAccessTimeout: "access_timeout",
			gpuhealth.FabricIncorrectConfiguration: "incorrect_configuration", gpuhealth.FabricNoPartition: "no_partition",
		})
	enumeration[metadata.AttributeThrottleReason](t, len(throttleReasons), []string{
		"sw_thermal", "hw_thermal", "power_brake", "power_cap", "hw_slowdown", "sync_boost", "app_clocks", "display_clocks",
	})
	enumeration[metadata.AttributeThrottleTimeReason](t, int(gpuhealth.NumThrottleTimes),
		[]string{
			gpuhealth.ThrottleTimePower: "power", gpuhealth.ThrottleTimeThermal: "thermal",
			gpuhealth.ThrottleTimeSyncBoost: "sync_boost", gpuhealth.ThrottleTimeBoardLimit: "board_limit",
			gpuhealth.ThrottleTimeLowUtilization: "low_utilization", gpuhealth.ThrottleTimeReliability: "reliability",
			gpuhealth.ThrottleTimeSWThermal: "sw_thermal", gpuhealth.ThrottleTimeHWThermal: "hw_thermal",
			gpuhealth.ThrottleTimePowerBrake: "power_brake",
		})
}
