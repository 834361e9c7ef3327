// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvmlreceiver

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadatatest"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/nvml"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
	"github.com/gpu-collector/gpu-collector/test/property"
)

// board is a GPU in a slot of the machine.
type board struct {
	uuid    string
	answers bool
	listed  bool // by NVML
	onBus   bool
	vfio    bool
}

// machine is the hardware, the driver and the agent of one node: the agent
// reads the GPUs through the real ABI.
type machine struct {
	testing.TB
	slots   []board
	epoch   int
	boots   int
	boards  int
	proc    string
	library string
	state   string
	sys     string // empty: the bus cannot be read
	shown   string // slots that sys is of
	ack     string
	kept    string // the directory of the state file; empty: none
	release string
	driver  func(*fakenvml.State) // what else is true of it
	live    map[string]bool       // series of hw.gpu.up that have not ended

	testSettings
	agent    *gpuScraper
	now      time.Time
	interval time.Duration
	deadline time.Duration
}

func newMachine(tb testing.TB, slots int, withBus, withStorage bool) *machine {
	tb.Helper()
	dir := tb.TempDir()
	m := &machine{
		TB: tb, library: fakenvml.Library(tb), now: testTime, live: map[string]bool{},
		proc: filepath.Join(dir, "proc"), state: filepath.Join(dir, "state"), ack: filepath.Join(dir, "ack"),
		release: filepath.Join(dir, "release"), interval: inventoryInterval, deadline: defaultDeadline,
	}
	tb.Setenv(fakenvml.StateEnv, m.state)
	if withBus {
		m.sys = filepath.Join(dir, "sys")
	}
	if withStorage {
		m.kept = filepath.Join(dir, "kept")
	}
	for range slots {
		m.slots = append(m.slots, m.newBoard())
	}
	m.start()
	return m
}

func (m *machine) newBoard() board {
	m.boards++
	return board{uuid: fakenvml.UUID(m.boards), answers: true, listed: true, onBus: true}
}

func address(slot int) string { return fmt.Sprintf("%02x:00.0", 0x10+slot) }

// write makes the driver and the bus what the hardware is.
func (m *machine) write() {
	m.Helper()
	var listed []int
	for i := range m.slots {
		if m.slots[i].listed {
			listed = append(listed, i)
		}
	}
	kernel := filepath.Join(m.proc, "sys", "kernel", "random")
	require.NoError(m, os.MkdirAll(kernel, 0o750))
	require.NoError(m, os.WriteFile(filepath.Join(kernel, "boot_id"), fmt.Append(nil, "boot-", m.boots, "\n"), 0o600))
	state := fakenvml.NewState(len(listed)).Set("driver.epoch", m.epoch)
	for index, i := range listed {
		b := &m.slots[i]
		state.SetGPU(index, "uuid", b.uuid).SetGPU(index, "pci", "00000000:"+address(i))
		if !b.answers {
			state.SetGPU(index, "present", 0)
		}
	}
	if m.driver != nil {
		m.driver(state)
	}
	require.NoError(m, state.Write(m.state))
	shown := fmt.Sprint(m.slots)
	if m.sys == "" || shown == m.shown {
		return
	}
	m.shown = shown
	require.NoError(m, os.RemoveAll(m.sys))
	require.NoError(m, os.MkdirAll(filepath.Join(m.sys, "bus", "pci", "devices"), 0o750))
	for i := range m.slots {
		if b := &m.slots[i]; b.onBus {
			driver := "nvidia"
			if b.vfio {
				driver = "vfio-pci"
			}
			pciDevice(m, m.sys, "0000:"+address(i), "0x10de", "0x030200", driver)
		}
	}
}

func (m *machine) start() {
	m.Helper()
	m.write()
	cfg := createDefaultConfig().(*Config)
	cfg.LibraryPath, cfg.RetryInterval, cfg.AcknowledgeFile = m.library, time.Nanosecond, m.ack
	cfg.ReleaseFile, cfg.Deadline = m.release, m.deadline
	cfg.ProcPath, cfg.SysPath = m.proc, "/nonexistent"
	if m.sys != "" {
		cfg.SysPath = m.sys
	}
	cfg.StateDirectory = m.kept
	m.testSettings = settings(m.TB)
	telemetry, err := metadata.NewTelemetryBuilder(m.TelemetrySettings)
	require.NoError(m, err)
	m.agent, err = newScraper(cfg, m.Settings, telemetry)
	require.NoError(m, err)
	poller := m.agent.pollerConfig(cfg)
	poller.OnXid = nil // a wait for events holds a shutdown up
	m.agent.session.open = func() *nvml.Poller { return nvml.NewPoller(poller) }
	m.agent.now = func() time.Time { return m.now }
	require.NoError(m, m.agent.start(context.Background(), nil))
}

