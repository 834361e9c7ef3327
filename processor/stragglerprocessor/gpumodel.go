// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
)

// gpuModels are the models of a node's GPUs, which its reports tell with
// hw.gpu.info. They stay known while no report tells any: a driver that hangs
// must not take the node out of its group.
type gpuModels struct {
	told []gpuModel // by product name, at most maxModels
	// name is the value of gpu.model, empty while nothing is known.
	name string
}

type gpuModel struct {
	product string
	at      time.Time
}

// maxModels and maxProduct keep a node's model a valid attribute of a peer group,
// 253 bytes long at most. NVML's product names have less than 96 bytes.
const maxModels, maxProduct = 4, 60

// tell takes the products that one report named, and reports whether they are
// news.
func (g *gpuModels) tell(products []string, now time.Time, ttl time.Duration) (changed bool) {
	for _, product := range products {
		at, known := slices.BinarySearchFunc(g.told, product, func(m gpuModel, p string) int { return cmp.Compare(m.product, p) })
		switch {
		case known:
			g.told[at].at = now
		case product != "" && len(g.told) < 2*maxModels:
			g.told = slices.Insert(g.told, at, gpuModel{strings.Clone(product), now})
			changed = true
		}
	}
	if len(products) > 0 {
		before := len(g.told)
		g.told = slices.DeleteFunc(g.told, func(m gpuModel) bool { return now.Sub(m.at) > ttl })
		changed = changed || len(g.told) != before
	}
	if changed {
		g.rename()
	}
	return changed
}

// rename writes the names as labels of Kubernetes' nodes have them, without
// spaces: NVIDIA-H100-80GB-HBM3. A node with several models is like those with
// the same ones.
func (g *gpuModels) rename() {
	var names []string
	for i := range g.told {
		name := strings.Join(strings.Fields(g.told[i].product), "-")
		name = strings.ToValidUTF8(name[:min(len(name), maxProduct)], "")
		if name != "" && !slices.Contains(names, name) && len(names) < maxModels {
			names = append(names, name)
		}
	}
	g.name = strings.Join(names, "+")
}

// appendProducts adds the product names that a report tells, and tells r what each GPU
// does: GPUs of one model that the same pod holds can be compared.
func appendProducts(to []string, r *nodescore.Reading, rm pmetric.ResourceMetrics, from *metricreading.Resource) []string {
	info, _ := reading.Of(reading.Info)
	held, _ := reading.Of(reading.Allocation)
	var p metricreading.Point
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			known, attr := info, gpusemconv.AttrHWModel
			switch m.Name() {
			case info.Name:
			case held.Name:
				known, attr = held, gpusemconv.AttrPodUID
			default:
				continue
			}
			points, ok := from.Open(known, m)
			if !ok {
				continue
			}
			for _, dp := range points.All() {
				// A MIG slice is the GPU it is cut from.
				if from.Read(dp, &p) != reading.Accepted || p.Ended || p.Subject == reading.Slice {
					continue
				}
				v, ok := dp.Attributes().Get(attr)
				if !ok {
					continue
				}
				text := metricreading.Text(v)
				r.Works(p.ID, text)
				if known == info && !slices.Contains(to, text) {
					to = append(to, text)
				}
			}
		}
	}
	return to
}
