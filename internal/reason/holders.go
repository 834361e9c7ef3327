// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"slices"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// holding is a container or job and its GPUs: most hold all of a node.
type holding struct {
	reading.Holder
	gpus uint64 // a bit for each of MaxGPUs
}

func (h *holding) text() int {
	return len(h.Job) + len(h.Pod) + len(h.Namespace) + len(h.Container) + sizeText
}

// SetHolder says whether a container or job holds the GPU.
func (n *Node) SetHolder(gpu int, of reading.Holder, on bool) error {
	bit := uint64(1) << gpu
	at := slices.IndexFunc(n.holdings, func(h holding) bool { return h.Holder == of })
	switch {
	case !of.Named():
		return nil
	case max(len(of.Job), len(of.Pod), len(of.Namespace), len(of.Container)) > maxName:
		return ErrName
	case on && at >= 0:
		n.holdings[at].gpus |= bit
	case on && len(n.holdings) >= reading.MaxHolders:
		return ErrTooManyDevices
	case on:
		h := holding{of, bit}
		for _, s := range [...]*string{&h.Job, &h.Pod, &h.Namespace, &h.Container} {
			*s = strings.Clone(*s)
		}
		if !push(n, &n.holdings, h, h.text()-sizeText) {
			return ErrTooManyBytes
		}
	}
	// The end of one that was told before an agent's restart never comes.
	n.release(bit, func(h reading.Holder) bool { return on && of.Ousts(h) || !on && of == h })
	return nil
}

// release takes GPUs from holders, and forgets those that have none any more.
func (n *Node) release(gpus uint64, from func(reading.Holder) bool) {
	kept := n.holdings[:0]
	for _, h := range n.holdings {
		if from(h.Holder) {
			h.gpus &^= gpus
		}
		if h.gpus != 0 {
			kept = append(kept, h)
			continue
		}
		n.store.bytes.Give(n.key.cluster, h.text())
		n.bytes -= h.text()
	}
	clear(n.holdings[len(kept):])
	n.holdings = kept
}

// Holders returns who holds a GPU of a node, and where nobody is known to, who holds any of
// the node's; at most limit of them.
func (s *Store) Holders(cluster, node, gpu string, limit int) (list []reading.Holder) {
	n, ok := s.nodes[nodeKey{cluster, node}]
	if !ok {
		return nil
	}
	bit := uint64(0)
	for i := range n.gpus {
		if n.gpus[i].id == gpu {
			bit = 1 << i
		}
	}
	if !slices.ContainsFunc(n.holdings, func(h holding) bool { return h.gpus&bit != 0 }) {
		bit = ^uint64(0)
	}
	for _, h := range n.holdings {
		if h.Shared = false; h.gpus&bit != 0 { // it holds some alone, and some with others
			list = append(list, h.Holder)
		}
	}
	slices.SortFunc(list, reading.Holder.Compare)
	list = slices.Compact(list)
	return list[:min(len(list), limit)]
}