func (m *machine) stop() { m.Helper(); require.NoError(m, m.agent.shutdown(context.Background())) }

func (m *machine) restart() { m.Helper(); m.stop(); m.start() }

func (m *machine) reload() { m.epoch++ }

// reboot has another boot id and loads the driver anew; meanwhile the hardware may change.
func (m *machine) reboot(meanwhile func()) {
	m.Helper()
	m.stop()
	meanwhile()
	m.boots++
	m.reload()
	m.start()
}

func (m *machine) poll() pmetric.Metrics {
	m.Helper()
	m.write()
	m.now = m.now.Add(m.interval)
	md, err := m.agent.scrape(context.Background())
	require.NoError(m, err)
	c := counts(md)
	require.Equal(m, c[0], c[1]+c[2]+pending(md))
	for _, p := range findAll(md, gpusemconv.MetricGPUUp, nil) {
		if series := fmt.Sprint(p.Attributes().AsRaw()); p.Flags().NoRecordedValue() {
			delete(m.live, series)
		} else {
			m.live[series] = true
		}
	}
	return md
}

// settle lets the time pass in which first answers are waited for.
func (m *machine) settle() {
	m.Helper()
	m.poll()
	m.now = m.now.Add(firstContact)
}

func pending(md pmetric.Metrics) (n int) {
	for _, p := range find(md, gpusemconv.MetricGPUDevices, map[string]string{"state": "pending"}) {
		n = int(p.IntValue())
	}
	return n
}

func (m *machine) acknowledge(text string) {
	m.Helper()
	require.NoError(m, os.WriteFile(m.ack, []byte(text), 0o600))
	m.poll() // a file is read at the second look
}

// counts are expected, found and lost.
func counts(md pmetric.Metrics) (counts [3]int) {
	for i, state := range []string{"expected", "found", "lost"} {
		for _, p := range find(md, gpusemconv.MetricGPUDevices, map[string]string{"state": state}) {
			counts[i] = int(p.IntValue())
		}
	}
	return counts
}

// down are the GPUs that are reported not to answer, in order.
func down(md pmetric.Metrics) []string {
	var gpus []string
	for uuid, reason := range up(md) {
		if reason != "ok" {
			gpus = append(gpus, uuid)
		}
	}
	slices.Sort(gpus)
	return gpus
}

// Cases that the property draws seldom or never.
func TestALostGPUStaysLost(t *testing.T) {
	lose := func(m *machine) { m.slots[3].answers = false }
	unlist := func(m *machine) { lose(m); m.slots[3].listed = false }
	gone := func(m *machine) { unlist(m); m.slots[3].onBus = false }
	nothing := func(*machine) {}
	uuid := fakenvml.UUID(4)
	lost, named := [3]int{8, 7, 1}, []string{uuid}
	whole := [3]int{8, 8, 0}
	for name, tt := range map[string]struct {
		noBus, storage bool
		lose, then     func(*machine)
		want           [3]int
		down           []string
	}{
		"restart with the bus only, not listed": {lose: unlist, then: (*machine).restart, want: lost},
		"restart with neither, not listed":      {noBus: true, lose: unlist, then: (*machine).restart, want: [3]int{7, 7, 0}},
		"lost while the agent was away":         {storage: true, lose: nothing, then: func(m *machine) { m.stop(); gone(m); m.start() }, want: lost, down: named},
		"its slot is taken by a board that was there": {
			storage: true, lose: gone,
			then: func(m *machine) {
				m.stop()
				m.slots[3], m.slots[5] = m.slots[5], m.slots[3]
				m.start()
			}, want: lost, down: named,
		},
		"acknowledged, answers, and is lost again": {
			storage: true, lose: lose,
			then: func(m *machine) {
				m.acknowledge(uuid)
				m.poll()
				m.slots[3].answers = true
				assert.Equal(m, whole, counts(m.poll()))
				lose(m)
			}, want: lost, down: named,
		},
		"acknowledged by its address": {
			lose: unlist,
			then: func(m *machine) { m.restart(); m.settle(); m.acknowledge("0000:" + address(3)) }, want: [3]int{7, 7, 0},
		},
		"another one is acknowledged": {
			lose: lose,
			then: func(m *machine) { m.acknowledge(fakenvml.UUID(1)) }, want: lost, down: named,
		},
		"handed to a virtual machine": {lose: nothing, then: func(m *machine) {
			m.slots[3].answers, m.slots[3].listed, m.slots[3].vfio = false, false, true
		}, want: [3]int{7, 7, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, 8, !tt.noBus, tt.storage)
			assert.Equal(t, whole, counts(m.poll()))
			tt.lose(m)
			m.poll()
			tt.then(m)
			m.settle()
			md := m.poll()
			assert.Equal(t, tt.want, counts(md))
			assert.Equal(t, tt.down, down(md))
			assert.Equal(t, tt.want, counts(m.poll()), "it stays so")
			m.stop()
		})
	}
}

