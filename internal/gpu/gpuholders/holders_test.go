// SPDX-License-Identifier: Apache-2.0

package gpuholders

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestGPU(t *testing.T) {
	var b Registry
	b.Report("nvml", map[string][]uint32{"GPU-0": {1, 2, 3, 4}, "GPU-1": {1, 5}, "GPU-2": {2}, "GPU-3": {2}, "GPU-4": {6}})
	assert.Equal(t, "GPU-1", b.GPU(1, true), "on the first GPU it has a context alone")
	assert.Empty(t, b.GPU(1, false), "its ranks are on either")
	assert.Empty(t, b.GPU(2, true), "on either of two")
	assert.Equal(t, "GPU-0", b.GPU(3, false))
	assert.Empty(t, b.GPU(7, true))
	b.Report("another", map[string][]uint32{"GPU-4": {6}})
	assert.Equal(t, "GPU-4", b.GPU(6, false), "both report one GPU")
	b.Report("nvml", nil)
	assert.Empty(t, b.GPU(3, true))
}
