// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"

	"github.com/gpu-collector/gpu-collector/sim/ranks"
)

// trained is a job in lockstep on nodes of its own, whose ranks write what NCCL's
// Inspector does. Its time is the tests', less what a file of the Prometheus form rests
// before it is believed.
type trained struct {
	job    ranks.Job
	play   *ranks.Play
	prom   bool
	start  time.Time
	each   []*ranks.Inspector
	files  []string
	mu     sync.Mutex
	faults ranks.Faults
}

const filesRest = 1100 * time.Millisecond

func gpuOf(rank int) string { return fmt.Sprintf("GPU-0c1c2d7e-3f0a-4d53-a0e2-cc%010d", rank) }

// train starts a job of four nodes of four GPUs, and returns the nodes' folders.
func train(t *testing.T, prom bool) (j *trained, folders []string) {
	t.Helper()
	job := ranks.Job{
		TP: 4, DP: 4, PP: 1, GPUs: 4, MicroBatches: 4, Blocks: 2, Compute: 0.006, TensorTime: 0.0005, DataTime: 0.008,
		Noise: 0.01, Bias: 0.002, Jitter: 0.01, TensorBytes: 4 << 20, DataBytes: 1 << 30,
	}
	require.NoError(t, job.Validate())
	j = &trained{job: job, play: ranks.New(job, rand.New(rand.NewPCG(3, 5))), prom: prom, start: time.Now().Add(-filesRest)}
	for range job.Ranks() / job.GPUs {
		folders = append(folders, t.TempDir())
	}
	for i := range job.Ranks() {
		rank := exec.CommandContext(t.Context(), "sleep", "600")
		rank.Env = []string{"NCCL_INSPECTOR_ENABLE=1", "HOSTNAME=n", fmt.Sprint("RANK=", i), "SLURM_JOB_ID=42", "CUDA_VISIBLE_DEVICES=" + gpuOf(i)}
		if prom {
			rank.Env = append(rank.Env, "NCCL_INSPECTOR_PROM_DUMP=1")
		}
		require.NoError(t, rank.Start())
		t.Cleanup(func() { _ = rank.Process.Kill(); _ = rank.Wait() })
		p := &ranks.Inspector{Release: ranks.NCCL230, Host: "n", PID: rank.Process.Pid, SlurmJob: "42", GPU: i % job.GPUs, Start: j.start}
		name := p.File()
		if prom {
			p.Release, name = ranks.NCCLCounts, ranks.PrometheusFile(gpuOf(i))
		}
		j.each = append(j.each, p)
		j.files = append(j.files, filepath.Join(folders[i/job.GPUs], name))
	}
	j.play.Watch(func(o *ranks.Operation) { j.each[o.Rank].Take(o) })
	return j, folders
}

// run plays the job at the pace of the clock until the test ends. The job tells an agent
// its step time, which is the same on all nodes.
func (j *trained) run(t *testing.T, agent string) {
	t.Helper()
	client := grpcClient(t, agent)
	stop, done := make(chan struct{}), make(chan error, 1)
	every := 100 * time.Millisecond
	if j.prom {
		every = time.Second // none is overwritten before the agent has read it
	}
	go func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			if err := j.dump(time.Now().Add(-filesRest)); err != nil {
				done <- err
				return
			}
			_, _ = client.Export(t.Context(), pmetricotlp.NewExportRequestFromMetrics(j.steps())) // the agent may not be there yet
			select {
			case <-stop:
				done <- nil
				return
			case <-ticker.C:
			}
		}
	}()
	t.Cleanup(func() { close(stop); require.NoError(t, <-done) })
}

func (j *trained) dump(now time.Time) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	for j.play.Now() < now.Sub(j.start).Seconds() {
		j.play.Step(&j.faults)
	}
	for i, p := range j.each {
		if j.prom {
			// Whole, and as old as the job has it: it is believed at once.
			text := p.DumpPrometheus(nil, now)
			if len(text) == 0 {
				continue
			}
			if err := os.WriteFile(j.files[i]+"~", text, 0o666); err != nil {
				return err
			}
			if err := os.Chtimes(j.files[i]+"~", now, now); err != nil {
				return err
			}
			if err := os.Rename(j.files[i]+"~", j.files[i]); err != nil {
				return err
			}
			continue
		}
		f, err := os.OpenFile(j.files[i], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
		if err != nil {
			return err
		}
		if _, err := f.Write(p.Dump(nil, now)); err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return nil
}

// steps is what the job's nodes say of its last step.
func (j *trained) steps() pmetric.Metrics {
	j.mu.Lock()
	defer j.mu.Unlock()
	md := pmetric.NewMetrics()
	for n := range j.job.Ranks() / j.job.GPUs {
		labels := map[string]string{"k8s.cluster.name": "lab", "gpu.job.id": "42"}
		gauge(node(md, fmt.Sprint("n", n), labels), "gpu.app.step.duration", "s", j.play.Took())
	}
	return md
}

// set makes something slow, or nothing.
func (j *trained) set(f ranks.Faults) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.faults = f
}

