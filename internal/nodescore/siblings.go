// SPDX-License-Identifier: Apache-2.0

package nodescore

import (
	"strings"
	"time"
	"unsafe"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

// Sibling is a part of a node that is slower than the parts that do the same work.
type Sibling struct {
	nodesignal.Subject
	// Signal is the one with the greatest Suspicion, Gap the part's loss in it: a fraction
	// of its siblings' level.
	Signal    nodesignal.Signal
	Gap       float64
	Suspicion float64
	// Since is the last evaluation at which nothing spoke against it, zero where there
	// was none.
	Since time.Time
}

// siblings compares the GPUs of a node with one another, and its ranks. Its statistics
// are the gateway's: the parts are the nodes of an engine of their own. It needs no
// gateway.
type siblings struct {
	engine *straggler.Engine // nil until there is something to compare
	seen   straggler.Observation
	// suspects are the parts against which something speaks.
	suspects []Sibling
	// changed are those whose verdict changed with the last evaluation.
	changed []SiblingChange
	parts   int
}

// SiblingChange is a new verdict, or the end of one.
type SiblingChange struct {
	Sibling
	Slow bool
}

// perPart are the signals that parts are compared by: those that are read of each GPU
// and decide. Power and memory differ among healthy boards, CPU is the node's.
var perPart = [...]nodesignal.Signal{nodesignal.Throughput, nodesignal.Compute, nodesignal.Interconnect, nodesignal.Communication}

// leastSiblings are parts with something to compare: of three one is slow, and two are no
// peers.
const leastSiblings = 4

// Kinds of parts: the values of ranks and of GPUs are not alike.
const ofGPU, ofRank = "gpu", "rank"

const siblingCluster = "node"

func newSiblings(cfg *Config) *straggler.Engine {
	c := straggler.DefaultConfig()
	c.Signals, c.CUSUM, c.Warmup, c.Episodes.StuckTicks = cfg.Signals, cfg.CUSUM, cfg.Warmup, cfg.StuckTicks
	for s := range c.Signals {
		c.Signals[s].Decides = false
	}
	for _, s := range perPart {
		c.Signals[s].Decides = cfg.Signals[s].Decides
	}
	c.Split.Interval = 0 // who does the same work is known
	c.TTL, c.Retention = cfg.ReadingTTL, 2*cfg.ReadingTTL
	c.MaxClusters, c.MaxGroups, c.MaxNodes = 1, 2*(MaxGPUs+MaxRanks), 2*(MaxGPUs+MaxRanks)
	return straggler.New(c)
}

// compare takes the values of all parts, and judges them.
func (b *siblings) compare(n *Node, l load, now time.Time) {
	b.changed, b.suspects = b.changed[:0], b.suspects[:0]
	b.parts = 0
	for i := range n.table.rows {
		if n.table.comparable(&n.table.rows[i]) {
			b.parts++
		}
	}
	if b.engine == nil {
		if b.parts < leastSiblings {
			return
		}
		b.engine = newSiblings(n.cfg)
	}
	for i := range n.table.rows {
		r := &n.table.rows[i]
		if !n.table.comparable(r) {
			continue
		}
		b.observe(n, l, r, now)
	}
	report := b.engine.Tick(now)
	for i := range report.Nodes {
		if v := &report.Nodes[i]; v.Suspicion >= cleared {
			b.suspects = append(b.suspects, n.table.sibling(v))
		}
	}
	for i := range report.Changes {
		v := &report.Changes[i]
		b.changed = append(b.changed, SiblingChange{n.table.sibling(v), v.Straggler})
	}
}

// comparable reports whether a row is of a part that can be named.
func (t *table) comparable(r *row) bool { return r.of.Named() }

// observe takes the values of one part. One that tells nothing now rests.
func (b *siblings) observe(n *Node, l load, r *row, now time.Time) {
	o := &b.seen
	*o = straggler.Observation{Cluster: siblingCluster, Node: r.title(), Peers: append(o.Peers[:0], ofGPU, r.work), HasState: true, State: straggler.StateIdle}
	if r.of.IsRank() {
		o.Peers[0] = ofRank
	}
	for _, s := range perPart {
		if x, known := n.table.part(n.plan, s, n.used[s], l, r); known {
			o.Values.Set(s, x)
			o.State = straggler.StateActive
		}
	}
	_ = b.engine.Observe(o, now) // it refuses parts over its bounds, and the table has fewer
}

// part is a signal of one row. used is the source that the node's signal comes from, plus
// one.
func (t *table) part(p *Plan, s nodesignal.Signal, used int32, l load, r *row) (x float64, known bool) {
	m := &p.measures[s]
	if c := r.at(p.utilization); c.known && c.value < l.idle {
		return 0, false // who has nothing to do has no speed
	}
	for i := range m.sources {
		if !m.worst && i != int(used)-1 {
			continue
		}
		if v, ok := t.counted(p, &m.sources[i], l, r); ok && (!known || v < x) {
			x, known = v, true
		}
	}
	return x, known
}

// sibling finds the part that a verdict is about.
func (t *table) sibling(v *straggler.NodeReport) Sibling {
	s := Sibling{Signal: v.Signal, Gap: v.Gap, Suspicion: v.Suspicion}
	if v.Since.UnixMilli() > 0 { // else it has been slow for as long as it was compared
		s.Since = v.Since
	}
	for i := range t.rows {
		if t.rows[i].name == v.Node {
			s.Subject = t.rows[i].of
		}
	}
	return s
}

// title is the row's name for an engine, the same for the same part.
func (r *row) title() string {
	if r.name == "" {
		r.name = strings.ToValidUTF8(r.of.String(), "?")
	}
	return r.name
}

// From suspected on, a part with a loss that is worth an alert is named as the one that
// holds its node down, until it is cleared. A gateway that accuses the node has as much
// against it then.
const suspected, cleared, worthNaming = 0.5, 0.2, 0.7

// culprit is the suspected part with the greatest loss in units of what is worth an alert.
// The one that was named keeps the name while it is not cleared, and until another loses
// more by a whole unit: each change ends a series.
func (b *siblings) culprit(cfg *Config, before Culprit) Culprit {
	most, named := -1.0, Culprit{}
	kept, keeps := 0.0, false
	for _, s := range b.suspects {
		weight := s.Gap / cfg.Signals[s.Signal].MinGap
		if s.Subject == before.Subject && s.Signal == before.Signal {
			kept, keeps = weight, true
		}
		if s.Suspicion >= suspected && weight >= worthNaming && weight > most {
			most, named = weight, Culprit{s.Subject, s.Signal, true}
		}
	}
	if keeps && most < kept+1 {
		return before
	}
	return named
}

// worstLoss is the greatest loss of a part in the throughput at this evaluation, as a level
// and less what the part always differs by; 0 while they cannot be compared.
func (b *siblings) worstLoss(t *table) (most float64) {
	if b.engine == nil {
		return 0
	}
	for i := range t.rows {
		if r := &t.rows[i]; r.name != "" {
			if loss, known := b.engine.Loss(siblingCluster, r.name, nodesignal.Throughput); known {
				most = max(most, loss)
			}
		}
	}
	return most
}

// engineBytes and partBytes are what an engine of parts takes: measured by
// TestSiblingsMemory.
const engineBytes, partBytes = 24 << 10, 1600

func (b *siblings) bytes() int {
	if b == nil {
		return 0
	}
	sum := int(unsafe.Sizeof(*b)) + cap(b.suspects)*int(unsafe.Sizeof(Sibling{})) + cap(b.changed)*int(unsafe.Sizeof(SiblingChange{}))
	if b.engine != nil {
		sum += engineBytes + b.parts*partBytes
	}
	return sum
}
