// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/loopback"
)

// torchJob is a real DDP job of four processes, python/tests/ddp_job.py says how.
type torchJob struct {
	t     *testing.T
	slow  string // the file that names the slow rank
	ranks []*exec.Cmd
}

const torchRanks = 4

// startTorch starts the job with Debian's python3-torch, or the interpreter STEP_TIME_PYTHON.
// of names a rank's node.
func startTorch(t *testing.T, agent string, of func(rank int) string) *torchJob {
	t.Helper()
	python := os.Getenv("STEP_TIME_PYTHON")
	if python == "" {
		python = "/usr/bin/python3"
	}
	package_, err := filepath.Abs(root + "/python")
	require.NoError(t, err)
	j := &torchJob{t: t, slow: filepath.Join(t.TempDir(), "slow")}
	port := portOf(t, loopback.FreeAddr(t))
	for rank := range torchRanks {
		cmd := exec.Command(python, "tests/ddp_job.py") //nolint:noctx // it ends with its input, as the test does
		cmd.Dir = package_
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		require.NoError(t, err)
		cmd.Stdout, cmd.Stderr = out, out
		cmd.Env = append(os.Environ(),
			"PYTHONPATH="+package_, "PYTHONDONTWRITEBYTECODE=1", "SLOW_FILE="+j.slow,
			// As torchrun has them.
			"MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port, fmt.Sprint("WORLD_SIZE=", torchRanks),
			fmt.Sprint("RANK=", rank), fmt.Sprint("LOCAL_RANK=", rank), "TORCHELASTIC_RUN_ID=lab-7",
			"OTEL_EXPORTER_OTLP_ENDPOINT=http://"+agent, "OTEL_RESOURCE_ATTRIBUTES=k8s.cluster.name=lab,host.name="+of(rank),
			"GPU_COLLECTOR_STEP_INTERVAL=0.5", "GLOO_SOCKET_IFNAME=lo")
		stdin, err := cmd.StdinPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		j.ranks = append(j.ranks, cmd)
		t.Cleanup(func() {
			if t.Failed() {
				_, _ = out.Seek(0, io.SeekStart)
				text, _ := io.ReadAll(out)
				t.Logf("rank %d says:\n%s", rank, text)
			}
		})
		t.Cleanup(func() {
			_ = stdin.Close()
			assert.NoError(t, cmd.Wait(), "rank %d", rank)
		})
	}
	return j
}

func (j *torchJob) slower(rank int) {
	j.t.Helper()
	require.NoError(j.t, os.WriteFile(j.slow+"~", []byte(strconv.Itoa(rank)), 0o600))
	require.NoError(j.t, os.Rename(j.slow+"~", j.slow))
}

// cleanFor is how long a healthy job is watched for false alarms: `make steptime-clean`
// has it watched for half an hour, `make test` for as long as a fault takes to be found.
func cleanFor(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("STEP_TIME_CLEAN")
	if text == "" {
		return 10 * time.Second
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err, "STEP_TIME_CLEAN")
	return d
}

