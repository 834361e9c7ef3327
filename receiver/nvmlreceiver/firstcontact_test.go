// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvmlreceiver

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/nvml"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
)

// answered polls until all GPUs answer: a call that hung returns soon after it may.
func (m *machine) answered() {
	m.Helper()
	m.driver, m.deadline = nil, defaultDeadline
	require.Eventually(m, func() bool { c := counts(m.poll()); return c[0] == c[1] }, time.Minute, time.Millisecond)
}

func (m *machine) lines(message string) (lines []map[string]any) {
	for _, line := range m.logs.FilterMessage(message).All() {
		lines = append(lines, line.ContextMap())
	}
	return lines
}

// A GPU that has not answered since the agent's start is neither found nor lost, however
// it is known and whatever is slow.
func TestFirstContactIsNoLoss(t *testing.T) {
	set := func(key string, value any) func(*fakenvml.State) {
		return func(s *fakenvml.State) { s.Set(key, value) }
	}
	for name, tt := range map[string]struct {
		slow  func(*fakenvml.State)
		why   string // NVML's error of GPU 1
		known string // of GPU 1, which is at index 1; empty: nothing of it but from the list or bus
	}{
		"no driver":               {slow: set("driver.loaded", 0)},
		"nvmlInit fails":          {slow: set("call.nvmlInit_v2.return", 999)},
		"nvmlInit hangs":          {slow: set("hang", "nvmlInit_v2")},
		"the count hangs":         {slow: set("hang", "nvmlDeviceGetCount_v2")},
		"the count fails":         {slow: set("call.nvmlDeviceGetCount_v2.return", 999)},
		"no handle":               {slow: set("call.nvmlDeviceGetHandleByIndex_v2.return", 999), why: ": unknown (999)"},
		"one is not listed":       {slow: set("count", 1)},
		"all hang":                {slow: func(s *fakenvml.State) { s.SetGPU(0, "hang", "*").SetGPU(1, "hang", "*") }, known: "index 1"},
		"a handle hangs":          {slow: set("gpu.1.hang", "nvmlDeviceGetHandleByIndex_v2"), known: "index 1"},
		"a handle is not ready":   {slow: set("gpu.1.call.nvmlDeviceGetHandleByIndex_v2.return", 27), known: "index 1", why: ": not_ready (27)"},
		"a UUID hangs":            {slow: set("gpu.1.hang", "nvmlDeviceGetUUID"), known: "index 1"},
		"the first reading hangs": {slow: set("gpu.1.hang", "nvmlDeviceGetTemperatureV"), known: "index 1"},
	} {
		for _, kept := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", kept ", kept), func(t *testing.T) {
				m := newMachine(t, 2, true, kept)
				slow := m.slots[1].uuid
				m.stop()
				if kept {
					m.start()
					m.poll()
					m.stop()
					tt.known = slow
				} else if tt.known == "" {
					tt.known = "0000:" + address(1)
				}
				m.driver, m.interval, m.deadline = tt.slow, time.Second, 300*time.Millisecond
				m.start()
				for i := range 3 {
					md := m.poll()
					assert.Equal(t, 2, counts(md)[0])
					assert.Positive(t, pending(md))
					assert.NotContains(t, up(md), slow)
					for _, metric := range []string{gpusemconv.MetricGPUHealthState, gpusemconv.MetricGPUHealthReason} {
						assert.NotContains(t, values(md, metric, nil), slow)
					}
					if i == 0 { // the other one may be late too, but it has not answered before either
						assert.Zero(t, counts(md)[2])
					}
				}
				logged := m.lines("GPUs have not answered yet")
				require.NotEmpty(t, logged)
				assert.Contains(t, fmt.Sprint(logged[0]["known"]), tt.known)
				assert.Contains(t, fmt.Sprint(logged[0]["known"]), tt.why)
				m.answered()
				assert.Len(t, m.lines("GPUs have not answered yet"), len(logged), "it is logged once")
				m.stop()
				of := m.logs.FilterField(zap.String("gpu", slow))
				first := of.FilterMessage("GPU answers for the first time").All()
				require.Len(t, first, 1)
				assert.Equal(t, "00000000:"+address(1), first[0].ContextMap()["pci_bus_id"])
				assert.GreaterOrEqual(t, first[0].ContextMap()["after"], 2*time.Second)
				assert.Zero(t, of.FilterMessage("GPU does not answer").Len())
			})
		}
	}
}

