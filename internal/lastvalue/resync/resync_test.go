// SPDX-License-Identifier: Apache-2.0

package resync

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestEpochs is the table of cases: one answer a line, and what it asks for.
func TestEpochs(t *testing.T) {
	type answer struct {
		node, epoch string
		asks        bool
	}
	for name, answers := range map[string][]answer{
		"each node asks for itself":                   {{"c/n1", "A", false}, {"c/n2", "A", false}, {"c/n1", "B", true}, {"c/n2", "B", true}, {"c/n1", "B", false}},
		"a node moves to another gateway and back":    {{"c/n1", "A", false}, {"c/n1", "B", true}, {"c/n1", "A", true}, {"c/n1", "A", false}},
		"a new node, several gateways":                {{"c/n1", "A", false}, {"c/n1", "B", true}, {"c/n2", "A", true}, {"c/n2", "A", false}, {"c/n3", "B", true}},
		"a node gets its name after the first push":   {{"c/", "A", false}, {"c/n1", "A", false}},
		"it gets its name and another gateway":        {{"c/", "A", false}, {"c/n1", "B", true}},
		"without a node, spread over three gateways":  {{"c/", "A", false}, {"c/", "B", true}, {"c/", "C", true}, {"c/", "A", false}, {"c/", "B", false}, {"c/", "C", false}},
		"one of them restarts":                        {{"c/", "A", false}, {"c/", "B", true}, {"c/", "C", true}, {"c/", "A", false}, {"c/", "D", true}, {"c/", "A", false}, {"c/", "D", false}},
		"a return after nine others is taken for new": {{"c/", "A", false}, {"c/", "B", true}, {"c/", "C", true}, {"c/", "D", true}, {"c/", "E", true}, {"c/", "F", true}, {"c/", "G", true}, {"c/", "H", true}, {"c/", "I", true}, {"c/", "B", false}, {"c/", "A", true}},
		"the last epochs are kept before the others":  {{"c/", "A", false}, {"c/", "B", true}, {"c/", "C", true}, {"c/", "D", true}, {"c/", "E", true}, {"c/", "F", true}, {"c/", "G", true}, {"c/", "H", true}, {"c/", "A", false}, {"c/", "I", true}, {"c/", "A", false}},
		// A push of any nodes is of no cluster: the claims of a middle tier take turns.
		"nodes of two clusters are two": {{"c1/n", "A", false}, {"c2/n", "A", false}, {"c1/n", "B", true}, {"c2/n", "B", true}, {"c1/", "B", true}, {"c2/", "B", false}},
	} {
		t.Run(name, func(t *testing.T) {
			var e Epochs
			for i, a := range answers {
				cluster, node, _ := strings.Cut(a.node, "/")
				r, asks := e.Observe(cluster, node, a.epoch)
				require.Equal(t, a.asks, asks, "answer %d: %v", i, a)
				want := Request{Cluster: cluster, Node: node}
				if node == "" {
					want = Request{}
				}
				assert.Equal(t, want, r)
			}
		})
	}
}

// More nodes than fit take turns, after the next hop restarted once: of those that are too many
// some ask again.
func TestARestartIsOneResyncOfEachNode(t *testing.T) {
	const nodes = 1100
	e := Epochs{most: 1000}
	round := func(epoch string) (asked int) {
		for i := range nodes {
			if _, asks := e.Observe("c", strconv.Itoa(i), epoch); asks {
				asked++
			}
		}
		assert.Len(t, e.nodes, e.most)
		return asked
	}
	assert.Zero(t, round("A"), "there has been one process, which has everything")
	assert.Equal(t, nodes, round("B"))
	for range 4 {
		assert.LessOrEqual(t, round("B"), 400)
	}
}

func TestSubscribers(t *testing.T) {
	var s Subscribers
	s.Publish(Request{Node: "no subscriber"})
	var a, b []Request
	cancelA := s.Subscribe(func(r Request) { a = append(a, r) })
	cancelB := s.Subscribe(func(r Request) { b = append(b, r) })
	s.Publish(Request{Node: "n1"})
	cancelA()
	s.Publish(Request{Node: "n2"})
	cancelB()
	cancelB()
	s.Publish(Request{Node: "n3"})
	assert.Equal(t, []Request{{Node: "n1"}}, a)
	assert.Equal(t, []Request{{Node: "n1"}, {Node: "n2"}}, b)
	assert.Empty(t, s.fns)
}

func TestValidEpoch(t *testing.T) {
	for epoch, want := range map[string]bool{
		"": false, "x": true, strings.Repeat("x", MaxEpochLength): true, strings.Repeat("x", MaxEpochLength+1): false, "é": false, "a\nb": false,
	} {
		assert.Equal(t, want, ValidEpoch(epoch), "%q", epoch)
	}
}
