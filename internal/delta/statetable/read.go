// SPDX-License-Identifier: Apache-2.0

package statetable // import "github.com/gpu-collector/gpu-collector/internal/delta/statetable"

import (
	"iter"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/reading/identity"
)

// Series is a named series and its last value, a copy.
type Series struct {
	Metric Metric
	Attrs  []Attr
	Kind   Kind
	// Value is as in Point: what the next hop has, which is the true value
	// within the series' Band. It is 0 for a series that is being declared gone.
	Value uint64
	// Start is the start time of a sum in Unix nanoseconds. It is 0 but in
	// Report.Repeated.
	Start uint64
}

// Node is a node of the table, a copy.
type Node struct {
	Key NodeKey
	// Attrs are its resource's, without those of types that have no AttrType.
	Attrs []Attr
	// Heard is when it last reported, in the table's time.
	Heard time.Duration
	// Series is how many are remembered.
	Series int
}

// Identify reads the names of the node and the cluster from a resource's attributes, as
// the gpu-node header carries them.
func Identify(attrs []Attr) (names identity.Names) {
	for i := range attrs {
		names.Take(attrs[i].Key, attrs[i].text())
	}
	return names
}

// HashCluster is the hash of the cluster that a resource names, 0 for none.
func HashCluster(names *identity.Names) uint64 {
	if cluster := names.Cluster("", ""); cluster != "" {
		return HashString(cluster)
	}
	return 0
}

// Nodes yields a copy of each node, in no order. It holds up nothing but the one
// node that is being copied.
func (t *Table) Nodes() iter.Seq[Node] {
	return func(yield func(Node) bool) {
		for n := range t.all() {
			n.mu.Lock()
			known := !n.evicted && n.kept
			out := Node{Key: n.key, Heard: n.heard, Series: len(n.entries), Attrs: t.dict.attributes(nil, &n.names, n.attrs)}
			n.mu.Unlock()
			if known && !yield(out) {
				return
			}
		}
	}
}

// Series returns the named series of a node that have a value; none when the node
// is not known.
func (t *Table) Series(key NodeKey) (series []Series) {
	n := t.lookup(key)
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.evicted || !n.kept {
		return nil
	}
	for i := range n.entries {
		if e := &n.entries[i]; e.metric != 0 && !e.is(gone) {
			s := t.name(n, e)
			s.Value = e.value
			series = append(series, s)
		}
	}
	return series
}

// all yields the nodes, holding no lock meanwhile.
func (t *Table) all() iter.Seq[*node] {
	return func(yield func(*node) bool) {
		var batch []*node
		for i := range t.shards {
			s := &t.shards[i]
			batch = batch[:0]
			s.mu.RLock()
			for _, n := range s.nodes {
				batch = append(batch, n)
			}
			s.mu.RUnlock()
			for _, n := range batch {
				if !yield(n) {
					return
				}
			}
		}
	}
}

// name is a series without its value.
func (t *Table) name(n *node, e *entry) Series {
	return Series{
		Metric: t.dict.describe(e.metric),
		Attrs:  t.dict.attributes(nil, &n.names, e.attrs),
		Kind:   e.kind(),
	}
}
