// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/gpu/podresources"
	"github.com/gpu-collector/gpu-collector/internal/platform/logsink"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/roster"
	"github.com/gpu-collector/gpu-collector/test/eventdoc"
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
	pciDevice(t, sys, "0000:7b:00.0", "0x10de", "0x030000", "nouveau")  // a display's board
	pciDevice(t, sys, "0000:3c:00.0", "0x10de", "0x030200", "nvgrace-gpu-vfio-pci")
	pciDevice(t, sys, "0000:1a:00.0", "0x10de", "0x060400", "pcieport") // a bridge
	for i, driver := range []string{"", "nvidia", "vfio-pci", "nvidia-vgpu-vfio"} {
		vf := pciDevice(t, sys, fmt.Sprintf("0000:1b:00.%d", i+4), "0x10de", "0x030200", driver)
		require.NoError(t, os.Symlink("../0000:1b:00.0", filepath.Join(vf, "physfn")))
	}
	assert.Zero(t, expected(), "the bus is looked at once a minute")
	now = now.Add(inventoryInterval)
	assert.Equal(t, 2, expected())
	shown, handedOver, others := v.gpus()
	assert.Equal(t, []string{"0000:1b:00.0", "0000:2b:00.0"}, shown)
	assert.Equal(t, []string{"0000:3b:00.0", "0000:3c:00.0"}, handedOver)
	assert.Equal(t, []string{"0000:7b:00.0"}, others)

	require.NoError(t, os.Symlink("nouveau", filepath.Join(gone, "driver")))
	now = now.Add(inventoryInterval)
	assert.Equal(t, 1, expected(), "a board that another driver took is not missing")
	require.NoError(t, os.Remove(filepath.Join(gone, "driver")))
	now = now.Add(inventoryInterval)
	assert.Equal(t, 2, expected())
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

	all, last := x.all()
	assert.Equal(t, map[string]int64{"GPU-1": 79, "GPU-2": -1}, last)
	require.Len(t, all, maxStrangeXids+2+2)
	assert.EqualValues(t, 1, all[xidSeries{"GPU-1", 79}])
	assert.EqualValues(t, 2, all[xidSeries{"GPU-1", 1_000}])
	assert.EqualValues(t, 10_000-maxStrangeXids, all[xidSeries{"GPU-1", otherXid}], "the counter loses none")
	assert.EqualValues(t, 1, all[xidSeries{"GPU-2", 1_500}])
	assert.EqualValues(t, 1, all[xidSeries{"GPU-2", otherXid}], "no negative code but this one")
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

// TestEventsAreDocumented compares docs/events.md with records that have all
// that a record can have.
func TestEventsAreDocumented(t *testing.T) {
	sink := &consumertest.LogsSink{}
	l := logs{sink: logsink.New(sink, zap.NewNop(), 2, func() {}), resource: pcommon.NewResource(), now: time.Now}
	l.sink.Start()
	l.xid(&gpuhealth.XidEvent{
		UUID: "GPU-1", Code: 94,
		GPUInstance: gpuhealth.Some[uint32](1), ComputeInstance: gpuhealth.Some[uint32](0),
	}, &gpuhealth.Xid{Code: 94, Class: gpuhealth.XidApplication, Immediate: "RESTART_APP", Action: gpuhealth.ActionRestartApp})
	var sample gpuhealth.Sample
	sample.UUID, sample.Parent = "MIG-1", "GPU-1"
	l.health(&sample, &gpuhealth.Verdict{
		State: gpuhealth.StateDegraded, Previous: gpuhealth.StateHealthy, Changed: true, Score: gpuhealth.Some(70),
	}, "")
	l.sink.Shutdown(t.Context())

	got := map[string][]string{}
	for _, ld := range sink.AllLogs() {
		lr := ld.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0)
		got[lr.EventName()] = slices.Sorted(maps.Keys(lr.Attributes().AsRaw()))
	}
	for _, event := range []string{gpusemconv.EventXid, gpusemconv.EventHealthChange} {
		want, err := eventdoc.Attributes("../../docs/events.md", event)
		require.NoError(t, err)
		assert.Equal(t, want, got[event], event)
	}
}

