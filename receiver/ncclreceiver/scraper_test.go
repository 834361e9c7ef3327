// SPDX-License-Identifier: Apache-2.0

package ncclreceiver

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuholders"
	semconv "github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/inspector"
	"github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/metadatatest"
	"github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/ras"
	"github.com/gpu-collector/gpu-collector/test/fakeras"
)

const realName = "vm-pid14780.log"

// lineOf is of an all-reduce of a millisecond.
func lineOf(id, name string, rank, ranks int, at time.Time, second float64) []byte {
	return fmt.Appendf(nil, `{"header":{"id":%q,"comm_name":%q,"rank":%d,"n_ranks":%d,"nnodes":1},"metadata":{"dump_timestamp_us":%d},"coll_perf":{"coll":"AllReduce","coll_msg_size_bytes":1048576,"coll_exec_time_us":1000,"coll_busbw_gbs":1.5}}`+"\n",
		id, name, rank, ranks, at.UnixMicro()+int64(second*1e6))
}

// bench is a node with one folder, a /proc of its own and a clock.
type bench struct {
	*ncclScraper
	t         *testing.T
	dir       string
	time      time.Time
	telemetry *componenttest.Telemetry
	counted   map[string]int64
}

func newBench(t *testing.T, change ...func(*Config)) *bench {
	b := &bench{t: t, dir: t.TempDir(), time: time.Unix(1_800_000_000, 0), telemetry: componenttest.NewTelemetry(), counted: map[string]int64{}}
	cfg := createDefaultConfig().(*Config)
	cfg.Directories, cfg.ProcPath = []string{b.dir}, t.TempDir()
	for _, c := range change {
		c(cfg)
	}
	require.NoError(t, cfg.Validate())
	require.NoError(t, os.WriteFile(filepath.Join(cfg.ProcPath, "stat"), []byte("btime 1000000000\n"), 0o600))
	var err error
	b.ncclScraper, err = newScraper(cfg, metadatatest.NewSettings(b.telemetry))
	require.NoError(t, err)
	b.procs.host, b.gpus = "vm", &gpuholders.Registry{}
	b.now = func() time.Time { return b.time }
	b.ask = func(context.Context, string) (*ras.Report, error) { return nil, errors.New("not asked here") }
	t.Cleanup(func() {
		assert.NoError(t, errors.Join(b.shutdown(context.Background()), b.telemetry.Shutdown(context.Background())))
	})
	return b
}

