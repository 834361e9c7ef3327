// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetapi"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
)

// A Slurm job is known by its processes' control group, and by a scheduler's file.
func TestJobsOfGPUs(t *testing.T) {
	t.Parallel()
	const pid = 4_100_000 // more than Linux gives
	proc, jobs := t.TempDir(), t.TempDir()
	of := filepath.Join(proc, strconv.Itoa(pid))
	require.NoError(t, os.Mkdir(of, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(of, "cgroup"), []byte("0::/system.slice/slurmstepd.scope/job_1234/step_0/user/task_0\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(jobs, "1"), []byte("1235\n"), 0o600))
	n := startGPUNode(t, collectorBinary, fakenvml.Library(t), oftener, fmt.Sprintf("receivers: {nvml: {proc_path: %q, job_mapping_directory: %q}}\n", proc, jobs))
	n.state.SetGPU(0, "processes.first", pid).SetGPU(0, "processes.compute", 1)
	require.NoError(t, n.state.Write(n.stateFile))
	held := func(gpu int, job string) labels {
		return labels{"hw_id": fakenvml.UUID(gpu), "gpu_job_id": job, "shared": "false"}
	}
	n.await("both jobs", func(s scraped) bool {
		return s.is(1, "hw_gpu_allocation_ratio", held(0, "1234")) && s.is(1, "hw_gpu_allocation_ratio", held(1, "1235"))
	})
	gpusOf := func(job string) []fleetapi.NodeGPU {
		var page fleetapi.GPUPage
		getJSON(t, "http://"+n.fleet+"/api/v1/gpus?job="+job, &page)
		return page.GPUs
	}
	eventually(t, "the job's GPU in the API", func() bool { return len(gpusOf("1234")) == 1 })
	g := gpusOf("1234")[0]
	assert.Equal(t, fakenvml.UUID(0), g.UUID)
	assert.Equal(t, []reading.Holder{{Job: "1234"}}, g.Allocations)

	require.NoError(t, os.RemoveAll(of))
	n.await("the end of one job", func(s scraped) bool {
		return len(s.with("hw_gpu_allocation_ratio", labels{"gpu_job_id": "1234"})) == 0 && s.is(1, "hw_gpu_allocation_ratio", held(1, "1235"))
	})
	eventually(t, "its end in the API", func() bool { return len(gpusOf("1234")) == 0 })
}
