// SPDX-License-Identifier: Apache-2.0

package dcgmnames // import "github.com/gpu-collector/gpu-collector/internal/lastvalue/dcgmnames"

import (
	"slices"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
	"github.com/gpu-collector/gpu-collector/internal/lastvalue/promtext"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	semconv "github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/identity"
)

const (
	// maxGPUBytes bounds what a text holds of its GPUs, for about 130,000 of them.
	maxGPUBytes = 64 << 20
	// gpuBytes are a GPU's beside its labels.
	gpuBytes = 250
)

// text is the part of a scrape that has dcgm-exporter's names.
type text struct {
	*lastvalue.Scrape
	gpus     map[gpuKey]*gpu
	byLabels map[string]*gpu
	order    []*gpu
	room     int // of maxGPUBytes
	line     []byte
}

// gpuKey is a GPU or slice of a node, by the hash of hw.id.
type gpuKey struct {
	node lastvalue.NodeKey
	id   uint64
}

type gpu struct {
	cluster, labels string
	reported        uint64 // when its node reported last
	address         string // on the PCI bus
	whole           *gpu   // that a slice is of
	pod, job        holder
	hidden          bool
	sum             float64 // of the current name
	has             bool
}

// holder is the job or pod that holds a GPU, as labels. One that several hold has labels of none.
type holder struct {
	labels  string
	several bool
}

func (h *holder) add(labels string) {
	switch {
	case h.several || labels == "" || labels == h.labels:
	case h.labels == "":
		h.labels = labels
	default:
		*h = holder{several: true}
	}
}

// Write writes the GPUs of a table under dcgm-exporter's names, each joined with what its
// node reports of it.
func Write(s *lastvalue.Scrape) {
	t := &text{Scrape: s, gpus: map[gpuKey]*gpu{}, byLabels: map[string]*gpu{}, room: maxGPUBytes}
	for _, sliced := range [...]bool{false, true} { // A slice may come before its GPU.
		t.points(semconv.MetricGPUInfo, func(key gpuKey, p *lastvalue.Sample) {
			if sliced == (p.Attr(semconv.AttrHWParent) != "") {
				t.add(key, p)
			}
		})
	}
	t.points(semconv.MetricGPUAllocation, t.allocate)
	for i := range All {
		if n := &All[i]; n.Metric != "" {
			t.name(n)
		}
	}
}

// takes takes room for what is held of a GPU.
func (t *text) takes(cluster string, bytes int) bool {
	if bytes > lastvalue.MaxLine || bytes > t.room {
		t.Hide(cluster, lastvalue.HiddenLong, 1)
		return false
	}
	t.room -= bytes
	return true
}

// add takes a GPU or slice that a node reports. Of two with the same labels the one counts
// whose node reported last. A slice is joined with a GPU that was added before.
func (t *text) add(key gpuKey, p *lastvalue.Sample) {
	g := &gpu{cluster: p.Cluster, reported: p.Reported, address: p.Attr("gpu.pci.bus_id")}
	index, id, model, instance, profile := p.Attr(semconv.AttrGPUIndex), p.Attr(semconv.AttrHWID), p.Attr(semconv.AttrHWModel), "", ""
	if parent := p.Attr(semconv.AttrHWParent); parent != "" {
		if instance = p.Attr(semconv.AttrGPUInstance); instance == "" {
			return // slices of a GPU cannot be distinguished
		}
		id = parent
		model, profile, _ = strings.Cut(model, " MIG ")
		if g.whole = t.gpus[gpuKey{p.Key, lastvalue.HashString(parent)}]; g.whole != nil && g.address == "" {
			g.address = g.whole.address
		}
	}
	g.labels = labelsOf("gpu", index, "UUID", id, "pci_bus_id", g.address, "device", "nvidia"+index, "modelName", model,
		"GPU_I_PROFILE", profile, "GPU_I_ID", instance,
		// The first is dcgm-exporter's until May 2026, the second its later one.
		"Hostname", p.Node, "hostname", p.Node,
		"DCGM_FI_DRIVER_VERSION", p.Attr("hw.driver_version"), promtext.LabelName(identity.Cluster), p.Cluster)
	if t.gpus[key] != nil || !t.takes(g.cluster, gpuBytes+len(g.labels)) {
		return
	}
	t.gpus[key], t.order = g, append(t.order, g)
	if other := t.byLabels[g.labels]; other != nil {
		t.Hide(g.cluster, lastvalue.HiddenDuplicate, 1)
		if g.hidden = other.reported >= g.reported; g.hidden {
			return
		}
		other.hidden = true
	}
	t.byLabels[g.labels] = g
}

