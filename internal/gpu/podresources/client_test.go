// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/protobuf/proto"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// grpcLog is what gRPC writes to the log of the process.
var grpcLog = &recording{}

// recording takes warnings and errors.
type recording struct {
	mu    sync.Mutex
	lines []string
}

func (r *recording) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, string(line))
	return len(line), nil
}

func (r *recording) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { r.lines = nil }()
	return r.lines
}

func TestMain(m *testing.M) {
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, grpcLog, grpcLog))
	goleak.VerifyTestMain(m)
}

// TestAbsentKubeletIsNotInTheLog: the caller logs it once, and gRPC not at all.
func TestAbsentKubeletIsNotInTheLog(t *testing.T) {
	socket := socketPath(t)
	c, at := client(t, socket, time.Minute)
	grpcLog.take()
	ask := func() error {
		at.now = at.now.Add(time.Minute)
		_, _, err := c.Allocations(t.Context())
		return err
	}
	for range 3 {
		require.ErrorContains(t, ask(), "cannot reach the kubelet")
		_, fresh, err := c.Allocations(t.Context())
		assert.False(t, fresh, "an error is good for the TTL too")
		require.ErrorContains(t, err, socket)
	}
	assert.Empty(t, grpcLog.take(), "no socket")

	stop := serve(t, socket, &kubelet{list: answer()})
	require.NoError(t, ask())
	stop()
	for range 3 {
		require.ErrorContains(t, ask(), "cannot reach the kubelet")
	}
	assert.Empty(t, grpcLog.take(), "a kubelet that went")
}

// kubelet is a pod-resources server on a unix socket.
type kubelet struct {
	podresourcesapi.UnimplementedPodResourcesListerServer
	list  func(context.Context) (*podresourcesapi.ListPodResourcesResponse, error)
	calls int
}

func (k *kubelet) List(ctx context.Context, _ *podresourcesapi.ListPodResourcesRequest) (*podresourcesapi.ListPodResourcesResponse, error) {
	k.calls++
	return k.list(ctx)
}

func socketPath(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "kubelet.sock")
}

func serve(t *testing.T, socket string, k *kubelet) (stop func()) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	require.NoError(t, err)
	server := grpc.NewServer()
	podresourcesapi.RegisterPodResourcesListerServer(server, k)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	stop = sync.OnceFunc(func() {
		server.Stop()
		require.NoError(t, <-done)
	})
	t.Cleanup(stop)
	return stop
}

// clock is the time of a client.
type clock struct{ now time.Time }

func client(t *testing.T, socket string, deadline time.Duration) (*Client, *clock) {
	t.Helper()
	at := &clock{now: time.Unix(1000, 0)}
	c := New(Config{
		Socket: socket, ResourcePrefixes: []string{"nvidia.com/", "gpu.nvidia.com"}, CacheDuration: 15 * time.Second, Timeout: deadline,
	})
	c.now = func() time.Time { return at.now }
	return c, at
}

func answer(pods ...*podresourcesapi.PodResources) func(context.Context) (*podresourcesapi.ListPodResourcesResponse, error) {
	return func(context.Context) (*podresourcesapi.ListPodResourcesResponse, error) {
		return &podresourcesapi.ListPodResourcesResponse{PodResources: pods}, nil
	}
}

func pod(name string, containers ...*podresourcesapi.ContainerResources) *podresourcesapi.PodResources {
	return &podresourcesapi.PodResources{Name: name, Namespace: "ml", Containers: containers}
}

func container(name, resource string, ids ...string) *podresourcesapi.ContainerResources {
	return &podresourcesapi.ContainerResources{
		Name:    name,
		Devices: []*podresourcesapi.ContainerDevices{{ResourceName: resource, DeviceIds: ids}},
	}
}

