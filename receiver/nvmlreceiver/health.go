// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
)

// rubric is the default one with the overrides. The error has every mistake,
// each with its key.
func (c *HealthConfig) rubric() (*gpuhealth.Rubric, error) {
	rubric := gpuhealth.DefaultRubric()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.Rules)) {
		if err := rubric.OverrideRule(name, c.Rules[name].override()); err != nil {
			errs = append(errs, fmt.Errorf("`health::rules::%s`: %w", name, err))
		}
	}
	for _, text := range slices.Sorted(maps.Keys(c.Xids)) {
		code, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			errs = append(errs, fmt.Errorf("`health::xids::%s`: %q is no Xid; it has to be a number", text, text))
			continue
		}
		if err = rubric.OverrideXid(code, c.Xids[text].override()); err != nil {
			errs = append(errs, fmt.Errorf("`health::xids::%s`: %w", text, err))
		}
	}
	return rubric, errors.Join(errs...)
}

func (o HealthOverride) override() gpuhealth.Override {
	override := gpuhealth.Override{Action: gpuhealth.Action(o.Action), Off: o.Enabled != nil && !*o.Enabled}
	if o.Cap != nil {
		override.Cap = gpuhealth.Some(*o.Cap)
	}
	if o.ClearAfter != nil {
		override.ClearAfter = gpuhealth.Some(*o.ClearAfter)
	}
	if o.Threshold != nil {
		override.Threshold = gpuhealth.Some(*o.Threshold)
	}
	return override
}

var healthStates = [...]struct {
	state     gpuhealth.State
	attribute metadata.AttributeHealthState
}{
	{gpuhealth.StateUnknown, metadata.AttributeHealthStateUnknown},
	{gpuhealth.StateHealthy, metadata.AttributeHealthStateHealthy},
	{gpuhealth.StateDegraded, metadata.AttributeHealthStateDegraded},
	{gpuhealth.StateUnhealthy, metadata.AttributeHealthStateUnhealthy},
}

var hardwareStates = [...]struct {
	state     gpuhealth.HardwareState
	attribute metadata.AttributeHwState
}{
	{gpuhealth.HardwareOK, metadata.AttributeHwStateOk},
	{gpuhealth.HardwareDegraded, metadata.AttributeHwStateDegraded},
	{gpuhealth.HardwareFailed, metadata.AttributeHwStateFailed},
	{gpuhealth.HardwarePredictedFailure, metadata.AttributeHwStatePredictedFailure},
}

var healthActions = map[gpuhealth.Action]metadata.AttributeHealthAction{
	gpuhealth.ActionNone:       metadata.AttributeHealthActionNone,
	gpuhealth.ActionRestartApp: metadata.AttributeHealthActionRestartApp,
	gpuhealth.ActionResetGPU:   metadata.AttributeHealthActionResetGpu,
	gpuhealth.ActionReboot:     metadata.AttributeHealthActionReboot,
	gpuhealth.ActionService:    metadata.AttributeHealthActionService,
}

// verdict adds what is thought of the sample that was recorded last.
func (r *recorder) verdict(v *gpuhealth.Verdict) {
	for i, s := range hardwareStates {
		// The states of health, which always have a point, say the same.
		if !r.tells(setStatus, i, v.Hardware == s.state, s.state == gpuhealth.HardwareOK) {
			continue
		}
		r.mb.RecordHwStatusDataPoint(r.ts, oneIf(v.Hardware == s.state), r.id, gpuType, s.attribute, r.parent...)
	}
	switch {
	case v.Score.OK:
		r.mb.RecordHwGpuHealthScoreDataPoint(r.ts, int64(v.Score.V), r.id, r.parent...)
	case r.states.scored:
		r.mb.RecordHwGpuHealthScoreDataPoint(r.ts, over, r.id, r.parent...)
	}
	r.states.scored = v.Score.OK
	for _, s := range healthStates {
		r.mb.RecordHwGpuHealthStateDataPoint(r.ts, oneIf(v.State == s.state), r.id, s.attribute, r.parent...)
	}
	r.states.tell(v.Reasons)
	for _, told := range r.states.reasons {
		r.mb.RecordHwGpuHealthReasonDataPoint(r.ts, oneIf(told.holds), r.id, told.reason, healthActions[told.action], r.parent...)
	}
}

// last says that what was said of a GPU that is no longer waited for is over.
func (r *recorder) last(s *gpuhealth.Sample, v *gpuhealth.Verdict) {
	r.of(s)
	r.mb.RecordHwGpuUpDataPoint(r.ts, over, s.UUID, upReasons[cmp.Or(r.states.up, s.Reason)])
	r.states.scored = true
	r.verdict(v)
}
