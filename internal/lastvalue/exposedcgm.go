// SPDX-License-Identifier: Apache-2.0

package lastvalue // import "github.com/gpu-collector/gpu-collector/internal/lastvalue"

import (
	"math"
	"slices"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/dcgmnames"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/promtext"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// gpuAt is a GPU or slice of a node that is written.
type gpuAt struct {
	node *shown
	id   uint64 // hash of hw.id
}

// dcgmGPU is a GPU under dcgm-exporter's names.
type dcgmGPU struct {
	labels string
	whole  *dcgmGPU // that a slice is of
	pods   []string // of its containers, as labels; with several it has none
	jobs   []string // likewise
	sum    float64  // of the name at hand
	has    bool
}

// dcgm writes the GPUs under dcgm-exporter's names, each joined with what the node says of
// it. It takes some 500 bytes for a GPU while it does so.
func (s *scrape) dcgm() error {
	gpus, order := map[gpuAt]*dcgmGPU{}, []*dcgmGPU(nil)
	byLabels, addresses := map[string]gpuAt{}, map[gpuAt]string{}
	s.points(gpusemconv.MetricGPUInfo, func(at gpuAt, attrs []Attr, _ float64) {
		whole, address := at, textOf(attrs, "gpu.pci.bus_id")
		if parent := textOf(attrs, gpusemconv.AttrHWParent); parent != "" {
			whole.id = HashString(parent)
		}
		if address != "" {
			addresses[whole] = address // a slice comes after its GPU, and tells none
		}
		labels := s.dcgmLabels(at.node, attrs, addresses[whole])
		if labels == "" || gpus[at] != nil {
			return
		}
		if other, twice := byLabels[labels]; twice { // the later report counts
			s.hide(at.node.cluster, HiddenDuplicate, 1)
			if other.node.beat >= at.node.beat {
				return
			}
			delete(gpus, other)
		}
		g := &dcgmGPU{labels: labels, whole: gpus[whole]}
		byLabels[labels], gpus[at], order = at, g, append(order, g)
	})
	s.points(gpusemconv.MetricGPUAllocation, func(at gpuAt, attrs []Attr, value float64) {
		if g := gpus[at]; g != nil && value > 0 {
			var h reading.Holder
			for i := range attrs {
				h.Name(attrs[i].Key, attrs[i].text())
			}
			addLabels(&g.pods, [2]string{"pod", h.Pod}, [2]string{"namespace", h.Namespace}, [2]string{"container", h.Container})
			addLabels(&g.jobs, [2]string{"hpc_job", h.Job})
		}
	})
	for _, g := range order {
		for _, held := range [...][]string{g.pods, g.jobs} {
			if len(held) == 1 {
				g.labels += held[0]
			}
		}
	}
	for i := range dcgmnames.All {
		if n := &dcgmnames.All[i]; n.Metric != "" {
			if err := s.dcgmFamily(n, gpus, order); err != nil {
				return err
			}
		}
	}
	return nil
}

// dcgmFamily writes a name of all GPUs that have a value of it.
func (s *scrape) dcgmFamily(n *dcgmnames.Name, gpus map[gpuAt]*dcgmGPU, order []*dcgmGPU) error {
	for _, g := range order {
		g.sum, g.has = 0, false
	}
	s.points(n.Metric, func(at gpuAt, attrs []Attr, value float64) {
		if g := gpus[at]; g != nil && !slices.ContainsFunc(n.Attributes, func(a dcgmnames.Attribute) bool { return textOf(attrs, a.Key) != a.Value }) {
			g.sum, g.has = g.sum+value, true
		}
	})
	for _, metric := range n.Less {
		s.points(metric, func(at gpuAt, _ []Attr, value float64) {
			if g := gpus[at]; g != nil {
				g.sum -= value
			}
		})
	}
	for _, g := range order {
		if g.has && g.whole != nil {
			g.whole.has = false // dcgm-exporter has rows of slices or of their GPU, so that sums hold
		}
	}
	header, before := len(s.buf), s.exposed.Series
	kind := map[bool]promtext.Type{false: promtext.Gauge, true: promtext.Counter}[n.Counter]
	s.buf = promtext.AppendFamily(s.buf, n.DCGM, n.Help+" ("+n.Unit+").", kind, s.OpenMetrics, true)
	for _, g := range order {
		if !g.has {
			continue
		}
		s.buf = append(append(append(s.buf, n.DCGM...), '{'), g.labels[1:]...)
		s.buf = append(promtext.AppendFloat(append(s.buf, "} "...), n.Compute(g.sum)), '\n')
		s.exposed.Series++
		if err := s.flush(); err != nil {
			return err
		}
	}
	s.endFamily(header, before)
	return nil
}

// points yields what the nodes say of their GPUs by a metric of the catalogue.
func (s *scrape) points(metric string, yield func(at gpuAt, attrs []Attr, value float64)) {
	m := reading.ByName(metric)
	name := promtext.MetricName(m.Name, m.Unit, [...]promtext.Kind{
		reading.Gauge: promtext.KindGauge, reading.Counter: promtext.KindCounter, reading.UpDownCounter: promtext.KindNonMonotonic,
	}[m.Kind])
	f, found := s.byName[name]
	if !found {
		return
	}
	for v, runs := range s.nodesOf(f) {
		v.mu.Lock()
		s.each(f, v, runs, func(e *entry) {
			attrs := v.names.attributes(e.attrs)
			if id := textOf(attrs, gpusemconv.AttrHWID); id != "" {
				value := float64(int64(e.value))
				if e.kind() != KindInt {
					value = math.Float64frombits(e.value)
				}
				yield(gpuAt{v, HashString(id)}, attrs, value)
			}
		})
		v.mu.Unlock()
	}
}

// dcgmLabels are those of a GPU, empty where it cannot be told apart: a slice has its
// GPU's, and the number of its GPU instance.
func (s *scrape) dcgmLabels(v *shown, attrs []Attr, address string) string {
	index, id, model := textOf(attrs, gpusemconv.AttrGPUIndex), textOf(attrs, gpusemconv.AttrHWID), textOf(attrs, gpusemconv.AttrHWModel)
	instance, profile := "", ""
	if parent := textOf(attrs, gpusemconv.AttrHWParent); parent != "" {
		if instance = textOf(attrs, gpusemconv.AttrGPUInstance); instance == "" {
			return ""
		}
		id = parent
		model, profile, _ = strings.Cut(model, " MIG ")
	}
	return labelsOf([][2]string{
		{"gpu", index},
		{"UUID", id},
		{"pci_bus_id", address},
		{"device", "nvidia" + index},
		{"modelName", model},
		{"GPU_I_PROFILE", profile},
		{"GPU_I_ID", instance},
		// The first is dcgm-exporter's until May 2026, the second its later one.
		{"Hostname", v.name},
		{"hostname", v.name},
		{"DCGM_FI_DRIVER_VERSION", textOf(attrs, "hw.driver_version")},
		{s.cluster.name, v.cluster},
	})
}

// labelsOf are those that have a value, as text.
func labelsOf(labels [][2]string) string {
	var out []byte
	for _, label := range labels {
		if label[1] != "" {
			out = promtext.AppendLabel(out, label[0], label[1])
		}
	}
	return string(out)
}

// addLabels adds to a GPU's holders of a kind, as far as one differs from several.
func addLabels(to *[]string, labels ...[2]string) {
	if text := labelsOf(labels); len(*to) < 2 && text != "" && !slices.Contains(*to, text) {
		*to = append(*to, text)
	}
}
