// SPDX-License-Identifier: Apache-2.0

package resync

import (
	"container/list"
	"slices"
	"strings"
	"sync"
)

// Bounds of what is waited for: nodes, and the clusters that have answered for
// one of any cluster.
const (
	maxWanted   = 4096
	maxAnswered = 16
)

// Wanted are the nodes whose state a middle tier was asked for and asks for in
// its turn, in the answer to each node's next push. A request that names no
// cluster is one to each cluster that has a node of the name: otherwise one
// tenant would take what is asked of another's. The zero value is ready.
type Wanted struct {
	mu    sync.Mutex
	nodes map[string]*list.Element
	order list.List // of *wanted, the longest waited for first
}

type wanted struct {
	node, cluster string // cluster is empty for any
	// answered are the clusters that a request to any is over for.
	answered []string
}

// Add notes a request for one node. When there are too many, the node longest
// waited for is given up: it has not pushed since, or not under its own name.
func (w *Wanted) Add(r Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if el, ok := w.nodes[r.Node]; ok {
		e := el.Value.(*wanted)
		switch i := slices.Index(e.answered, r.Cluster); {
		case e.cluster == r.Cluster && len(e.answered) == 0: // so it is
		case e.cluster == "" && r.Cluster != "":
			if i >= 0 {
				e.answered = slices.Delete(e.answered, i, i+1)
			}
		default:
			e.cluster, e.answered = "", nil
			w.order.MoveToBack(el)
		}
		return
	}
	if w.order.Len() >= maxWanted {
		w.remove(w.order.Front())
	}
	if w.nodes == nil {
		w.nodes = make(map[string]*list.Element)
	}
	e := &wanted{node: strings.Clone(r.Node), cluster: strings.Clone(r.Cluster)}
	w.nodes[e.node] = w.order.PushBack(e)
}

// Take reports whether a node is wanted, once. The cluster of a push is empty
// where nobody tells clusters apart.
func (w *Wanted) Take(cluster, node string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	el, ok := w.nodes[node]
	if !ok {
		return false
	}
	e := el.Value.(*wanted)
	switch {
	case cluster == "" || cluster == e.cluster:
		w.remove(el)
		return true
	case e.cluster != "" || slices.Contains(e.answered, cluster):
		return false
	}
	if e.answered = append(e.answered, strings.Clone(cluster)); len(e.answered) >= maxAnswered {
		w.remove(el)
	}
	return true
}

func (w *Wanted) remove(el *list.Element) {
	delete(w.nodes, w.order.Remove(el).(*wanted).node)
}
