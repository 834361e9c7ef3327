// SPDX-License-Identifier: Apache-2.0

package ncclreceiver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/metadata"
)

// rig is a folder, and processes that say that they write there.
type rig struct {
	t    testing.TB
	dir  string
	s    *ncclScraper
	logs *observer.ObservedLogs
	at   time.Duration // of the dumps
}

func newRig(t testing.TB, change func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir(), at: 1000 * time.Second}
	cfg := createDefaultConfig().(*Config)
	cfg.Directories = []string{r.dir}
	for _, m := range []*bool{
		&cfg.Metrics.GpuCollectiveBandwidth.Enabled, &cfg.Metrics.GpuCollectiveIo.Enabled,
		&cfg.Metrics.GpuCollectiveOperations.Enabled, &cfg.Metrics.GpuCollectiveTime.Enabled, &cfg.Metrics.GpuCollectiveDuration.Enabled,
	} {
		*m = true
	}
	if change != nil {
		change(cfg)
	}
	require.NoError(t, cfg.Validate())
	set := receiver.Settings{ID: component.NewID(metadata.Type), TelemetrySettings: componenttest.NewNopTelemetrySettings()}
	core, logs := observer.New(zap.DebugLevel)
	set.Logger, r.logs = zap.New(core), logs
	s, err := newScraper(cfg, set)
	require.NoError(t, err)
	r.s = s
	return r
}

// rank starts a process with an environment, and returns the path of its file.
func (r *rig) rank(env ...string) (path string, cmd *exec.Cmd) {
	r.t.Helper()
	cmd = exec.CommandContext(r.t.Context(), "sleep", "600")
	cmd.Env = append([]string{"NCCL_INSPECTOR_ENABLE=1", "HOSTNAME=n0"}, env...)
	require.NoError(r.t, cmd.Start())
	r.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return filepath.Join(r.dir, fmt.Sprintf("n0-pid%d.log", cmd.Process.Pid)), cmd
}

func (r *rig) line(communicator string, ms int) string {
	return fmt.Sprintf(`{"header":{"id":%q,"comm_name":"tp","rank":3,"n_ranks":8,"nnodes":1},"metadata":{"dump_timestamp_us":%d,"hostname":"n0","pid":1},"coll_perf":{"coll":"AllReduce","coll_sn":1,"coll_msg_size_bytes":3000,"coll_exec_time_us":%d,"coll_busbw_gbs":100}}`+"\n",
		communicator, r.at.Microseconds(), ms*1000)
}

// later moves the time of the next dump.
func (r *rig) later(by time.Duration) { r.at += by }

func (r *rig) add(path, text string) {
	r.t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	require.NoError(r.t, err)
	_, err = f.WriteString(text)
	require.NoError(r.t, err)
	require.NoError(r.t, f.Close())
}

// scrape returns all values by name and the attributes that name a rank.
func (r *rig) scrape() map[string]float64 {
	r.t.Helper()
	md, err := r.s.scrape(r.t.Context())
	require.NoError(r.t, err)
	got := map[string]float64{}
	for _, rm := range md.ResourceMetrics().All() {
		job := ""
		if v, ok := rm.Resource().Attributes().Get("gpu.job.id"); ok {
			job = v.Str()
		}
		for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
			var points pmetric.NumberDataPointSlice
			if m.Type() == pmetric.MetricTypeGauge {
				points = m.Gauge().DataPoints()
			} else {
				points = m.Sum().DataPoints()
			}
			for _, p := range points.All() {
				key := []string{m.Name(), job}
				for _, name := range []string{"gpu.job.rank", "gpu.job.local_rank", "hw.id", "gpu.communicator.id", "gpu.collective.laggard.state"} {
					if v, ok := p.Attributes().Get(name); ok {
						key = append(key, v.AsString())
					}
				}
				v := p.DoubleValue()
				if p.ValueType() == pmetric.NumberDataPointValueTypeInt {
					v = float64(p.IntValue())
				}
				got[strings.Join(key, " ")] = v
			}
		}
	}
	return got
}

func (r *rig) warned(what string) int {
	return r.logs.FilterField(zap.String("cause", what)).Len()
}

