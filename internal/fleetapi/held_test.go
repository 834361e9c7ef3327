// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// pods is a node of a job, whose GPUs 0 and 1 a notebook holds and does not use, while
// the training on GPU 2 works.
func pods(a *API, node string) {
	put(a, "c1", node, t0, func(u *fleetstate.Update) {
		u.SetFacts(fleetstate.Facts{JobID: "llama"})
		for i, p := range []string{"notebook", "notebook", "train"} {
			g := u.GPU("GPU-" + node + "-" + string(rune('a'+i)))
			u.SetInfo(g, fleetstate.Info{Index: i, Model: "H100"})
			u.SetGPU(g, reading.Utilization, float64(i/2))
			u.SetPod(g, fleetstate.Pod{Namespace: "ml", Name: p + "-" + node, Container: "main"}, true, true)
		}
	})
}

func TestPodsThatHoldIdleGPUs(t *testing.T) {
	clock := t0
	a := newAPI(func(o *Options) { o.Now = func() time.Time { return clock } })
	pods(a, "n1")
	pods(a, "n2")
	assert.Empty(t, get200[IdlePodPage](t, a, "/api/v1/pods/idle").Pods, "a pause of a moment is none")

	// n2 goes on working, so that its GPUs are idle for less.
	clock = t0.Add(5 * time.Minute)
	u, _ := a.o.Store.Begin(fleetstate.Key{Cluster: "c1", Node: "n2"}, clock)
	u.SetGPU(u.GPU("GPU-n2-a"), reading.Utilization, 1)
	u.Commit(clock)
	clock = t0.Add(20 * time.Minute)
	for _, node := range []string{"n1", "n2"} {
		u, _ := a.o.Store.Begin(fleetstate.Key{Cluster: "c1", Node: node}, clock)
		u.Commit(clock)
	}
	p := get200[IdlePodPage](t, a, "/api/v1/pods/idle")
	require.Len(t, p.Pods, 2)
	zero, one := 0, 1
	assert.Equal(t, IdlePod{
		Cluster: "c1", Node: "n1", JobID: "llama", Namespace: "ml", Pod: "notebook-n1", Held: 2, GPUHours: 2. / 3,
		GPUs: []IdleGPU{
			{UUID: "GPU-n1-a", Index: &zero, Since: t0, SinceBefore: true, Seconds: 1200},
			{UUID: "GPU-n1-b", Index: &one, Since: t0, SinceBefore: true, Seconds: 1200},
		},
	}, p.Pods[0])
	assert.Equal(t, "notebook-n2", p.Pods[1].Pod)
	assert.Len(t, p.Pods[1].GPUs, 1, "the other one works")
	assert.Equal(t, []IdleJob{{Cluster: "c1", JobID: "llama", Pods: 2, GPUs: 3, GPUHours: 1}}, p.Jobs)

	assert.Equal(t, Page{Page: 2, Limit: 1, Total: 2}, get200[IdlePodPage](t, a, "/api/v1/pods/idle?limit=1&page=2").Page)
	for query, n := range map[string]int{
		"minutes=19": 2, "minutes=21": 0, "node=n1": 1, "node=n*": 2, "namespace=ml": 2, "namespace=web": 0, "job=llama": 2, "job=other": 0,
	} {
		assert.Len(t, get200[IdlePodPage](t, a, "/api/v1/pods/idle?"+query).Pods, n, query)
	}
}

// TestAnEpisodeNamesWhoLoses: the job of its node, and the pod on the GPU that it names,
// or the pods of all GPUs where it names none, or an adapter.
func TestAnEpisodeNamesWhoLoses(t *testing.T) {
	a := newAPI(nil)
	pods(a, "n1")
	notebook, train := Pod{"ml", "notebook-n1", "main"}, Pod{"ml", "train-n1", "main"}
	for gpu, want := range map[string][]Pod{
		"GPU-n1-c": {train}, "GPU-n1-a": {notebook}, "": {notebook, train}, "mlx5_0": {notebook, train},
	} {
		ep := &fleetstate.Episode{ID: "e", Subject: "node", Cluster: "c1", Node: "n1", Since: t0, Updated: t0, GPU: gpu}
		a.o.Store.PutEpisode(ep)
		got := get200[Episode](t, a, "/api/v1/episodes/e")
		assert.Equal(t, "llama", got.JobID)
		assert.Equal(t, want, got.Pods, gpu)
	}
	over := &fleetstate.Episode{ID: "e", Subject: "node", Cluster: "c1", Node: "n1", Since: t0, Updated: t0, Ended: t0}
	a.o.Store.PutEpisode(over)
	got := get200[Episode](t, a, "/api/v1/episodes/e")
	assert.Empty(t, got.Pods, "who holds its GPUs now has nothing to do with it")
	assert.Empty(t, got.JobID)
}
