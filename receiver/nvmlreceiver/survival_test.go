// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvmlreceiver

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"google.golang.org/grpc"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
	"github.com/gpu-collector/gpu-collector/internal/lastvalue/otlp"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/nvml"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
)

// TestRelease lets an operator unload the driver: while the file is there no
// GPU has a point, and the driver may come back as another one.
func TestRelease(t *testing.T) {
	state := fakenvml.NewState(2)
	rewrite := state.Install(t)
	library, file := fakenvml.Library(t), filepath.Join(t.TempDir(), "release")
	n := startNode(t, func(cfg *Config) { cfg.LibraryPath, cfg.ReleaseFile = library, file })
	assert.Equal(t, upAll(2), up(n.first()))

	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for range 3 {
		assert.Zero(t, n.scrape().DataPointCount())
	}
	// Nothing of the old driver is left to see that this one is another.
	state.Set("driver.epoch", 1).Set("driver.version", "580.1")
	rewrite()
	assert.Zero(t, n.scrape().DataPointCount())

	require.NoError(t, os.Remove(file))
	md := n.scrape()
	assert.Equal(t, upAll(2), up(md))
	assert.Len(t, values(md, "hw.gpu.info", map[string]string{"hw.driver_version": "580.1"}), 2)
	assert.Equal(t, map[string]float64{fakenvml.UUID(0): 100, fakenvml.UUID(1): 100}, values(md, "hw.gpu.health.score", nil))
	generations, err := n.telemetry.GetMetric("otelcol_receiver_nvml_driver_generations")
	require.NoError(t, err)
	assert.EqualValues(t, 2, sumOf(t, generations))
	n.shutdown()
	assert.Equal(t, 1, n.logs.FilterMessage("NVML is released: no GPU metrics while the file is there").Len())
	assert.Equal(t, 1, n.logs.FilterMessage("NVML is in use again").Len())
}

// TestLogsAlone has no metrics pipeline: the GPUs are read all the same.
func TestLogsAlone(t *testing.T) {
	state := fakenvml.NewState(1).SetGPU(0, "present", 1)
	rewrite := state.Install(t)
	cfg := createDefaultConfig().(*Config)
	cfg.LibraryPath, cfg.InitialDelay, cfg.RetryInterval = fakenvml.Library(t), 0, time.Nanosecond
	cfg.CollectionInterval, cfg.Deadline, cfg.PodResources.Timeout = 20*time.Millisecond, time.Minute, 20*time.Millisecond
	sink := &consumertest.LogsSink{}
	r, err := createLogs(&instances{}, settings(t).Settings, cfg, sink, nvml.NewLibrary)
	require.NoError(t, err)
	require.NoError(t, r.Start(t.Context(), componenttest.NewNopHost()))
	errorCount := 0
	assert.Eventually(t, func() bool {
		errorCount++ // again and again, as errors from before the first reading are not new
		state.SetGPU(0, "ecc.uncorrected.volatile", errorCount)
		rewrite()
		return sink.LogRecordCount() > 0
	}, time.Minute, time.Millisecond)
	require.NoError(t, r.Shutdown(context.Background()))
	record := sink.AllLogs()[0].ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0)
	assert.Equal(t, gpusemconv.EventHealthChange, record.EventName())
	to, _ := record.Attributes().Get(gpusemconv.AttrHealthTo)
	assert.Equal(t, "unhealthy", to.Str())
	reasons, _ := record.Attributes().Get(gpusemconv.AttrHealthReasons)
	actions, _ := record.Attributes().Get(gpusemconv.AttrHealthActions)
	assert.Equal(t, reasons.Slice().Len(), actions.Slice().Len())
	assert.Positive(t, reasons.Slice().Len())
}

// kubelet has given one pod the device.
type kubelet struct {
	podresourcesapi.UnimplementedPodResourcesListerServer
	device string
}

func (k kubelet) List(context.Context, *podresourcesapi.ListPodResourcesRequest) (*podresourcesapi.ListPodResourcesResponse, error) {
	return &podresourcesapi.ListPodResourcesResponse{PodResources: []*podresourcesapi.PodResources{{
		Name: "train-0", Namespace: "ml", Containers: []*podresourcesapi.ContainerResources{{
			Name: "worker", Devices: []*podresourcesapi.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: []string{k.device}}},
		}},
	}}}, nil
}

func serveKubelet(t *testing.T, socket, device string) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	require.NoError(t, err)
	server := grpc.NewServer()
	podresourcesapi.RegisterPodResourcesListerServer(server, kubelet{device: device})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); require.NoError(t, <-served) })
}

