// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// idleBelow is the utilisation below which a GPU does nothing, as in the rule
// pod:hw_gpu_held_idle:count of dashboards/prometheus/rules.yaml.
const idleBelow = 0.01

// noteIdle notes when the GPU began to do nothing.
func (g *GPU) noteIdle(at int64, fresh bool) {
	switch use := g.Get(reading.Utilization); {
	case use == nil || !(*use < idleBelow):
		g.IdleSince, g.IdleBefore = 0, false
	case g.IdleSince == 0:
		g.IdleSince, g.IdleBefore = at, fresh
	}
}

// HeldIdle is a pod that holds GPUs of a node and does not use all of them.
type HeldIdle struct {
	Key
	JobID, Namespace, Pod string
	// GPUs are those that do nothing, by UUID, and Held how many the pod holds.
	GPUs []*GPU
	Held int
	// Idle is how long they have done nothing, all together.
	Idle time.Duration
}

// HeldIdle returns the pods whose GPUs have done nothing for at least so long. The pods
// that hold up most come first. A silent node is left out: it may still work.
func (s *Store) HeldIdle(f *Filter, now time.Time, least time.Duration) []HeldIdle {
	var list []HeldIdle
	ms := now.UnixMilli()
	s.Each(f, now, func(v View) bool {
		if v.State == gpusemconv.StateMissing {
			return true
		}
		from := len(list)
		for i := range v.GPUs {
			g := &v.GPUs[i]
			for j, p := range g.Pods {
				// Several containers of a pod may share the GPU.
				if j > 0 && p.Namespace == g.Pods[j-1].Namespace && p.Name == g.Pods[j-1].Name {
					continue
				}
				at := slices.IndexFunc(list[from:], func(h HeldIdle) bool { return h.Namespace == p.Namespace && h.Pod == p.Name })
				if at < 0 {
					at = len(list) - from
					list = append(list, HeldIdle{Key: v.Key, JobID: v.JobID, Namespace: p.Namespace, Pod: p.Name})
				}
				h := &list[from+at]
				h.Held++
				if idle := time.Duration(ms-g.IdleSince) * time.Millisecond; g.IdleSince > 0 && idle >= least {
					h.GPUs, h.Idle = append(h.GPUs, g), h.Idle+idle
				}
			}
		}
		return true
	})
	list = slices.DeleteFunc(list, func(h HeldIdle) bool { return len(h.GPUs) == 0 })
	slices.SortFunc(list, func(a, b HeldIdle) int {
		return cmp.Or(cmp.Compare(b.Idle, a.Idle), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Node, b.Node),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod))
	})
	return list
}
