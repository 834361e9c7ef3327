// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/podresources"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
)

func TestRecordAllocations(t *testing.T) {
	const gpuB = "GPU-00000000-0000-4000-8000-00000000000b"
	samples := []gpuhealth.Sample{
		{Identity: gpuhealth.Identity{UUID: gpuA, Index: 0}},
		{Identity: gpuhealth.Identity{UUID: gpuB, Index: 1}},
		{Identity: gpuhealth.Identity{UUID: sliceA, Index: 1, MIG: gpuhealth.MIG{Parent: gpuB, GPUInstance: some[uint32](7), ComputeInstance: some[uint32](0)}}},
	}
	type point struct {
		id, parent, pod string
		shared          bool
	}
	for name, tt := range map[string]struct {
		devices map[string]string // id to pod
		want    []point
	}{
		"a GPU":                         {map[string]string{gpuA: "p"}, []point{{gpuA, "", "p", false}}},
		"a slice":                       {map[string]string{sliceA: "p"}, []point{{sliceA, gpuB, "p", false}}},
		"two slices of time of one":     {map[string]string{gpuA + "::0": "p", gpuA + "::1": "p"}, []point{{gpuA, "", "p", true}}},
		"two pods on slices of time":    {map[string]string{gpuA + "::0": "p", gpuA + "::1": "q"}, []point{{gpuA, "", "p", true}, {gpuA, "", "q", true}}},
		"two pods on a whole GPU":       {map[string]string{gpuA: "p", "nvidia0": "q"}, []point{{gpuA, "", "p", true}, {gpuA, "", "q", true}}},
		"a slice of GKE's":              {map[string]string{"nvidia1/gi7": "p"}, []point{{sliceA, gpuB, "p", false}}},
		"GKE's time-sharing":            {map[string]string{"nvidia0/vgpu1": "p"}, []point{{gpuA, "", "p", true}}},
		"DRA":                           {map[string]string{"k8s.gpu.nvidia.com/device=gpu-1": "p"}, []point{{gpuB, "", "p", false}}},
		"a GPU that NVML does not know": {map[string]string{"GPU-x": "p", "nvidia9": "p", "nvidia1/gi9": "p"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var allocations []podresources.Allocation
			for id, pod := range tt.devices {
				device, ok := podresources.ParseDevice(id)
				assert.True(t, ok, id)
				allocations = append(allocations, podresources.Allocation{
					Device: device, Container: podresources.Container{Pod: pod, Namespace: "ml", Name: "main"},
				})
			}
			cfg := metadata.NewDefaultMetricsBuilderConfig()
			cfg.Metrics.HwGpuAllocation.Enabled = true
			mb := metadata.NewMetricsBuilder(cfg, settings(t).Settings)
			recordAllocations(mb, 1, samples, allocations)
			var got []point
			for _, p := range points(mb.Emit()) {
				a := p.Attributes().AsRaw()
				parent, _ := a["hw.parent"].(string)
				pod, _ := a["k8s.pod.name"].(string)
				assert.Equal(t, "ml", a["k8s.namespace.name"])
				assert.Equal(t, "main", a["k8s.container.name"])
				got = append(got, point{a["hw.id"].(string), parent, pod, a["shared"].(bool)})
			}
			assert.ElementsMatch(t, tt.want, got)
		})
	}
}
