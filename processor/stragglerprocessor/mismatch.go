// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/detect/straggler"
	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
)

// mismatches are the nodes whose names or GPUs are not as they should be. Each is logged
// once while that lasts.
type mismatches map[fleetstate.Key]mismatch

// mismatch is a node whose name several machines have, else one with fewer GPUs than its peers.
type mismatch struct {
	*straggler.NodeName
	contested              bool
	gpus, peers, peersGPUs int
}

const (
	// Two thirds of the nodes, and three, show how many GPUs nodes have.
	usualPeers, usualPart = 3, 2. / 3
	// Three nodes with as few are nodes of another kind.
	alikeNodes = 3
	// maxMismatches are logged at a tick.
	maxMismatches = 10
)

// pool are nodes of one model of GPU, else of one group.
type pool struct{ cluster, model, group string }

// look returns the nodes to log at this tick; model is the index of gpu.model in the labels.
func (o *mismatches) look(r *straggler.Report, model int, gpus func(cluster, node string) (int, bool)) (changed []mismatch) {
	now := mismatches{}
	note := func(n mismatch) {
		key := fleetstate.Key{Cluster: n.Cluster, Node: n.Node}
		if was, known := (*o)[key]; !known || was.contested != n.contested || was.gpus != n.gpus {
			if len(changed) == maxMismatches {
				return // at the next tick
			}
			changed = append(changed, n)
		}
		now[key] = n
	}
	pools := map[pool]map[int]int{} // nodes by their number of GPUs
	of := func(n *straggler.NodeReport) pool {
		if model >= 0 && model < len(n.GroupLabels) && n.GroupLabels[model] != "" {
			return pool{n.Cluster, n.GroupLabels[model], ""}
		}
		return pool{n.Cluster, "", n.Group}
	}
	for i := range r.Nodes {
		if n, known := gpus(r.Nodes[i].Cluster, r.Nodes[i].Node); known {
			p := of(&r.Nodes[i])
			if pools[p] == nil {
				pools[p] = map[int]int{}
			}
			pools[p][n]++
		}
	}
	for i := range r.Nodes {
		row := &r.Nodes[i]
		n, known := gpus(row.Cluster, row.Node)
		counts, all, usual := pools[of(row)], 0, 0
		for gpus, nodes := range counts {
			if all += nodes; nodes > counts[usual] {
				usual = gpus
			}
		}
		switch {
		case row.Unjudged == unjudged.Contested:
			note(mismatch{NodeName: row.NodeName, contested: true})
		case known && n < usual && counts[n] < alikeNodes && counts[usual] >= usualPeers && float64(counts[usual]) >= usualPart*float64(all):
			note(mismatch{row.NodeName, false, n, counts[usual], usual})
		}
	}
	*o = now
	return changed
}

func (n *mismatch) log(log *zap.Logger) {
	at := []zap.Field{zap.String("cluster", n.Cluster), zap.String("node", n.Node)}
	if n.contested {
		log.Warn("several machines or agents report as one node, which is not judged meanwhile: give each a name of its own (GPU_COLLECTOR_NODE)", at...)
		return
	}
	log.Warn("a node has fewer GPUs than its peers: see whether a board is gone, or does not start",
		append(at, zap.String("group", n.Group), zap.Int("gpus", n.gpus), zap.Int("peers", n.peers), zap.Int("gpus_of_peers", n.peersGPUs))...)
}