// A series of hw.gpu.up ends as soon as another begins, over restarts of the agent too.
func TestTheFormerSeriesEndsOverRestarts(t *testing.T) {
	m := newMachine(t, 2, false, true)
	b := &m.slots[1]
	for _, step := range []struct{ answers, listed bool }{{true, true}, {false, false}, {true, true}, {false, true}, {true, true}} {
		m.stop()
		b.answers, b.listed = step.answers, step.listed
		m.start()
		m.settle()
		m.poll()
		assert.Len(t, m.live, 2, "%v: %v", step, m.live)
	}
	m.stop()
}

// A reboot heals what a load of the driver heals, and a lost GPU is none of that.
func TestAGPUIsLostOverAReboot(t *testing.T) {
	m := newMachine(t, 2, true, true)
	gone := m.slots[1].uuid
	reason := map[string]string{"hw.id": gone, "reason": "gpu_lost"}
	before := point(t, m.poll(), gpusemconv.MetricGPUInfo, map[string]string{"hw.id": gone}).Attributes().AsRaw()
	m.slots[1].answers = false
	m.poll()
	m.reboot(func() { m.slots[1].listed, m.slots[1].onBus = false, false })
	md := m.poll()
	assert.Equal(t, [3]int{2, 1, 1}, counts(md))
	assert.Equal(t, "lost", up(md)[gone], "that the driver no longer lists it finds it no better")
	assert.Equal(t, before, point(t, md, gpusemconv.MetricGPUInfo, map[string]string{"hw.id": gone}).Attributes().AsRaw())
	assert.Equal(t, map[string]float64{gone: 1}, values(md, gpusemconv.MetricGPUHealthReason, reason))
	data, err := m.agent.monitor.Snapshot()
	require.NoError(t, err)
	assert.Contains(t, string(data), `"boot-1"`, "the agent has seen that it was a reboot")

	m.reboot(func() { m.slots[1].answers, m.slots[1].listed, m.slots[1].onBus = true, true, true })
	md = m.poll()
	assert.Equal(t, [3]int{2, 2, 0}, counts(md))
	assert.Equal(t, "ok", up(md)[gone])
	m.poll()
	assert.NotEqual(t, map[string]float64{gone: 1}, values(m.poll(), gpusemconv.MetricGPUHealthReason, reason), "it has answered often enough")
	m.stop()
}

// An end of the wait is reported: to people in the log, to others by points and a record.
func TestTheEndOfTheWaitIsLogged(t *testing.T) {
	m := newMachine(t, 2, false, true)
	m.poll()
	old := m.slots[1].uuid
	m.slots[1].answers = false
	m.poll()
	m.slots[1] = m.newBoard()
	m.reload()
	md := m.poll()
	assert.Equal(t, []string{old}, ended(md, gpusemconv.MetricGPUUp, map[string]string{"reason": "lost"}))
	assert.Equal(t, map[string]float64{old: 0}, values(md, gpusemconv.MetricGPUHealthReason, map[string]string{"hw.id": old, "reason": "gpu_lost"}))
	logs := m.logs.FilterMessage("a GPU is no longer waited for").All()
	require.Len(t, logs, 1)
	assert.Equal(t, map[string]any{
		"gpu": old, "pci_bus_id": "00000000:" + address(1), "serial": "1652422000002", "cause": "replaced", "by": m.slots[1].uuid,
	}, logs[0].ContextMap())
	assert.NotContains(t, up(m.poll()), old)
	m.stop()
}

func TestUnknownGPUCountIsLogged(t *testing.T) {
	const message = "nobody can know whether a GPU was lost before this start; set `state_directory`, `expected_gpus`, or `sys_path` where the host's /sys is"
	for _, tt := range []struct {
		bus, storage, foreign bool
		want                  int
	}{
		{want: 1},
		{bus: true},
		{storage: true},
		// The bus that a container sees has no GPU.
		{bus: true, foreign: true, want: 1},
		{bus: true, foreign: true, storage: true},
	} {
		m := newMachine(t, 1, tt.bus, tt.storage)
		if tt.foreign {
			m.stop()
			m.slots[0].onBus = false
			m.start()
		}
		m.poll()
		m.poll()
		m.stop()
		assert.Equal(t, tt.want, m.logs.FilterMessage(message).Len())
	}
}