func TestAllocation(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	fakenvml.NewState(2).Install(t)
	library := fakenvml.Library(t)
	change := func(cfg *Config) {
		cfg.LibraryPath, cfg.PodResources.Socket, cfg.PodResources.CacheDuration, cfg.PodResources.Timeout = library, socket, 0, time.Minute
	}

	// Without a kubelet everything else is there.
	n := startNode(t, change)
	md := n.first()
	assert.Equal(t, upAll(2), up(md))
	assert.Empty(t, find(md, "hw.gpu.allocation", nil))
	n.scrape()
	n.shutdown()
	assert.Equal(t, 1, n.logs.FilterMessage("hw.gpu.allocation names no pods: the kubelet has no socket here").Len())
	const silent = "the kubelet does not say which pods hold which GPU: hw.gpu.allocation names those of its last answer for five minutes, and then none"
	assert.Zero(t, n.logs.FilterMessage(silent).Len())

	serveKubelet(t, socket, fakenvml.UUID(1))
	n = startNode(t, change)
	md = n.first()
	require.NoError(t, os.Remove(socket))
	n.scrape()
	n.scrape()
	n.shutdown()
	assert.Equal(t, 1, n.logs.FilterMessage(silent).Len(), "a kubelet that was there")
	failures, err := n.telemetry.GetMetric("otelcol_receiver_nvml_pod_resources_failures")
	require.NoError(t, err)
	assert.EqualValues(t, 2, sumOf(t, failures))
	assert.Equal(t, map[string]any{
		"hw.id": fakenvml.UUID(1), "k8s.pod.name": "train-0", "k8s.namespace.name": "ml", "k8s.container.name": "worker", "shared": false,
	}, point(t, md, "hw.gpu.allocation", nil).Attributes().AsRaw())
	for _, p := range points(md) {
		if pod, ok := p.Attributes().Get("k8s.pod.name"); ok {
			assert.Equal(t, "train-0", pod.Str())
		}
	}
}

func TestModels(t *testing.T) {
	library := fakenvml.Library(t)
	for model, state := range map[string]*fakenvml.State{
		"h100": fakenvml.NewH100(1), "b200": fakenvml.NewB200(1), "a100_mig": fakenvml.NewA100MIG(1), "t4": fakenvml.NewT4(1),
	} {
		t.Run(model, func(t *testing.T) {
			state.Install(t)
			n := startNode(t, func(cfg *Config) { cfg.LibraryPath = library })
			md := n.first()
			n.scrape()
			n.shutdown()
			compareGolden(t, model+".yaml", md)
			_, err := n.telemetry.GetMetric("otelcol_receiver_nvml_rejected_fields")
			require.Error(t, err, "nothing is rejected")
			_, err = n.telemetry.GetMetric("otelcol_receiver_nvml_call_failures")
			require.Error(t, err, "no call failed")
		})
	}
}

// TestQuietModelsForwardTheHeartbeatOnly asks for everything that there is.
func TestQuietModelsForwardTheHeartbeatOnly(t *testing.T) {
	library := fakenvml.Library(t)
	for model, state := range map[string]*fakenvml.State{
		"h100": fakenvml.NewH100(8), "b200": fakenvml.NewB200(8), "a100_mig": fakenvml.NewA100MIG(8), "t4": fakenvml.NewT4(8),
	} {
		t.Run(model, func(t *testing.T) {
			engine := otlp.NewEngine(lastvalue.Settings{MaxNodes: 1, MaxSeries: 10_000, TTL: time.Hour})
			push := func(md pmetric.Metrics) (points int64) {
				_, err := engine.Consume(t.Context(), md, func(_ context.Context, m otlp.Message) error {
					points += m.Points
					return nil
				})
				require.NoError(t, err)
				return points
			}

			state.Install(t)
			n := startNode(t, func(cfg *Config) {
				cfg.LibraryPath, cfg.Detail = library, DetailFull
				cfg.Metrics.HwGpuNvlinkLinkErrors.Enabled, cfg.Metrics.HwGpuNvlinkLinkUp.Enabled = true, true
				cfg.Metrics.HwGpuMemoryReserved.Enabled, cfg.Metrics.HwGpuNvlinkBitErrorRate.Enabled = true, true
			})
			push(n.first())
			for range 3 {
				assert.EqualValues(t, 1, push(n.scrape()))
			}
			n.shutdown()
		})
	}
}