func TestStartTimes(t *testing.T) {
	var s startTimes
	start := func(metric, gpu string, ts pcommon.Timestamp, value int64) pcommon.Timestamp {
		md := pmetric.NewMetrics()
		m := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
		m.SetName(metric)
		m.SetEmptySum().SetIsMonotonic(true)
		dp := m.Sum().DataPoints().AppendEmpty()
		dp.Attributes().PutStr("hw.id", gpu)
		dp.SetTimestamp(ts)
		dp.SetIntValue(value)
		other := md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().AppendEmpty().SetEmptySum().DataPoints().AppendEmpty()
		other.SetStartTimestamp(3)
		s.apply(md)
		assert.EqualValues(t, 3, other.StartTimestamp(), "a sum that may go down is left alone")
		return dp.StartTimestamp()
	}
	assert.EqualValues(t, 10, start("e", "a", 10, 5), "unknown start: the first point's own time")
	assert.EqualValues(t, 10, start("e", "a", 30, 9))
	assert.EqualValues(t, 35, start("e", "b", 35, 1), "series are apart")
	assert.EqualValues(t, 30, start("e", "a", 40, 8), "reset after the last point")
	assert.EqualValues(t, 35, start("e", "b", 70, 1))
	assert.EqualValues(t, 80, start("f", "b", 80, 0))
}

func TestStartTimesAreBounded(t *testing.T) {
	var s startTimes
	dp := pmetric.NewNumberDataPoint()
	for i := range maxSeries + 5 {
		dp.Attributes().PutInt("hw.gpu.nvlink.link", int64(i))
		s.start("m", dp)
	}
	assert.Len(t, s.series, 5, "all began anew")
}

func TestRecordAllocations(t *testing.T) {
	const gpuB = "GPU-00000000-0000-4000-8000-00000000000b"
	samples := []gpuhealth.Sample{
		{Identity: gpuhealth.Identity{UUID: gpuA, Index: 1, Minor: some[uint32](0)}},
		{Identity: gpuhealth.Identity{UUID: gpuB, Index: 0, Minor: some[uint32](1)}, Reason: gpuhealth.ReasonOK},
		{Identity: gpuhealth.Identity{UUID: "GPU-lost", Index: 2, Minor: some[uint32](1)}, Reason: gpuhealth.ReasonLost}, // of another load of the driver
		{Identity: gpuhealth.Identity{UUID: sliceA, Index: 0, MIG: gpuhealth.MIG{Parent: gpuB, GPUInstance: some[uint32](7), ComputeInstance: some[uint32](0)}}},
	}
	type point struct {
		id, parent, pod string
		shared          bool
	}
	for name, tt := range map[string]struct {
		devices map[string]string // id to pod
		want    []point
	}{
		"a GPU":                         {map[string]string{gpuA: "p"}, []point{{gpuA, "", "p", false}}},
		"a slice":                       {map[string]string{sliceA: "p"}, []point{{sliceA, gpuB, "p", false}}},
		"two slices of time of one":     {map[string]string{gpuA + "::0": "p", gpuA + "::1": "p"}, []point{{gpuA, "", "p", true}}},
		"two pods on slices of time":    {map[string]string{gpuA + "::0": "p", gpuA + "::1": "q"}, []point{{gpuA, "", "p", true}, {gpuA, "", "q", true}}},
		"two pods on a whole GPU":       {map[string]string{gpuA: "p", "nvidia0": "q"}, []point{{gpuA, "", "p", true}, {gpuA, "", "q", true}}},
		"a slice of GKE's":              {map[string]string{"nvidia1/gi7": "p"}, []point{{sliceA, gpuB, "p", false}}},
		"GKE's time-sharing":            {map[string]string{"nvidia0/vgpu1": "p"}, []point{{gpuA, "", "p", true}}},
		"DRA":                           {map[string]string{"k8s.gpu.nvidia.com/device=gpu-1": "p"}, []point{{gpuB, "", "p", false}}},
		"a GPU that NVML does not know": {map[string]string{"GPU-x": "p", "nvidia9": "p", "nvidia1/gi9": "p"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var allocations []podresources.Allocation
			for id, pod := range tt.devices {
				device, ok := podresources.ParseDevice(id)
				assert.True(t, ok, id)
				allocations = append(allocations, podresources.Allocation{
					Device: device, Container: podresources.Container{Pod: pod, Namespace: "ml", Name: "main"},
				})
			}
			cfg := metadata.NewDefaultMetricsBuilderConfig()
			mb := metadata.NewMetricsBuilder(cfg, settings(t).Settings)
			p := pods{log: zap.NewNop()}
			relate(mb, 1, samples, allocations, p.gpus(samples, allocations, 3), nil, nil)
			var got []point
			for _, p := range points(mb.Emit()) {
				a := p.Attributes().AsRaw()
				parent, _ := a["hw.parent"].(string)
				pod, _ := a["k8s.pod.name"].(string)
				assert.Equal(t, "ml", a["k8s.namespace.name"])
				assert.Equal(t, "main", a["k8s.container.name"])
				got = append(got, point{a["hw.id"].(string), parent, pod, a["shared"].(bool)})
			}
			assert.ElementsMatch(t, tt.want, got)
		})
	}
}