func TestARank(t *testing.T) {
	r := newRig(t, nil)
	path, _ := r.rank("RANK=11", "LOCAL_RANK=1", "SLURM_JOB_ID=42", "CUDA_VISIBLE_DEVICES=GPU-a,GPU-b")
	r.add(path, r.line("0xa", 5000)+"half a li")
	assert.Empty(t, r.scrape(), "the past is nobody's")
	r.later(10 * time.Second)
	r.add(path, "ne\n"+r.line("0xa", 1000))
	got := r.scrape()
	assert.NotContains(t, got, "gpu.collective.time_share 42 11 1 GPU-b", "of how long?")
	assert.InDelta(t, 1, got["gpu.collective.operations 42 11 1 GPU-b 0xa"], 0)

	r.later(10 * time.Second)
	next := r.line("0xb", 3000)
	r.add(path, r.line("0xa", 2000)+next[:100])
	r.add(path, next[100:])
	got = r.scrape()
	assert.InDelta(t, 0.5, got["gpu.collective.time_share 42 11 1 GPU-b"], 1e-9, "5 s of 10")
	assert.InDelta(t, 2, got["gpu.collective.operations 42 11 1 GPU-b 0xa"], 0)
	assert.InDelta(t, 6000, got["gpu.collective.io 42 11 1 GPU-b 0xa"], 0)
	assert.InDelta(t, 3, got["gpu.collective.time 42 11 1 GPU-b 0xa"], 1e-9)
	assert.InDelta(t, 100e9, got["gpu.collective.bandwidth 42 11 1 GPU-b 0xb"], 1)
	assert.Contains(t, got, "gpu.collective.last_progress 42 11 1 GPU-b 0xb")

	got = r.scrape()
	assert.NotContains(t, got, "gpu.collective.time_share 42 11 1 GPU-b", "nothing was dumped")
	assert.NotContains(t, got, "gpu.collective.bandwidth 42 11 1 GPU-b 0xb")
	assert.InDelta(t, 2, got["gpu.collective.operations 42 11 1 GPU-b 0xa"], 0)
}

// A bad file hurts no other file.
func TestBadFiles(t *testing.T) {
	r := newRig(t, func(c *Config) { c.MaxFiles = 3 })
	good, _ := r.rank("RANK=0")
	r.add(good, "")
	bad := func(name string) string { return filepath.Join(r.dir, name) }
	dead, cmd := r.rank("RANK=1")
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	r.add(dead, r.line("0xa", 1))
	require.NoError(t, os.Symlink("/etc/passwd", bad("link-pid1.log")))
	require.NoError(t, os.Mkdir(bad("folder-pid1.log"), 0o700))
	require.NoError(t, syscall.Mkfifo(bad("pipe-pid1.log"), 0o600))
	r.add(bad("x-pidnone.log"), "")
	r.add(bad("nobody-pid999999999.log"), "")
	r.scrape()
	for range 3 {
		r.later(time.Second)
		r.add(good, "\x00\x00garbage\n{}\n"+strings.Repeat("y", 70_000)+"\n"+r.line("0xa", 250))
		r.scrape()
	}
	r.later(time.Second)
	r.add(good, r.line("0xa", 250))
	assert.InDelta(t, 0.25, r.scrape()["gpu.collective.time_share  0"], 1e-9)
	assert.Equal(t, 3, r.warned(string(notAFile)), "each once")
	assert.Equal(t, 2, r.warned(string(noProcess)))

	// Somebody cuts the file, whose writer keeps its place: there are NULs before the next
	// line.
	require.NoError(t, os.Truncate(good, 0))
	r.scrape()
	r.later(time.Second)
	r.add(good, strings.Repeat("\x00", 5000)+r.line("0xa", 500))
	assert.InDelta(t, 0.5, r.scrape()["gpu.collective.time_share  0"], 1e-9)

	// Another file in its place is another writer's.
	require.NoError(t, os.Rename(good, bad("gone")))
	r.add(good, r.line("0xa", 1))
	assert.Empty(t, r.scrape(), "its past is nobody's")

	for range 3 {
		path, _ := r.rank()
		r.add(path, "")
	}
	r.scrape()
	assert.Equal(t, 1, r.warned(string(tooMany)))
	if os.Getuid() == 0 {
		foreign, _ := r.rank()
		require.NoError(t, os.Remove(good))
		r.add(foreign, "")
		require.NoError(t, os.Chown(foreign, 12345, 12345))
		r.scrape()
		r.scrape()
		assert.Equal(t, 1, r.warned(string(foreignUser)))
	}
}

