// SPDX-License-Identifier: Apache-2.0

package ncclreceiver

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/gpuholders"
)

// container is a rank that calls itself process 1, in a tree that looks like /proc.
type container struct {
	pid    int
	inner  int // its pid in its container, 0 for 1
	env    []string
	open   string // the path of its file, empty where the agent may not look
	cgroup string
	uid    int  // 0 for the test's own
	start  int  // in ticks since boot
	bare   bool // without the plug-in
}

func (r *rig) contain(proc string, all ...container) {
	r.t.Helper()
	for _, c := range all {
		dir := filepath.Join(proc, strconv.Itoa(c.pid))
		require.NoError(r.t, os.MkdirAll(filepath.Join(dir, "fd"), 0o755))
		env := c.env
		if !c.bare {
			env = append(env, "NCCL_INSPECTOR_ENABLE=1")
		}
		uid := cmp.Or(c.uid, os.Getuid())
		for name, text := range map[string]string{
			"status":  fmt.Sprintf("Name:\tpython\nPid:\t%d\nUid:\t%d\t%d\t%d\t%d\nNSpid:\t%d\t%d\n", c.pid, uid, uid, uid, uid, c.pid, cmp.Or(c.inner, 1)),
			"stat":    fmt.Sprintf("%d (python) S 1 %s 0 0 0\n", c.pid, strings.Repeat("0 ", 17)+strconv.Itoa(c.start)+strings.Repeat(" 0", 28)),
			"environ": strings.Join(env, "\x00") + "\x00",
			"cgroup":  "0::" + c.cgroup + "\n",
		} {
			require.NoError(r.t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
		}
		if c.open != "" {
			require.NoError(r.t, os.Symlink(c.open, filepath.Join(dir, "fd", "7")))
		}
	}
}

func inContainers(t *testing.T) (r *rig, proc string, file func(pod string) string) {
	proc = t.TempDir()
	r = newRig(t, func(c *Config) {
		c.ProcPath = proc
		c.Directories = []string{filepath.Join(c.Directories[0], "*")}
	})
	r.s.procs.gpus = &gpuholders.Book{}
	return r, proc, func(pod string) string {
		dir := filepath.Join(r.dir, pod)
		require.NoError(t, os.Mkdir(dir, 0o755))
		path := filepath.Join(dir, "node-pid1.log")
		r.add(path, "")
		return path
	}
}

// Each rank is process 1 of a container with the node's name: who has a file open wrote it.
func TestRanksInContainers(t *testing.T) {
	r, proc, file := inContainers(t)
	var ranks []container
	for i := range 4 {
		ranks = append(ranks, container{
			pid: 500 + i, env: []string{"HOSTNAME=node", fmt.Sprint("RANK=", i), fmt.Sprint("CUDA_VISIBLE_DEVICES=", i)}, open: file(fmt.Sprint("p", i)),
			cgroup: fmt.Sprintf("/kubepods.slice/kubepods-pod0c1c2d7e_3f0a_4d53_a0e2_aa000000000%d.slice/cri-containerd-12ab.scope", i),
		})
	}
	r.contain(proc, ranks...)
	r.s.procs.gpus.Tell(t, []gpuholders.GPU{
		{UUID: "GPU-0", PIDs: []uint32{500, 501, 502}},
		{UUID: "GPU-1", PIDs: []uint32{501}, Containers: []gpuholders.Container{{Pod: "train-1", Namespace: "ml", Name: "main"}}},
		{UUID: "GPU-2", PIDs: []uint32{502}, Containers: []gpuholders.Container{{Pod: "a"}, {Pod: "b"}}},
	})
	r.scrape()
	for at := range 2 {
		r.later(10 * time.Second)
		for i, c := range ranks {
			r.add(c.open, r.line("0xa", 1000*(i+1)))
		}
		if at == 0 {
			r.scrape()
		}
	}
	md, err := r.s.scrape(t.Context())
	require.NoError(t, err)
	got := map[string]string{}
	for _, rm := range md.ResourceMetrics().All() {
		a := rm.Resource().Attributes().AsRaw()
		for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
			if m.Name() == "gpu.collective.time_share" {
				for _, p := range m.Gauge().DataPoints().All() {
					rank := p.Attributes().AsRaw()
					got[fmt.Sprint(rank["gpu.job.rank"])] = fmt.Sprint(p.DoubleValue(), " ", rank["hw.id"], " ", a["k8s.pod.uid"], " ", a["k8s.pod.name"], " ", a["k8s.namespace.name"])
				}
			}
		}
	}
	const uid = "0c1c2d7e-3f0a-4d53-a0e2-aa000000000"
	assert.Equal(t, map[string]string{
		"0": "0.1 GPU-0 " + uid + "0 <nil> <nil>",
		"1": "0.2 GPU-1 " + uid + "1 train-1 ml",
		"2": "0.3 GPU-2 " + uid + "2 <nil> <nil>",
		"3": "0.4 <nil> " + uid + "3 <nil> <nil>",
	}, got)
}

