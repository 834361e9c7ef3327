// SPDX-License-Identifier: Apache-2.0

package statetable // import "github.com/gpu-collector/gpu-collector/internal/delta/statetable"

import (
	"iter"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
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

// Number returns the value of a series whose kind is not KindHash.
func (s *Series) Number() float64 {
	if s.Kind == KindInt {
		return float64(int64(s.Value))
	}
	return math.Float64frombits(s.Value)
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

// Name is the node's as the gpu-node header carries it.
func (n *Node) Name() string { return NodeName(n.Attrs) }

// Cluster is the cluster that the node's resource names, or "".
func (n *Node) Cluster() string { return attrText(n.Attrs, gpusemconv.AttrClusterName) }

// NodeName is the name of a node with these attributes, "" for none, as the
// gpu-node header carries it. It prefers Kubernetes' name: there, host.name is
// often the pod's.
func NodeName(attrs []Attr) string {
	for _, key := range [...]string{gpusemconv.AttrK8sNodeName, gpusemconv.AttrHostName, gpusemconv.AttrHostID} {
		if text := attrText(attrs, key); text != "" {
			return text
		}
	}
	return ""
}

func attrText(attrs []Attr, key string) string {
	for i := range attrs {
		if attrs[i].Key != key {
			continue
		}
		switch attrs[i].Type {
		case AttrString:
			return attrs[i].Text
		case AttrInt:
			return strconv.FormatInt(int64(attrs[i].Num), 10)
		case AttrDouble, AttrBool:
		}
	}
	return ""
}

// Reader gives copies of what is known of the nodes. It is safe for concurrent
// use and holds up nothing but the one node that is being copied.
type Reader interface {
	// Nodes yields the nodes that pass the filter, in no order.
	Nodes(Filter) iter.Seq[Node]
	// Series yields the named series of a node that have a value; none when
	// the node is not known.
	Series(NodeKey) iter.Seq[Series]
}

var _ Reader = (*Table)(nil)

// Filter picks nodes. The zero Filter passes all.
type Filter struct {
	// Cluster and Name, where not empty, are what the node must be called.
	Cluster, Name string
	// Series must each have a match on the node.
	Series []Match
}

// Match is met by a series of the metric that has the attribute, where one is
// given, and a numeric value of at least Min. `{Metric: "hw.gpu.utilization",
// Min: 0.5}` asks for use, `{Metric: "hw.gpu.health.state", Attr: Attr{Key:
// "state", Text: "unhealthy"}, Min: 1}` for a state.
type Match struct {
	Metric string
	Attr   Attr
	Min    float64
}

func (m *Match) met(s *Series) bool {
	if s.Metric.Name != m.Metric || s.Kind == KindHash || !(s.Number() >= m.Min) {
		return false
	}
	if m.Attr.Key == "" {
		return true
	}
	return slices.Contains(s.Attrs, m.Attr)
}

// Nodes implements Reader.
func (t *Table) Nodes(f Filter) iter.Seq[Node] {
	return func(yield func(Node) bool) {
		for n := range t.all() {
			node, series, ok := t.copyNode(n, len(f.Series) > 0)
			if ok && f.pass(&node, series) && !yield(node) {
				return
			}
		}
	}
}

func (f *Filter) pass(n *Node, series []Series) bool {
	if (f.Name != "" && f.Name != n.Name()) || (f.Cluster != "" && f.Cluster != n.Cluster()) {
		return false
	}
	for i := range f.Series {
		met := false
		for j := range series {
			met = met || f.Series[i].met(&series[j])
		}
		if !met {
			return false
		}
	}
	return true
}

// Series implements Reader.
func (t *Table) Series(key NodeKey) iter.Seq[Series] {
	return func(yield func(Series) bool) {
		n := t.lookup(key)
		if n == nil {
			return
		}
		_, series, _ := t.copyNode(n, true)
		for i := range series {
			if !yield(series[i]) {
				return
			}
		}
	}
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

func (t *Table) copyNode(n *node, withSeries bool) (Node, []Series, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.evicted || !n.kept {
		return Node{}, nil, false
	}
	out := Node{Key: n.key, Heard: n.heard, Series: len(n.entries), Attrs: t.dict.attributes(nil, &n.names, n.attrs)}
	if !withSeries {
		return out, nil, true
	}
	series := make([]Series, 0, len(n.entries))
	for i := range n.entries {
		if e := &n.entries[i]; e.metric != 0 && !e.is(gone) {
			s := t.name(n, e)
			s.Value = e.value
			series = append(series, s)
		}
	}
	return out, series, true
}

// name is a series without its value.
func (t *Table) name(n *node, e *entry) Series {
	return Series{
		Metric: t.dict.describe(e.metric),
		Attrs:  t.dict.attributes(nil, &n.names, e.attrs),
		Kind:   e.kind(),
	}
}
