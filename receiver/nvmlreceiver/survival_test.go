// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvmlreceiver

import (
	"context"
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

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
)

// TestLogsAlone has no metrics pipeline: the GPUs are read all the same.
func TestLogsAlone(t *testing.T) {
	state := fakenvml.NewState(1).SetGPU(0, "present", 1)
	rewrite := state.Install(t)
	cfg := createDefaultConfig().(*Config)
	cfg.LibraryPath, cfg.InitialDelay, cfg.RetryInterval = fakenvml.Library(t), 0, time.Nanosecond
	cfg.CollectionInterval, cfg.Deadline, cfg.PodResources.Timeout = 20*time.Millisecond, time.Minute, 20*time.Millisecond
	sink := &consumertest.LogsSink{}
	r, err := createLogs(&instances{}, settings(t).Settings, cfg, sink)
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
	const noAnswer = "the kubelet does not say which pods hold which GPU: hw.gpu.allocation names those of its last answer for five minutes, and then none"
	assert.Zero(t, n.logs.FilterMessage(noAnswer).Len())
	const failed = "otelcol_receiver_nvml_pod_resources_failures"
	_, err := n.telemetry.GetMetric(failed)
	require.Error(t, err, "nothing has failed")

	serveKubelet(t, socket, fakenvml.UUID(1))
	n = startNode(t, change)
	md = n.first()
	require.NoError(t, os.Remove(socket))
	n.scrape()
	n.scrape()
	n.shutdown()
	assert.Equal(t, 1, n.logs.FilterMessage(noAnswer).Len(), "a kubelet that was there")
	failures, err := n.telemetry.GetMetric(failed)
	require.NoError(t, err)
	assert.EqualValues(t, 2, sumOf(t, failures))
	assert.Equal(t, map[string]any{
		"hw.id": fakenvml.UUID(1), "k8s.pod.name": "train-0", "k8s.namespace.name": "ml", "k8s.container.name": "worker", "shared": false,
	}, point(t, md, "hw.gpu.allocation", nil).Attributes().AsRaw())
}

func TestModels(t *testing.T) {
	library := fakenvml.Library(t)
	for model, state := range map[string]*fakenvml.State{
		"h100": fakenvml.NewH100(1), "b200": fakenvml.NewB200(1), "a100_mig": fakenvml.NewA100MIG(1), "t4": fakenvml.NewT4(1),
		"eight_gpus": fakenvml.NewState(8).SetGPU(3, "throttle", "0xE5"),
	} {
		t.Run(model, func(t *testing.T) {
			state.Install(t)
			n := startNode(t, func(cfg *Config) { cfg.LibraryPath = library })
			md := n.first()
			compareGolden(t, model+".yaml", md)
			for _, p := range points(md) {
				assert.Equal(t, points(md)[0].Timestamp(), p.Timestamp(), "one report has one time")
			}
			compareGolden(t, model+".yaml", n.scrape()) // a quiet GPU has no changes
			n.shutdown()
			_, err := n.telemetry.GetMetric("otelcol_receiver_nvml_rejected_fields")
			require.Error(t, err, "nothing is rejected")
		})
	}
}

// TestReleaseIsNoReset: NVML that was closed and opened has healed no GPU. A
// load of the driver has, or a reset, or an operator's acknowledgement.
func TestReleaseIsNoReset(t *testing.T) {
	ecc := func(first, second int) func(*fakenvml.State) {
		return func(s *fakenvml.State) {
			s.SetGPU(0, "ecc.uncorrected.volatile", first).SetGPU(1, "ecc.corrected.volatile", second)
		}
	}
	module := func(m *machine) string { return filepath.Join(m.sys, "module", "nvidia") }
	for name, tt := range map[string]struct {
		meanwhile func(*machine)
		healed    bool
	}{
		"nothing": {meanwhile: func(*machine) {}},
		// The old one is still there when the new one is made, so that no inode is used again.
		"module removed": {meanwhile: func(m *machine) {
			require.NoError(m, os.Rename(module(m), module(m)+".old"))
			require.NoError(m, os.Mkdir(module(m), 0o700))
		}, healed: true},
		"reboot": {meanwhile: func(m *machine) { m.boots++ }, healed: true},
		"other driver": {meanwhile: func(m *machine) {
			m.driver = func(s *fakenvml.State) { ecc(1, 7)(s); s.Set("driver.version", "999.1") }
		}, healed: true},
		"GPU reset": {meanwhile: func(m *machine) { m.driver = ecc(0, 7) }, healed: true},
		"another's": {meanwhile: func(m *machine) { m.driver = ecc(1, 0) }},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, 2, true, false)
			require.NoError(t, os.MkdirAll(module(m), 0o700))
			m.driver = ecc(1, 7)
			m.poll()
			ill := map[string]string{"hw.id": m.slots[0].uuid, "reason": "xid_48"}
			m.agent.onXid(gpuhealth.XidEvent{UUID: m.slots[0].uuid, Code: 48, Time: m.now})
			require.EqualValues(t, 1, point(t, m.poll(), gpusemconv.MetricGPUHealthReason, ill).IntValue())
			require.NoError(t, os.WriteFile(m.release, nil, 0o600))
			assert.Zero(t, m.poll().DataPointCount())
			tt.meanwhile(m)
			require.NoError(t, os.Remove(m.release))
			md := m.poll()
			assert.Equal(t, [3]int{2, 2, 0}, counts(md))
			assert.Equal(t, !tt.healed, point(t, md, gpusemconv.MetricGPUHealthReason, ill).IntValue() == 1)
			generations, err := m.telemetry.GetMetric("otelcol_receiver_nvml_driver_generations")
			require.NoError(t, err)
			assert.EqualValues(t, 2, sumOf(t, generations))
			m.stop()
			assert.Len(t, m.lines("NVML is released: no GPU metrics while the file is there"), 1)
			assert.Len(t, m.lines("NVML is in use again"), 1)
		})
	}
}

func reasonOf(md pmetric.Metrics, reason string) bool {
	return values(md, gpusemconv.MetricGPUHealthReason, map[string]string{"reason": reason})[fakenvml.UUID(0)] == 1
}

// TestAcknowledge: an operator without access to the node but by its files
// ends what no poll ends, and the log has the GPU that was meant.
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