// TestXidOfALostGPU: the GPU falls off the bus and says so with Xid 79, which
// has to carry its UUID; then it comes back with another driver session.
func TestXidOfALostGPU(t *testing.T) {
	state := fakenvml.NewH100(2)
	n, rewrite := startFake(t, state)
	assert.Equal(t, map[string]float64{fakenvml.UUID(0): 100, fakenvml.UUID(1): 100}, values(n.first(), "hw.gpu.health.score", nil))

	state.SetGPU(1, "present", 0).XID(1, 79)
	rewrite()
	lost := map[string]string{"gpu.xid.class": "node"}
	assert.Eventually(t, func() bool { return len(find(n.scrape(), "hw.gpu.xid.events", lost)) == 1 }, time.Minute, time.Millisecond)
	md := n.scrape()
	assert.Equal(t, map[string]float64{fakenvml.UUID(1): 1}, values(md, "hw.gpu.xid.events", lost))
	assert.Equal(t, map[string]float64{fakenvml.UUID(0): 100, fakenvml.UUID(1): 0}, values(md, "hw.gpu.health.score", nil))
	assert.NotEmpty(t, find(md, "hw.gpu.health.reason", map[string]string{"reason": "xid_79", "action": "reboot"}))

	state.SetGPU(1, "present", 1)
	rewrite()
	assert.Eventually(t, func() bool { return values(n.scrape(), "hw.gpu.health.score", nil)[fakenvml.UUID(1)] == 100 }, time.Minute, time.Millisecond)
	n.shutdown()
	records := n.logRecords("hw.gpu.xid")
	require.Len(t, records, 1)
	assert.Equal(t, fakenvml.UUID(1), records[0].Attributes().AsRaw()["hw.id"])
	assert.Equal(t, []string{"healthy>unhealthy", "unhealthy>healthy"}, n.healthChanges(fakenvml.UUID(1)))
	assert.Empty(t, n.healthChanges(fakenvml.UUID(0)))
}

// TestWhatTheFieldFound: a board that came up with links down, an error of the
// fabric, and power smoothing that goes and comes.
func TestWhatTheFieldFound(t *testing.T) {
	state := fakenvml.NewH100(8).SetGPU(1, "fabric.status", 999).SetGPU(2, "fabric.summary", 0)
	for link := range 6 {
		state.SetGPU(0, fmt.Sprintf("nvlink.%d.up", link), 0)
	}
	n, rewrite := startFake(t, state)
	n.first()
	var md pmetric.Metrics
	for range 6 { // the first knows of no siblings yet
		md = n.scrape()
	}
	assert.Equal(t, map[string]float64{fakenvml.UUID(0): 1}, values(md, "hw.gpu.health.reason", map[string]string{"reason": "nvlink_fewer", "action": "service"}))
	assert.Equal(t, map[string]float64{fakenvml.UUID(1): 1}, values(md, "hw.gpu.health.reason", map[string]string{"action": "check_fabric_manager"}))
	scores := values(md, "hw.gpu.health.score", nil)
	assert.Equal(t, []float64{50, 30, 100, 100}, []float64{scores[fakenvml.UUID(0)], scores[fakenvml.UUID(1)], scores[fakenvml.UUID(2)], scores[fakenvml.UUID(7)]})

	score := func(want float64) {
		assert.Eventually(t, func() bool { return values(n.scrape(), "hw.gpu.health.score", nil)[fakenvml.UUID(3)] == want }, time.Minute, time.Millisecond)
	}
	state.XID(3, 163)
	rewrite()
	score(50)
	state.XID(3, 162)
	rewrite()
	score(100)
	n.shutdown()
}

// host is a /proc and a /sys with a driver.
type host struct {
	testing.TB
	proc, sys string
}

func newHost(tb testing.TB) *host {
	tb.Helper()
	h := &host{tb, filepath.Join(tb.TempDir(), "proc"), filepath.Join(tb.TempDir(), "sys")}
	require.NoError(tb, os.MkdirAll(filepath.Join(h.proc, "sys", "kernel", "random"), 0o700))
	require.NoError(tb, os.MkdirAll(filepath.Join(h.sys, "module", "nvidia"), 0o700))
	h.boot("first")
	return h
}

func (h *host) boot(id string) {
	h.Helper()
	require.NoError(h, os.WriteFile(filepath.Join(h.proc, "sys", "kernel", "random", "boot_id"), []byte(id+"\n"), 0o600))
}

// reload gives the module another instance: the old one is still there when
// the new one is made, so that no inode is used again.
func (h *host) reload() {
	h.Helper()
	module := filepath.Join(h.sys, "module", "nvidia")
	require.NoError(h, os.Mkdir(module+".new", 0o700))
	require.NoError(h, os.RemoveAll(module))
	require.NoError(h, os.Rename(module+".new", module))
}

