// SPDX-License-Identifier: Apache-2.0

//go:build !enginebefore

package scenarios

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/internal/topology"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// Racks is what one fault of several nodes led to: the records that name a label, and
// all records of nodes, groups and clusters that began.
type Racks struct {
	Named, Right, Records int
}

// rackOf of the nodes of a fleet.
const (
	rackNodes = 64
	rackTicks = 60
	rackOnset = 40 // ticks before the fault
)

// PlayRacks plays a fleet of 64 nodes on leaves of eight to the engine. The nodes of bad
// lose a share of their work. Noise and loss are drawn.
func PlayRacks(r *rand.Rand, n, leaf int, bad []int) (out Racks, err error) {
	e := straggler.New(straggler.DefaultConfig())
	e.Jobs(1)
	noise, loss := 0.002+0.01*r.Float64(), 0.08+0.25*r.Float64()
	now := time.Unix(1_700_000_000, 0)
	// Most of the bad nodes are of the leaf of most of them.
	right := topology.Label{Level: "leaf", Value: strconv.Itoa(bad[len(bad)/2] / leaf)}
	for k := range rackOnset + rackTicks {
		for i := range n {
			o := straggler.Observation{Cluster: "c", Node: fmt.Sprintf("n%03d", i), Peers: []string{"j"}, HasState: true}
			x := 10 * (1 + noise*r.NormFloat64())
			if k >= rackOnset && slices.Contains(bad, i) {
				x *= 1 - loss
			}
			o.Values.Set(nodesignal.Throughput, max(x, 0))
			if err := e.Observe(&o, now); err != nil {
				return out, err
			}
			if k == 0 {
				if err := e.Locate("c", o.Node, []topology.Label{
					{Level: "leaf", Value: strconv.Itoa(i / leaf)}, {Level: "spine", Value: strconv.Itoa(i / (4 * leaf))},
				}); err != nil {
					return out, err
				}
			}
		}
		now = now.Add(10 * time.Second)
		for _, ev := range e.Tick(now).Events {
			if ev.Kind == straggler.EventOnset {
				out.Records++
			}
			if len(ev.Shared.Labels) > 0 && ev.Kind != straggler.EventEnd {
				out.Named++
				if ev.Shared.Labels[0] == right {
					out.Right++
				}
			}
		}
	}
	return out, nil
}

// TopologyFigures plays faults of a leaf and random ones to the engine, and draws many
// more of the random ones for the test alone.
func TopologyFigures(w io.Writer, seed uint64, runs int) error {
	r := rand.New(rand.NewPCG(seed, 20))
	right, wrong, records := 0, 0, 0
	for range runs {
		leaf, well := r.IntN(rackNodes/8), r.IntN(8)
		var bad []int
		for i := range 8 {
			if i != well {
				bad = append(bad, 8*leaf+i)
			}
		}
		got, err := PlayRacks(r, rackNodes, 8, bad)
		if err != nil {
			return err
		}
		records += got.Records
		if got.Right > 0 {
			right++
		}
		if got.Named > got.Right {
			wrong++
		}
	}
	figure.Fprint(w, "topology_leaf_named_percent", 100*float64(right)/float64(runs), "%", 100, false)
	figure.Fprint(w, "topology_leaf_misnamed_percent", 100*float64(wrong)/float64(runs), "%", 0, true)
	figure.FprintOnly(w, "topology_leaf_records", float64(records)/float64(runs), "records")

	named := 0
	for k := range runs {
		got, err := PlayRacks(r, rackNodes, 8, r.Perm(rackNodes)[:3+k%4])
		if err != nil {
			return err
		}
		if got.Named > 0 {
			named++
		}
	}
	figure.Fprint(w, "topology_random_played_named_percent", 100*float64(named)/float64(runs), "%", 0.1, true)

	for _, c := range []struct {
		name            string
		nodes, from, to int
		limit           float64
	}{{"topology_random_named_percent", rackNodes, 3, 6, 0.1}, {"topology_few_nodes_named_percent", 15, 3, 8, 0}} {
		const draws = 20_000
		nodes, named := make([]topology.Node, c.nodes), 0
		for i := range nodes {
			for _, size := range []int{4, 8, 32} {
				nodes[i].Labels = append(nodes[i].Labels, topology.Label{Level: fmt.Sprint("of-", size), Value: strconv.Itoa(i / size)})
			}
		}
		for k := range draws {
			for i := range nodes {
				nodes[i].Bad = false
			}
			for _, i := range r.Perm(c.nodes)[:c.from+k%(c.to-c.from+1)] {
				nodes[i].Bad = true
			}
			if len(topology.Shared(nodes).Labels) > 0 {
				named++
			}
		}
		figure.Fprint(w, c.name, 100*float64(named)/draws, "%", c.limit, true)
	}
	return nil
}
