// SPDX-License-Identifier: Apache-2.0

package ncclreceiver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const gpu4 = "0c1c2d7e-3f0a-4d53-a0e2-aa0000000004"

// promRig has files of the Prometheus form, and a clock.
type promRig struct {
	*rig
	now time.Time
}

func newPromRig(t *testing.T) *promRig {
	r := &promRig{rig: newRig(t, nil), now: time.Now().Add(time.Hour)}
	r.s.now = func() time.Time { return r.now }
	return r
}

func (r *promRig) path(gpu string) string {
	return filepath.Join(r.dir, "nccl_inspector_metrics_"+gpu+".prom")
}

// dump writes a file anew in its place, as the plug-in does, at the time of the clock.
func (r *promRig) dump(path, text string) {
	r.t.Helper()
	require.NoError(r.t, os.WriteFile(path, []byte(text), 0o666))
	require.NoError(r.t, os.Chtimes(path, r.now, r.now))
}

// mean is a line of NCCL 2.30.
func mean(us int) string {
	const labels = `version="v5.1",slurm_job_id="42",node="n0",gpu="GPU0",comm_name="tp",n_nodes="1",nranks="8",collective="AllReduce",message_size="2-3KB",algo_proto="Ring_LL"`
	return fmt.Sprintf("nccl_bus_bandwidth_gbs{%s} 100\nnccl_collective_exec_time_microseconds{%s} %d\n", labels, labels, us)
}

func sum(id string, n, us int) string {
	labels := fmt.Sprintf(`comm_id=%q,comm_rank="3",n_nodes="1",nranks="8",collective="AllReduce",message_size_bytes="3000"`, id)
	return fmt.Sprintf("nccl_collective_count{%s} %d\nnccl_collective_exec_time_sum_microseconds{%s} %d\n", labels, n, labels, us)
}

func TestADump(t *testing.T) {
	r := newPromRig(t)
	r.rank("NCCL_INSPECTOR_PROM_DUMP=1", "RANK=11", "LOCAL_RANK=4", "SLURM_JOB_ID=42", "CUDA_VISIBLE_DEVICES=GPU-"+gpu4)
	path, who := r.path(gpu4), "42 11 4 GPU-"+gpu4
	r.dump(path, mean(500))
	assert.Empty(t, r.scrape(), "somebody may be writing")
	r.now = r.now.Add(2 * time.Second)
	got := r.scrape()
	assert.InDelta(t, 100e9, got["gpu.collective.bandwidth "+who], 1)
	assert.InDelta(t, 500e-6, got["gpu.collective.duration "+who], 1e-9)
	assert.InDelta(t, 2, got["gpu.collective.last_progress "+who], 1e-3)
	assert.Len(t, got, 3, "means tell of no share, and of no communicator")

	r.now = r.now.Add(10 * time.Second)
	got = r.scrape()
	assert.InDelta(t, 12, got["gpu.collective.last_progress "+who], 1e-3)
	assert.Len(t, got, 1, "nothing new")

	// In place, or as another file: it is the same writer's.
	for i, write := range []func(text string){
		func(text string) { r.dump(path, text) },
		func(text string) { r.dump(path+"~", text); require.NoError(t, os.Rename(path+"~", path)) },
	} {
		r.now = r.now.Add(30 * time.Second)
		write(mean(700 + i))
		r.now = r.now.Add(2 * time.Second)
		got = r.scrape()
		assert.InDelta(t, float64(700+i)*1e-6, got["gpu.collective.duration "+who], 1e-9)
		assert.Greater(t, got["gpu.collective.longest_pause "+who], 29.0)
	}
	require.NoError(t, os.Remove(path))
	assert.Empty(t, r.scrape(), "the job has ended")
}

