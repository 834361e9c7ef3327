// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// play is a cluster whose groups have so many nodes each. A node does ten units of work
// a second, give or take half a percent, but for the test's changes.
type play struct {
	*fleet
	groups []string // a name each, "" is the one without labels
	nodes  int      // of each group
	// loss of a node by its number in the group; silent and idle ones.
	loss         func(group string, i int) float64
	silent, idle func(group string, i int) bool

	k        int // ticks so far
	last     *Report
	counters Counters
}

func newPlay(t *testing.T, groups []string, nodes int, change func(*Config)) *play {
	t.Helper()
	return &play{fleet: newFleet(t, change), groups: groups, nodes: nodes}
}

func nodeName(group string, i int) string { return fmt.Sprintf("%s-%02d", group, i) }

func (p *play) work(i int) float64 { return 10 + 0.05*float64((i+p.k)%3) }

// observe is one node's push.
func (p *play) observe(group string, i int) Observation {
	o := Observation{Cluster: "c", Node: nodeName(group, i), Peers: []string{group}, HasState: true}
	if p.idle != nil && p.idle(group, i) {
		o.State = StateIdle
		return o
	}
	x := p.work(i)
	if p.loss != nil {
		x *= 1 - p.loss(group, i)
	}
	o.Values.Set(nodesignal.Throughput, x)
	return o
}

// ticks plays some and returns what was told.
func (p *play) ticks(n int) (told []Event) {
	for range n {
		for _, g := range p.groups {
			for i := range p.nodes {
				if p.silent == nil || !p.silent(g, i) {
					o := p.observe(g, i)
					require.NoError(p.t, p.e.Observe(&o, p.now))
				}
			}
		}
		told = append(told, p.tickOnce()...)
	}
	return told
}

func (p *play) tickOnce() []Event {
	p.last = p.tick()
	p.k++
	c := p.last.Counters
	p.counters.GroupChanges += c.GroupChanges
	p.counters.Contested += c.Contested
	p.counters.Stuck += c.Stuck
	p.counters.Flapping += c.Flapping
	p.counters.Folded += c.Folded
	return append([]Event(nil), p.last.Events...)
}

// slow makes some nodes lose a share of their work, nil none.
func (p *play) slow(loss float64, nodes ...int) {
	p.loss = func(_ string, i int) float64 {
		if slices.Contains(nodes, i) {
			return loss
		}
		return 0
	}
}

func (p *play) node(name string) NodeReport {
	for i := range p.last.Nodes {
		if p.last.Nodes[i].Node == name {
			return p.last.Nodes[i]
		}
	}
	require.Failf(p.t, "no such node", name)
	return NodeReport{}
}

// brief is what of an event the tests compare.
func brief(events []Event) (all []string) {
	for _, e := range events {
		s := fmt.Sprint(e.Subject, " ", e.Kind, " ", e.Node)
		if e.Node == "" {
			s = fmt.Sprint(e.Subject, " ", e.Kind, " ", e.NodeCount)
		}
		if e.Cause != "" {
			s += " " + e.Cause
		}
		all = append(all, s)
	}
	return all
}