// The wait has an end, and is none for a GPU that was lost or has answered before.
func TestTheWaitForAFirstAnswerEnds(t *testing.T) {
	m := newMachine(t, 3, false, true)
	m.poll()
	m.slots[0].answers = false
	m.poll()
	m.stop()
	m.slots[0].answers, m.deadline, m.interval = true, 300*time.Millisecond, time.Second
	one := func(s *fakenvml.State) { s.SetGPU(0, "hang", "*") }
	both := func(s *fakenvml.State) { one(s); s.SetGPU(1, "hang", "*") }
	m.driver = both
	m.start()
	md := m.poll()
	assert.Equal(t, "hang", up(md)[m.slots[0].uuid], "it was lost before the restart")
	assert.Equal(t, 1, counts(md)[2])
	assert.NotContains(t, up(md), m.slots[1].uuid)

	m.restart() // what is pending is not kept as lost
	m.poll()
	m.driver = one
	require.Eventually(t, func() bool { return up(m.poll())[m.slots[1].uuid] == "ok" }, time.Minute, time.Millisecond)
	assert.Empty(t, m.lines("GPUs that have not answered count as lost"), "the one that is lost was before")

	m.driver = both
	m.restart()
	md = m.poll()
	assert.Equal(t, 1, counts(md)[2])
	m.now = m.now.Add(firstContact - 2*time.Second)
	assert.NotContains(t, up(m.poll()), m.slots[1].uuid)
	md = m.poll()
	assert.Equal(t, "hang", up(md)[m.slots[1].uuid])
	assert.Zero(t, pending(md))
	assert.Equal(t, []map[string]any{{"gpus": int64(1), "after": firstContact}}, m.lines("GPUs that have not answered count as lost"))
	m.answered()

	m.restart()
	m.answered()
	m.slots[1].answers = false
	assert.Equal(t, "lost", up(m.poll())[m.slots[1].uuid], "it has answered since the start")
	m.stop()
}

// After a release the driver is met anew.
func TestTheContactAfterAReleaseIsAFirstOne(t *testing.T) {
	m := newMachine(t, 2, false, false)
	m.poll()
	m.now = m.now.Add(time.Hour)
	require.NoError(t, os.WriteFile(m.release, nil, 0o600))
	m.poll()
	require.NoError(t, os.Remove(m.release))
	m.driver = func(s *fakenvml.State) { s.Set("driver.loaded", 0) }
	md := m.poll()
	assert.Equal(t, [3]int{2, 0, 0}, counts(md))
	assert.Equal(t, 2, pending(md))
	m.poll()
	assert.Len(t, m.lines("NVML is in trouble"), 1, "it is logged once")
	m.answered()
	m.stop()
}

// Each GPU that NVML does not name is logged with NVML's error, once, and its end.
func TestAGPUWithoutAHandleIsNamed(t *testing.T) {
	const message = "GPU is not reported, as NVML does not tell its UUID"
	m := newMachine(t, 3, true, true)
	m.interval = time.Second
	failing := func(gpu int, call string, code int) func(*fakenvml.State) {
		return func(s *fakenvml.State) { s.SetGPU(gpu, "call."+call+".return", code) }
	}
	m.driver = failing(1, "nvmlDeviceGetHandleByIndex_v2", 999)
	assert.Equal(t, [3]int{3, 2, 1}, counts(m.poll()), "the driver has reported it")
	m.poll()
	m.driver = failing(1, "nvmlDeviceGetUUID", 17)
	m.poll()
	m.poll()
	assert.Equal(t, []map[string]any{
		{"index": int64(1), "pci_bus_id": "0000:" + address(1), "reason": "error", "error": "unknown (999)"},
		{"index": int64(1), "pci_bus_id": "00000000:" + address(1), "reason": "error", "error": "operating_system (17)"},
	}, m.lines(message))
	m.answered()
	assert.Len(t, m.lines("GPU answers for the first time"), 1)

	// One that has a name is logged with it.
	m.driver = failing(1, "nvmlDeviceGetTemperatureV", 16)
	m.poll()
	m.poll()
	assert.Equal(t, []map[string]any{{
		"gpu": m.slots[1].uuid, "index": int64(1), "pci_bus_id": "00000000:" + address(1), "reason": "reset_required", "error": "reset_required (16)",
	}}, m.lines("GPU does not answer"))
	m.answered()
	assert.Len(t, m.lines("GPU answers again"), 1)

	m.driver = failing(1, "nvmlDeviceGetHandleByIndex_v2", 999)
	m.restart()
	assert.Equal(t, "error", up(m.poll())[m.slots[1].uuid], "also where it is the first report of it")
	m.stop()
}

