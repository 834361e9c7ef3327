// SPDX-License-Identifier: Apache-2.0

package delta

import (
	"cmp"
	"slices"
)

// waiting takes out what is held, in the order in which it is to be sent.
func (b *Buffer) waiting() []*bufferNode {
	var nodes, late []*bufferNode
	for i := range b.shards {
		s := &b.shards[i]
		s.mu.Lock()
		for _, n := range s.nodes {
			if n.late {
				n.late = false
				late = append(late, n)
			} else {
				nodes = append(nodes, n)
			}
		}
		clear(s.nodes)
		s.mu.Unlock()
	}
	bySlowness(nodes, b.round.Load())
	known, fresh := byCluster(nodes)
	if len(known)+len(fresh) > 1 {
		nodes = turns(append(known, turns(fresh)))
	}
	return append(nodes, late...)
}

// bySlowness sorts nodes by how long they wait for each point, the longest first:
// the highest response ratio next (Brinch Hansen 1971). A node's news pass whole
// states, which would make the node look silent, and whole states come up in time.
func bySlowness(nodes []*bufferNode, round uint64) {
	slowness := func(n *bufferNode) float64 { return float64(round-n.since+1) / float64(n.points) }
	slices.SortStableFunc(nodes, func(a, b *bufferNode) int { return cmp.Compare(slowness(b), slowness(a)) })
}

// turns has queues take turns, that with who waits longest first: deficit round robin
// (Shreedhar and Varghese 1995). A turn is of as many points as the largest node has.
func turns(queues [][]*bufferNode) []*bufferNode {
	queues = slices.DeleteFunc(queues, func(q []*bufferNode) bool { return len(q) == 0 })
	if len(queues) == 1 {
		return queues[0]
	}
	type queue struct {
		nodes  []*bufferNode
		since  uint64
		points int // of those that had their turn
	}
	var waiting []*queue
	turn, count := 0, 0
	for _, nodes := range queues {
		q := &queue{nodes: nodes, since: nodes[0].since}
		for _, n := range nodes {
			q.since, turn = min(q.since, n.since), max(turn, n.points)
		}
		count += len(nodes)
		waiting = append(waiting, q)
	}
	slices.SortStableFunc(waiting, func(a, b *queue) int { return cmp.Compare(a.since, b.since) })
	out := make([]*bufferNode, 0, count)
	for points := turn; len(waiting) > 0; points += turn {
		for _, q := range waiting {
			n := 0
			for ; n < len(q.nodes) && q.points < points; n++ {
				q.points += q.nodes[n].points
			}
			out, q.nodes = append(out, q.nodes[:n]...), q.nodes[n:]
		}
		waiting = slices.DeleteFunc(waiting, func(q *queue) bool { return len(q.nodes) == 0 })
	}
	return out
}

// byCluster divides nodes, those that are known and those that are not.
func byCluster(nodes []*bufferNode) (known, fresh [][]*bufferNode) {
	type cluster struct {
		name  uint64
		known bool
	}
	at := map[cluster]int{}
	for _, n := range nodes {
		all := &known
		if !n.known {
			all = &fresh
		}
		i, ok := at[cluster{n.cluster, n.known}]
		if !ok {
			i = len(*all)
			at[cluster{n.cluster, n.known}] = i
			*all = append(*all, nil)
		}
		(*all)[i] = append((*all)[i], n)
	}
	return known, fresh
}
