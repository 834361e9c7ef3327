// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/prometheus/procfs"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
)

// slurmJob is part of a control group's path. Slurm's cgroup/v2 (24.11) has
// /system.slice/slurmstepd.scope/job_1234/step_0/user/task_0, and NODE_slurmstepd.scope where
// a host has several slurmd; its cgroup/v1 has /slurm/uid_1000/job_1234/step_0/task_0 or
// /slurm_NODE/... A task of an array has a number of its own.
var slurmJob = regexp.MustCompile(`/(?:slurm[^/]*/uid_\d+|[^/]*slurmstepd\.scope)/job_(\d+)(?:/|$)`)

// groupJobs finds the Slurm jobs of the processes that compute. The kernel shows anybody the
// control groups of all processes; it shows none with hidepid, or from another pid namespace.
type groupJobs struct {
	proc string
	last map[string][]uint32
}

// of returns the jobs by GPU or slice. A GPU that does not answer keeps its processes, as far
// as they live: its job is what somebody will ask for.
func (g *groupJobs) of(samples []gpuhealth.Sample, pids map[string][]uint32) map[string][]string {
	for i := range samples {
		uuid := samples[i].UUID
		if _, whole := pids[uuid]; whole && !samples[i].Processes[gpuhealth.ProcessCompute].OK {
			pids[uuid] = g.last[uuid]
		}
	}
	g.last = pids
	procs, err := procfs.NewFS(g.proc)
	if err != nil {
		return nil
	}
	jobs := map[string][]string{}
	for uuid, list := range pids {
		for _, pid := range list {
			p, err := procs.Proc(int(pid))
			if err != nil {
				continue
			}
			groups, _ := p.Cgroups()
			for _, group := range groups {
				if m := slurmJob.FindStringSubmatch(group.Path); m != nil {
					jobs[uuid] = append(jobs[uuid], m[1])
					break
				}
			}
		}
	}
	return jobs
}

// Bounds of a directory of jobs.
const (
	maxJobFiles = 1024
	maxJobFile  = 16 << 10
	maxJobs     = 64 // of a file
	maxJobName  = 253
)

// jobFile is the name of a file as dcgm-exporter's --hpc-job-mapping-dir has them (its
// internal/pkg/transformation/hpc.go, 4.5): the index of a GPU, also with a dot and the id of
// a MIG GPU instance. Each line is a job.
var jobFile = regexp.MustCompile(`^\d{1,4}(\.\d{1,4})?$`)

// jobFiles reads the files of a scheduler's prolog.
type jobFiles struct {
	directory string
	log       *zap.Logger
	trouble   string
}

// read returns the jobs by the names of the files. What is wrong is logged when it changes.
func (j *jobFiles) read() map[string][]string {
	if j.directory == "" {
		return nil
	}
	jobs, err := j.list()
	trouble := ""
	if err != nil {
		trouble = err.Error()
	}
	if trouble != j.trouble && err != nil {
		j.log.Warn("not all jobs of `job_mapping_directory` are known", zap.Error(err))
	}
	j.trouble = trouble
	return jobs
}

func (j *jobFiles) list() (map[string][]string, error) {
	dir, err := os.Open(j.directory)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	names, _ := dir.Readdirnames(maxJobFiles + 1)
	var errs []error
	if len(names) > maxJobFiles {
		errs = append(errs, fmt.Errorf("%s has more than %d files: it may have one for each GPU and MIG GPU instance", j.directory, maxJobFiles))
	}
	slices.Sort(names)
	jobs := map[string][]string{}
	for _, name := range names {
		if !jobFile.MatchString(name) {
			continue
		}
		path := filepath.Join(j.directory, name)
		text, err := regularFile(path, maxJobFile)
		if err == nil {
			jobs[name], err = jobLines(path, string(text))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // else an epilog has removed it
			errs = append(errs, err)
		}
	}
	return jobs, errors.Join(errs[:min(len(errs), 4)]...)
}

func jobLines(path, text string) (jobs []string, err error) {
	for line := range strings.Lines(text) {
		job := strings.TrimSpace(line)
		switch {
		case job == "":
		case len(job) > maxJobName || strings.ContainsFunc(job, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }):
			err = fmt.Errorf("%s names the job %.64q: it has to be up to %d printable bytes", path, job, maxJobName)
		case len(jobs) == maxJobs:
			return jobs, fmt.Errorf("%s names more than %d jobs", path, maxJobs)
		default:
			jobs = append(jobs, job)
		}
	}
	return jobs, err
}

// fileNames are the names that the GPUs and slices have in a directory of jobs.
func fileNames(samples []gpuhealth.Sample) map[string]string {
	by, index := map[int]string{}, map[string]int{}
	for i := range samples {
		s := &samples[i]
		if s.Parent == "" && (s.Up() || by[s.Index] == "") { // the index of a lost GPU may be another's by now
			delete(index, by[s.Index])
			by[s.Index], index[s.UUID] = s.UUID, s.Index
		}
	}
	names := map[string]string{}
	for i := range samples {
		s := &samples[i]
		if n, known := index[s.UUID]; known {
			names[s.UUID] = strconv.Itoa(n)
		} else if n, known := index[s.Parent]; known && s.GPUInstance.OK {
			names[s.UUID] = strconv.Itoa(n) + "." + strconv.Itoa(int(s.GPUInstance.V))
		}
	}
	return names
}
