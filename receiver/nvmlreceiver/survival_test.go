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
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"google.golang.org/grpc"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
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

type kubelet struct {
	podresourcesapi.UnimplementedPodResourcesListerServer
}

func (kubelet) List(context.Context, *podresourcesapi.ListPodResourcesRequest) (*podresourcesapi.ListPodResourcesResponse, error) {
	return &podresourcesapi.ListPodResourcesResponse{PodResources: []*podresourcesapi.PodResources{{
		Name: "train-0", Namespace: "ml", Containers: []*podresourcesapi.ContainerResources{{
			Name: "worker", Devices: []*podresourcesapi.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: []string{fakenvml.UUID(1)}}},
		}},
	}}}, nil
}

func TestAllocation(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	fakenvml.NewState(2).Install(t)
	library := fakenvml.Library(t)
	change := func(cfg *Config) {
		cfg.LibraryPath, cfg.PodResources.Socket, cfg.PodResources.CacheDuration, cfg.PodResources.Timeout = library, socket, 0, time.Minute
		cfg.Metrics.HwGpuAllocation.Enabled = true
	}

	// Without a kubelet everything else is there.
	n := startNode(t, change)
	md := n.first()
	assert.Equal(t, upAll(2), up(md))
	assert.Empty(t, find(md, "hw.gpu.allocation", nil))
	n.scrape()
	n.shutdown()
	assert.Equal(t, 1, n.logs.FilterMessage("no hw.gpu.allocation: the kubelet does not say which pods hold which GPU").Len())
	failures, err := n.telemetry.GetMetric("otelcol_receiver_nvml_pod_resources_failures")
	require.NoError(t, err)
	assert.EqualValues(t, 2, sumOf(t, failures))

	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	require.NoError(t, err)
	server := grpc.NewServer()
	podresourcesapi.RegisterPodResourcesListerServer(server, kubelet{})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); require.NoError(t, <-served) })
	n = startNode(t, change)
	md = n.first()
	n.shutdown()
	assert.Equal(t, map[string]any{
		"hw.id": fakenvml.UUID(1), "k8s.pod.name": "train-0", "k8s.namespace.name": "ml", "k8s.container.name": "worker", "shared": false,
	}, point(t, md, "hw.gpu.allocation", nil).Attributes().AsRaw())
	for _, p := range points(md) {
		if pod, ok := p.Attributes().Get("k8s.pod.name"); ok {
			assert.Equal(t, "train-0", pod.Str())
		}
	}
}

// TestCallsAreTimed: the histogram of the receiver's own has every call of a scrape.
func TestCallsAreTimed(t *testing.T) {
	n, _ := startFake(t, fakenvml.NewState(1))
	n.first()
	duration, err := n.telemetry.GetMetric("otelcol_receiver_nvml_call_duration")
	require.NoError(t, err)
	histogram, ok := duration.Data.(metricdata.Histogram[float64])
	require.True(t, ok)
	require.Len(t, histogram.DataPoints, 1)
	assert.Greater(t, histogram.DataPoints[0].Count, uint64(20))
	n.shutdown()
}