// The receiver reads in the next interval what does not fit into one.
func TestEndlessFiles(t *testing.T) {
	r := newRig(t, func(c *Config) { c.MaxBytes = readSize })
	path, _ := r.rank("RANK=0")
	r.add(path, "")
	r.scrape()
	r.later(time.Second)
	const lines = 1000
	r.add(path, strings.Repeat(r.line("0xa", 1), lines))
	last := 0.0
	for range 10 {
		got := r.scrape()["gpu.collective.operations  0 0xa"]
		assert.LessOrEqual(t, got-last, float64(readSize)/200)
		last = got
	}
	assert.InDelta(t, lines, last, 0)
}

// A part that was read takes no room on the disk, if that is asked for, and harms no writer.
func TestReadIsReleased(t *testing.T) {
	for _, wanted := range []bool{false, true} {
		r := newRig(t, func(c *Config) { c.ReleaseRead = wanted })
		path, _ := r.rank("RANK=0")
		used := func() int64 {
			info, err := os.Stat(path)
			require.NoError(t, err)
			require.Greater(t, info.Size(), int64(2*releaseSize))
			return info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		lines := 2*releaseSize/len(r.line("0xa", 1)) + 1000
		r.add(path, strings.Repeat(r.line("0xa", 1), lines)) // before its time
		r.scrape()
		r.later(time.Second)
		r.add(path, r.line("0xa", 1))
		r.scrape()
		assert.Equal(t, !wanted, used() > releaseSize, "%d bytes", used())
		r.later(time.Second)
		r.add(path, r.line("0xa", 250))
		assert.InDelta(t, 0.25, r.scrape()["gpu.collective.time_share  0"], 1e-9)
		assert.Zero(t, r.warned(string(notReleased)))
	}
	if os.Getuid() == 0 {
		return // may write to any file
	}
	r := newRig(t, func(c *Config) { c.ReleaseRead = true })
	path, _ := r.rank("RANK=0")
	r.add(path, strings.Repeat("\n", 2*releaseSize))
	require.NoError(t, os.Chmod(path, 0o444))
	for range 3 {
		r.scrape()
	}
	assert.Equal(t, 1, r.warned(string(notReleased)), "once")
}

func TestProcesses(t *testing.T) {
	for name, tt := range map[string]struct {
		env  map[string]string
		want process
	}{
		"torchrun":   {map[string]string{"RANK": "9", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "none", "CUDA_VISIBLE_DEVICES": "0,1"}, process{rank: 9, localRank: 1}},
		"Slurm":      {map[string]string{"SLURM_PROCID": "9", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "GPU-a"}, process{rank: 9, localRank: 0, job: "7", gpu: "GPU-a"}},
		"Open MPI":   {map[string]string{"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, process{rank: 2, localRank: 2}},
		"Kubernetes": {map[string]string{"RANK": "x", "NVIDIA_VISIBLE_DEVICES": "GPU-a, GPU-b", "LOCAL_RANK": "1"}, process{rank: -1, localRank: 1, gpu: "GPU-b"}},
		"nothing":    {nil, process{rank: -1, localRank: -1}},
		"nonsense":   {map[string]string{"RANK": "-4", "LOCAL_RANK": "99", "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, process{rank: -1, localRank: 99}},
	} {
		t.Run(name, func(t *testing.T) {
			var p process
			p.read(tt.env)
			assert.Equal(t, tt.want, p)
		})
	}
}

func TestConfig(t *testing.T) {
	cfg := createDefaultConfig().(*Config)
	require.ErrorContains(t, cfg.Validate(), "`directories` is empty: it has to name the folder that NCCL_INSPECTOR_DUMP_DIR names")
	cfg.Directories, cfg.MaxFiles, cfg.MaxBytes, cfg.ProcPath = []string{"logs", "/[", "/ok/*"}, 0, 1, "proc"
	err := cfg.Validate()
	for _, want := range []string{
		"`directories` has \"logs\": it has to be an absolute path", "`directories` has \"/[\"",
		"`max_files` is 0", "`max_bytes` is 1", "`proc_path` is \"proc\"",
	} {
		require.ErrorContains(t, err, want)
	}
	assert.NotContains(t, err.Error(), "/ok")
}

func TestShutdown(t *testing.T) {
	r := newRig(t, nil)
	require.NoError(t, r.s.shutdown(context.WithoutCancel(t.Context())))
}
