// SPDX-License-Identifier: Apache-2.0

package ncclreceiver

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	"github.com/gpu-collector/gpu-collector/internal/gpuholders"
)

// process is what /proc tells of a rank.
type process struct {
	pid   int    // the host's
	start uint64 // in clock ticks since boot: another process with the pid has another
	uid   uint64
	// rank and localRank are -1 where the environment does not say.
	rank, localRank int64
	job, gpu        string
	// pod is the UID of its pod, from its control group.
	pod string
}

// processes finds those of the node.
type processes struct {
	procfs.FS
	path string // of /proc
	gpus *gpuholders.Book
	// inspected are those that loaded the plug-in, if they were looked up since forget.
	inspected []inspected
	looked    bool
}

// inspected is a process that loaded the plug-in.
type inspected struct {
	process
	names []uint64 // its pids, one in each namespace
	host  string   // the name that it gives its node
	dumps bool     // in the Prometheus form
}

// The variables of torchrun, Slurm, Open MPI and PMIx, the first that is there.
var (
	rankVariables  = []string{"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}
	localVariables = []string{"LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"}
	jobVariables   = []string{"GPU_JOB_ID", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"}
	gpuVariables   = []string{"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"}
)

// find looks for the process that a file's name tells of, in whatever container, and that
// loaded the plug-in. In containers many may have the pid, mostly 1: it is the one that
// has the file open, else the one with the host's name. It reports false where there is
// none, or more than one. taken are the pids with a file of their own.
func (ps *processes) find(w writer, file fileIdentity, taken map[int]bool) (found process, ok bool) {
	var candidates, better []process
	for _, c := range ps.look() {
		switch {
		case w.pid > 0 && !c.calls(w.pid), w.gpu != "" && !c.dumps:
			continue
		case w.pid > 0 && ps.opened(c.pid, file), w.gpu != "" && w.gpu == bare(c.gpu):
			return c.process, true
		case w.pid > 0 && taken[c.pid], w.gpu != "" && c.gpu != "":
			continue
		}
		candidates = append(candidates, c.process)
		if w.pid > 0 && c.host == w.host {
			better = append(better, c.process)
		}
	}
	if len(better) > 0 {
		candidates = better
	}
	if len(candidates) != 1 {
		return process{}, false
	}
	found = candidates[0]
	if w.gpu != "" {
		found.gpu = "GPU-" + w.gpu
	}
	return found, true
}

// forget has the node's processes looked up again.
func (ps *processes) forget() { ps.inspected, ps.looked = nil, false }

// look returns the processes that loaded the plug-in. A pass over many files reads /proc
// once: nobody removes the files of dead processes.
func (ps *processes) look() []inspected {
	if ps.looked {
		return ps.inspected
	}
	ps.looked = true
	all, err := ps.AllProcs()
	if err != nil {
		return nil
	}
	for _, p := range all {
		environ, err := p.Environ()
		if err != nil {
			continue
		}
		env := variables(environ)
		if _, loads := env["NCCL_PROFILER_PLUGIN"]; !loads && env["NCCL_INSPECTOR_ENABLE"] == "" {
			continue
		}
		status, err := p.NewStatus()
		if err != nil {
			continue
		}
		stat, err := p.Stat()
		if err != nil {
			continue
		}
		dumps := env["NCCL_INSPECTOR_PROM_DUMP"]
		c := inspected{
			process: process{pid: p.PID, start: stat.Starttime, uid: status.UIDs[0]},
			names:   status.NSpids, host: env["HOSTNAME"], dumps: dumps != "" && dumps != "0",
		}
		c.read(env)
		if groups, err := p.Cgroups(); err == nil {
			c.pod = podOf(groups)
		}
		ps.locate(&c.process)
		ps.inspected = append(ps.inspected, c)
	}
	return ps.inspected
}

// locate asks for the GPU that NVML lists the process on: what the environment says is
// what it may use.
func (ps *processes) locate(p *process) {
	if g, known := ps.gpus.Of(p.pid); known {
		p.gpu = g.UUID
	}
}

// opened reports whether a process has a file open.
func (ps *processes) opened(pid int, file fileIdentity) bool {
	dir := filepath.Join(ps.path, strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, e := range entries {
		info, err := os.Stat(filepath.Join(dir, e.Name()))
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && (fileIdentity{stat.Dev, stat.Ino}) == file {
			return true
		}
	}
	return false
}

// podUID is part of a control group's path: the kubelet writes pod<UID>, with underscores
// where systemd has the groups. A static pod's is a hash.
var podUID = regexp.MustCompile(`pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?:/|$)`)

func podOf(groups []procfs.Cgroup) string {
	for _, g := range groups {
		if m := podUID.FindStringSubmatch(g.Path); m != nil {
			return strings.ReplaceAll(m[1], "_", "-")
		}
	}
	return ""
}

// bare is the UUID of a GPU or a slice without what it is of.
func bare(gpu string) string {
	_, id, _ := strings.Cut(strings.ToLower(gpu), "-")
	return id
}

// calls reports whether a process calls itself pid: by the last of its names.
func (i *inspected) calls(pid int) bool {
	if len(i.names) > 0 {
		return i.names[len(i.names)-1] == uint64(pid)
	}
	return i.pid == pid
}

func variables(environ []string) map[string]string {
	env := make(map[string]string, len(environ))
	for _, text := range environ {
		if name, value, ok := strings.Cut(text, "="); ok {
			env[name] = value
		}
	}
	return env
}

func (p *process) read(env map[string]string) {
	p.rank, p.localRank = whole(env, rankVariables), whole(env, localVariables)
	for _, name := range jobVariables {
		if job := env[name]; job != "" && job != "none" { // torchrun's own default
			p.job = strings.ToValidUTF8(job[:min(len(job), maxJob)], "")
			break
		}
	}
	for _, name := range gpuVariables {
		if p.gpu = visible(env[name], p.localRank); p.gpu != "" {
			break
		}
	}
}

// maxJob bounds the text of a job, as that of a peer group's attribute.
const maxJob = 253

func whole(env map[string]string, names []string) int64 {
	for _, name := range names {
		if n, err := strconv.ParseInt(env[name], 10, 32); err == nil && n >= 0 {
			return n
		}
	}
	return -1
}

// visible is the GPU that a list names for a rank: its own, or that at its place. An
// index says nothing, since each process may count otherwise.
func visible(list string, localRank int64) string {
	all := strings.Split(list, ",")
	at := 0
	if len(all) > 1 {
		at = int(localRank)
	}
	if at < 0 || at >= len(all) {
		return ""
	}
	if gpu := strings.TrimSpace(all[at]); strings.HasPrefix(gpu, "GPU-") || strings.HasPrefix(gpu, "MIG-") {
		return gpu
	}
	return ""
}

// alive reports whether it is the same process still.
func (p *process) alive(fs procfs.FS) bool {
	proc, err := fs.Proc(p.pid)
	if err != nil {
		return false
	}
	stat, err := proc.Stat()
	return err == nil && stat.Starttime == p.start && !slices.Contains([]string{"Z", "X"}, stat.State)
}

// began is when the process started, zero for unknown.
func (p *process) began(fs procfs.FS) time.Time {
	proc, err := fs.Proc(p.pid)
	if err != nil {
		return time.Time{}
	}
	stat, err := proc.Stat()
	if err != nil {
		return time.Time{}
	}
	at, err := stat.StartTime()
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(int64(at * 1000))
}
