// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
)

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

func (r *recorder) memoryErrors() {
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
	if v := r.s.SRAMThresholdExceeded; v.OK {
		r.mb.RecordHwGpuEccSramThresholdExceededDataPoint(r.ts, oneIf(v.V), r.id, r.parent...)
	}
}

var retirementCauses = [gpuhealth.NumRetirementCauses]metadata.AttributeRetirementCause{
	gpuhealth.RetiredSBE: metadata.AttributeRetirementCauseSbe,
	gpuhealth.RetiredDBE: metadata.AttributeRetirementCauseDbe,
}

func (r *recorder) retirement() {
	for i, cause := range retirementCauses {
		if v := r.s.RetiredPages[i]; v.OK {
			r.mb.RecordHwGpuMemoryRetiredPagesDataPoint(r.ts, int64(v.V), r.id, cause, r.parent...)
		}
	}
	if v := r.s.RetirementPending; v.OK {
		r.mb.RecordHwGpuMemoryRetirementPendingDataPoint(r.ts, oneIf(v.V), r.id, r.parent...)
	}
	rows := &r.s.RemappedRows
	if rows.Corrected.OK && r.full {
		r.mb.RecordHwGpuMemoryRemappedRowsDataPoint(r.ts, int64(rows.Corrected.V), r.id, metadata.AttributeRemapCauseCorrected, r.parent...)
	}
	if rows.Uncorrected.OK {
		r.mb.RecordHwGpuMemoryRemappedRowsDataPoint(r.ts, int64(rows.Uncorrected.V), r.id, metadata.AttributeRemapCauseUncorrected, r.parent...)
	}
	if rows.Pending.OK {
		r.mb.RecordHwGpuMemoryRemapPendingDataPoint(r.ts, oneIf(rows.Pending.V), r.id, r.parent...)
	}
	if rows.Failed.OK {
		r.mb.RecordHwGpuMemoryRemapFailedDataPoint(r.ts, oneIf(rows.Failed.V), r.id, r.parent...)
	}
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
func (r *recorder) recovery() {
	for i, part := range repairParts {
		if v := r.s.RepairPending[i]; v.OK && r.tells(setRepair, i, v.V, false) {
			r.mb.RecordHwGpuRepairPendingDataPoint(r.ts, oneIf(v.V), r.id, part, r.parent...)
		}
	}
	v := r.s.RecoveryAction
	if !v.OK {
		return
	}
	for i, action := range recoveryActions {
		asked := v.V == gpuhealth.RecoveryAction(i)
		if r.tells(setRecovery, i, asked, i == int(gpuhealth.RecoveryNone)) {
			r.mb.RecordHwGpuRecoveryActionDataPoint(r.ts, oneIf(asked), r.id, action, r.parent...)
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

func (r *recorder) settings() {
	for i, m := range modes {
		if v := r.s.Modes[i]; v.OK && (r.full || m.standard) {
			r.mb.RecordHwGpuModeDataPoint(r.ts, oneIf(v.V), r.id, m.mode, r.parent...)
		}
	}
}