// TestLostGPUsProperty: whatever happens to boards, driver and agent, the counts
// are right after each poll. With a state file they are the truth; without one
// they are what was seen since the start, what NVML lists and what the bus shows.
func TestLostGPUsProperty(t *testing.T) {
	property.Checks(t, 15)
	rapid.Check(t, func(rt *rapid.T) {
		const slots = 4
		bus, storage := rapid.Bool().Draw(rt, "bus"), rapid.Bool().Draw(rt, "storage")
		m := newMachine(t, slots, bus, storage)
		defer func() { m.stop() }() // a session that is left open would fail all that follows
		known, acked := map[string]bool{}, map[string]bool{}
		ignored, most := map[int]bool{}, 0
		slot := func() int { return rapid.IntRange(0, slots-1).Draw(rt, "slot") }
		forget := func() {
			if !storage {
				known, acked, ignored = map[string]bool{}, map[string]bool{}, map[int]bool{}
			}
			most = 0
		}
		check := func(rt *rapid.T) {
			md := m.poll()
			found, listed, shown := 0, 0, 0
			for i := range m.slots {
				b := &m.slots[i]
				if b.onBus && bus {
					shown++
				}
				if b.listed {
					listed++
				}
				if b.answers {
					found++
					known[b.uuid] = true
					delete(acked, b.uuid)
					delete(ignored, i)
				}
			}
			most = max(most, shown)
			dismissed := len(acked) + len(ignored)
			expected := max(len(known)-len(acked), max(most, listed)-dismissed)
			assert.Equal(rt, [3]int{expected, found, expected - found}, counts(md))
			var missing []string
			for uuid := range maps.Keys(known) {
				if !acked[uuid] && !slices.ContainsFunc(m.slots, func(b board) bool { return b.uuid == uuid && b.answers }) {
					missing = append(missing, uuid)
				}
			}
			slices.Sort(missing)
			assert.Equal(rt, missing, down(md))
			if storage {
				assert.Len(rt, m.slots, expected+len(acked), "the machine has so many slots")
				assert.Len(rt, m.live, len(up(md)), "a series ends as soon as another begins, over restarts too: %v", m.live)
			}
			if rt.Failed() {
				rt.FailNow()
			}
		}
		check(rt)
		rt.Repeat(map[string]func(*rapid.T){
			"": check,
			"lose": func(*rapid.T) {
				m.slots[slot()].answers = false
			},
			"reload": func(*rapid.T) {
				m.reload()
				for i := range m.slots { // a driver that is loaded anew may not list what is broken
					m.slots[i].listed = m.slots[i].answers || rapid.Bool().Draw(rt, "listed")
				}
			},
			"leave the bus": func(rt *rapid.T) {
				b := &m.slots[slot()]
				if b.answers || b.listed {
					rt.Skip("it is there")
				}
				b.onBus = false
			},
			"answer again": func(*rapid.T) {
				b := &m.slots[slot()]
				b.answers, b.listed, b.onBus = true, true, true
				m.reload()
			},
			"restart": func(*rapid.T) { m.restart(); forget(); m.settle() },
			"reboot":  func(*rapid.T) { m.reboot(func() {}); forget(); m.settle() },
			"swap": func(*rapid.T) {
				i := slot()
				old := m.slots[i].uuid
				m.stop()
				m.slots[i] = m.newBoard()
				m.start()
				forget()
				m.settle()
				delete(known, old)
				delete(acked, old)
			},
			"acknowledge": func(*rapid.T) {
				m.acknowledge("all")
				for i := range m.slots {
					switch b := &m.slots[i]; {
					case b.answers:
					case known[b.uuid]:
						acked[b.uuid] = true
					case bus && b.onBus:
						ignored[i] = true
					}
				}
			},
		})
	})
}

// Xids over the bounds of the health score are counted.
func TestXidsWithoutAPlaceAreCounted(t *testing.T) {
	m := newMachine(t, 1, false, false)
	m.poll()
	for code := range uint64(70) {
		m.agent.monitor.ObserveXid(gpuhealth.XidEvent{UUID: m.slots[0].uuid, Code: 10_000 + code, Time: m.now})
	}
	for range 2 {
		m.poll()
		metadatatest.AssertEqualReceiverNvmlDroppedEvents(t, m.telemetry, []metricdata.DataPoint[int64]{{Value: 6}},
			metricdatatest.IgnoreTimestamp())
	}
	m.stop()
}
