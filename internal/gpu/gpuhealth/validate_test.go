// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

const testUUID = "GPU-00000000-0000-0000-0000-000000000001"

// Operators count rejections by these names.
func TestNamesOfNumbers(t *testing.T) {
	assert.Subset(t, numberNames, []Field{
		"memory.total", "memory.used", "memory.reserved", "utilization.general", "utilization.memory", "utilization.encoder", "utilization.decoder",
		"temperature.gpu", "temperature.memory", "temperature.margin", "power", "power.limit.enforced", "power.limit.max", "energy",
	})
}

func TestValidUUID(t *testing.T) {
	for uuid, want := range map[string]bool{
		testUUID: true, "MIG-abc": true, "GPU-": false, "": false, "gpu-1": false,
		"GPU-a b": false, "GPU-\xff": false, "GPU-\n": false,
	} {
		assert.Equal(t, want, ValidUUID(uuid), "%q", uuid)
		s := Sample{Identity: Identity{UUID: uuid}}
		assert.Equal(t, want, len(s.Validate()) == 0, "%q", uuid)
	}
}
