// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// holder is a pod of the idle fleet, on a node of its own.
type holder struct {
	node, job, namespace, pod string
	held, idle                int // GPUs
	since                     time.Duration
	heard                     time.Duration // since when the gateway hears of the node
}

// holders are two workers of a job that waits, a notebook, and pods that are none of the
// list: one works, one has just paused.
var holders = []holder{
	{"gpu-h100-r01-n01.train-east.example.net", "llama-70b", "training", "llama-70b-worker-0", 8, 8, 3 * time.Hour, 4 * time.Hour},
	{"gpu-h100-r01-n02.train-east.example.net", "llama-70b", "training", "llama-70b-worker-1", 8, 8, 2 * time.Hour, 4 * time.Hour},
	{"gpu-h100-r02-n01.train-east.example.net", "", "lab", "<b>notebook-0</b>", 2, 1, 20 * time.Minute, 20 * time.Minute},
	{"gpu-h100-r03-n01.train-east.example.net", "mixtral", "training", "mixtral-worker-0", 8, 0, 0, time.Hour},
	{"gpu-h100-r03-n02.train-east.example.net", "mixtral", "training", "mixtral-worker-1", 8, 8, 5 * time.Minute, time.Hour},
}

// idleFleet begins with what was heard before, and goes on with what is heard now.
func idleFleet(store *fleetstate.Store, tick int) {
	now := time.Now()
	for i := range holders {
		h := &holders[i]
		if tick == 0 {
			h.tell(store, now.Add(-h.heard), h.heard > h.since)
			h.tell(store, now.Add(-h.since), false)
		}
		h.tell(store, now, false)
	}
}

func (h *holder) tell(store *fleetstate.Store, at time.Time, works bool) {
	u, ok := store.Begin(fleetstate.Key{Cluster: sickCluster, Node: h.node}, at)
	if !ok {
		return
	}
	u.SetGroup("idle")
	u.SetFacts(fleetstate.Facts{JobID: h.job})
	u.SetState("active", true)
	for g := range h.held {
		j := u.GPU(fmt.Sprintf("GPU-%s-%d", h.node[:16], g))
		u.SetInfo(j, fleetstate.Info{Model: "NVIDIA H100 80GB HBM3", Index: g})
		u.SetUp(j, 1, "ok")
		u.SetHealth(j, fleetstate.Healthy, true)
		use := 0.97
		if g < h.idle && !works {
			use = 0
		}
		u.SetGPU(j, reading.Utilization, use)
		u.SetPod(j, fleetstate.Pod{Namespace: h.namespace, Name: h.pod, Container: "main"}, true, true)
	}
	u.Commit(at)
}
