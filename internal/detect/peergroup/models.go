// SPDX-License-Identifier: Apache-2.0

package peergroup

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Models are the models of a node's GPUs, by hw.gpu.info. They stay known while no
// report has any: a driver that hangs must not take the node out of its group.
type Models struct {
	seen []model // by product name, at most maxModels
	// Name is the value of gpu.model, empty while nothing is known.
	Name string
}

type model struct {
	product string
	at      time.Time
}

// maxModels and maxProduct keep a node's model a valid attribute of a peer group,
// 253 bytes long at most. NVML's product names have less than maxProductRead bytes.
const maxModels, maxProduct, maxProductRead = 4, 60, 96

// Add takes the products that one report named, and reports whether they changed.
func (g *Models) Add(products []string, now time.Time, ttl time.Duration) (changed bool) {
	for _, product := range products {
		product = product[:min(len(product), maxProductRead)]
		at, known := slices.BinarySearchFunc(g.seen, product, func(m model, p string) int { return cmp.Compare(m.product, p) })
		switch {
		case known:
			g.seen[at].at = now
		case product != "" && len(g.seen) < 2*maxModels:
			g.seen = slices.Insert(g.seen, at, model{strings.Clone(product), now})
			changed = true
		}
	}
	if len(products) > 0 {
		before := len(g.seen)
		g.seen = slices.DeleteFunc(g.seen, func(m model) bool { return now.Sub(m.at) > ttl })
		changed = changed || len(g.seen) != before
	}
	if changed {
		g.rename()
	}
	return changed
}

// rename writes the names as labels of Kubernetes' nodes have them, without
// spaces: NVIDIA-H100-80GB-HBM3. A node with several models is like those with
// the same ones.
func (g *Models) rename() {
	var names []string
	for i := range g.seen {
		name := strings.Join(strings.Fields(g.seen[i].product), "-")
		name = strings.ToValidUTF8(name[:min(len(name), maxProduct)], "")
		if name != "" && !slices.Contains(names, name) && len(names) < maxModels {
			names = append(names, name)
		}
	}
	g.Name = strings.Join(names, "+")
}