// Where the agent may not look into processes, a file is of nobody rather than of another.
func TestRanksInContainersThatNothingTellsApart(t *testing.T) {
	r, proc, file := inContainers(t)
	for i := range 2 {
		file(fmt.Sprint("p", i))
		r.contain(proc, container{pid: 500 + i, env: []string{"HOSTNAME=node", fmt.Sprint("RANK=", i)}})
	}
	assert.Empty(t, r.scrape())
	assert.Equal(t, 2, r.warned(string(noProcess)))

	r, proc, file = inContainers(t)
	file("p0")
	file("p1")
	r.contain(proc, container{pid: 500, env: []string{"HOSTNAME=node", "RANK=0"}})
	r.scrape()
	assert.Equal(t, 1, r.warned(string(noProcess)), "a process has one file")
}

// Two jobs without names have the ranks 0 each: they are two ranks still.
func TestRanksOfOneName(t *testing.T) {
	r := newRig(t, nil)
	var paths []string
	for range 2 {
		path, _ := r.rank("RANK=0", "LOCAL_RANK=0")
		r.add(path, "")
		paths = append(paths, path)
	}
	r.scrape()
	for range 2 {
		r.later(10 * time.Second)
		for _, path := range paths {
			r.add(path, r.line("0xa", 1000))
		}
		r.scrape()
	}
	for _, f := range r.s.files {
		assert.True(t, f.nameless)
		assert.Len(t, f.options(), 1, "the process alone")
	}
}

func TestPods(t *testing.T) {
	const uid = "0c1c2d7e-3f0a-4d53-a0e2-aa0000000000"
	for path, want := range map[string]string{
		"/kubepods/burstable/pod" + uid + "/12ab": uid,
		"/../../kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod0c1c2d7e_3f0a_4d53_a0e2_aa0000000000.slice/x.scope": uid,
		"/kubepods/pod0123456789abcdef0123456789abcdef": "0123456789abcdef0123456789abcdef",
		"/system.slice/docker-12ab.scope":               "",
		"/podman":                                       "",
		"/user.slice/pod1":                              "",
	} {
		assert.Equal(t, want, podOf([]procfs.Cgroup{{Path: "/"}, {Path: path}}), path)
	}
}

// NVML's word goes before the environment's, and a file without a rank's UUID finds it.
func TestADumpByNVML(t *testing.T) {
	r := newPromRig(t)
	r.s.procs.gpus = &gpuholders.Book{}
	var gpus []gpuholders.GPU
	for i, id := range []string{gpu4, "0c1c2d7e-3f0a-4d53-a0e2-aa0000000005"} {
		_, cmd := r.rank("NCCL_INSPECTOR_PROM_DUMP=1", fmt.Sprint("RANK=", i), fmt.Sprint("CUDA_VISIBLE_DEVICES=", i))
		gpus = append(gpus, gpuholders.GPU{UUID: "GPU-" + id, PIDs: []uint32{uint32(cmd.Process.Pid)}})
		r.dump(r.path(id), mean(100*(i+1)))
	}
	r.now = r.now.Add(2 * time.Second)
	assert.Empty(t, r.scrape(), "two processes, and nobody says whose file is which")
	r.s.procs.gpus.Tell(t, gpus)
	got := r.scrape()
	assert.InDelta(t, 100e-6, got["gpu.collective.duration  0 "+gpus[0].UUID], 1e-9)
	assert.InDelta(t, 200e-6, got["gpu.collective.duration  1 "+gpus[1].UUID], 1e-9)
}
