// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/detect/straggler"
	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
)

func TestMismatches(t *testing.T) {
	for _, tt := range []struct {
		name string
		gpus []int // of nodes a, b, c, ...; 0 is not known
		want string
	}{
		{"all alike", []int{8, 8, 8, 8}, ""},
		{"one has fewer", []int{8, 8, 6, 8}, "c"},
		{"unknown ones beside", []int{0, 8, 8, 7, 8, 0}, "d"},
		{"one has more", []int{4, 4, 8, 4}, ""},
		{"too few", []int{8, 7, 8}, ""},
		{"another kind of node", []int{4, 4, 4, 8, 8, 8, 8, 8, 8, 8, 8, 8}, ""},
		{"mixed", []int{8, 8, 8, 4, 2}, ""},
		{"two of seven", []int{8, 7, 8, 8, 7, 8, 8}, "be"},
		{"two of many", []int{8, 8, 8, 8, 7, 8, 8, 4, 8}, "eh"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rep := &straggler.Report{}
			for i := range tt.gpus {
				node := string(rune('a' + i))
				rep.Nodes = append(rep.Nodes, straggler.NodeReport{NodeName: &straggler.NodeName{Cluster: "c", Group: "job " + node, GroupLabels: []string{"job " + node, "", "H100"}, Node: node}})
			}
			var mismatches mismatches
			look := func() (names []byte) {
				for _, n := range mismatches.look(rep, 2, func(_, node string) (int, bool) { n := tt.gpus[node[0]-'a']; return n, n > 0 }) {
					names = append(names, n.Node...)
				}
				return names
			}
			assert.Equal(t, tt.want, string(look()))
			assert.Empty(t, look(), "once")
			rep.Nodes[0].Unjudged = unjudged.Contested
			assert.Equal(t, "a", string(look()), "several machines")
			assert.Empty(t, look())
			tt.gpus = slices.Repeat([]int{8}, len(tt.gpus))
			assert.Empty(t, look())
			tt.gpus[1] = 7
			rep.Nodes[0].Unjudged = unjudged.Judged
			look()
			assert.Len(t, mismatches, map[bool]int{true: 1}[len(tt.gpus) > 3])
		})
	}
}

// TestTwoMachinesOfOneName are one line of the gateway's log: two machines by their GPUs,
// two agents of one machine by when their counters started.
func TestTwoMachinesOfOneName(t *testing.T) {
	for name, tt := range map[string]struct {
		gpus  [2]string
		began [2]int64
		lines int
	}{
		"two machines": {[2]string{"a", "b"}, [2]int64{1000, 1000}, 1},
		"two agents":   {[2]string{"a", "a"}, [2]int64{1000, 2000}, 1},
		"one agent":    {[2]string{"a", "a"}, [2]int64{1000, 1000}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			view, exporter := newFleetView(t)
			r := newGatewayRig(t, nil, nil)
			r.g.observer.views.store = view.state
			var last map[string]float64
			for k := range 5 {
				for i, machine := range tt.gpus {
					md := fleet(1)
					rm := md.ResourceMetrics().At(0)
					for _, gpu := range []string{"0", "1"} {
						gauge(rm, "hw.gpu.up", 1, "hw.id", "GPU-"+machine+gpu, "reason", "ok")
						replays := rm.ScopeMetrics().At(0).Metrics().AppendEmpty()
						replays.SetName("hw.gpu.pcie.replays")
						p := replays.SetEmptySum().DataPoints().AppendEmpty()
						p.SetIntValue(int64(k))
						p.SetStartTimestamp(pcommon.NewTimestampFromTime(time.Unix(tt.began[i], 0)))
						p.Attributes().PutStr("hw.id", "GPU-"+machine+gpu)
						p.Attributes().PutStr("kind", "replay")
						replays.Sum().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
						replays.Sum().SetIsMonotonic(true)
					}
					gauge(rm, "hw.gpu.devices", 2, "state", "found")
					r.push(md)
					require.NoError(t, exporter.ConsumeMetrics(t.Context(), md))
				}
				last = r.tick()
			}
			assert.Equal(t, tt.lines > 0, last["n0 gpu.node.unjudged J/stage-0"] == float64(unjudged.Contested), last)
			assert.Equal(t, tt.lines, r.logs.FilterMessageSnippet("several machines or agents report as one node").FilterField(zap.String("node", "n0")).Len())
		})
	}
}

// TestTwoNamesOfOneNode: two collectors of a node name it differently. There is one line, and the
// GPUs under the other name explain verdicts where both are of one machine.
func TestTwoNamesOfOneNode(t *testing.T) {
	for name, tt := range map[string]struct {
		machine string // of the other name
		other   string
		gpus    int
		lines   int
	}{
		"one machine":           {"m0", "n0.example.net", 8, 1},
		"another machine":       {"m1", "n0.example.net", 0, 1},
		"unknown machine":       {"", "n0.example.net", 0, 1},
		"a name that is longer": {"m0", "n01.example.net", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			view, exporter := newFleetView(t)
			r := newGatewayRig(t, nil, nil)
			r.g.observer.views.store = view.state
			for range 3 {
				md := fleet(1)
				md.ResourceMetrics().At(0).Resource().Attributes().PutStr("host.id", "m0")
				other := resource(md, map[string]any{"host.name": tt.other, "k8s.cluster.name": "prod", "host.id": tt.machine})
				gauge(other, "hw.gpu.up", 1, "hw.id", "GPU-0", "reason", "ok")
				gauge(other, "hw.gpu.devices", 8, "state", "expected")
				r.push(md)
				require.NoError(t, exporter.ConsumeMetrics(t.Context(), md))
			}
			gpus, known := r.g.observer.views.gpus("prod", "n0")
			assert.Equal(t, tt.gpus, gpus)
			assert.Equal(t, tt.gpus > 0, known)
			assert.Equal(t, tt.lines, r.logs.FilterMessageSnippet("two names look like one node's").Len())
		})
	}
}

// TestStepsContradictALaggard: any metric of steps contradicts another node's claim.
func TestStepsContradictALaggard(t *testing.T) {
	for _, metric := range []string{"gpu.app.step.duration", "gpu.app.step.rate", "gpu.app.step.own_duration"} {
		r := newGatewayRig(t, nil, nil)
		for range 3 {
			md := fleet(1)
			gauge(md.ResourceMetrics().At(0), metric, 2)
			liar := resource(md, map[string]any{"host.name": "liar", "k8s.cluster.name": "prod", "gpu.job.id": "J"})
			gauge(liar, "gpu.collective.stalled", 0, "gpu.communicator.id", "0xf").SetIntValue(1000)
			gauge(liar, "gpu.collective.laggard", 0, "gpu.communicator.id", "0xf", "server.address", "n0", "state", "behind").SetIntValue(1)
			r.push(md)
			r.tick()
		}
		assert.Empty(t, r.sentences(), metric)
	}
}
