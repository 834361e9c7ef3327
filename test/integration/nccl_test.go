// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/loopback"
)

// A rank writes its operations as NCCL's Inspector does. The agent's signal is there at
// the gateway's side.
func TestARankTellsOfItsOperations(t *testing.T) {
	t.Parallel()
	dir, prom, own := t.TempDir(), loopback.FreeAddr(t), loopback.FreeAddr(t)
	rank := exec.CommandContext(t.Context(), "sleep", "600")
	rank.Env = []string{"NCCL_INSPECTOR_ENABLE=1", "HOSTNAME=n0", "RANK=11", "LOCAL_RANK=1", "SLURM_JOB_ID=42", "CUDA_VISIBLE_DEVICES=GPU-a,GPU-b"}
	require.NoError(t, rank.Start())
	t.Cleanup(func() { _ = rank.Process.Kill(); _ = rank.Wait() })
	f, err := os.Create(filepath.Join(dir, fmt.Sprintf("n0-pid%d.log", rank.Process.Pid)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	start(t, options{
		binary: collectorBinary,
		configs: []string{"configs/all-in-one.yaml", fmt.Sprintf(`
receivers:
  nccl: {collection_interval: 200ms, directories: [%q]}
  nvml: {collection_interval: 1h}
  otlp/app: {protocols: {grpc: {endpoint: %q}, http: {endpoint: %q}}}
  otlp/gateway: {protocols: {grpc: {endpoint: %q}}}
processors:
  straggler/agent: {push_interval: 200ms}
exporters:
  otlp_grpc: {endpoint: %q}
extensions:
  exposition: {http: {endpoint: %q}}
  straggler_threshold/gateway: {api: {endpoint: %q}}
  fleet_view: {http: {endpoint: %q}}
service:
  telemetry: {metrics: %s}
  pipelines: {metrics/agent: {receivers: [nccl]}}
`, dir, loopback.FreeAddr(t), loopback.FreeAddr(t), own, own, prom, loopback.FreeAddr(t), loopback.FreeAddr(t), telemetryReader(t, loopback.FreeAddr(t)))},
		env: []string{"GPU_COLLECTOR_CLUSTER=lab"},
	})
	at := time.Now()
	write := func() {
		at = at.Add(time.Second)
		_, err := fmt.Fprintf(f, `{"header":{"id":"0xa","rank":3,"n_ranks":8,"nnodes":1},"metadata":{"dump_timestamp_us":%d},"coll_perf":{"coll":"AllReduce","coll_sn":1,"coll_msg_size_bytes":3000,"coll_exec_time_us":250000,"coll_busbw_gbs":100}}`+"\n", at.UnixMicro())
		require.NoError(t, err)
	}
	eventually(t, "the share is a signal", func() bool {
		write()
		s := scrape(t, prom)
		return s.is(0.25, "gpu_collective_time_share_ratio", labels{"gpu_job_id": "42", "gpu_job_rank": "11", "hw_id": "GPU-b"}) &&
			s.is(0.25, "gpu_node_signal_ratio", labels{"gpu_signal": "communication", "gpu_job_id": "42", "k8s_cluster_name": "lab"})
	})
}
