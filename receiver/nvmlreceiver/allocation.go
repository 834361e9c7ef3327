// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"slices"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/gpu/podresources"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/record"
)

// pods asks the kubelet beside the poll, so that neither waits for the other.
type pods struct {
	client    *podresources.Client
	log       *zap.Logger
	failure   func()
	trouble   bool
	answered  bool // the kubelet has answered
	unmatched bool // a device was of no GPU
}

// ask begins to ask. The function it returns waits for the answer, which comes
// within the client's deadline. A missing answer is logged once, at info level on a node
// that never had a kubelet.
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
		p.answered = p.answered || r.err == nil
		absent := !p.answered && errors.Is(r.err, fs.ErrNotExist)
		if r.fresh && r.err != nil && !absent {
			p.failure()
		}
		switch trouble := r.err != nil; {
		case trouble == p.trouble:
		case absent:
			p.log.Info("hw.gpu.allocation names no pods: the kubelet has no socket here", zap.Error(r.err))
		case trouble:
			p.log.Warn("the kubelet does not say which pods hold which GPU: hw.gpu.allocation names those of its last answer for five minutes, and then none", zap.Error(r.err))
		default:
			p.log.Info("the kubelet says which pods hold which GPU")
		}
		p.trouble = r.err != nil
		return r.allocations
	}
}

// onlyGPU stands for the minor number of a node's only GPU, where it is unknown.
const onlyGPU = -1

// gpus are the UUIDs of the GPUs by minor number, as device ids without a UUID name
// them. NVML's index has another order.
func (p *pods) gpus(samples []gpuhealth.Sample, held []podresources.Allocation, onNode int) map[int]string {
	by := map[int]string{}
	if !slices.ContainsFunc(held, func(a podresources.Allocation) bool { return a.Device.UUID == "" }) {
		return by
	}
	alone := onNode == 1
	for i := range samples {
		s := &samples[i]
		if s.Parent != "" {
			continue
		}
		onNode--
		switch minor := int(s.Minor.V); {
		case s.Minor.OK && (s.Up() || by[minor] == ""): // what a lost GPU had may be another's by now
			by[minor] = s.UUID
		case !s.Minor.OK && alone:
			by[onlyGPU] = s.UUID
		}
	}
	unmatched := false
	for i := range held {
		d := &held[i].Device
		if onNode > 0 || d.UUID != "" || gpuOf(d, by) != "" {
			continue // or its GPU may be one that has not answered yet
		}
		if unmatched = true; !p.unmatched {
			p.log.Warn("hw.gpu.allocation lacks a device: no GPU is known to have its minor number", zap.Int("minor", d.Minor))
			p.unmatched = true
		}
	}
	p.unmatched = unmatched
	return by
}

func gpuOf(d *podresources.Device, byMinor map[int]string) string {
	return cmp.Or(byMinor[d.Minor], byMinor[onlyGPU])
}

// allocation is a series of the relation: a job, or a container, and its GPU or slice.
type allocation struct {
	uuid, parent, job string
	container         podresources.Container
	shared            bool
}

// relate records the holders of each GPU, each once whatever its source, and ends those of before that
// are no more. A device that NVML does not know has no holder.
func relate(mb *metadata.MetricsBuilder, ts pcommon.Timestamp, samples []gpuhealth.Sample, held []podresources.Allocation, byMinor map[int]string,
	jobs map[string][]string, before map[allocation]bool,
) (now map[allocation]bool) {
	type kind struct { // what shares a GPU with its like: a job that runs in a container does not share it
		uuid string
		job  bool
	}
	all, holders := map[allocation]bool{}, map[kind]int{}
	add := func(a allocation) kind {
		k := kind{a.uuid, a.job != ""}
		if !all[a] { // a container may have several time slices of one GPU
			all[a] = true
			holders[k]++
		}
		return k
	}
	for i := range held {
		d := &held[i].Device
		if s := deviceSample(samples, d, byMinor); s != nil {
			if k := add(allocation{uuid: s.UUID, parent: s.Parent, container: held[i].Container}); d.Shared {
				holders[k] = 2 // at least
			}
		}
	}
	for i := range samples {
		for _, job := range jobs[samples[i].UUID] {
			add(allocation{uuid: samples[i].UUID, parent: samples[i].Parent, job: job})
		}
	}
	now = map[allocation]bool{}
	for a := range all {
		a.shared = holders[kind{a.uuid, a.job != ""}] > 1
		now[a] = true
		delete(before, a)
		a.record(mb, ts, 1)
	}
	for a := range before {
		a.record(mb, ts, record.Ended)
	}
	return now
}

func (a *allocation) record(mb *metadata.MetricsBuilder, ts pcommon.Timestamp, value int64) {
	var options []metadata.MetricAttributeOption
	option := func(known string, of func(string) metadata.MetricAttributeOption) {
		if known != "" {
			options = append(options, of(known))
		}
	}
	option(a.parent, metadata.WithHwParentMetricAttribute)
	option(a.job, metadata.WithGpuJobIDMetricAttribute)
	option(a.container.Pod, metadata.WithK8sPodNameMetricAttribute)
	option(a.container.Namespace, metadata.WithK8sNamespaceNameMetricAttribute)
	option(a.container.Name, metadata.WithK8sContainerNameMetricAttribute)
	mb.RecordHwGpuAllocationDataPoint(ts, value, a.uuid, a.shared, options...)
}

// deviceSample is the GPU or the slice that the kubelet means.
func deviceSample(samples []gpuhealth.Sample, d *podresources.Device, byMinor map[int]string) *gpuhealth.Sample {
	uuid := d.UUID
	if uuid == "" {
		uuid = gpuOf(d, byMinor)
	}
	for i := range samples {
		s := &samples[i]
		if d.GPUInstance < 0 && s.UUID == uuid {
			return s
		}
		if d.GPUInstance >= 0 && uuid != "" && s.Parent == uuid && s.GPUInstance.OK && int(s.GPUInstance.V) == d.GPUInstance {
			return s
		}
	}
	return nil
}