func TestAllocations(t *testing.T) {
	socket := socketPath(t)
	k := &kubelet{list: answer(
		pod("train-0", container("worker", "nvidia.com/gpu", uuid, "GPU-b"), container("sidecar", "example.com/nic", "GPU-c")),
		pod("serve-0", container("model", "nvidia.com/mig-1g.10gb", "MIG-a"), container("model-2", "nvidia.com/gpu.shared", "GPU-d::3", "not-a-gpu")),
		pod("claim-0", &podresourcesapi.ContainerResources{Name: "c", DynamicResources: []*podresourcesapi.DynamicResource{{
			ClaimResources: []*podresourcesapi.ClaimResource{
				{DriverName: "gpu.nvidia.com", DeviceName: "gpu-7", CdiDevices: []*podresourcesapi.CDIDevice{{Name: "k8s.gpu.nvidia.com/claim=x-gpu-5"}}},
				{DriverName: "gpu.nvidia.com", DeviceName: "gpu-6"},
				{DriverName: "nic.example.com", DeviceName: "gpu-4"},
				{DriverName: "example.com", DeviceName: "x", CdiDevices: []*podresourcesapi.CDIDevice{{Name: "example.com/x=gpu-0"}}},
				{DriverName: "gpu.nvidia.com", DeviceName: "gpu-3", CdiDevices: []*podresourcesapi.CDIDevice{{Name: "example.com/nic=gpu-0"}}},
			},
		}}}),
	)}
	serve(t, socket, k)
	c, at := client(t, socket, time.Minute)

	got, fresh, err := c.Allocations(t.Context())
	require.NoError(t, err)
	assert.True(t, fresh)
	gpu := func(id string) Device { return Device{UUID: id, Minor: -1, GPUInstance: -1} }
	shared := gpu("GPU-d")
	shared.Shared = true
	assert.Equal(t, []Allocation{
		{gpu(uuid), Container{Pod: "train-0", Namespace: "ml", Name: "worker"}},
		{gpu("GPU-b"), Container{Pod: "train-0", Namespace: "ml", Name: "worker"}},
		{gpu("MIG-a"), Container{Pod: "serve-0", Namespace: "ml", Name: "model"}},
		{shared, Container{Pod: "serve-0", Namespace: "ml", Name: "model-2"}},
		{Device{Minor: 5, GPUInstance: -1}, Container{Pod: "claim-0", Namespace: "ml", Name: "c"}},
		{Device{Minor: 6, GPUInstance: -1}, Container{Pod: "claim-0", Namespace: "ml", Name: "c"}},
		{Device{Minor: 3, GPUInstance: -1}, Container{Pod: "claim-0", Namespace: "ml", Name: "c"}},
	}, got)

	k.list = answer()
	at.now = at.now.Add(14 * time.Second)
	cached, fresh, err := c.Allocations(t.Context())
	require.NoError(t, err)
	assert.False(t, fresh)
	assert.Equal(t, got, cached)
	assert.Equal(t, 1, k.calls)

	at.now = at.now.Add(time.Second)
	got, fresh, err = c.Allocations(t.Context())
	require.NoError(t, err)
	assert.True(t, fresh)
	assert.Empty(t, got)
	assert.Equal(t, 2, k.calls)
}

