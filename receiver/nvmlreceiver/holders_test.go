// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvmlreceiver

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpu-collector/gpu-collector/internal/gpuholders"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
)

// Others of the Collector learn which process is on which GPU, while the receiver runs.
func TestHoldersAreTold(t *testing.T) {
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