// run makes a process whose start is so many clock ticks after boot.
func (b *bench) run(pid, start int, environ, cgroup string, open ...string) {
	dir := filepath.Join(b.cfg.ProcPath, strconv.Itoa(pid))
	require.NoError(b.t, os.MkdirAll(filepath.Join(dir, "fd"), 0o700))
	for name, text := range map[string]string{
		"stat":    fmt.Sprintf("%d (python) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0", pid, start),
		"status":  fmt.Sprintf("Name:\tpython\nUid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\n", os.Getuid()),
		"environ": environ, "cgroup": cgroup,
	} {
		require.NoError(b.t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	for _, name := range open {
		require.NoError(b.t, os.Symlink(filepath.Join(b.dir, name), filepath.Join(dir, "fd", name)))
	}
}

func (b *bench) end(pid int) {
	require.NoError(b.t, os.RemoveAll(filepath.Join(b.cfg.ProcPath, strconv.Itoa(pid))))
}

// write adds to a file, at the bench's time.
func (b *bench) write(name string, text []byte) {
	path := filepath.Join(b.dir, name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(b.t, err)
	_, err = f.Write(text)
	require.NoError(b.t, errors.Join(err, f.Close()))
	require.NoError(b.t, os.Chtimes(path, b.time, b.time))
}

// point is of a metric. Its value is -1 where the series has ended.
type point struct {
	name       string
	attributes map[string]any
	value      float64
}

func (b *bench) scrape() (all []point) {
	md, err := b.ncclScraper.scrape(b.t.Context())
	require.NoError(b.t, err)
	for _, rm := range md.ResourceMetrics().All() {
		for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
			for _, dp := range metricreading.Points(m).All() {
				p := point{m.Name(), dp.Attributes().AsRaw(), dp.DoubleValue() + float64(dp.IntValue())}
				if dp.Flags().NoRecordedValue() {
					p.value = -1
				}
				all = append(all, p)
			}
		}
	}
	return all
}

// points of a metric, by an attribute.
func (b *bench) points(all []point, name, by string) map[string]float64 {
	found := map[string]float64{}
	for _, p := range all {
		if key := fmt.Sprint(p.attributes[by]); p.name == name {
			assert.NotContains(b.t, found, key, name)
			found[key] = p.value
		}
	}
	return found
}

// withRAS has a RAS service of the recording hang-rank5.
func (b *bench) withRAS(asked *[]time.Time) {
	status, err := os.ReadFile(filepath.Join("internal", "ras", "testdata", "ras-hang.json"))
	require.NoError(b.t, err)
	service, _ := fakeras.Serve(b.t, fakeras.Answers(string(status)))
	b.cfg.RAS = &RASConfig{Endpoint: service}
	b.ask = func(ctx context.Context, endpoint string) (*ras.Report, error) {
		*asked = append(*asked, b.time)
		return ras.Ask(ctx, endpoint)
	}
}

// skipped is what was since it was asked last, by reason.
func (b *bench) skipped() map[string]int64 {
	all := map[string]int64{}
	m, err := b.telemetry.GetMetric("otelcol_receiver_nccl_skipped")
	if err != nil {
		return all
	}
	for _, dp := range m.Data.(metricdata.Sum[int64]).DataPoints {
		reason, _ := dp.Attributes.Value("reason")
		if n := dp.Value - b.counted[reason.AsString()]; n > 0 {
			all[reason.AsString()] = n
		}
		b.counted[reason.AsString()] = dp.Value
	}
	return all
}

// recorded returns the seconds of a real recording: eight ranks of one process.
func recorded(t *testing.T, name string) (seconds [][]byte, first time.Time) {
	f, err := os.Open(filepath.Join("testdata", name+".log.gz"))
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	text, err := io.ReadAll(z)
	require.NoError(t, err)
	dumped := regexp.MustCompile(`"dump_timestamp_us":(\d+)`)
	begin := int64(0)
	for line := range bytes.Lines(text) {
		at, err := strconv.ParseInt(string(dumped.FindSubmatch(line)[1]), 10, 64)
		require.NoError(t, err)
		if begin == 0 {
			begin = at
		}
		for int64(len(seconds)) <= (at-begin)/1e6 {
			seconds = append(seconds, nil)
		}
		seconds[(at-begin)/1e6] = append(seconds[(at-begin)/1e6], line...)
	}
	return seconds, time.UnixMicro(begin)
}

// Second by second, as the plug-in wrote them.
func TestRecordings(t *testing.T) {
	for name, slow := range map[string]string{"slow-rank3": "3", "even": ""} {
		b := newBench(t)
		seconds, first := recorded(t, name)
		b.time = first
		b.write(realName, nil)
		b.scrape()
		for i, text := range seconds[:len(seconds)-1] { // the last is cut by the end of the job
			b.time = first.Add(time.Duration(i+1) * time.Second)
			b.write(realName, text)
			shares := b.points(b.scrape(), semconv.MetricCollectiveTimeShare, semconv.AttrCommunicatorRank)
			if i == 0 {
				assert.Empty(t, shares, "the ranks connect")
				continue
			}
			require.Len(t, shares, 8)
			for rank, share := range shares {
				switch {
				case rank == slow:
					assert.InDelta(t, 0.088, share, 0.003, "second %d", i)
				case slow != "":
					assert.InDelta(t, 0.17, share, 0.01, "second %d, rank %s", i, rank)
				default:
					assert.InDelta(t, 0.1075, share, 0.0075, "second %d, rank %s", i, rank)
				}
			}
		}
		assert.Empty(t, b.skipped())
	}
}

// A job that was even for minutes has a rank that becomes slow.
func TestARankBecomesSlow(t *testing.T) {
	b := newBench(t)
	even, first := recorded(t, "even")
	slow, late := recorded(t, "slow-rank3")
	same := strings.NewReplacer("0x7b1108a3206d77", "0x14a586f79c44f0", "0xb22518844bf827", "0xdd281344136a3a", "0x2b74afd03da71e", "0x%s")
	other := regexp.MustCompile("0x[0-9a-f]*db01").FindString(string(slow[0]))
	stamp := regexp.MustCompile(`"dump_timestamp_us":(\d+)`)
	b.time = first
	b.write(realName, nil)
	b.scrape()
	play := func(seconds [][]byte, from time.Time) map[string]float64 {
		began := b.time
		shares := map[string]float64{}
		for i, text := range seconds[1:6] {
			b.time = began.Add(time.Duration(i+1) * time.Second)
			moved := stamp.ReplaceAllFunc(text, func(found []byte) []byte {
				at, err := strconv.ParseInt(string(found[20:]), 10, 64)
				require.NoError(t, err)
				return fmt.Appendf(nil, `"dump_timestamp_us":%d`, at+began.Sub(from.Add(time.Second)).Microseconds())
			})
			b.write(realName, []byte(strings.ReplaceAll(same.Replace(string(moved)), "0x%s", other)))
			shares = b.points(b.scrape(), semconv.MetricCollectiveTimeShare, semconv.AttrCommunicatorRank)
		}
		return shares
	}
	for range 60 {
		play(even, first)
	}
	play(slow, late)
	for rank, share := range play(slow, late) {
		assert.Equal(t, rank == "3", share < 0.12, "rank %s has %v", rank, share)
	}
}

// stalled is what all eight ranks of a recording report.
func (b *bench) stalled(at time.Time) int64 {
	b.time = at
	all := b.points(b.scrape(), semconv.MetricCollectiveStalled, semconv.AttrCommunicatorRank)
	require.Len(b.t, all, 8)
	for _, v := range all {
		assert.InDelta(b.t, all["0"], v, 0)
	}
	return int64(all["0"])
}

// The process of hang-rank5 lives and stands still; then it ends.
func TestHang(t *testing.T) {
	b, asked := newBench(t), []time.Time{}
	b.withRAS(&asked)
	seconds, first := recorded(t, "hang-rank5")
	b.run(14780, 1, "SLURM_JOB_ID=7\x00RANK=0\x00", "")
	for i, text := range seconds {
		b.time = first.Add(time.Duration(i+1) * time.Second)
		b.write(realName, text)
		b.scrape()
	}
	last := b.time
	after := func(seconds time.Duration) time.Time { return last.Add(seconds * time.Second) }
	assert.Zero(t, b.stalled(after(59)))
	assert.Empty(t, asked)
	for _, seconds := range []time.Duration{60, 90, 121, 150} {
		assert.Equal(t, last.Unix(), b.stalled(after(seconds)))
	}
	all := b.scrape()
	for _, p := range all {
		assert.Equal(t, "7", p.attributes[semconv.AttrJobID])
		assert.NotContains(t, p.attributes, semconv.AttrJobRank, "the process has eight")
	}
	assert.Equal(t, []point{{semconv.MetricCollectiveLaggard, map[string]any{
		"gpu.communicator.id": "0xfd68d50b0a7290", "gpu.communicator.name": "dp:0", "gpu.communicator.rank": int64(5), "gpu.communicator.size": int64(8),
		"gpu.job.id": "7", "process.pid": int64(14780), "server.address": "127.0.0.1", "state": "behind",
	}, 1}}, slices.DeleteFunc(all, func(p point) bool { return p.name != semconv.MetricCollectiveLaggard }))
	assert.Equal(t, []time.Time{after(60), after(121)}, asked, "once a minute")

	// A receiver that starts now knows as much by the file alone.
	again := newBench(t)
	again.cfg.Directories, again.procs = b.cfg.Directories, b.procs
	assert.Equal(t, last.Unix(), again.stalled(b.time))

	b.write(realName, seconds[1]) // its last words
	b.end(14780)
	assert.Equal(t, int64(-1), b.stalled(after(160)), "the series end")
	assert.Empty(t, b.scrape())
	assert.Equal(t, inspector.MaxMembers, b.room.Left)
	assert.Len(t, asked, 2, "an end of the job is no hang")
}

// Without its process a file is of a job that stands still as long as RAS knows the job.
func TestStallWithoutProcess(t *testing.T) {
	b, asked := newBench(t), []time.Time{}
	b.withRAS(&asked)
	seconds, first := recorded(t, "hang-rank5")
	b.time = first
	b.write(realName, bytes.Join(seconds, nil))
	assert.Zero(t, b.stalled(first))
	assert.Equal(t, first.Unix(), b.stalled(first.Add(time.Minute)))
	assert.Equal(t, first.Unix(), b.stalled(first.Add(2*time.Hour)))
	b.ask = func(context.Context, string) (*ras.Report, error) { return nil, errors.New("connection refused") }
	assert.Equal(t, int64(-1), b.stalled(first.Add(3*time.Hour)))
	assert.Equal(t, inspector.MaxMembers, b.room.Left, "nothing is kept of a job of hours ago")
	assert.Len(t, asked, 2)
}

// A process writes lines, is found by the file that it has open or by its name, and ends.
func TestProcess(t *testing.T) {
	b := newBench(t)
	name := "pod-0-pid17.log" // as the container has it
	line := func(second float64) []byte { return lineOf("0xabc", "dp:0", 3, 8, b.time, second) }
	b.write(name, append(line(-70), line(0)...))
	assert.Equal(t, map[string]float64{"17": 0}, b.points(b.scrape(), semconv.MetricCollectiveStalled, semconv.AttrProcessPID), "as the name has it")
	b.time = b.time.Add(patience)
	b.write(name, line(1))
	b.write("pod-0-pid18.log", nil)
	b.run(4240, 0, "", "", name, "pod-0-pid18.log") // replays several
	b.run(4241, 2, "", "", name)                    // children inherit what is open
	b.run(4242, 1, "OTEL_RESOURCE_ATTRIBUTES=a=b,gpu.job.id=llama%203\x00SLURM_JOB_ID=7\x00ROLE_NAME=default\x00GPU_JOB_ROLE=actor\x00RANK=11\x00",
		"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0f2b8a52_3c0e_4d7c_9a51_2f9a8f6f7e10.slice/cri-containerd-1.scope\n", name)
	b.run(4243, 2, "", "", name)
	b.gpus.Report(b, map[string][]uint32{"GPU-0": {4242, 1, 2}, "GPU-3": {4242}})
	b.scrape()
	b.write(name, line(2))
	md := b.scrape()
	want := map[string]any{
		"gpu.job.id": "llama 3", "gpu.job.role": "actor", "gpu.job.rank": int64(11), "hw.id": "GPU-3", "process.pid": int64(4242),
		"gpu.communicator.id": "0xabc", "gpu.communicator.name": "dp:0", "gpu.communicator.rank": int64(3), "gpu.communicator.size": int64(8),
	}
	got := func(name string) map[string]any {
		return md[slices.IndexFunc(md, func(p point) bool { return p.name == name })].attributes
	}
	assert.Equal(t, want, got(semconv.MetricCollectiveStalled))
	want["k8s.pod.uid"] = "0f2b8a52-3c0e-4d7c-9a51-2f9a8f6f7e10"
	assert.Equal(t, want, got(semconv.MetricCollectiveTimeShare))
	delete(want, "k8s.pod.uid")
	delete(want, "gpu.job.role")
	want["gpu.communicator.nodes"], want["gpu.collective.operation"], want["gpu.collective.message_size"] = int64(1), "AllReduce", int64(1<<20)
	for _, name := range []string{semconv.MetricCommunicatorBandwidth, semconv.MetricCommunicatorLatency, semconv.MetricCommunicatorOperations} {
		assert.Equal(t, want, got(name), name)
	}

	assert.Equal(t, map[string]float64{"llama 3": 2}, b.points(md, semconv.MetricCommunicatorOperations, semconv.AttrJobID), "the first two were there before")

	// Another process takes the pid and the file over.
	for _, pid := range []int{4240, 4241, 4243} {
		b.end(pid)
	}
	b.run(4242, 2, "SLURM_JOB_ID=8\x00", "")
	assert.Equal(t, map[string]float64{"llama 3": -1}, b.points(b.scrape(), semconv.MetricCollectiveStalled, semconv.AttrJobID))
	b.time = b.time.Add(time.Minute)
	require.NoError(t, os.Truncate(filepath.Join(b.dir, name), 0))
	for s := range 3 {
		b.write(name, line(float64(s)))
		md = b.scrape()
	}
	assert.Equal(t, map[string]float64{"8": 0.001}, b.points(md, semconv.MetricCollectiveTimeShare, semconv.AttrJobID))

	// A file goes.
	require.NoError(t, os.Remove(filepath.Join(b.dir, name)))
	assert.Equal(t, map[string]float64{"8": -1}, b.points(b.scrape(), semconv.MetricCollectiveTimeShare, semconv.AttrJobID))
	assert.NotContains(t, b.files, filepath.Join(b.dir, name))
}

// The name of a file alone names a process on a node that shows no open files.
func TestProcessByName(t *testing.T) {
	for name, c := range map[string]struct {
		file       string
		start, uid int
		job        string
	}{
		"its own":       {"vm-pid5.log", 1, os.Getuid(), "7"},
		"full name":     {"vm.example.org-pid5.log", 1, os.Getuid(), "7"},
		"another host":  {"other-pid5.log", 1, os.Getuid(), "<nil>"},
		"no process":    {"vm-pid6.log", 1, os.Getuid(), "<nil>"},
		"another user":  {"vm-pid5.log", 1, os.Getuid() + 1, "<nil>"},
		"a younger one": {"vm-pid5.log", 80_000_000_100, os.Getuid(), "<nil>"},
	} {
		b := newBench(t)
		b.run(5, c.start, "SLURM_JOB_ID=7\x00", "")
		require.NoError(t, os.WriteFile(filepath.Join(b.cfg.ProcPath, "5", "status"), fmt.Appendf(nil, "Uid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\n", c.uid), 0o600))
		b.write(c.file, lineOf("a", "", 0, 2, b.time, 0))
		assert.Equal(t, map[string]float64{c.job: 0}, b.points(b.scrape(), semconv.MetricCollectiveStalled, semconv.AttrJobID), name)
	}
}

// Any user can write into the folder.
func TestFolder(t *testing.T) {
	b := newBench(t, func(c *Config) {
		c.MaxFiles = 3
		c.Directories = []string{filepath.Join(c.Directories[0], "*")}
	})
	root := b.dir
	b.dir = filepath.Join(root, "job")
	require.NoError(t, os.MkdirAll(filepath.Join(b.dir, "vm-pid70.log"), 0o700))
	outside := filepath.Join(t.TempDir(), "vm-pid71.log")
	good := lineOf("a", "", 0, 2, b.time, 0)
	require.NoError(t, os.WriteFile(outside, good, 0o600))
	require.NoError(t, os.Symlink(filepath.Dir(outside), filepath.Join(root, "link")))
	require.NoError(t, os.Symlink(outside, filepath.Join(b.dir, "vm-pid71.log")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(b.dir, "vm-pid72.log"), 0o600))
	for _, name := range []string{"vm-pid1\n.log", "v\nm-pid1.log", "v\xffm-pid1.log", "vm-pid0.log", "vm-pid99999999999999999999.log", "other.log"} {
		b.write(name, good)
	}
	b.time = b.time.Add(time.Second)
	b.scrape()
	assert.Empty(t, b.files)
	assert.Equal(t, map[string]int64{"file": 3}, b.skipped())
	b.scrape()
	assert.Empty(t, b.skipped(), "once a file")
	for i := range 6 {
		b.time = b.time.Add(time.Second)
		b.write(fmt.Sprintf("vm-pid%d.log", i+1), append(lineOf("a", "", 0, 2, b.time, 0), "garbage\n{\"header\":{}}\n"...))
	}
	b.scrape()
	paths := slices.Sorted(maps.Keys(b.files))
	assert.Equal(t, []string{filepath.Join(b.dir, "vm-pid4.log"), filepath.Join(b.dir, "vm-pid5.log"), filepath.Join(b.dir, "vm-pid6.log")}, paths)
	b.time = b.time.Add(time.Second)
	b.write("vm-pid1.log", good)
	b.scrape()
	assert.Equal(t, paths, slices.Sorted(maps.Keys(b.files)), "those that are read stay")
	assert.Equal(t, map[string]int64{"file": 3, "line": 6}, b.skipped())
	b.time = b.time.Add(2 * patience)
	b.write("vm-pid2.log", good)
	b.scrape()
	assert.Contains(t, b.files, filepath.Join(b.dir, "vm-pid2.log"), "no process has the others")
}

// Files of jobs that have ended take nothing from those of one that runs.
func TestOldFiles(t *testing.T) {
	b := newBench(t, func(c *Config) { c.MaxBytes = tailSize })
	b.room.Left = 4
	for i := range 15 {
		b.write(fmt.Sprintf("vm-pid%d.log", 100+i), lineOf("a", "", 0, 2, b.time, 0))
	}
	b.time = b.time.Add(2 * oldest)
	for range 4 {
		b.time = b.time.Add(time.Second)
		b.write("vm-pid5.log", append(bytes.Repeat([]byte("\n"), tailSize/2), lineOf("b", "", 0, 2, b.time, 0)...))
		b.scrape()
	}
	f := b.files[filepath.Join(b.dir, "vm-pid5.log")]
	assert.Greater(t, f.offset, int64(2*tailSize)-1000, "all of it is read")
	assert.Equal(t, 3, b.room.Left)
	assert.Empty(t, b.skipped())
	b.room.Left = 0
	b.write("vm-pid6.log", lineOf("c", "", 0, 2, b.time, 0))
	b.scrape()
	assert.Equal(t, map[string]int64{"communicators": 1}, b.skipped())
}

// RAS is not asked for an hour about a job that it does not know.
func TestRASOfAnotherJob(t *testing.T) {
	b, asked := newBench(t), []time.Time{}
	b.withRAS(&asked)
	b.write("vm-pid5.log", lineOf("another", "", 0, 2, b.time, 0))
	for range 30 {
		b.scrape()
		b.time = b.time.Add(patience)
	}
	assert.Len(t, asked, 6)
	assert.Equal(t, inspector.MaxMembers, b.room.Left)
}

// TestFair: a file with a backlog takes its part, whether or not it was written since.
func TestFair(t *testing.T) {
	info := func(name string, size int) found {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, make([]byte, size), 0o600))
		stat, err := os.Stat(path)
		require.NoError(t, err)
		return found{path: path, info: stat}
	}
	files := []found{info("new", 5), info("backlog", 5), info("read", 5), info("ended", 5)}
	known := map[string]*file{
		files[1].path: {process: &inspector.Process{}, offset: 2, modified: files[1].info.ModTime()},
		files[2].path: {process: &inspector.Process{}, offset: 5, modified: files[2].info.ModTime()},
		files[3].path: {offset: 2, modified: files[3].info.ModTime()},
	}
	assert.EqualValues(t, 50, fair(100, files, known))
}

