// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
)

// health is what the nvml receiver thinks of the GPUs of a node. Only nodes with
// a fault have one: of the others nothing is wrong.
type health struct {
	monitor *gpuhealth.Monitor
	xids    [][fleetsim.MaxXids]xid // that were heard of
	reasons [][]reason              // that held once, by GPU
}

func newHealth(rubric *gpuhealth.Rubric, gpus int) *health {
	return &health{
		monitor: gpuhealth.NewMonitor(rubric),
		xids:    make([][fleetsim.MaxXids]xid, gpus),
		reasons: make([][]reason, gpus),
	}
}

// judge judges a GPU by one reading more.
func (h *health) judge(v *values, r *fleetsim.Reading, gpu int, id gpuhealth.Identity, spec *fleetsim.Spec, now time.Time) {
	for i, x := range r.Xids {
		for range min(x.Count-h.xids[gpu][i].Count, 1) {
			h.monitor.ObserveXid(gpuhealth.XidEvent{UUID: id.UUID, Code: x.Code, Time: now})
		}
	}
	h.xids[gpu] = r.Xids
	sample := r.Sample(id, spec)
	verdict := h.monitor.Observe(&sample, now)
	v.judge(&verdict)

	told := h.reasons[gpu]
	for i := range told {
		told[i].holds = false
	}
	for _, active := range verdict.Reasons {
		found := reason{active.Reason, string(active.Action), false}
		at := slices.IndexFunc(told, func(r reason) bool { return r.reason == found.reason && r.action == found.action })
		if at < 0 {
			at = len(told)
			told = append(told, found)
		}
		told[at].holds = true
	}
	h.reasons[gpu] = told
	v.reasons = append(v.reasons[:0], told...)
}
