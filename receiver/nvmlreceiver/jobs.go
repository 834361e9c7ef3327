// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// slurmJob is part of a control group's path. Slurm's cgroup/v2 (24.11) has
// /system.slice/slurmstepd.scope/job_1234/step_0/user/task_0, and NODE_slurmstepd.scope where
// a host has several slurmd; its cgroup/v1 has /slurm/uid_1000/job_1234/step_0/task_0 or
// /slurm_NODE/... A task of an array has a number of its own.
var slurmJob = regexp.MustCompile(`(?m)/(?:slurm[^/\n]*/uid_\d+|[^/\n]*slurmstepd\.scope)/job_(\d+)(?:/|$)`)

// groupJobs finds the Slurm jobs of the processes that compute. The kernel shows everyone the
// control groups of all processes; it shows none with hidepid, or from another pid namespace.
type groupJobs struct {
	proc string
	last map[string][]uint32
}

// of returns the jobs by GPU or slice. A GPU that does not answer keeps its processes, as far
// as they live: an operator will ask for its job.
func (g *groupJobs) of(samples []gpuhealth.Sample, pids map[string][]uint32) map[string][]string {
	for i := range samples {
		uuid := samples[i].UUID
		if _, whole := pids[uuid]; whole && !samples[i].Numbers[reading.Processes].OK {
			pids[uuid] = g.last[uuid]
		}
	}
	g.last = pids
	jobs := map[string][]string{}
	for uuid, list := range pids {
		for _, pid := range list {
			groups := sysText(filepath.Join(g.proc, strconv.FormatUint(uint64(pid), 10)), "cgroup")
			if m := slurmJob.FindStringSubmatch(groups); m != nil {
				jobs[uuid] = append(jobs[uuid], m[1])
			}
		}
	}
	return jobs
}

// Bounds of a scheduler's file.
const (
	maxJobFile = 16 << 10
	maxJobs    = 64
	maxJobName = 253
)

// jobFiles reads the files of a scheduler's prolog, named and written as dcgm-exporter's
// --hpc-job-mapping-dir has them (its internal/pkg/transformation/hpc.go, 4.5).
type jobFiles struct {
	directory string
	log       *zap.Logger
	trouble   string
}

// read adds the jobs of each GPU or slice. What is wrong is logged when it changes.
func (j *jobFiles) read(samples []gpuhealth.Sample, jobs map[string][]string) {
	if j.directory == "" {
		return
	}
	_, err := os.Stat(j.directory)
	errs, names := []error{err}, fileNames(samples)
	for i := range samples {
		uuid := samples[i].UUID
		if names[uuid] == "" {
			continue
		}
		path := filepath.Join(j.directory, names[uuid])
		text, err := regularFile(path, maxJobFile)
		if err == nil {
			var list []string
			list, err = jobLines(path, string(text))
			jobs[uuid] = append(jobs[uuid], list...)
		}
		if !errors.Is(err, fs.ErrNotExist) { // no job, or an epilog has removed it
			errs = append(errs, err)
		}
	}
	err = errors.Join(errs...)
	if trouble := fmt.Sprint(err); trouble != j.trouble && err != nil {
		j.log.Warn("not all jobs of `job_mapping_directory` are known", zap.Error(err))
	}
	j.trouble = fmt.Sprint(err)
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

// fileNames are the names that GPUs and slices have in a directory of jobs: the index of a
// GPU, and for a slice also a dot and the id of its GPU instance.
func fileNames(samples []gpuhealth.Sample) map[string]string {
	names, by := map[string]string{}, map[int]string{}
	for i := range samples {
		s := &samples[i]
		if s.Parent == "" && (s.Up() || by[s.Index] == "") { // the index of a lost GPU may be another's by now
			by[s.Index] = s.UUID
		}
	}
	for index, uuid := range by {
		names[uuid] = strconv.Itoa(index)
	}
	for i := range samples {
		if s := &samples[i]; names[s.Parent] != "" && s.GPUInstance.OK {
			names[s.UUID] = fmt.Sprintf("%s.%d", names[s.Parent], s.GPUInstance.V)
		}
	}
	return names
}
