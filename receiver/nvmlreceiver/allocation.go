// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"context"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/podresources"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
)

// pods asks the kubelet beside the poll, so that neither waits for the other.
type pods struct {
	client  *podresources.Client
	log     *zap.Logger
	failure func()
	trouble bool
}

// ask begins to ask. The function it returns waits for the answer, which comes
// within the client's deadline; that there is none is logged once.
func (p *pods) ask(ctx context.Context) (answer func() []podresources.Allocation) {
	if p.client == nil {
		return func() []podresources.Allocation { return nil }
	}
	type result struct {
		allocations []podresources.Allocation
		fresh       bool
		err         error
	}
	results := make(chan result, 1)
	go func() {
		allocations, fresh, err := p.client.Allocations(ctx)
		results <- result{allocations, fresh, err}
	}()
	return func() []podresources.Allocation {
		r := <-results
		if r.fresh && r.err != nil {
			p.failure()
		}
		switch trouble := r.err != nil; {
		case trouble == p.trouble:
		case trouble:
			p.log.Warn("no hw.gpu.allocation: the kubelet does not say which pods hold which GPU", zap.Error(r.err))
		default:
			p.log.Info("the kubelet says which pods hold which GPU")
		}
		p.trouble = r.err != nil
		return r.allocations
	}
}

// holding is one container on one GPU or MIG slice.
type holding struct {
	sample    *gpuhealth.Sample
	container podresources.Container
}

// recordAllocations adds a point for each container and the GPU that it holds.
// A device that NVML does not know gets none.
func recordAllocations(mb *metadata.MetricsBuilder, ts pcommon.Timestamp, samples []gpuhealth.Sample, allocations []podresources.Allocation) {
	holdings := make([]holding, 0, len(allocations))
	seen := make(map[holding]bool, len(allocations))
	holders := map[*gpuhealth.Sample]int{}
	shared := map[*gpuhealth.Sample]bool{}
	for i := range allocations {
		a := &allocations[i]
		sample := deviceSample(samples, &a.Device)
		if sample == nil {
			continue
		}
		if a.Device.Shared {
			shared[sample] = true
		}
		// A container may have several time slices of one GPU.
		if h := (holding{sample, a.Container}); !seen[h] {
			seen[h] = true
			holdings = append(holdings, h)
			holders[sample]++
		}
	}
	for _, h := range holdings {
		var options []metadata.MetricAttributeOption
		if h.sample.Parent != "" {
			options = append(options, metadata.WithHwParentMetricAttribute(h.sample.Parent))
		}
		mb.RecordHwGpuAllocationDataPoint(ts, 1, h.sample.UUID, h.container.Pod, h.container.Namespace, h.container.Name,
			shared[h.sample] || holders[h.sample] > 1, options...)
	}
}

// deviceSample is the GPU or the slice that the kubelet means.
func deviceSample(samples []gpuhealth.Sample, d *podresources.Device) *gpuhealth.Sample {
	if d.UUID != "" {
		for i := range samples {
			if samples[i].UUID == d.UUID {
				return &samples[i]
			}
		}
		return nil
	}
	for i := range samples {
		s := &samples[i]
		if s.Index != d.Index {
			continue
		}
		if d.GPUInstance < 0 && s.Parent == "" {
			return s
		}
		if d.GPUInstance >= 0 && s.Parent != "" && s.GPUInstance.OK && int(s.GPUInstance.V) == d.GPUInstance {
			return s
		}
	}
	return nil
}
