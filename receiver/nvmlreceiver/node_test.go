// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/roster"
)

func TestCPUPressure(t *testing.T) {
	dir := t.TempDir()
	core, logs := observer.New(zap.WarnLevel)
	p := cpuPressure{proc: dir, log: zap.New(core)}
	assert.False(t, p.read().OK, "a kernel without PSI")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "pressure"), 0o750))
	file := filepath.Join(dir, "pressure", "cpu")
	for _, bad := range []string{"", "garbage", "full avg10=1.00 avg60=0.00 avg300=0.00 total=0\n", "some avg10=x avg60=0.00 avg300=0.00 total=0\n"} {
		require.NoError(t, os.WriteFile(file, []byte(bad), 0o600))
		assert.False(t, p.read().OK, bad)
	}
	assert.Equal(t, 1, logs.Len(), "one warning, however often")

	require.NoError(t, os.WriteFile(file, []byte("some avg10=25.50 avg60=0.00 avg300=0.00 total=7\n"), 0o600))
	assert.Equal(t, gpuhealth.Some(0.255), p.read())
}

// pciDevice puts a device on the bus of a made-up sysfs.
func pciDevice(t testing.TB, sys, address, vendor, class, driver string) string {
	t.Helper()
	dir := filepath.Join(sys, "bus", "pci", "devices", address)
	require.NoError(t, os.MkdirAll(dir, 0o750))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "vendor"), []byte(vendor+"\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "class"), []byte(class+"\n"), 0o600))
	if driver != "" {
		require.NoError(t, os.Symlink(filepath.Join("..", "..", "drivers", driver), filepath.Join(dir, "driver")))
	}
	return dir
}

func TestInventory(t *testing.T) {
	sys := t.TempDir()
	now, known := testTime, roster.New("")
	v := inventory{sys: sys}
	expected := func() int { v.look(known, now); return known.Expected(0, 0) }
	assert.Zero(t, expected(), "no bus, nothing expected")

	pciDevice(t, sys, "0000:1b:00.0", "0x10de", "0x030200", "nvidia")
	gone := pciDevice(t, sys, "0000:2b:00.0", "0x10de", "0x030000", "")
	pciDevice(t, sys, "0000:3b:00.0", "0x10de", "0x030200", "vfio-pci") // of a virtual machine
	pciDevice(t, sys, "0000:4b:00.0", "0x10de", "0x068000", "")         // an NVSwitch
	pciDevice(t, sys, "0000:4b:00.1", "0x10de", "0x040300", "")         // the sound of a GPU
	pciDevice(t, sys, "0000:5b:00.0", "0x15b3", "0x020700", "")         // a NIC
	pciDevice(t, sys, "0000:6b:00.0", "0x1a03", "0x030000", "")         // the BMC's graphics
	assert.Zero(t, expected(), "the bus is looked at once a minute")
	now = now.Add(inventoryInterval)
	assert.Equal(t, 2, expected())
	shown, handedOver := v.gpus()
	assert.Equal(t, []string{"0000:1b:00.0", "0000:2b:00.0"}, shown)
	assert.Equal(t, []string{"0000:3b:00.0"}, handedOver)

	require.NoError(t, os.RemoveAll(gone))
	now = now.Add(inventoryInterval)
	assert.Equal(t, 2, expected(), "a GPU that left the bus is missing, not unexpected")
	assert.Equal(t, 8, known.Expected(8, 0))
}

// A container that is given some GPUs sees all of them on the bus.
func TestTheBusOfAContainerThatIsGivenSome(t *testing.T) {
	sys := t.TempDir()
	pciDevice(t, sys, "0000:1b:00.0", "0x10de", "0x030200", "nvidia")
	for given, want := range map[string]int{"": 1, "all": 1, "0": 0, "GPU-1,GPU-2": 0, "void": 0, "none": 0} {
		t.Setenv(visibleEnv, given)
		v, known := inventory{sys: sys}, roster.New("")
		v.look(known, testTime)
		assert.Equal(t, want, known.Expected(0, 0), given)
		ok, why := v.readable()
		assert.Equal(t, want == 1, ok)
		assert.Equal(t, want == 0, why != "")
	}
}

