// SPDX-License-Identifier: Apache-2.0

package gpuhealth

// Fields are all names that Validate may return.
var Fields = []Field{
	FieldUUID, FieldParent, FieldInstance, FieldModule, FieldMemoryTotal, FieldMemoryUsed, FieldMemoryReserved,
	FieldUtilization, FieldEncoder, FieldDecoder, FieldMemoryCopy, FieldActivity, FieldTemperature,
	FieldMemoryTemperature, FieldTemperatureLimit, FieldTemperatureMargin,
	FieldMarginLimit, FieldPower, FieldPowerLimit, FieldPowerLimitMax, FieldEnergy, FieldClock, FieldClockLimit,
	FieldPerformanceState, FieldECC, FieldECCLocation, FieldRetiredPages, FieldRemappedRows,
	FieldRecoveryAction, FieldThrottle, FieldThrottleTime, FieldIO, FieldPCIeWidth,
	FieldPCIeWidthMax, FieldPCIeGeneration, FieldPCIeGenerationMax, FieldPCIeReplays,
	FieldNVLinks, FieldNVLinkErrors, FieldBitErrorRate, FieldFabric, FieldProcesses, FieldSRAM, FieldRepair, FieldMode,
}

// State is the state that the rule alone puts a GPU in.
func (r *Rule) State() State {
	if r.Unknown {
		return StateUnknown
	}
	return StateOf(r.Cap)
}