// A file that grows faster than it may be read is read from near its end on, and so is one
// that others cut: its writer leaves a hole.
func TestBacklog(t *testing.T) {
	b := newBench(t, func(c *Config) { c.MaxBytes = tailSize })
	name := "vm-pid5.log"
	path := filepath.Join(b.dir, name)
	seconds := 0.0
	write := func() {
		b.write(name, lineOf("a", "", 0, 2, b.time, seconds))
		seconds++
	}
	share := func() map[string]float64 {
		return b.points(b.scrape(), semconv.MetricCollectiveTimeShare, semconv.AttrProcessPID)
	}
	for range 3 {
		write()
	}
	b.write(name, lineOf("a", "", 0, 2, b.time, 3)[:100])
	assert.Empty(t, share(), "what was there before")
	b.write(name, lineOf("a", "", 0, 2, b.time, 3)[100:])
	seconds++
	assert.Equal(t, map[string]float64{"5": 0.001}, share())
	require.NoError(t, os.Truncate(path, 0))
	require.NoError(t, os.Truncate(path, 3*tailSize))
	write()
	assert.Empty(t, share())
	assert.Equal(t, map[string]int64{"backlog": 1}, b.skipped())
	write()
	assert.Equal(t, map[string]float64{"5": 0.001}, share())
	require.NoError(t, os.Truncate(path, 0)) // by a writer that goes to the end
	write()
	assert.Equal(t, map[string]float64{"5": 0.001}, share())
	require.NoError(t, os.Rename(path, path+".1"))
	b.write(name, bytes.Repeat(lineOf("a", "", 0, 2, b.time, seconds), tailSize/100))
	assert.Empty(t, share(), "what another file had before")
	assert.Empty(t, b.skipped())
}

