// SPDX-License-Identifier: Apache-2.0

package reason

import "github.com/gpu-collector/gpu-collector/internal/reading"

// SetHolder says whether a container or job holds the GPU.
func (n *Node) SetHolder(gpu int, of reading.Holder, on bool) error {
	if next, news := n.holdings.Set(n.gpus[gpu].id, of, on); news {
		return n.setHoldings(next)
	}
	return nil
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
	return list[:min(len(list), limit)]
}
