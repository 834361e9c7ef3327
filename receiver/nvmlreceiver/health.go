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

// The states in an order that does not change.
var (
	healthStates   = slices.Sorted(maps.Keys(metadata.MapAttributeHealthState))
	hardwareStates = slices.Sorted(maps.Keys(metadata.MapAttributeHwState))
)

// verdict adds what is thought of the sample that was recorded last.
func (r *recorder) verdict(v *gpuhealth.Verdict) {
	for i, name := range hardwareStates {
		// The states of health, which always have a point, say the same.
		is := string(v.Hardware) == name
		if r.tells(setStatus, i, is, name == string(gpuhealth.HardwareOK)) {
			r.mb.RecordHwStatusDataPoint(r.ts, oneIf(is), r.id, gpuType, metadata.MapAttributeHwState[name], r.parent...)
		}
	}
	switch {
	case v.Score.OK:
		r.mb.RecordHwGpuHealthScoreDataPoint(r.ts, int64(v.Score.V), r.id, r.parent...)
	case r.states.scored:
		r.mb.RecordHwGpuHealthScoreDataPoint(r.ts, over, r.id, r.parent...)
	}
	r.states.scored = v.Score.OK
	for _, name := range healthStates {
		r.mb.RecordHwGpuHealthStateDataPoint(r.ts, oneIf(string(v.State) == name), r.id, metadata.MapAttributeHealthState[name], r.parent...)
	}
	r.states.tell(v.Reasons)
	for _, told := range r.states.reasons {
		r.mb.RecordHwGpuHealthReasonDataPoint(r.ts, oneIf(told.holds), r.id, told.reason, metadata.MapAttributeHealthAction[string(told.action)], r.parent...)
	}
}

// last says that what was said of a GPU that is no longer waited for is over.
func (r *recorder) last(s *gpuhealth.Sample, v *gpuhealth.Verdict) {
	r.of(s)
	r.mb.RecordHwGpuUpDataPoint(r.ts, over, s.UUID, metadata.MapAttributeUpReason[string(cmp.Or(r.states.up, s.Reason))])
	r.states.scored = true
	r.verdict(v)
}
