// SPDX-License-Identifier: Apache-2.0

package fleettop

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/fleetapi"
	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gatewayclient"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

// idlePage has two jobs and a notebook without one, on so many nodes.
func idlePage(pods int) *fleetclient.IdlePodPage {
	p := &fleetclient.IdlePodPage{At: t0, Total: int64(pods), Jobs: []fleetclient.IdleJob{
		{Cluster: "prod", JobID: "llama-70b", Pods: 2, GpusIdle: 16, GPUHoursIdle: 48.2},
		{Cluster: "prod", JobID: "", Pods: int64(pods - 2), GpusIdle: 1, GPUHoursIdle: 0.3},
	}}
	for i := range pods {
		pod := fleetclient.IdlePod{
			Cluster: "prod", Node: fmt.Sprintf("gpu-%03d", i), JobID: new("llama-70b"), Namespace: "training", Pod: fmt.Sprintf("llama-70b-worker-%d", i), GpusHeld: 8, GPUHoursIdle: 24.1,
		}
		for g := range int64(8) {
			pod.Gpus = append(pod.Gpus, fleetclient.IdleGPU{UUID: fmt.Sprintf("GPU-%d", g), Index: &g, Since: t0.Add(-3 * time.Hour), IdleSeconds: 10800, SinceBefore: new(true)})
		}
		if i >= 2 {
			pod.JobID, pod.Namespace, pod.Pod, pod.GPUHoursIdle, pod.Gpus = nil, "lab", fmt.Sprintf("notebook-%d", i), 0.3, pod.Gpus[:1]
			pod.Gpus[0].IdleSeconds, pod.Gpus[0].SinceBefore = 1080, nil
		}
		p.Pods = append(p.Pods, pod)
	}
	return p
}

func TestPodsThatHoldIdleGPUs(t *testing.T) {
	f := testFleet(40)
	s := newScreen(t, f)
	s.load()
	assert.False(t, s.source.idle, "nobody looks at them")
	f.Idle = &fleetclient.IdlePodPage{}
	s.press("i")
	assert.True(t, s.source.idle)
	s.golden("idle-none")
	f.Idle = idlePage(3)
	s.press("r")
	s.golden("idle")
	s.press("enter")
	assert.Nil(t, s.source.detail, "the list of nodes is not shown")
	s.now = s.now.Add(time.Hour)
	assert.Contains(t, s.View(), "4h+", "time goes on while the gateway is away")
	s.press("i")
	assert.NotContains(t, s.View(), "HELD, NOT USED")
	s.press("i", "esc")
	assert.NotContains(t, s.View(), "HELD, NOT USED")
	s.press("r")
	assert.False(t, s.source.idle)

	f.Idle = idlePage(30)
	f.Idle.Total = 1030
	s.press("i")
	first := strings.Contains(s.View(), "HELD, NOT USED")
	s.press("end")
	assert.True(t, first)
	assert.NotContains(t, s.View(), "HELD, NOT USED")
	assert.Contains(t, s.View(), "and 1000 more: ask api/v1/pods/idle")
	s.press("up")
	assert.NotContains(t, s.View(), "and 1000 more", "one line up, from wherever the end is")
}

func TestIdlePodsBeforeTheFirstAnswer(t *testing.T) {
	s := newScreen(t, testFleet(20))
	s.press("i")
	assert.Contains(t, s.View(), "asking for the pods that hold idle GPUs")
	assert.Zero(t, s.source.loads, "the first load is still under way")
}

func TestNamesOfPodsCannotWriteToTheTerminal(t *testing.T) {
	evil := "\x1b[2J\r\u202eowned"
	f := testFleet(20)
	f.Summary.Clusters = 2
	f.Idle = idlePage(3)
	p, j := &f.Idle.Pods[0], &f.Idle.Jobs[0]
	p.Cluster, p.Node, p.Namespace, p.Pod, p.JobID, j.Cluster, j.JobID = evil, evil, evil, evil, &evil, evil, evil
	s := newScreen(t, f)
	s.load()
	s.send(tea.WindowSizeMsg{Width: 200, Height: 40})
	s.press("i")
	assert.Contains(t, s.View(), "owned")
	for _, raw := range []string{"\x1b", "\r", "\u202e"} {
		assert.NotContains(t, s.View(), raw)
	}
}

// TestAsksTheGatewayForIdlePods asks the API itself.
func TestAsksTheGatewayForIdlePods(t *testing.T) {
	store := fleetstate.New(fleetstate.DefaultConfig())
	begin := time.Now().Add(-20 * time.Minute)
	for _, at := range []time.Time{begin, time.Now()} {
		u, ok := store.Begin(fleetstate.Key{Cluster: "east", Node: "n1"}, at)
		require.True(t, ok)
		g := u.GPU("GPU-1")
		u.SetGPU(g, reading.Utilization, 0)
		u.SetPod(g, fleetstate.Pod{Namespace: "lab", Name: "notebook", Container: "main"}, true, true)
		u.Commit(at)
	}
	srv := httptest.NewServer(fleetapi.New(fleetapi.Options{Store: store, Feed: fleetstate.NewFeed(store, 1)}))
	defer srv.Close()
	s := settings{Settings: gatewayclient.Settings{Endpoint: srv.URL}, interval: time.Second}
	require.NoError(t, s.check())
	client, err := s.Client()
	require.NoError(t, err)
	source := NewSource(client, []string{"east"})
	f, err := source.Load(t.Context(), Ask{})
	require.NoError(t, err)
	assert.Nil(t, f.Idle)
	f, err = source.Load(t.Context(), Ask{Idle: true})
	require.NoError(t, err)
	require.Len(t, f.Idle.Pods, 1)
	assert.Equal(t, "notebook", f.Idle.Pods[0].Pod)
}
