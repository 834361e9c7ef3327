// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvmlreceiver

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
)

func TestSlurmJob(t *testing.T) {
	for path, want := range map[string]string{
		"/system.slice/slurmstepd.scope/job_1392969/step_0/user/task_0":                      "1392969",
		"/system.slice/gpu-017_slurmstepd.scope/job_5/step_batch/user/task_special":          "5",
		"/../../system.slice/slurmstepd.scope/job_6/step_extern/user/task_4":                 "6", // seen from another cgroup namespace
		"/kubepods.slice/pod1.slice/x.scope/system.slice/slurmstepd.scope/job_7/step_0/user": "7",
		"/slurm/uid_2101171/job_280678/step_interactive/task_0":                              "280678",
		"/slurm_gpu-017/uid_0/job_8":                                                         "8",
		"/system.slice/slurmstepd.scope/system":                                              "",
		"/user.slice/user-1000.slice/job_9/x":                                                "",
		"/slurm/uid_1000/job_x/step_0":                                                       "",
	} {
		got := ""
		if m := slurmJob.FindStringSubmatch(path); m != nil {
			got = m[1]
		}
		assert.Equal(t, want, got, path)
	}
}

// holdersOf are the holders of each GPU, as `job` or `pod`, with a star where it is shared,
// and in brackets where it has ended.
func holdersOf(md pmetric.Metrics) map[string]string {
	got := map[string][]string{}
	for _, p := range findAll(md, "hw.gpu.allocation", nil) {
		a := p.Attributes().AsRaw()
		name, _ := a["gpu.job.id"].(string)
		if pod, ok := a["k8s.pod.name"].(string); ok {
			name += pod
		}
		if a["shared"] == true {
			name += "*"
		}
		if p.Flags().NoRecordedValue() {
			name = "(" + name + ")"
		}
		id, _ := a["hw.id"].(string)
		got[id] = append(got[id], name)
	}
	all := map[string]string{}
	for id, names := range got {
		slices.Sort(names)
		all[id] = strings.Join(names, " ")
	}
	return all
}

func writeGroups(t *testing.T, proc string, pid int, groups string) {
	t.Helper()
	dir := filepath.Join(proc, strconv.Itoa(pid))
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup"), []byte(groups), 0o600))
}

// Processes, a scheduler's files and the kubelet report one relation.
func TestHolders(t *testing.T) {
	const first, second = 4_100_000, 4_100_010 // more than Linux gives
	proc, jobs, socket := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "kubelet.sock")
	writeGroups(t, proc, first, "0::/system.slice/slurmstepd.scope/job_1234/step_0/user/task_0\n")
	writeGroups(t, proc, second, "4:memory:/slurm/uid_1000/job_77/step_0\n1:name=systemd:/system.slice/slurmd.service\n")
	require.NoError(t, os.WriteFile(filepath.Join(jobs, "0"), []byte("1234\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(jobs, "1"), []byte("\n 88 \n"), 0o600))
	serveKubelet(t, socket, fakenvml.UUID(1))
	state := fakenvml.NewH100(3).SetGPU(0, "processes.first", first).SetGPU(1, "processes.first", second)
	rewrite := state.Install(t)
	library := fakenvml.Library(t)
	n := startNode(t, func(cfg *Config) {
		cfg.LibraryPath, cfg.ProcPath, cfg.JobMappingDirectory = library, proc, jobs
		cfg.PodResources.Socket, cfg.PodResources.CacheDuration, cfg.PodResources.Timeout = socket, 0, time.Minute
	})
	assert.Equal(t, map[string]string{
		fakenvml.UUID(0): "1234",
		fakenvml.UUID(1): "77* 88* train-0", // a job may run in the pod
	}, holdersOf(n.first()))

	// A GPU that does not answer any more keeps its job while that runs.
	state.SetGPU(0, "present", 0)
	rewrite()
	require.NoError(t, os.Remove(filepath.Join(jobs, "0")))
	require.NoError(t, os.Remove(filepath.Join(jobs, "1")))
	assert.Equal(t, map[string]string{
		fakenvml.UUID(0): "1234",
		fakenvml.UUID(1): "(77*) (88*) 77 train-0",
	}, holdersOf(n.until(map[string]string{fakenvml.UUID(0): "lost", fakenvml.UUID(1): "ok", fakenvml.UUID(2): "ok"})))
	require.NoError(t, os.RemoveAll(filepath.Join(proc, strconv.Itoa(first))))
	assert.Equal(t, "(1234)", holdersOf(n.scrape())[fakenvml.UUID(0)])
	assert.NotContains(t, holdersOf(n.scrape()), fakenvml.UUID(0))
	n.shutdown()
}

func TestJobFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	samples := make([]gpuhealth.Sample, 3)
	for i := range samples {
		samples[i].UUID, samples[i].Index = strconv.Itoa(i), i
	}
	core, logs := observer.New(zap.WarnLevel)
	j := jobFiles{directory: dir, log: zap.New(core)}
	read := func() map[string][]string {
		jobs := map[string][]string{}
		j.read(samples, jobs)
		return jobs
	}
	write("0", "job1\n\njob 2\r\n")
	write("notes.txt", "job4")
	assert.Equal(t, map[string][]string{"0": {"job1", "job 2"}}, read())
	assert.Zero(t, logs.Len())

	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o600))
	require.NoError(t, os.Symlink(secret, filepath.Join(dir, "1")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "2"), 0o600))
	for range 3 {
		assert.NotContains(t, read(), "1")
	}
	require.Equal(t, 1, logs.Len(), "once")
	logged := logs.All()[0].ContextMap()["error"]
	for _, what := range []string{"/1:", "/2 is no regular file"} {
		assert.Contains(t, logged, what)
	}
	write("0", "good\n\x1b[2Jbad\n"+strings.Repeat("y", maxJobName+1))
	assert.Equal(t, []string{"good"}, read()["0"])
	write("0", strings.Repeat("j\n", maxJobs+1))
	assert.Len(t, read()["0"], maxJobs)
	assert.Equal(t, 3, logs.Len())

	j.directory = filepath.Join(dir, "none")
	assert.Empty(t, read())
	assert.Equal(t, 4, logs.Len())
}

// The index of a lost GPU may be another's by now.
func TestFileNames(t *testing.T) {
	sample := func(uuid, parent string, index int, up bool) (s gpuhealth.Sample) {
		s.UUID, s.Parent, s.Index = uuid, parent, index
		if s.Reason = gpuhealth.ReasonLost; up {
			s.Reason = gpuhealth.ReasonOK
		}
		return s
	}
	slice := sample("MIG-1", "GPU-1", 0, true)
	slice.GPUInstance = gpuhealth.Some[uint32](7)
	assert.Equal(t, map[string]string{"GPU-1": "1", "MIG-1": "1.7", "GPU-2": "0"},
		fileNames([]gpuhealth.Sample{sample("GPU-0", "", 0, false), sample("GPU-1", "", 1, true), slice, sample("GPU-2", "", 0, true), sample("GPU-3", "", 1, false)}))
}
