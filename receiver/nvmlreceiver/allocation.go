// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/podresources"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/roster"
)

// pods asks the kubelet beside the poll, so that neither waits for the other.
type pods struct {
	client  *podresources.Client
	log     *zap.Logger
	failure func()
	trouble bool
	minors  minorFiles
	strange bool // a device was of no GPU
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

// onlyGPU stands for the number of a node's only GPU, where nobody tells it.
const onlyGPU = -1

// gpus are the UUIDs of the GPUs by minor number, as device ids without a UUID name
// them. NVML's index has another order.
func (p *pods) gpus(samples []gpuhealth.Sample, held []podresources.Allocation, onNode int) map[int]string {
	by, bare := map[int]string{}, 0
	for i := range held {
		if held[i].Device.UUID == "" {
			bare++
		}
	}
	if bare == 0 {
		return by
	}
	alone := onNode == 1
	var untold []*gpuhealth.Sample
	for i := range samples {
		s := &samples[i]
		if s.Parent != "" {
			continue
		}
		onNode--
		switch {
		case s.Minor.OK && (s.Up() || by[int(s.Minor.V)] == ""): // what a lost GPU had may be another's by now
			by[int(s.Minor.V)] = s.UUID
		case !s.Minor.OK:
			untold = append(untold, s)
		}
	}
	if len(untold) > 0 {
		files := p.minors.read()
		for _, s := range untold {
			if minor, ok := files[roster.Address(s.PCIBusID)]; ok {
				by[minor] = s.UUID
			} else if alone {
				by[onlyGPU] = s.UUID
			}
		}
	}
	strange := false
	for i := range held {
		d := &held[i].Device
		if onNode > 0 || d.UUID != "" || gpuOf(d, by) != "" {
			continue // or its GPU may be one that has not answered yet
		}
		if strange = true; !p.strange {
			p.log.Warn("no hw.gpu.allocation of a device: no GPU is known to have its minor number", zap.Int("minor", d.Minor))
			p.strange = true
		}
	}
	p.strange = strange
	return by
}

func gpuOf(d *podresources.Device, byMinor map[int]string) string {
	return cmp.Or(byMinor[d.Minor], byMinor[onlyGPU])
}

// minorFiles reads the minor numbers that the kernel's module tells in procfs, for a
// library that does not.
type minorFiles struct {
	proc string
	last map[string]int
	// found has what is read beside the scrape: the file of a GPU that hangs may have
	// no end.
	found chan map[string]int
}

const minorFilesTimeout = time.Second

// read returns the minor numbers by PCI address.
func (m *minorFiles) read() map[string]int {
	patience := time.Duration(0) // with files that did not come the last time
	if m.found == nil {
		m.found, patience = make(chan map[string]int, 1), minorFilesTimeout
		go func(found chan<- map[string]int) { found <- readMinors(m.proc) }(m.found)
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case m.last = <-m.found:
		m.found = nil
	case <-late.C:
	}
	return m.last
}

func readMinors(proc string) map[string]int {
	minors := map[string]int{}
	gpus := filepath.Join(proc, "driver", "nvidia", "gpus")
	entries, _ := os.ReadDir(gpus) // none without a driver
	for _, entry := range entries {
		for line := range strings.Lines(sysText(filepath.Join(gpus, entry.Name()), "information")) {
			text, ok := strings.CutPrefix(line, "Device Minor:")
			n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 16)
			if at := roster.Address(entry.Name()); ok && err == nil && at != "" {
				minors[at] = int(n)
			}
		}
	}
	return minors
}

// holding is one container on one GPU or MIG slice.
type holding struct {
	sample    *gpuhealth.Sample
	container podresources.Container
}

// recordAllocations adds a point for each container and the GPU that it holds.
// A device that NVML does not know gets none.
func recordAllocations(mb *metadata.MetricsBuilder, ts pcommon.Timestamp, samples []gpuhealth.Sample, allocations []podresources.Allocation, byMinor map[int]string) {
	holdings := make([]holding, 0, len(allocations))
	seen := make(map[holding]bool, len(allocations))
	holders := map[*gpuhealth.Sample]int{}
	shared := map[*gpuhealth.Sample]bool{}
	for i := range allocations {
		a := &allocations[i]
		sample := deviceSample(samples, &a.Device, byMinor)
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
