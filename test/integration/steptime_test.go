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

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetapi"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/process"
)

const (
	torchRanks = 4
	slowRank   = 2
)

// startTorch starts the real DDP job of python/proof/ddp_job.py, which ends with the test. node
// names a rank's node. What it returns makes a rank slower by a tenth.
func startTorch(t *testing.T, agent string, node func(rank int) string) (slower func()) {
	t.Helper()
	module, err := filepath.Abs(process.Root + "/python")
	require.NoError(t, err)
	python, slow, port := os.Getenv("PYTHON"), filepath.Join(t.TempDir(), "slow"), process.Port(loopback.FreeAddr(t))
	if python == "" {
		python = "/usr/bin/python3"
	}
	for rank := range torchRanks {
		cmd := exec.Command(python, "-B", filepath.Join(module, "proof/ddp_job.py")) //nolint:noctx // it ends with its input
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		require.NoError(t, err)
		cmd.Stdout, cmd.Stderr = out, out
		cmd.Env = append(os.Environ(), "PYTHONPATH="+module, "SLOW_FILE="+slow, "GLOO_SOCKET_IFNAME=lo",
			// As torchrun has them.
			"MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port, fmt.Sprint("WORLD_SIZE=", torchRanks), fmt.Sprint("RANK=", rank), fmt.Sprint("LOCAL_RANK=", rank),
			"TORCHELASTIC_RUN_ID=lab-7", "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+agent, "OTEL_RESOURCE_ATTRIBUTES=host.name="+node(rank))
		stdin, err := cmd.StdinPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			if t.Failed() {
				_, _ = out.Seek(0, io.SeekStart)
				text, _ := io.ReadAll(out)
				t.Logf("rank %d:\n%s", rank, text)
			}
		})
		t.Cleanup(func() {
			_ = stdin.Close()
			assert.NoError(t, cmd.Wait(), "rank %d", rank)
		})
	}
	return func() {
		require.NoError(t, os.WriteFile(slow+"~", []byte(strconv.Itoa(slowRank)), 0o600))
		require.NoError(t, os.Rename(slow+"~", slow))
	}
}

// stepTimeWatch is for how long a healthy job is watched for false alarms.
func stepTimeWatch(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("STEP_TIME_WATCH")
	if text == "" {
		return 20 * time.Second
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err, "STEP_TIME_WATCH")
	return d
}

// A rank of a DDP job is 10 % slower than the three others. All have the same step time, and
// python/gpu_collector_step measures which of them works for longer.
func TestStepTimeOfTorch(t *testing.T) {
	long(t)
	t.Parallel()
	for name, c := range map[string]struct {
		node    func(rank int) string
		culprit string // the node, and its rank where it has several
	}{
		"one_node":   {func(int) string { return "n0" }, "n0 rank 2"},
		"four_nodes": {func(rank int) string { return fmt.Sprint("n", rank) }, "n2 "}, // by its rank, or by itself
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The pace that is shipped: a push is a mean of 80 steps, however busy this machine is.
			const shipped = "processors: {straggler: {push_interval: 10s, ttl_multiplier: 60}}\n"
			gateway := startGateway(t, shipped)
			ap := startAgent(t, gateway.GRPC, "lab", shipped)
			slower := startTorch(t, ap.HTTP, c.node)
			process.Eventually(t, "all ranks report their own time", func() bool {
				return len(process.Scrape(t, ap.Prom).With("gpu_app_step_own_duration_seconds", labels{"gpu_job_id": "lab-7"})) == torchRanks
			})
			// accused are the stragglers of the gateway, as node and part of it.
			accused := func() (all []string) {
				var list fleetapi.AttentionList
				process.FetchJSON(t, gateway.URL("/api/v1/attention?kind=straggler"), &list)
				for _, i := range list.Items {
					all = append(all, i.Node+" "+i.Part)
				}
				return all
			}
			// named are the stragglers of the agent.
			named := func() (all []string) {
				s := process.Scrape(t, ap.Prom)
				for rank := range torchRanks {
					if s.Is(1, "gpu_agent_straggler", labels{"host_name": c.node(rank)}) {
						all = append(all, c.node(rank))
					}
				}
				return slices.Compact(all)
			}

			// Only time shows that no node is accused.
			process.Within(stepTimeWatch(t), func() bool {
				require.Empty(t, accused(), "no rank is slow")
				require.Empty(t, named(), "no rank is slow")
				return false
			})
			slower()
			began := time.Now()
			var byAgent, byGateway time.Duration
			process.Eventually(t, "agent and gateway name the slow rank", func() bool {
				nodes, parts := named(), accused()
				if byAgent == 0 && len(nodes) > 0 {
					byAgent = time.Since(began)
					require.Equal(t, []string{c.node(slowRank)}, nodes)
				}
				if byGateway == 0 && len(parts) > 0 {
					byGateway = time.Since(began)
					require.Len(t, parts, 1)
					require.Contains(t, parts[0], c.culprit)
				}
				return byAgent > 0 && byGateway > 0
			})
			figure.Print("steptime_agent_"+name, byAgent.Seconds(), "s", 60, true)
			figure.Print("steptime_gateway_"+name, byGateway.Seconds(), "s", 60, true)
		})
	}
}
