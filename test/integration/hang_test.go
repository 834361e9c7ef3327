// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/fakeras"
	"github.com/gpu-collector/gpu-collector/test/loopback"
)

// A job's ranks write their operations as NCCL's Inspector does, and then no more. RAS
// knows the one that the others wait for: the fleet view has one episode that names it.
func TestAHangIsToldOnce(t *testing.T) {
	long(t)
	t.Parallel()
	dir, view, own := t.TempDir(), loopback.FreeAddr(t), loopback.FreeAddr(t)
	ras := fakeras.Start(t, 29, fakeras.Status("0xa", 7, 6, 7))
	var files []*os.File
	for i := range 3 {
		rank := exec.CommandContext(t.Context(), "sleep", "600")
		rank.Env = []string{"NCCL_INSPECTOR_ENABLE=1", "HOSTNAME=n0", fmt.Sprint("RANK=", i), "SLURM_JOB_ID=42"}
		require.NoError(t, rank.Start())
		t.Cleanup(func() { _ = rank.Process.Kill(); _ = rank.Wait() })
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("n0-pid%d.log", rank.Process.Pid)))
		require.NoError(t, err)
		t.Cleanup(func() { _ = f.Close() })
		files = append(files, f)
	}
	start(t, options{
		binary: collectorBinary,
		configs: []string{"configs/all-in-one.yaml", fmt.Sprintf(`
receivers:
  nccl: {collection_interval: 500ms, directories: [%q], ras: {endpoint: %q}}
  nvml: {collection_interval: 1h}
  otlp/app: {protocols: {grpc: {endpoint: %q}, http: {endpoint: %q}}}
  otlp/gateway: {protocols: {grpc: {endpoint: %q}}}
processors:
  straggler/agent: {push_interval: 500ms}
  straggler/gateway: {push_interval: 500ms, hang: {known_after: 1s}}
exporters:
  otlp_grpc: {endpoint: %q}
extensions:
  exposition: {http: {endpoint: %q}}
  straggler_threshold/gateway: {api: {endpoint: %q}}
  fleet_view: {http: {endpoint: %q}}
service:
  telemetry: {metrics: %s}
  pipelines: {metrics/agent: {receivers: [nccl]}}
`, dir, ras.Address, loopback.FreeAddr(t), loopback.FreeAddr(t), own, own, loopback.FreeAddr(t), loopback.FreeAddr(t), view, telemetryReader(t, loopback.FreeAddr(t)))},
		env: []string{"GPU_COLLECTOR_CLUSTER=lab"},
	})
	type episode struct {
		Subject  string   `json:"subject"`
		Job      string   `json:"job"`
		Open     bool     `json:"open"`
		Reason   string   `json:"reason"`
		Text     string   `json:"text"`
		Laggards []string `json:"laggards"`
	}
	episodes := func() (list []episode) {
		var page struct {
			Items []episode `json:"episodes"`
		}
		getJSON(t, "http://"+view+"/api/v1/episodes", &page)
		return page.Items
	}
	write := func() {
		for i, f := range files {
			_, err := fmt.Fprintf(f, `{"header":{"id":"0xa","rank":%d,"n_ranks":3,"nnodes":1},"metadata":{"dump_timestamp_us":%d},"coll_perf":{"coll":"AllReduce","coll_sn":1,"coll_msg_size_bytes":3000,"coll_exec_time_us":250000,"coll_busbw_gbs":100}}`+"\n", i, time.Now().UnixMicro())
			require.NoError(t, err)
		}
	}
	eventually(t, "the job is known", func() bool {
		write()
		return len(get(t, "http://"+view+"/api/v1/nodes").body) > 200
	})
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		write()
	}
	assert.Empty(t, episodes())
	var got []episode
	eventually(t, "the hang is told", func() bool {
		got = episodes()
		return len(got) > 0
	})
	require.Len(t, got, 1)
	assert.Equal(t, "job", got[0].Subject)
	assert.Equal(t, "42", got[0].Job)
	assert.Equal(t, "hang", got[0].Reason)
	require.Len(t, got[0].Laggards, 1, got[0].Text)
	assert.Contains(t, got[0].Laggards[0], "state=behind rank=1 ")
	assert.LessOrEqual(t, ras.Asked(), 2)
	eventually(t, "it goes on", func() bool {
		write()
		got = episodes()
		return len(got) == 1 && !got[0].Open
	})
}
