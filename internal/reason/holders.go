// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"slices"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// SetHolder says whether a container or job holds the GPU. The names are copied when they
// are new.
func (n *Node) SetHolder(gpu int, of reading.Holder, on bool) error {
	next, news := n.holdings.Set(n.gpus[gpu].id, of, on)
	if !news {
		return nil
	}
	for i := range next {
		if h := &next[i].Holder; *h == of {
			for _, s := range [...]*string{&h.Job, &h.Pod, &h.Namespace, &h.Container} {
				*s = strings.Clone(*s)
			}
		}
	}
	return n.setHoldings(next)
}

func (n *Node) setHoldings(next reading.Holdings) error {
	more := next.Bytes() - n.holdings.Bytes()
	if more > 0 && !n.pay(more) {
		return ErrTooManyBytes
	}
	if more < 0 {
		n.store.bytes.Give(n.key.cluster, -more)
		n.bytes += more
	}
	n.holdings = next
	return nil
}

// Holders returns who holds a GPU of a node, and where nobody is known to, who holds any of
// the node's; at most limit of them.
func (s *Store) Holders(cluster, node, gpu string, limit int) []reading.Holder {
	n, ok := s.nodes[nodeKey{cluster, node}]
	if !ok {
		return nil
	}
	list := n.holdings.Of(gpu)
	if len(list) == 0 {
		list = n.holdings.Of("")
	}
	// A job may have some GPUs alone, and some with others.
	list = slices.CompactFunc(list, func(a, b reading.Holder) bool { return a.Compare(b) == 0 })
	return list[:min(len(list), limit)]
}