// A name may be of something else as soon as it was listed.
func TestReplacedFile(t *testing.T) {
	b := newBench(t)
	path := filepath.Join(b.dir, "vm-pid5.log")
	for name, replace := range map[string]func() error{
		"pipe": func() error { return syscall.Mkfifo(path, 0o600) },
		"link": func() error { return os.Symlink(filepath.Join(b.dir, "other"), path) },
		"file": func() error { return os.Rename(filepath.Join(b.dir, "other"), path) },
	} {
		b.write("vm-pid5.log", nil)
		b.write("other", nil)
		l := listing{left: 10, fail: func(string, error) {}}
		l.look(b.dir)
		require.Len(t, l.files, 1)
		require.NoError(t, os.Remove(path))
		require.NoError(t, replace())
		_, _, err := l.files[0].open()
		require.Error(t, err, name)
		l.close()
		require.NoError(t, os.Remove(path))
	}
}

// A rank that only sends has no group.
func TestSenders(t *testing.T) {
	b := newBench(t)
	for rank := range 2 {
		b.write("vm-pid6.log", bytes.ReplaceAll(lineOf("a", "", rank, 2, b.time, 0), []byte("coll"), []byte("p2p")))
	}
	assert.Equal(t, map[string]float64{"6": 0}, b.points(b.scrape(), semconv.MetricCollectiveStalled, semconv.AttrProcessPID))
}