// neverMissing is for nodes whose files and pushes are late by seconds on a busy machine.
const neverMissing = `
processors:
  straggler: {ttl_multiplier: 1500}
`

// Of a job in lockstep all ranks become slow alike. The gateway's verdict names the GPU
// that the others wait for, and of a slow rail the communicator and no node.
func TestTheCulpritOfAJobInLockstep(t *testing.T) {
	long(t)
	t.Parallel()
	for name, prom := range map[string]bool{"JSON": false, "Prometheus": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, gateway, gp := startEpisodes(t, neverMissing)
			j, folders := train(t, prom)
			ap := newAgentPorts(t)
			var receivers, names []string
			for n, dir := range folders {
				names = append(names, fmt.Sprint("nccl/", n))
				receivers = append(receivers, fmt.Sprintf("  nccl/%d: {collection_interval: 200ms, node_name: n%d, cluster: lab, directories: [%q], resource_attributes: {host.name: {enabled: false}, host.id: {enabled: false}}}\n", n, n, dir))
			}
			start(t, options{
				configs: []string{"configs/agent.yaml", "configs/overlays/prometheus.yaml", ap.overlay(t), neverMissing, "receivers:\n" + strings.Join(receivers, "") +
					"service: {pipelines: {metrics: {receivers: [" + strings.Join(names, ", ") + ", otlp]}}}\n" +
					"exporters: {otlp_grpc: {sending_queue: {queue_size: 16}}}\n"}, // of four nodes
				env: []string{"GPU_COLLECTOR_GATEWAY=" + gp.grpc, "GPU_COLLECTOR_INSECURE=true", "GPU_COLLECTOR_CLUSTER=lab"},
			})
			j.run(t, ap.grpc)
			eventually(t, "the ranks are compared", func() bool {
				_, ok := scrape(t, gp.prom).value("gpu_straggler_signal_median_ratio", labels{"k8s_cluster_name": "lab", "gpu_signal": "communication"})
				return ok
			})
			// In both forms the ranks tell about thirty values before one is late.
			healthy, lasts := time.Now(), 6*time.Second
			if prom {
				lasts = 30 * time.Second
			}
			eventually(t, "a while passes", func() bool { return time.Since(healthy) > lasts })
			require.Empty(t, store.phases("lab"), "nobody is slow")

			const late = 9
			slower := make([]float64, j.job.Ranks())
			slower[late] = 0.25
			j.set(ranks.Faults{Slower: slower})
			// The node may be sure before its ranks are; the name is told then as soon as it is known.
			var onset plog.LogRecord
			eventually(t, "the verdict on the late GPU", func() bool {
				all := store.episodesOf("lab")
				named := slices.IndexFunc(all, func(lr plog.LogRecord) bool { return attribute(lr, "gpu.job.rank") != nil })
				if named < 0 {
					return false
				}
				onset = all[named]
				return true
			})
			assert.Equal(t, "node onset", store.phases("lab")[0])
			for key, want := range map[string]any{
				"gpu.straggler.subject": "node", "gpu.signal": "communication",
				"gpu.job.rank": int64(late), "gpu.job.rank.hw.id": gpuOf(late), "gpu.straggler.reason": "one_rank",
			} {
				assert.Equal(t, want, attribute(onset, key), key)
			}
			assert.Equal(t, []string{"n2"}, slices.Compact(store.hosts("lab")))
			gateway.waitLog(1, fmt.Sprintf("rank %d (%s) of n2", late, gpuOf(late)), "the node's communication has been")
			eventually(t, "the agent names it", func() bool {
				return scrape(t, ap.prom).is(1, "gpu_node_culprit", labels{"host_name": "n2", "hw_id": gpuOf(late)})
			})
			if prom {
				return // a mean of many operations is not what the links can do
			}
			const rail = 2
			slow, _ := j.play.Communicator(ranks.Data, rail)
			j.set(ranks.Faults{Rail: 2, RailOf: rail})
			links := func() (found []plog.LogRecord) {
				for _, lr := range store.episodesOf("lab") {
					if attribute(lr, "gpu.straggler.subject") == "communicator" {
						found = append(found, lr)
					}
				}
				return found
			}
			eventually(t, "the verdict on the slow rail", func() bool { return len(links()) > 0 })
			onset = links()[0]
			for key, want := range map[string]any{
				"gpu.straggler.phase": "onset", "gpu.straggler.subject": "communicator", "gpu.communicator.ids": []any{slow.ID},
				"gpu.communicator.name": slow.Name, "gpu.straggler.reason": "slow_link", "gpu.job.id": "42",
			} {
				assert.Equal(t, want, attribute(onset, key), key)
			}
			assert.Nil(t, attribute(onset, "gpu.communicator.faulty_node"), "no node has a fact")
			railed := time.Now()
			eventually(t, "a while passes", func() bool { return time.Since(railed) > 4*time.Second })
			assert.Len(t, links(), 1)
			for _, host := range store.hosts("lab") {
				assert.Contains(t, []string{"", "<nil>", "n2"}, host, "all arrive alike")
			}
		})
	}
}
