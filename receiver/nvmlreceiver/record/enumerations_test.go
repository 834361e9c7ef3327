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
	enumeration[metadata.AttributeErrorType](t, int(gpuhealth.NumECCErrors), []string{
		gpuhealth.ECCCorrected: "corrected", gpuhealth.ECCUncorrected: "uncorrected",
	})
	enumeration[metadata.AttributeGpuEccCounter](t, int(gpuhealth.NumECCCounters), []string{
		gpuhealth.ECCVolatile: "volatile", gpuhealth.ECCAggregate: "aggregate",
	})
	enumeration[metadata.AttributeGpuMemoryLocation](t, 1+int(gpuhealth.NumECCLocations), []string{
		0: "all", 1 + gpuhealth.ECCDRAM: "dram", 1 + gpuhealth.ECCSRAM: "sram",
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
}
