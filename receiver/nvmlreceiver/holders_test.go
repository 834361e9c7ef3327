// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvmlreceiver

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuholders"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
)

// Others of the Collector learn which process is on which GPU, while the receiver runs.
func TestHoldersAreReported(t *testing.T) {
	const first, second = 4_100_000, 4_100_010 // more than Linux gives
	state := fakenvml.NewH100(2).SetGPU(0, "processes.first", first).SetGPU(0, "processes.compute", 3).
		SetGPU(1, "processes.first", second)
	n, rewrite := startFake(t, state)
	n.first()
	for pid, want := range map[int]string{first: fakenvml.UUID(0), first + 2: fakenvml.UUID(0), second: fakenvml.UUID(1)} {
		assert.Equal(t, want, gpuholders.OfProcess.GPU(pid, false))
	}
	state.SetGPU(1, "processes.compute", 0)
	rewrite()
	n.scrape()
	assert.Empty(t, gpuholders.OfProcess.GPU(second, false))
	n.shutdown()
	assert.Empty(t, gpuholders.OfProcess.GPU(first, false))
}

// A GPU that is cut into slices may list the processes of its slices too.
func TestSlicesHaveTheirProcesses(t *testing.T) {
	sample := func(uuid, parent string, pids ...uint32) (s gpuhealth.Sample) {
		s.UUID, s.Parent, s.PIDs = uuid, parent, pids
		return s
	}
	assert.Equal(t, map[string][]uint32{"MIG-1": {7}, "GPU-2": {8}},
		holders([]gpuhealth.Sample{sample("GPU-1", "", 7), sample("MIG-1", "GPU-1", 7), sample("GPU-2", "", 8)}))
}