// TestReleaseIsNoReset: NVML that was closed and opened has healed no GPU. A
// load of the driver has, or a reset, or an operator who says so.
func TestReleaseIsNoReset(t *testing.T) {
	for name, tt := range map[string]struct {
		meanwhile func(*host, *fakenvml.State)
		healed    bool
	}{
		"nothing":        {meanwhile: func(*host, *fakenvml.State) {}},
		"module removed": {meanwhile: func(h *host, _ *fakenvml.State) { h.reload() }, healed: true},
		"reboot":         {meanwhile: func(h *host, _ *fakenvml.State) { h.boot("second") }, healed: true},
		"other driver":   {meanwhile: func(_ *host, s *fakenvml.State) { s.Set("driver.version", "999.1") }, healed: true},
		"GPU reset":      {meanwhile: func(_ *host, s *fakenvml.State) { s.SetGPU(0, "ecc.uncorrected.volatile", 0) }, healed: true},
		"another's":      {meanwhile: func(_ *host, s *fakenvml.State) { s.SetGPU(1, "ecc.corrected.volatile", 0) }},
	} {
		t.Run(name, func(t *testing.T) {
			h, library := newHost(t), fakenvml.Library(t)
			file := filepath.Join(t.TempDir(), "release")
			state := fakenvml.NewState(2).SetGPU(0, "ecc.uncorrected.volatile", 1).SetGPU(1, "ecc.corrected.volatile", 7)
			rewrite := state.Install(t)
			n := startNode(t, func(cfg *Config) {
				cfg.LibraryPath, cfg.ReleaseFile, cfg.ProcPath, cfg.SysPath = library, file, h.proc, h.sys
			})
			md := n.first()
			state.XID(0, 48)
			rewrite()
			for range 100 {
				if md = n.scrape(); reasonOf(md, "xid_48") {
					break
				}
			}
			require.True(t, reasonOf(md, "xid_48"))
			require.NoError(t, os.WriteFile(file, nil, 0o600))
			assert.Zero(t, n.scrape().DataPointCount())
			tt.meanwhile(h, state)
			rewrite()
			require.NoError(t, os.Remove(file))
			md = n.scrape()
			assert.Equal(t, upAll(2), up(md))
			assert.Equal(t, !tt.healed, reasonOf(md, "xid_48"))
			n.shutdown()
		})
	}
}

func reasonOf(md pmetric.Metrics, reason string) bool {
	return values(md, gpusemconv.MetricGPUHealthReason, map[string]string{"reason": reason})[fakenvml.UUID(0)] == 1
}

// TestAcknowledge: an operator without access to the node but by its files
// ends what no poll ends, and the log says who was meant.
func TestAcknowledge(t *testing.T) {
	library, file := fakenvml.Library(t), filepath.Join(t.TempDir(), "acknowledge")
	state := fakenvml.NewState(2)
	rewrite := state.Install(t)
	n := startNode(t, func(cfg *Config) { cfg.LibraryPath, cfg.AcknowledgeFile = library, file })
	n.first()
	state.XID(0, 48).XID(0, 62)
	rewrite()
	for range 100 {
		if md := n.scrape(); reasonOf(md, "xid_48") && reasonOf(md, "xid_62") {
			break
		}
	}
	require.NoError(t, os.WriteFile(file, []byte("PCI:0000:1b:00 48 # as the kernel writes it\nGPU-gone\nmistake\n"), 0o600))
	assert.True(t, reasonOf(n.scrape(), "xid_48"), "it may not be whole")
	md := n.scrape()
	assert.False(t, reasonOf(md, "xid_48"))
	assert.True(t, reasonOf(md, "xid_62"))
	require.NoError(t, os.WriteFile(file, []byte("all\n"), 0o600))
	n.scrape()
	assert.Equal(t, map[string]float64{fakenvml.UUID(0): 100, fakenvml.UUID(1): 100}, values(n.scrape(), "hw.gpu.health.score", nil))
	n.shutdown()

	assert.Equal(t, []string{"healthy>unhealthy", "unhealthy>unhealthy", "unhealthy>healthy"}, n.healthChanges(fakenvml.UUID(0)))
	records := n.logRecords(gpusemconv.EventHealthChange)
	reasons := func(i int) any { return records[i].Attributes().AsRaw()[gpusemconv.AttrHealthReasons] }
	assert.Equal(t, []any{"acknowledged", "xid_62"}, reasons(1))
	assert.Equal(t, []any{"acknowledged"}, reasons(2))
	assert.Equal(t, 1, n.logs.FilterMessage("a GPU that is acknowledged is not known").Len())
	assert.Equal(t, 1, n.logs.FilterMessage("a line of the file of acknowledgements is not understood").Len())
	assert.Equal(t, 3, n.logs.FilterMessage("an operator has acknowledged the state of a GPU").Len())
}
