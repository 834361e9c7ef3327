// SPDX-License-Identifier: Apache-2.0

package resync

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestEpochs is the table of cases: one answer a line, and what it asks for.
func TestEpochs(t *testing.T) {
	type answer struct {
		node, epoch string
		asks        bool
	}
	for name, answers := range map[string][]answer{
		"each node asks for itself":                        {{"c/n1", "A", false}, {"c/n2", "A", false}, {"c/n1", "B", true}, {"c/n2", "B", true}, {"c/n1", "B", false}},
		"a node moves to another gateway and back":         {{"c/n1", "A", false}, {"c/n1", "B", true}, {"c/n1", "A", true}, {"c/n1", "A", false}},
		"a new node, several gateways":                     {{"c/n1", "A", false}, {"c/n1", "B", true}, {"c/n2", "A", true}, {"c/n2", "A", false}, {"c/n3", "B", true}},
		"a node gets its name after the first push":        {{"c/", "A", false}, {"c/n1", "A", false}},
		"it gets its name and another gateway":             {{"c/", "A", false}, {"c/n1", "B", true}},
		"without a node, spread over three gateways":       {{"c/", "A", false}, {"c/", "B", true}, {"c/", "C", true}, {"c/", "A", false}, {"c/", "B", false}, {"c/", "C", false}},
		"one of them restarts":                             {{"c/", "A", false}, {"c/", "B", true}, {"c/", "C", true}, {"c/", "A", false}, {"c/", "D", true}, {"c/", "A", false}, {"c/", "D", false}},
		"a return after nine others is taken for new":      {{"c/", "A", false}, {"c/", "B", true}, {"c/", "C", true}, {"c/", "D", true}, {"c/", "E", true}, {"c/", "F", true}, {"c/", "G", true}, {"c/", "H", true}, {"c/", "I", true}, {"c/", "B", false}, {"c/", "A", true}},
		"what was heard of late is kept before the others": {{"c/", "A", false}, {"c/", "B", true}, {"c/", "C", true}, {"c/", "D", true}, {"c/", "E", true}, {"c/", "F", true}, {"c/", "G", true}, {"c/", "H", true}, {"c/", "A", false}, {"c/", "I", true}, {"c/", "A", false}},
		// A push of any nodes says nothing of its cluster: the claims of a middle tier take turns.
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

func TestEpochsAreBounded(t *testing.T) {
	e := Epochs{most: 1000}
	for i := range 3 * e.most {
		e.Observe("c", strconv.Itoa(i), "A")
	}
	assert.Len(t, e.nodes, e.most)
	_, asks := e.Observe("c", "0", "A")
	assert.False(t, asks, "there has been one process, which has everything")
	_, asks = e.Observe("c", "1", "B")
	assert.True(t, asks, "whether forgotten or not")
}

// TestARestartIsOneResyncOfEachNode has more nodes than fit take turns, after
// the next hop restarted once: most of those that are too many ask again.
func TestARestartIsOneResyncOfEachNode(t *testing.T) {
	for name, tt := range map[string]struct{ most, nodes, again int }{
		"fifty thousand nodes": {0, 50_000, 0},
		"a tenth too many":     {1000, 1100, 400},
	} {
		t.Run(name, func(t *testing.T) {
			e := Epochs{most: tt.most}
			round := func(epoch string) (asked int) {
				for i := range tt.nodes {
					if _, asks := e.Observe("c", strconv.Itoa(i), epoch); asks {
						asked++
					}
				}
				return asked
			}
			assert.Zero(t, round("A"))
			assert.Equal(t, tt.nodes, round("B"))
			for range 4 {
				assert.LessOrEqual(t, round("B"), tt.again)
			}
		})
	}
}

// process is a gateway: per node its series, as they were pushed to it.
type process struct {
	epoch string
	nodes map[string]map[string]int
}

// TestNoNodeIsLeftWithHalfItsState pushes nodes, in differences, to gateways
// that restart and take turns. Whenever an answer asks for nothing, the gateway
// that gave it has the node's whole state.
func TestNoNodeIsLeftWithHalfItsState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lives := 0
		newProcess := func() *process {
			lives++
			return &process{epoch: fmt.Sprint("e", lives), nodes: map[string]map[string]int{}}
		}
		gateways := []*process{newProcess(), newProcess(), newProcess()}
		e := Epochs{most: rapid.IntRange(1, 4).Draw(t, "most")}
		truth := map[string]map[string]int{} // of each node, at the sender
		sent := map[string]map[string]int{}  // what the sender takes for known
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			g := rapid.IntRange(0, len(gateways)-1).Draw(t, "gateway")
			if rapid.IntRange(0, 9).Draw(t, "restart") == 0 {
				gateways[g] = newProcess()
				continue
			}
			node := rapid.SampledFrom([]string{"n1", "n2", "n3", "n4", "n5"}).Draw(t, "node")
			if truth[node] == nil {
				truth[node] = map[string]int{"x": 0, "y": 0, "z": 0}
			}
			truth[node][rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "series")]++

			refused := rapid.IntRange(0, 4).Draw(t, "refused") == 0
			if !refused {
				if gateways[g].nodes[node] == nil {
					gateways[g].nodes[node] = map[string]int{}
				}
				for series, v := range truth[node] {
					if old, ok := sent[node][series]; !ok || old != v {
						gateways[g].nodes[node][series] = v
					}
				}
				sent[node] = maps.Clone(truth[node])
			}
			r, asks := e.Observe("c", node, gateways[g].epoch)
			switch {
			case asks:
				delete(sent, r.Node)
			case !refused && !maps.Equal(truth[node], gateways[g].nodes[node]):
				t.Fatalf("%s has %v of %s, not %v", gateways[g].epoch, gateways[g].nodes[node], node, truth[node])
			}
		}
	})
}

func TestSubscribers(t *testing.T) {
	var s Subscribers
	s.Publish(Request{Node: "nobody listens"})
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
