// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// agentMemory is the least that configs/agent.yaml is made for.
const agentMemory = 200 * mib

// TestAgentInLittleMemory sends bombs to the job's port of the lean agent, which runs as
// it ships in 200 MiB: it lives, takes the job's next push, and reports its next poll.
func TestAgentInLittleMemory(t *testing.T) {
	t.Parallel()
	var polled, steps atomic.Int64
	next, state := loopback.FreeAddr(t), filepath.Join(t.TempDir(), "state")
	(&process.NextHop{Take: func(_ context.Context, md pmetric.Metrics) error {
		body, err := (&pmetric.ProtoMarshaler{}).MarshalMetrics(md)
		if bytes.Contains(body, []byte(gpusemconv.MetricGPUHealthScore)) {
			polled.Add(1)
		}
		if bytes.Contains(body, []byte(gpusemconv.MetricAppStepDuration)) {
			steps.Add(1)
		}
		return err
	}}).Listen(t, next)
	require.NoError(t, fakenvml.NewState(8).Write(state))
	a := start(t, agentMemory, process.Options{
		Binary: process.Binary(t, "gpu-collector-agent"),
		Config: []string{"configs/agent.yaml", fmt.Sprintf(`
receivers: {nvml: {collection_interval: 1s, deadline: 900ms, retry_interval: 1s, library_path: %q}}
processors: {straggler: {push_interval: 1s}}
service: {telemetry: {metrics: {level: none}}, pipelines: {metrics: {receivers: [nvml, fleet_otlp]}, logs: {receivers: [nvml]}}}
`, fakenvml.Library(t))},
		Env: []string{"GOMEMLIMIT=", "GPU_COLLECTOR_GATEWAY=" + next, "GPU_COLLECTOR_INSECURE=true", "GPU_COLLECTOR_COMPRESSION=none", fakenvml.StateEnv + "=" + state},
	})
	polls := func(what string) {
		t.Helper()
		seen := polled.Load()
		process.Eventually(t, "a poll "+what, func() bool { require.False(t, a.Ended(), "%s", what); return polled.Load() > seen+1 })
	}
	polls("before")

	md := pmetric.NewMetrics()
	process.Gauge(process.Node(md, "node"), gpusemconv.MetricAppStepDuration, "s", 0.5)
	step := process.Gzip(t, process.Marshal(t, md))
	encoding.RegisterCompressor(asIs{"gzip"})
	repeated := func(piece string) func(int) []byte {
		return func(size int) []byte { return bytes.Repeat([]byte(piece), size/len(piece)) }
	}
	for name, of := range map[string]func(int) []byte{
		"resources": repeated("\x0a\x00"), "nested": nested, "exemplars": repeated("\x2a\x00"), "unknown": repeated("\xfa\x01\x00"),
	} {
		for _, size := range []int{16 * mib, 740_000, 64<<10 - 100} {
			bomb := process.Gzip(t, of(size))
			atOnce(32, func() {
				for range 4 {
					// 0: it hung up in the midst.
					assert.Contains(t, []int{
						0, http.StatusOK, http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusTooManyRequests,
					}, a.metrics(process.Protobuf, bomb), name)
					err := process.ExportRaw(t.Context(), a.conn, process.MetricsMethod, bomb, grpc.UseCompressor("gzip"))
					assert.Contains(t, []codes.Code{codes.OK, codes.InvalidArgument, codes.ResourceExhausted}, status.Code(err), "%s: %v", name, err)
				}
			})
			require.False(t, a.Ended(), "%s of %d bytes", name, size)
			seen := steps.Load()
			require.Equal(t, http.StatusOK, a.metrics(process.Protobuf, step), "the job's push after %s", name)
			process.Eventually(t, "the step time arrives", func() bool { return steps.Load() > seen })
		}
	}
	polls("after")
	figure.Print("hostile_agent_peak_rss", float64(a.memory("VmHWM"))/mib, "MiB", agentMemory/mib, true)
}
