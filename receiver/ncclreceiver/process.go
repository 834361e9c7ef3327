// SPDX-License-Identifier: Apache-2.0

package ncclreceiver

import (
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	semconv "github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// writer is the process that writes a file.
type writer struct {
	rank         // without a GPU and a group
	start uint64 // in clock ticks since boot: another process with the pid has another
	began time.Time
	uid   uint64
}

// processes finds those of the node.
type processes struct {
	procfs.FS
	path, host string             // of /proc, and of the node
	holders    map[fileID]*writer // nil for not looked up
}

// find looks for the process that writes a file: the one that has it open, else the one
// of its name, if that is of its user and older. nil is for neither.
func (ps *processes) find(host string, pid int, info fs.FileInfo) *writer {
	id, uid := idOf(info)
	short := func(name string) string { name, _, _ = strings.Cut(name, "."); return name }
	if w := ps.open()[id]; w != nil || short(host) != short(ps.host) {
		return w
	}
	if w := ps.read(pid); w != nil && w.uid == uid && !w.began.After(info.ModTime()) {
		return w
	}
	return nil
}

// open returns which process has which file of a plug-in open. It reads /proc once a scrape at most.
// Children, such as loaders of data, inherit it: it is the oldest's.
func (ps *processes) open() map[fileID]*writer {
	if ps.holders != nil {
		return ps.holders
	}
	ps.holders = map[fileID]*writer{}
	all, _ := ps.AllProcs()
	for _, p := range all {
		dir := filepath.Join(ps.path, strconv.Itoa(p.PID), "fd")
		links, _ := os.ReadDir(dir) // none of another user
		var ids []fileID
		for _, l := range links {
			at := filepath.Join(dir, l.Name())
			if to, _ := os.Readlink(at); !fileName.MatchString(filepath.Base(to)) {
				continue
			}
			how, err := os.Lstat(at)
			info, gone := os.Stat(at)
			if err == nil && gone == nil && how.Mode()&0o200 != 0 { // else a reader, such as a tail
				id, _ := idOf(info)
				ids = append(ids, id)
			}
		}
		ids = slices.Compact(ids)
		if len(ids) != 1 {
			continue // a process with several replays them
		}
		if w, held := ps.read(p.PID), ps.holders[ids[0]]; w != nil && (held == nil || w.start < held.start) {
			ps.holders[ids[0]] = w
		}
	}
	return ps.holders
}

// alive reports whether it is the same process still.
func (ps *processes) alive(w *writer) bool {
	now := ps.read(int(w.pid))
	return now != nil && now.start == w.start
}

// read returns what is known of a process, nil for none.
func (ps *processes) read(pid int) *writer {
	p, err := ps.Proc(pid)
	if err != nil {
		return nil
	}
	stat, err := p.Stat()
	began, unknown := stat.StartTime()
	status, hidden := p.NewStatus()
	if err != nil || unknown != nil || hidden != nil || stat.State == "Z" || stat.State == "X" {
		return nil
	}
	w := &writer{rank: rank{pid: int64(pid)}, start: stat.Starttime, began: time.UnixMilli(int64(began * 1000)), uid: status.UIDs[1]}
	environ, _ := p.Environ() // of another user
	w.environment(environ)
	groups, _ := p.Cgroups()
	for _, g := range groups {
		if m := podUID.FindStringSubmatch(g.Path); m != nil {
			w.pod = strings.ReplaceAll(m[1], "_", "-")
		}
	}
	return w
}

// podUID is part of a control group's path: the kubelet writes pod<UID>, with underscores
// where systemd has the groups. A static pod's is a hash.
var podUID = regexp.MustCompile(`pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?:/|$)`)

// environment reads the variables of our own, Slurm, torchrun, Open MPI and PMIx.
func (w *writer) environment(environ []string) {
	env := map[string]string{}
	for _, text := range environ {
		if name, value, ok := strings.Cut(text, "="); ok && len(value) <= 4096 {
			env[name] = strings.ToValidUTF8(value, "\uFFFD")
		}
	}
	for pair := range strings.SplitSeq(env["OTEL_RESOURCE_ATTRIBUTES"], ",") {
		key, value, _ := strings.Cut(pair, "=")
		if value, err := url.PathUnescape(strings.TrimSpace(value)); err == nil {
			env[strings.TrimSpace(key)] = strings.ToValidUTF8(value, "\uFFFD")
		}
	}
	first := func(none string, names ...string) string {
		for _, name := range names {
			if v := env[name]; v != "" && v != none && len(v) <= 253 {
				return v
			}
		}
		return ""
	}
	w.job = first("none", semconv.AttrJobID, "GPU_JOB_ID", "SLURM_HET_JOB_ID", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")
	w.role = first("default", semconv.AttrJobRole, "GPU_JOB_ROLE", "ROLE_NAME")
	n, err := strconv.ParseUint(first("", "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"), 10, 31)
	if w.number = int64(n); err != nil {
		w.number = -1
	}
}
