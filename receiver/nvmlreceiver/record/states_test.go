// SPDX-License-Identifier: Apache-2.0

package record

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
)

// Slices of a GPU that did not answer begin with its reason, those that are cut later with
// none.
func TestSlicesResumeTheReasonOfTheirGPU(t *testing.T) {
	var s History
	s.Resume(nil, map[string]gpuhealth.Reason{"GPU-1": gpuhealth.ReasonLost})
	for range 2 { // it is lost for a while
		s.begin()
		assert.Equal(t, gpuhealth.ReasonLost, s.of("GPU-1", "").up)
	}
	s.begin()
	s.of("GPU-1", "").up = gpuhealth.ReasonOK
	assert.Equal(t, gpuhealth.ReasonLost, s.of("MIG-1", "GPU-1").up)
	s.begin()
	s.of("GPU-1", "")
	assert.Empty(t, s.of("MIG-2", "GPU-1").up)
}