func TestXidsAreBounded(t *testing.T) {
	var x xids
	event := func(uuid string, code uint64, known bool) {
		x.add(&gpuhealth.XidEvent{UUID: uuid, Code: code}, known)
	}
	for code := range uint64(10_000) {
		event("GPU-1", 1_000+code, false)
	}
	event("GPU-1", 1_000, false) // what has a series goes on
	event("GPU-1", 79, true)
	event("GPU-2", 1_500, false) // another GPU's garbage is its own
	event("GPU-2", 1<<63, false)

	all := x.all()
	require.Len(t, all, maxStrangeXids+2+2)
	assert.EqualValues(t, 1, all[xidSeries{"GPU-1", "", 79}])
	assert.EqualValues(t, 2, all[xidSeries{"GPU-1", "", 1_000}])
	assert.EqualValues(t, 10_000-maxStrangeXids, all[xidSeries{"GPU-1", "", otherXid}], "the counter loses none")
	assert.EqualValues(t, 1, all[xidSeries{"GPU-2", "", 1_500}])
	assert.EqualValues(t, 1, all[xidSeries{"GPU-2", "", otherXid}], "no negative code but this one")
}

// TestExpectedGPUsWithoutADriver: a node that lost its driver still says that
// its GPUs are missing.
func TestExpectedGPUsWithoutADriver(t *testing.T) {
	n := startNode(t, func(cfg *Config) {
		cfg.LibraryPath = "/nonexistent/libnvidia-ml.so.1"
		cfg.ExpectedGPUs = 8
	})
	md := n.first()
	n.shutdown()
	for state, want := range map[string]int64{"expected": 8, "found": 0, "lost": 8} {
		found := find(md, "hw.gpu.devices", map[string]string{"state": state})
		if assert.Len(t, found, 1, state) {
			assert.Equal(t, want, found[0].IntValue(), state)
		}
	}
	assert.InDelta(t, 0.125, find(md, "gpu.node.cpu.pressure", nil)[0].DoubleValue(), 0)
	assert.Equal(t, 4, md.DataPointCount())
}

func TestXidLogRecord(t *testing.T) {
	n := startNode(t, func(cfg *Config) { cfg.LibraryPath = "/nonexistent/libnvidia-ml.so.1" })
	n.first()
	at := testTime.Add(1500 * time.Millisecond)
	s := n.receiver.scraper
	s.onXid(gpuhealth.XidEvent{UUID: gpuA, Code: 79, Time: at})
	s.onXid(gpuhealth.XidEvent{UUID: gpuA, Code: 31, Time: at, GPUInstance: some[uint32](1), ComputeInstance: some[uint32](0)})
	s.onXid(gpuhealth.XidEvent{UUID: gpuA, Code: 31, Time: at})
	s.onXid(gpuhealth.XidEvent{UUID: "", Code: 31, Time: at})
	md := n.scrape()
	n.shutdown()

	lost := find(md, "hw.gpu.xid.events", map[string]string{"gpu.xid.class": "node"})
	app := find(md, "hw.gpu.xid.events", map[string]string{"gpu.xid.class": "application"})
	require.Len(t, lost, 1)
	require.Len(t, app, 1)
	assert.EqualValues(t, 1, lost[0].IntValue())
	assert.EqualValues(t, 2, app[0].IntValue())
	assert.Less(t, app[0].StartTimestamp(), app[0].Timestamp(), "the count began before the first event")

	records := n.logRecords("hw.gpu.xid")
	require.Len(t, records, 3)
	assert.Equal(t, at.UnixNano(), records[0].Timestamp().AsTime().UnixNano())
	assert.Equal(t, "Error", records[0].SeverityText())
	assert.Equal(t, map[string]any{
		"hw.id": gpuA, "gpu.xid.code": int64(79), "gpu.xid.class": "node",
		"gpu.xid.immediate_action": "RESTART_BM", "hw.gpu.health.action": "reboot",
	}, records[0].Attributes().AsRaw())
	assert.Equal(t, "Warn", records[1].SeverityText())
	assert.Equal(t, map[string]any{
		"hw.id": gpuA, "gpu.xid.code": int64(31), "gpu.xid.class": "application",
		"gpu.xid.immediate_action": "RESTART_APP", "hw.gpu.health.action": "restart_app",
		"gpu.mig.gpu_instance.id": int64(1), "gpu.mig.compute_instance.id": int64(0),
	}, records[1].Attributes().AsRaw())
	resource := n.records.AllLogs()[0].ResourceLogs().At(0).Resource().Attributes().AsRaw()
	assert.Equal(t, "node-1", resource["host.name"])
}
