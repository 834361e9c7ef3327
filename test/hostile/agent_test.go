// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
	"github.com/gpu-collector/gpu-collector/test/loopback"
)

// agentMemory is the least that configs/agent.yaml is made for.
const agentMemory = 200 * mib

// agentBinary is the lean distribution.
func agentBinary(t *testing.T) string {
	t.Helper()
	if file := os.Getenv("GPU_COLLECTOR_AGENT_BINARY"); file != "" {
		return filepath.Join(root, file)
	}
	file := filepath.Join(t.TempDir(), "gpu-collector-agent")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w -extldflags=-Wl,-z,lazy", "-o", file, "./cmd/gpu-collector-agent")
	cmd.Dir = root
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
	return file
}

// nextHop counts the reports of GPUs, and those with a step time.
type nextHop struct {
	pmetricotlp.UnimplementedGRPCServer
	gpus, steps atomic.Int64
}

// Export implements pmetricotlp.GRPCServer.
func (h *nextHop) Export(_ context.Context, r pmetricotlp.ExportRequest) (pmetricotlp.ExportResponse, error) {
	for _, rm := range r.Metrics().ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				switch m.Name() {
				case gpusemconv.MetricGPUHealthScore:
					h.gpus.Add(1)
				case gpusemconv.MetricAppStepDuration:
					h.steps.Add(1)
				}
			}
		}
	}
	return pmetricotlp.NewExportResponse(), nil
}

func startNextHop(t *testing.T) (*nextHop, string) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	h, server := &nextHop{}, grpc.NewServer()
	pmetricotlp.RegisterGRPCServer(server, h)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return h, listener.Addr().String()
}

// TestAgentInLittleMemory sends bombs to the job's port of the lean agent, which runs as
// it ships in 200 MiB: it lives, takes the job's next push, and reports its next poll.
func TestAgentInLittleMemory(t *testing.T) {
	t.Parallel()
	hop, addr := startNextHop(t)
	a := newTarget(t)
	state := filepath.Join(t.TempDir(), "state")
	require.NoError(t, fakenvml.NewState(8).Write(state))
	a.start(options{
		configs: []string{"configs/agent.yaml"}, binary: agentBinary(t), memory: agentMemory,
		env: []string{"GOMEMLIMIT=", "GPU_COLLECTOR_GATEWAY=" + addr, "GPU_COLLECTOR_INSECURE=true", "GPU_COLLECTOR_COMPRESSION=none", fakenvml.StateEnv + "=" + state},
	}, fmt.Sprintf(`
receivers:
  nvml: {collection_interval: 1s, deadline: 900ms, retry_interval: 1s, library_path: %q}
  fleet_otlp: {protocols: {grpc: {endpoint: %q}, http: {endpoint: %q}}}
processors: {straggler: {push_interval: 1s}}
extensions: {exposition: {http: {endpoint: %q}}, healthcheckv2: {http: {endpoint: %q}}}
service: {telemetry: {metrics: {level: none}}}
`, fakenvml.Library(t), a.grpc, a.http, loopback.FreeAddr(t), loopback.FreeAddr(t)))
	polls := func(what string) {
		t.Helper()
		seen := hop.gpus.Load()
		eventually(t, "a poll "+what, func() bool { require.False(t, a.ended(), "%s", what); return hop.gpus.Load() > seen+1 })
	}
	polls("before")

	md := pmetric.NewMetrics()
	gauge(node(md, "default", "node"), gpusemconv.MetricAppStepDuration, time.Now(), 0.5)
	step := marshal(t, md)
	encoding.RegisterCompressor(asIs{"gzip"})
	for name, piece := range map[string]string{"resources": "\x0a\x00", "nested": "", "exemplars": "\x2a\x00", "unknown": "\xfa\x01\x00"} {
		for _, size := range []int{16 * mib, 740_000, 64<<10 - 100} {
			bomb := gzipped(t, bytes.Repeat([]byte(piece), size/max(len(piece), 1)))
			if piece == "" {
				bomb = gzipped(t, nested(size))
			}
			var all sync.WaitGroup
			for range 32 {
				all.Go(func() {
					for range 4 {
						// 0: it hung up in the midst.
						assert.Contains(t, []int{
							0, http.StatusOK, http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusTooManyRequests,
						}, a.post(httpClient, "/v1/metrics", protobufType, bomb, "Content-Encoding", "gzip"), name)
						err := exportRaw(t.Context(), a.conn, metricsMethod, bomb, grpc.UseCompressor("gzip"))
						assert.Contains(t, []codes.Code{codes.OK, codes.InvalidArgument, codes.ResourceExhausted}, status.Code(err), "%s: %v", name, err)
					}
				})
			}
			all.Wait()
			require.False(t, a.ended(), "%s of %d bytes", name, size)
			seen := hop.steps.Load()
			require.Equal(t, http.StatusOK, a.post(httpClient, "/v1/metrics", protobufType, step), "the job's push after %s", name)
			eventually(t, "the step time arrives", func() bool { return hop.steps.Load() > seen })
		}
	}
	polls("after")
	figure.Print("hostile_agent_peak_rss", float64(a.memory("VmHWM"))/mib, "MiB", agentMemory/mib, true)
}
