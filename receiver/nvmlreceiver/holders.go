// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/gpuholders"
	"github.com/gpu-collector/gpu-collector/internal/podresources"
)

// holders lets other receivers of the Collector know who holds the GPUs.
type holders struct {
	book       *gpuholders.Book
	containers map[string][]gpuholders.Container // by UUID, of this scrape
}

// of takes a container that the kubelet gave the GPU to.
func (h *holders) of(uuid string, c podresources.Container) {
	if h.containers == nil {
		h.containers = map[string][]gpuholders.Container{}
	}
	h.containers[uuid] = append(h.containers[uuid], gpuholders.Container{UID: c.PodUID, Pod: c.Pod, Namespace: c.Namespace, Name: c.Name})
}

// tell replaces what was told at the scrape before.
func (h *holders) tell(samples []gpuhealth.Sample) {
	gpus := make([]gpuholders.GPU, 0, len(samples))
	for i := range samples {
		s := &samples[i]
		gpus = append(gpus, gpuholders.GPU{UUID: s.UUID, Slice: s.Parent != "", PIDs: s.PIDs, Containers: h.containers[s.UUID]})
	}
	h.containers = nil
	h.book.Tell(h, gpus)
}

func (h *holders) end() { h.book.Tell(h, nil) }