// A rank of a DDP job is 10 % slower than the three others. All have the same step time,
// and the module tells the agent which of them works for longer.
func TestStepTimeOfTorch(t *testing.T) {
	t.Parallel()
	const slow = 2
	watch := func(t *testing.T, nobody func()) {
		t.Helper()
		healthy := time.Now()
		for time.Since(healthy) < cleanFor(t) {
			next := time.Now().Add(min(cleanFor(t), time.Minute))
			eventually(t, "a while passes", func() bool { return time.Now().After(next) })
			nobody()
		}
		figure.FprintOnly(os.Stdout, "steptime_healthy_for", time.Since(healthy).Seconds(), "s")
	}
	within := func(t *testing.T, name, what string, from time.Time, condition func() bool) {
		t.Helper()
		eventually(t, what, condition)
		figure.Print(name, time.Since(from).Seconds(), "s", 60, true)
	}
	// told is what all ranks tell of a metric, in the order of their numbers.
	told := func(t *testing.T, prom, name string) []float64 {
		t.Helper()
		var all []float64
		eventually(t, "all ranks tell "+name, func() bool {
			all = all[:0]
			s := scrape(t, prom)
			for rank := range torchRanks {
				if v, ok := s.value(name, labels{"gpu_job_rank": strconv.Itoa(rank), "gpu_job_id": "lab-7"}); ok {
					all = append(all, v)
				}
			}
			return len(all) == torchRanks
		})
		return all
	}

	t.Run("one node of four ranks", func(t *testing.T) {
		t.Parallel()
		gp, ap := newGatewayPorts(t), newAgentPorts(t)
		start(t, options{configs: []string{"configs/gateway.yaml", gp.overlay(t), patient}})
		agent := start(t, options{
			configs: []string{"configs/agent.yaml", "configs/overlays/prometheus.yaml", ap.overlay(t), patient},
			env:     []string{"GPU_COLLECTOR_GATEWAY=" + gp.grpc, "GPU_COLLECTOR_INSECURE=true", "GPU_COLLECTOR_CLUSTER=lab"},
		})
		j := startTorch(t, ap.http, func(int) string { return "n0" })
		told(t, ap.prom, "gpu_app_step_own_duration_seconds")
		watch(t, func() { require.Zero(t, agent.log.Count("slower than its siblings")) })
		from := time.Now()
		j.slower(slow)
		within(t, "steptime_agent_names_rank", "the agent names the rank", from, func() bool {
			return scrape(t, ap.prom).is(1, "gpu_node_culprit", labels{"host_name": "n0", "gpu_job_rank": strconv.Itoa(slow)}) &&
				agent.log.Count("slower than its siblings", fmt.Sprintf(`"rank": %d`, slow)) > 0
		})
		assert.Equal(t, agent.log.Count("slower than its siblings"), agent.log.Count("slower than its siblings", fmt.Sprintf(`"rank": %d`, slow)), "nobody else")

		eventually(t, "own time tells who is slow", func() bool {
			own := told(t, ap.prom, "gpu_app_step_own_duration_seconds")
			for rank := range torchRanks {
				if rank != slow && own[slow] <= 1.05*own[rank] {
					return false
				}
			}
			return true
		})
		// The whole step does not tell: the ranks are in lockstep, however busy the machine is.
		// After 120 steps a rank that is 10 % slower and holds nobody up would be 12 behind. A
		// scrape has each rank as of its last push: half a second ago, four steps of 0.12 s.
		const later, apart = 120, 6
		before := slices.Min(told(t, ap.prom, "gpu_app_progress_total"))
		eventually(t, "all ranks have done the same steps", func() bool {
			steps := told(t, ap.prom, "gpu_app_progress_total")
			return slices.Min(steps) > before+later && slices.Max(steps)-slices.Min(steps) <= apart
		})
	})
	t.Run("four nodes", func(t *testing.T) {
		t.Parallel()
		store, gateway, gp := startEpisodes(t)
		ap := startAgent(t, gp, "lab")
		j := startTorch(t, ap.http, func(rank int) string { return fmt.Sprint("n", rank) })
		awaitWarm(t, gp, "lab")
		watch(t, func() { require.Empty(t, store.phases("lab"), "nobody is slow") })
		figure.Print("steptime_false_alarms", float64(len(store.phases("lab"))), "episodes", 0, true)
		from := time.Now()
		j.slower(slow)
		within(t, "steptime_gateway_names_node", "the gateway names the node", from, func() bool { return len(store.phases("lab")) > 0 })
		within(t, "steptime_agent_names_node", "and so does the agent", from, func() bool {
			return scrape(t, ap.prom).is(1, "gpu_agent_straggler", labels{"host_name": fmt.Sprint("n", slow)})
		})
		gateway.waitLog(1, fmt.Sprintf("STRAGGLER n%d", slow))
		for _, host := range store.hosts("lab") {
			assert.Equal(t, fmt.Sprint("n", slow), host, "nobody else")
		}
	})
}