// allocate takes the holder of a GPU.
func (t *text) allocate(key gpuKey, p *lastvalue.Sample) {
	g := t.gpus[key]
	if g == nil || g.hidden || p.Value <= 0 {
		return
	}
	pod := labelsOf("pod", p.Attr(semconv.AttrPodName), "namespace", p.Attr(semconv.AttrNamespaceName),
		"container", p.Attr(semconv.AttrContainerName))
	job := labelsOf("hpc_job", p.Attr(semconv.AttrJobID))
	if g.hidden = !t.takes(g.cluster, len(pod)+len(job)); !g.hidden {
		g.pod.add(pod)
		g.job.add(job)
	}
}

// read reads the values that the GPUs have of a name.
func (t *text) read(n *Name) {
	for _, g := range t.order {
		g.sum, g.has = 0, false
	}
	for i, metric := range append([]string{n.Metric}, n.Less...) {
		t.points(metric, func(key gpuKey, p *lastvalue.Sample) {
			other := func(a Attribute) bool { return p.Attr(a.Key) != a.Value }
			switch g := t.gpus[key]; {
			case g == nil:
			case i > 0:
				g.sum -= p.Value
			case !slices.ContainsFunc(n.Attributes, other):
				g.sum, g.has = g.sum+p.Value, true
			}
		})
	}
	for _, g := range t.order {
		if g.has && g.whole != nil {
			g.whole.has = false // dcgm-exporter has rows of slices or of their GPU, so that sums hold
		}
	}
}

// name writes a name of all GPUs that have a value of it.
func (t *text) name(n *Name) {
	t.read(n)
	write := t.Family(n.DCGM, n.Help+" ("+n.Unit+").", n.Counter)
	for _, g := range t.order {
		if !g.has || g.hidden {
			continue
		}
		t.line = append(append(append(t.line[:0], n.DCGM...), '{'), g.labels[1:]...)
		t.line = append(append(t.line, g.pod.labels...), g.job.labels...)
		t.line = append(promtext.AppendFloat(append(t.line, "} "...), n.Compute(g.sum)), '\n')
		write(t.line)
	}
}

// points yields what the nodes report of their GPUs by a metric of the catalogue.
func (t *text) points(metric string, yield func(gpuKey, *lastvalue.Sample)) {
	m := reading.ByName(metric)
	name := promtext.MetricName(m.Name, m.Unit, [...]promtext.Kind{
		reading.Gauge: promtext.KindGauge, reading.Counter: promtext.KindCounter, reading.UpDownCounter: promtext.KindNonMonotonic,
	}[m.Kind])
	t.Samples(name, func(p *lastvalue.Sample) {
		if id := p.Attr(semconv.AttrHWID); id != "" {
			yield(gpuKey{p.Key, lastvalue.HashString(id)}, p)
		}
	})
}

// labelsOf are the labels that have a value, as text, of names and values in turn.
func labelsOf(pairs ...string) string {
	var out []byte
	for pair := range slices.Chunk(pairs, 2) {
		if pair[1] != "" {
			out = promtext.AppendLabel(out, pair[0], pair[1])
		}
	}
	return string(out)
}