// TestDevicesByMinorNumber: /dev/nvidia0 is NVML's GPU 1. Without a number no GPU is named,
// unless it is the only one.
func TestDevicesByMinorNumber(t *testing.T) {
	const lines = "hw.gpu.allocation lacks a device: no GPU is known to have its minor number"
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	serveKubelet(t, socket, "nvidia0")
	library := fakenvml.Library(t)
	for name, tt := range map[string]struct {
		gpus, more int // that answer, and that should
		nvml, want []string
		logged     int
	}{
		"NVML":                         {gpus: 2, nvml: []string{"1", "0"}, want: []string{fakenvml.UUID(1)}},
		"no source":                    {gpus: 2, logged: 1},
		"another's":                    {gpus: 2, nvml: []string{"4", "5"}, logged: 1},
		"of one that is not there yet": {gpus: 2, more: 1, nvml: []string{"4", "5"}},
		"one of several":               {gpus: 1, more: 1},
		"one, of unknown number":       {gpus: 1, want: []string{fakenvml.UUID(0)}},
		"one, which is another":        {gpus: 1, nvml: []string{"3"}, logged: 1},
	} {
		t.Run(name, func(t *testing.T) {
			state := fakenvml.NewState(tt.gpus)
			for i, minor := range tt.nvml {
				state.SetGPU(i, "minor", minor)
			}
			state.Install(t)
			n := startNode(t, func(cfg *Config) {
				cfg.LibraryPath, cfg.PodResources.Socket, cfg.PodResources.CacheDuration, cfg.PodResources.Timeout = library, socket, 0, time.Minute
				cfg.ExpectedGPUs = tt.gpus + tt.more
			})
			var got []string
			n.first()
			for uuid := range values(n.scrape(), "hw.gpu.allocation", nil) {
				got = append(got, uuid)
			}
			n.shutdown()
			assert.Equal(t, tt.want, got)
			assert.Equal(t, tt.logged, n.logs.FilterMessage(lines).Len())
		})
	}
}

// An acknowledgement of a GPU that has not answered yet is applied once it has, and one
// that a virtual machine has by now is not waited for.
func TestAcknowledgementOfAPendingGPU(t *testing.T) {
	m := newMachine(t, 3, true, true)
	m.poll()
	acked, given := m.slots[1].uuid, m.slots[2].uuid
	m.agent.onXid(gpuhealth.XidEvent{UUID: acked, Code: 48, Time: m.now})
	m.stop()
	m.interval, m.deadline = time.Second, 300*time.Millisecond
	m.driver = func(s *fakenvml.State) { s.SetGPU(1, "hang", "*") }
	m.slots[2].answers, m.slots[2].listed, m.slots[2].vfio = false, false, true
	m.start()
	m.acknowledge(acked)
	assert.Equal(t, 2, counts(m.poll())[0])
	assert.Equal(t, given, m.lines("a GPU is no longer waited for")[0]["gpu"])
	m.answered()
	m.poll()
	m.poll()
	assert.Len(t, m.lines("an operator has acknowledged the state of a GPU"), 1)
	m.stop()

	loads := driverLoads{}
	loads.note(&nvml.Report{Down: gpuhealth.ReasonDriverNotLoaded})
	_, gone := loads.opened(&nvml.Report{})
	assert.True(t, gone, "also where no GPU is reported")
}
