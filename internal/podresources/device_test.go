// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

const uuid = "GPU-7d1a0b6e-2b0e-4f0d-9d39-0123456789ab"

func TestParseDevice(t *testing.T) {
	for id, want := range map[string]Device{
		uuid:                     {UUID: uuid, Index: -1, GPUInstance: -1},
		uuid + "::3":             {UUID: uuid, Index: -1, GPUInstance: -1, Shared: true},
		"MIG-abc":                {UUID: "MIG-abc", Index: -1, GPUInstance: -1},
		"MIG-" + uuid + "/1/0":   {UUID: "MIG-" + uuid + "/1/0", Index: -1, GPUInstance: -1},
		"MIG-abc::0":             {UUID: "MIG-abc", Index: -1, GPUInstance: -1, Shared: true},
		"nvidia0":                {Index: 0, GPUInstance: -1},
		"nvidia11":               {Index: 11, GPUInstance: -1},
		"nvidia0/gi1":            {Index: 0, GPUInstance: 1},
		"nvidia0/vgpu1":          {Index: 0, GPUInstance: -1, Shared: true},
		"nvidia0/gi2/vgpu1":      {Index: 0, GPUInstance: 2, Shared: true},
		"nvidia.com/gpu=" + uuid: {UUID: uuid, Index: -1, GPUInstance: -1},
		"nvidia.com/gpu=gpu-3":   {Index: 3, GPUInstance: -1},
		"gpu-1":                  {Index: 1, GPUInstance: -1},
		"gpu-1-mig-9-4-4":        {Index: 1, GPUInstance: -1, Shared: true},
		"k8s.gpu.nvidia.com/device=0c1c2d7e-3f0a-4d53-a0e2-aa0000000000-gpu-0":  {Index: 0, GPUInstance: -1},
		"k8s.gpu.nvidia.com/claim=0c1c2d7e-3f0a-4d53-a0e2-aa0000000000-" + uuid: {UUID: uuid, Index: -1, GPUInstance: -1},
	} {
		got, ok := ParseDevice(id)
		assert.True(t, ok, id)
		assert.Equal(t, want, got, id)
	}
	for _, id := range []string{
		"", "nvidia", "nvidiactl", "nvidia-1", "nvidia0/", "nvidia0/gi", "nvidia0/gi1/gi2", "nvidia0/vgpu1/gi1",
		"nvidia0/vgpu1/vgpu2", "nvidia0/gi1/vgpu1/x", "GPU-", "MIG-", "GPU- ", "GPU-\xff", "gpu-", "gpu-x", "gpu-1-x", "xgpu-1",
		"nvidia99999", "all", "example.com/x=gpu-0", "notnvidia.com/gpu=" + uuid, "gpu=gpu-0", "x=nvidia.com/gpu-0",
	} {
		got, ok := ParseDevice(id)
		assert.False(t, ok, "%q is %+v", id, got)
	}
}
