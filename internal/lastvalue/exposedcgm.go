// SPDX-License-Identifier: Apache-2.0

package lastvalue // import "github.com/gpu-collector/gpu-collector/internal/lastvalue"

import (
	"slices"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/dcgmnames"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/promtext"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

const (
	// maxGPUBytes bounds what a text holds of its GPUs, for about 130,000 of them.
	maxGPUBytes = 64 << 20
	// gpuBytes are a GPU's beside its labels.
	gpuBytes = 250
)

// dcgmText is the part of a text that has dcgm-exporter's names.
type dcgmText struct {
	*scrape
	gpus     map[gpuAt]*dcgmGPU
	byLabels map[string]*dcgmGPU
	order    []*dcgmGPU
	room     int // of maxGPUBytes
}

// gpuAt is a GPU or slice of a node, by the hash of hw.id.
type gpuAt struct {
	node *shown
	id   uint64
}

type dcgmGPU struct {
	node     *shown
	labels   string
	address  string   // on the PCI bus
	whole    *dcgmGPU // that a slice is of
	pod, job holder
	hidden   bool
	sum      float64 // of the name at hand
	has      bool
}

// holder is who holds a GPU, as labels. One that several hold has labels of none.
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

// dcgm writes the GPUs under dcgm-exporter's names, each joined with what the node says of
// it.
func (s *scrape) dcgm() {
	d := &dcgmText{scrape: s, gpus: map[gpuAt]*dcgmGPU{}, byLabels: map[string]*dcgmGPU{}, room: maxGPUBytes}
	d.points(gpusemconv.MetricGPUInfo, d.add)
	d.points(gpusemconv.MetricGPUAllocation, d.allocate)
	for i := range dcgmnames.All {
		if n := &dcgmnames.All[i]; n.Metric != "" {
			d.name(n)
		}
	}
}

// takes takes room for what is held of a node's GPU.
func (d *dcgmText) takes(node *shown, bytes int) bool {
	if bytes > maxLine || bytes > d.room {
		d.hide(node.cluster, HiddenLong, 1)
		return false
	}
	d.room -= bytes
	return true
}

// add takes a GPU or slice that a node tells of. Of two with the same labels the one counts
// whose node reported last.
func (d *dcgmText) add(at gpuAt, text func(key string) string, _ float64) {
	g := &dcgmGPU{node: at.node, address: text("gpu.pci.bus_id")}
	index, id, model, instance, profile := text(gpusemconv.AttrGPUIndex), text(gpusemconv.AttrHWID), text(gpusemconv.AttrHWModel), "", ""
	if parent := text(gpusemconv.AttrHWParent); parent != "" {
		if instance = text(gpusemconv.AttrGPUInstance); instance == "" {
			return // slices of a GPU cannot be told apart
		}
		id = parent
		model, profile, _ = strings.Cut(model, " MIG ")
		if g.whole = d.gpus[gpuAt{at.node, HashString(parent)}]; g.whole != nil && g.address == "" {
			g.address = g.whole.address
		}
	}
	g.labels = labelsOf("gpu", index, "UUID", id, "pci_bus_id", g.address, "device", "nvidia"+index, "modelName", model,
		"GPU_I_PROFILE", profile, "GPU_I_ID", instance,
		// The first is dcgm-exporter's until May 2026, the second its later one.
		"Hostname", g.node.name, "hostname", g.node.name,
		"DCGM_FI_DRIVER_VERSION", text("hw.driver_version"), d.cluster.name, g.node.cluster)
	if d.gpus[at] != nil || !d.takes(g.node, gpuBytes+len(g.labels)) {
		return
	}
	d.gpus[at], d.order = g, append(d.order, g)
	if other := d.byLabels[g.labels]; other != nil {
		d.hide(g.node.cluster, HiddenDuplicate, 1)
		if g.hidden = other.node.reported >= g.node.reported; g.hidden {
			return
		}
		other.hidden = true
	}
	d.byLabels[g.labels] = g
}

// allocate takes who holds a GPU.
func (d *dcgmText) allocate(at gpuAt, text func(key string) string, value float64) {
	g := d.gpus[at]
	if g == nil || g.hidden || value <= 0 {
		return
	}
	pod := labelsOf("pod", text(gpusemconv.AttrPodName), "namespace", text(gpusemconv.AttrNamespaceName),
		"container", text(gpusemconv.AttrContainerName))
	job := labelsOf("hpc_job", text(gpusemconv.AttrJobID))
	if g.hidden = !d.takes(g.node, len(pod)+len(job)); !g.hidden {
		g.pod.add(pod)
		g.job.add(job)
	}
}

// read reads the values that the GPUs have of a name.
func (d *dcgmText) read(n *dcgmnames.Name) {
	for _, g := range d.order {
		g.sum, g.has = 0, false
	}
	for i, metric := range append([]string{n.Metric}, n.Less...) {
		d.points(metric, func(at gpuAt, text func(key string) string, value float64) {
			other := func(a dcgmnames.Attribute) bool { return text(a.Key) != a.Value }
			switch g := d.gpus[at]; {
			case g == nil:
			case i > 0:
				g.sum -= value
			case !slices.ContainsFunc(n.Attributes, other):
				g.sum, g.has = g.sum+value, true
			}
		})
	}
	for _, g := range d.order {
		if g.has && g.whole != nil {
			g.whole.has = false // dcgm-exporter has rows of slices or of their GPU, so that sums hold
		}
	}
}

// name writes a name of all GPUs that have a value of it.
func (d *dcgmText) name(n *dcgmnames.Name) {
	d.read(n)
	f := &family{name: n.DCGM, help: n.Help + " (" + n.Unit + ").", kind: promtext.Gauge}
	if n.Counter {
		f.kind = promtext.Counter
	}
	for _, g := range d.order {
		if !g.has || g.hidden {
			continue
		}
		d.text = append(append(append(d.text[:0], n.DCGM...), '{'), g.labels[1:]...)
		d.text = append(append(d.text, g.pod.labels...), g.job.labels...)
		d.text = append(promtext.AppendFloat(append(d.text, "} "...), n.Compute(g.sum)), '\n')
		d.write(f, d.text, 1)
	}
}

// points yields what the nodes say of their GPUs by a metric of the catalogue.
func (s *scrape) points(metric string, yield func(at gpuAt, text func(key string) string, value float64)) {
	m := reading.ByName(metric)
	f := s.byName[promtext.MetricName(m.Name, m.Unit, [...]promtext.Kind{
		reading.Gauge: promtext.KindGauge, reading.Counter: promtext.KindCounter, reading.UpDownCounter: promtext.KindNonMonotonic,
	}[m.Kind])]
	if f == nil {
		return
	}
	for v, runs := range s.nodesOf(f) {
		s.each(f, v, runs, func(e *entry) {
			text := func(key string) string { return v.names.text(e.attrs, key) }
			if id := text(gpusemconv.AttrHWID); id != "" {
				yield(gpuAt{v, HashString(id)}, text, e.kind().float(e.value))
			}
		})
	}
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
