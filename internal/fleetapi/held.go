// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
)

// IdlePodPage is a page of pods that hold GPUs and do not use them.
type IdlePodPage struct {
	Page
	At   time.Time `json:"at"`
	Pods []IdlePod `json:"pods"`
	Jobs []IdleJob `json:"jobs" doc:"The same by job, over all pages: the 1000 that hold up most"`
}

// IdlePod is a pod that holds GPUs of a node and does not use all of them.
type IdlePod struct {
	Cluster   string    `json:"cluster"`
	Node      string    `json:"node"`
	JobID     string    `json:"job_id,omitempty"`
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	Held      int       `json:"gpus_held" doc:"GPUs and MIG slices that the pod holds"`
	GPUs      []IdleGPU `json:"gpus" doc:"Those that do nothing"`
	GPUHours  float64   `json:"gpu_hours_idle" doc:"So far, of all of them"`
}

// IdleGPU is a GPU that does nothing.
type IdleGPU struct {
	UUID        string    `json:"uuid"`
	Index       *int      `json:"index,omitempty" doc:"NVML's index; no identity"`
	Since       time.Time `json:"since"`
	SinceBefore bool      `json:"since_before,omitempty" doc:"It began at that time or earlier, when the gateway first heard of it"`
	Seconds     float64   `json:"idle_seconds"`
}

// IdleJob sums the pods of a job. Pods without one are summed under an empty name.
type IdleJob struct {
	Cluster  string  `json:"cluster"`
	JobID    string  `json:"job_id"`
	Pods     int     `json:"pods"`
	GPUs     int     `json:"gpus_idle"`
	GPUHours float64 `json:"gpu_hours_idle" doc:"So far"`
}

const maxIdleJobs = 1000

type listIdlePodsInput struct {
	Cluster   []string `query:"cluster,explode" maxItems:"100" doc:"Only of these clusters"`
	Node      []string `query:"node,explode" maxItems:"1000" doc:"Only of nodes of these names; abc* stands for all names that begin with abc"`
	Namespace []string `query:"namespace,explode" maxItems:"100" doc:"Only of these namespaces"`
	Job       []string `query:"job,explode" maxItems:"100" doc:"Only of these jobs"`
	Minutes   int      `query:"minutes" minimum:"0" maximum:"100000" default:"10" doc:"Only GPUs that have done nothing for so long"`
	PageParams
}

func (a *API) listIdlePods(_ context.Context, in *listIdlePodsInput) (*IdlePodPage, error) {
	c := a.converter()
	all := a.o.Store.HeldIdle(&fleetstate.Filter{Clusters: in.Cluster, Names: in.Node}, c.now, time.Duration(in.Minutes)*time.Minute)
	all = slices.DeleteFunc(all, func(h fleetstate.HeldIdle) bool {
		return len(in.Namespace) > 0 && !slices.Contains(in.Namespace, h.Namespace) || len(in.Job) > 0 && !slices.Contains(in.Job, h.JobID)
	})
	part := slice(all, &in.PageParams)
	out := &IdlePodPage{Page: in.page(len(part), len(all)), At: c.now.UTC(), Pods: make([]IdlePod, len(part)), Jobs: idleJobs(all)}
	for i := range part {
		out.Pods[i] = c.idlePod(&part[i])
	}
	return out, nil
}

func (c *converter) idlePod(h *fleetstate.HeldIdle) IdlePod {
	out := IdlePod{
		Cluster: h.Cluster, Node: h.Node, JobID: h.JobID, Namespace: h.Namespace, Pod: h.Pod,
		Held: h.Held, GPUs: make([]IdleGPU, len(h.GPUs)), GPUHours: h.Idle.Hours(),
	}
	for i, g := range h.GPUs {
		since := time.UnixMilli(g.IdleSince)
		out.GPUs[i] = IdleGPU{UUID: g.UUID, Since: since.UTC(), SinceBefore: g.IdleBefore, Seconds: c.age(since)}
		if g.Index >= 0 {
			out.GPUs[i].Index = &g.Index
		}
	}
	return out
}

func idleJobs(all []fleetstate.HeldIdle) []IdleJob {
	type key struct{ cluster, job string }
	at := map[key]int{}
	list := []IdleJob{}
	for i := range all {
		h := &all[i]
		k := key{h.Cluster, h.JobID}
		if _, known := at[k]; !known {
			at[k] = len(list)
			list = append(list, IdleJob{Cluster: h.Cluster, JobID: h.JobID})
		}
		j := &list[at[k]]
		j.Pods++
		j.GPUs += len(h.GPUs)
		j.GPUHours += h.Idle.Hours()
	}
	slices.SortFunc(list, func(a, b IdleJob) int {
		return cmp.Or(cmp.Compare(b.GPUHours, a.GPUHours), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.JobID, b.JobID))
	})
	return list[:min(len(list), maxIdleJobs)]
}

// maxEpisodePods bounds the holders of an episode.
const maxEpisodePods = 64

// holders are the job of an episode's node and the containers that hold the GPU that it
// names, or all of the node's where it names none.
func (c *converter) holders(e *fleetstate.Episode) (job string, pods []Pod) {
	v, known := c.store.Node(fleetstate.Key{Cluster: e.Cluster, Node: e.Node}, c.now)
	if !known {
		return "", nil
	}
	uuid := cmp.Or(e.GPU, e.Culprit.GPU)
	// The reason may point at a network adapter, which nobody holds.
	if !slices.ContainsFunc(v.GPUs, func(g fleetstate.GPU) bool { return g.UUID == uuid }) {
		uuid = ""
	}
	for i := range v.GPUs {
		for _, p := range v.GPUs[i].Pods {
			if p := pod(p); (uuid == "" || v.GPUs[i].UUID == uuid) && len(pods) < maxEpisodePods && !slices.Contains(pods, p) {
				pods = append(pods, p)
			}
		}
	}
	return v.JobID, pods
}

func pod(p fleetstate.Pod) Pod {
	return Pod{Namespace: p.Namespace, Pod: p.Name, Container: p.Container}
}