// A file with counts tells of the share.
func TestADumpWithCounts(t *testing.T) {
	r := newPromRig(t)
	r.rank("NCCL_INSPECTOR_PROM_DUMP=1", "RANK=0", "CUDA_VISIBLE_DEVICES=GPU-"+gpu4)
	path := filepath.Join(r.dir, "nccl_inspector_metrics_job42_"+gpu4+".prom")
	r.dump(path, sum("0xa", 100, 5_000_000))
	r.now = r.now.Add(2 * time.Second)
	r.scrape()
	r.now = r.now.Add(28 * time.Second)
	r.dump(path, sum("0xa", 200, 6_000_000))
	r.now = r.now.Add(2 * time.Second)
	got := r.scrape()
	assert.InDelta(t, 0.2, got["gpu.collective.time_share  0 GPU-"+gpu4], 1e-6, "6 s of 30")
	assert.InDelta(t, 0.2, got["gpu.communicator.time_share  0 GPU-"+gpu4+" 0xa"], 1e-6)
	assert.InDelta(t, 300, got["gpu.collective.operations  0 GPU-"+gpu4+" 0xa"], 0)
	assert.InDelta(t, 900_000, got["gpu.collective.io  0 GPU-"+gpu4+" 0xa"], 0)
}

func TestBadDumps(t *testing.T) {
	r := newPromRig(t)
	r.rank("NCCL_INSPECTOR_PROM_DUMP=1", "RANK=0", "CUDA_VISIBLE_DEVICES=GPU-"+gpu4)
	good := r.path(gpu4)
	other := func(n int) string { return r.path(fmt.Sprintf("0c1c2d7e-3f0a-4d53-a0e2-bb%010d", n)) }
	rank := func(n int, env ...string) string {
		r.rank(append(env, fmt.Sprintf("CUDA_VISIBLE_DEVICES=GPU-0c1c2d7e-3f0a-4d53-a0e2-bb%010d", n))...)
		return other(n)
	}
	const prom = "NCCL_INSPECTOR_PROM_DUMP=1"
	r.dump(rank(1, prom), "garbage {\n")
	r.dump(rank(2, prom), strings.Repeat(mean(1), 20_000))
	r.dump(rank(3, "NCCL_INSPECTOR_PROM_DUMP=0"), mean(1))
	r.dump(other(4), mean(1))
	r.dump(r.path("node"), mean(1))
	require.NoError(t, os.Symlink("/etc/passwd", other(5)))
	require.NoError(t, syscall.Mkfifo(other(6), 0o600))
	stale := rank(7, prom)
	r.dump(stale, mean(1))
	long := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(stale, long, long))
	for range 3 {
		r.now = r.now.Add(30 * time.Second)
		r.dump(good, mean(500))
		r.now = r.now.Add(2 * time.Second)
		got := r.scrape()
		assert.InDelta(t, 500e-6, got["gpu.collective.duration  0 GPU-"+gpu4], 1e-9)
		for key := range got {
			assert.Contains(t, key, "GPU-"+gpu4)
		}
	}
	assert.Equal(t, 1, r.warned(string(tooLong)), "once")
	assert.Equal(t, 2, r.warned(string(noProcess)))
	assert.Equal(t, 2, r.warned(string(notAFile)))
}

// Without a word on the GPU there must be one process alone.
func TestADumpOfAProcessWithoutUUID(t *testing.T) {
	r := newPromRig(t)
	path := r.path(gpu4)
	r.rank("NCCL_INSPECTOR_PROM_DUMP=1", "RANK=3", "CUDA_VISIBLE_DEVICES=0")
	r.rank("NCCL_INSPECTOR_PROM_DUMP=1", "RANK=4", "CUDA_VISIBLE_DEVICES=GPU-b")
	r.dump(path, mean(500))
	r.now = r.now.Add(2 * time.Second)
	assert.Contains(t, r.scrape(), "gpu.collective.duration  3 GPU-"+gpu4)
	require.NoError(t, os.Remove(path))
	r.scrape()
	r.rank("NCCL_INSPECTOR_PROM_DUMP=1", "RANK=5", "CUDA_VISIBLE_DEVICES=1")
	r.dump(path, mean(500))
	r.now = r.now.Add(2 * time.Second)
	assert.Empty(t, r.scrape())
	assert.Equal(t, 1, r.warned(string(noProcess)))
}
