// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/internal/unjudged"
)

// oddNodes are the nodes whose names or GPUs are not as they should be. Each is told once
// while that lasts.
type oddNodes map[nodeKey]oddNode

// oddNode is a node whose name several machines have, else one with fewer GPUs than its peers.
type oddNode struct {
	*straggler.NodeName
	contested              bool
	gpus, peers, peersGPUs int
}

const (
	// Three quarters of a group, and three nodes, show how many GPUs its nodes have.
	usualPeers, usualPart = 3, 0.75
	// Three nodes with as few are nodes of another kind.
	alikeNodes = 3
	// maxOdd are told at a tick.
	maxOdd = 10
)

// look returns the nodes to tell of at this tick.
func (o *oddNodes) look(r *straggler.Report, gpus func(cluster, node string) (int, bool)) (news []oddNode) {
	now := oddNodes{}
	note := func(n oddNode) {
		key := nodeKey{n.Cluster, n.Node}
		if was, known := (*o)[key]; !known || was.contested != n.contested || was.gpus != n.gpus {
			if len(news) == maxOdd {
				return // at the next tick
			}
			news = append(news, n)
		}
		now[key] = n
	}
	for from := 0; from < len(r.Nodes); {
		group, counts, of := r.Nodes[from:], map[int]int{}, 0
		to := 0
		for ; to < len(group) && group[to].Cluster == group[0].Cluster && group[to].Group == group[0].Group; to++ {
			if n, ok := gpus(group[to].Cluster, group[to].Node); ok {
				counts[n]++
				of++
			}
		}
		group, from = group[:to], from+to
		usual := 0
		for n := range counts {
			if counts[n] > counts[usual] {
				usual = n
			}
		}
		for i := range group {
			n, known := gpus(group[i].Cluster, group[i].Node)
			switch {
			case group[i].Unjudged == unjudged.Contested:
				note(oddNode{NodeName: group[i].NodeName, contested: true})
			case known && n < usual && counts[n] < alikeNodes && counts[usual] >= usualPeers && float64(counts[usual]) >= usualPart*float64(of):
				note(oddNode{group[i].NodeName, false, n, counts[usual], usual})
			}
		}
	}
	*o = now
	return news
}

func (n *oddNode) tell(log *zap.Logger) {
	at := []zap.Field{zap.String("cluster", n.Cluster), zap.String("node", n.Node)}
	if n.contested {
		log.Warn("several machines report as one node, which is not judged meanwhile: give each a name of its own", at...)
		return
	}
	log.Warn("a node has fewer GPUs than its peers: see whether a board is gone, or does not start",
		append(at, zap.String("group", n.Group), zap.Int("gpus", n.gpus), zap.Int("peers", n.peers), zap.Int("gpus_of_peers", n.peersGPUs))...)
}