func TestHangingKubelet(t *testing.T) {
	socket := socketPath(t)
	serve(t, socket, &kubelet{list: func(ctx context.Context) (*podresourcesapi.ListPodResourcesResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	c, _ := client(t, socket, 50*time.Millisecond)
	got, _, err := c.Allocations(t.Context())
	require.ErrorContains(t, err, "DeadlineExceeded")
	assert.Empty(t, got)
}

// A kubelet that restarts has its pods afterwards.
func TestTheLastAnswerStandsForAWhile(t *testing.T) {
	socket := socketPath(t)
	k := &kubelet{list: answer(pod("p", container("c", "nvidia.com/gpu", uuid)))}
	serve(t, socket, k)
	c, at := client(t, socket, time.Minute)
	got, _, err := c.Allocations(t.Context())
	require.NoError(t, err)
	require.Len(t, got, 1)

	k.list = func(context.Context) (*podresourcesapi.ListPodResourcesResponse, error) { return nil, errors.New("no") }
	for minute := 1; minute <= 6; minute++ {
		at.now = at.now.Add(time.Minute)
		got, _, err = c.Allocations(t.Context())
		require.Error(t, err)
		assert.Equal(t, minute < 5, len(got) == 1, "after %d minutes", minute)
	}
	k.list = answer()
	at.now = at.now.Add(time.Minute)
	got, _, err = c.Allocations(t.Context())
	require.NoError(t, err)
	assert.Empty(t, got)
}

// FuzzAllocations has whole answers, as bytes on the socket.
func FuzzAllocations(f *testing.F) {
	for _, p := range []*podresourcesapi.PodResources{
		pod("train-0", container("worker", "nvidia.com/gpu", uuid, "GPU-b::3"), container("sidecar", "example.com/nic", "GPU-c")),
		pod("p", container("x", "nvidia.com/mig-1g.10gb", "nvidia0/gi2", "not-a-gpu")),
		pod("claim-0", &podresourcesapi.ContainerResources{Name: "c", DynamicResources: []*podresourcesapi.DynamicResource{{
			ClaimResources: []*podresourcesapi.ClaimResource{
				{DriverName: "gpu.nvidia.com", DeviceName: "gpu-7", CdiDevices: []*podresourcesapi.CDIDevice{{Name: "k8s.gpu.nvidia.com/claim=x-gpu-5"}}},
				{DriverName: "gpu.nvidia.com", DeviceName: "gpu-6-mig-9-4-4"},
			},
		}}}),
	} {
		data, err := proto.Marshal(&podresourcesapi.ListPodResourcesResponse{PodResources: []*podresourcesapi.PodResources{p, nil}})
		require.NoError(f, err)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		response := &podresourcesapi.ListPodResourcesResponse{}
		if proto.Unmarshal(data, response) != nil {
			return // gRPC refuses it
		}
		for _, a := range allocations(response, []string{"nvidia.com/", "gpu.nvidia.com"}) {
			require.NotEqual(t, a.Device.UUID == "", a.Device.Minor < 0, "%+v", a.Device)
		}
	})
}

const uuid = "GPU-7d1a0b6e-2b0e-4f0d-9d39-0123456789ab"

func TestParseDevice(t *testing.T) {
	for id, want := range map[string]Device{
		uuid:                     {UUID: uuid, Minor: -1, GPUInstance: -1},
		uuid + "::3":             {UUID: uuid, Minor: -1, GPUInstance: -1, Shared: true},
		"MIG-abc":                {UUID: "MIG-abc", Minor: -1, GPUInstance: -1},
		"MIG-" + uuid + "/1/0":   {UUID: "MIG-" + uuid + "/1/0", Minor: -1, GPUInstance: -1},
		"MIG-abc::0":             {UUID: "MIG-abc", Minor: -1, GPUInstance: -1, Shared: true},
		"nvidia0":                {Minor: 0, GPUInstance: -1},
		"nvidia11":               {Minor: 11, GPUInstance: -1},
		"nvidia0/gi1":            {Minor: 0, GPUInstance: 1},
		"nvidia0/vgpu1":          {Minor: 0, GPUInstance: -1, Shared: true},
		"nvidia0/gi2/vgpu1":      {Minor: 0, GPUInstance: 2, Shared: true},
		"nvidia.com/gpu=" + uuid: {UUID: uuid, Minor: -1, GPUInstance: -1},
		"nvidia.com/gpu=gpu-3":   {Minor: 3, GPUInstance: -1},
		"gpu-1":                  {Minor: 1, GPUInstance: -1},
		"gpu-1-mig-9-4-4":        {Minor: 1, GPUInstance: -1, Shared: true},
		"k8s.gpu.nvidia.com/device=0c1c2d7e-3f0a-4d53-a0e2-aa0000000000-gpu-0":  {Minor: 0, GPUInstance: -1},
		"k8s.gpu.nvidia.com/claim=0c1c2d7e-3f0a-4d53-a0e2-aa0000000000-" + uuid: {UUID: uuid, Minor: -1, GPUInstance: -1},
	} {
		got, ok := ParseDevice(id)
		assert.True(t, ok, id)
		assert.Equal(t, want, got, id)
	}
	for _, id := range []string{
		"", "nvidia", "nvidiactl", "nvidia-1", "nvidia0/", "nvidia0/gi", "nvidia0/gi1/gi2", "nvidia0/vgpu1/gi1",
		"nvidia0/vgpu1/vgpu2", "nvidia0/gi1/vgpu1/x", "GPU-", "MIG-", "GPU- ", "GPU-\xff", "gpu-", "gpu-x", "gpu-1-x", "xgpu-1",
		"nvidia99999", "all", "example.com/x=gpu-0", "notnvidia.com/gpu=" + uuid, "gpu=gpu-0", "x=nvidia.com/gpu-0",
	} {
		got, ok := ParseDevice(id)
		assert.False(t, ok, "%q is %+v", id, got)
	}
}
