// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/detect/straggler"
	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

func newReporter() *reporter {
	ids := newIdentifier(createDefaultConfig().(*Config))
	return &reporter{ids: &ids}
}

// row is the report of a node of the peer group g.
func row(cluster, node string, state nodesignal.State) straggler.NodeReport {
	return straggler.NodeReport{NodeName: &straggler.NodeName{Cluster: cluster, Group: "g", Node: node}, State: state}
}

func report(clusters ...string) *straggler.Report {
	r := &straggler.Report{At: noon}
	for _, c := range clusters {
		r.Groups = append(r.Groups, straggler.GroupReport{Cluster: c}, straggler.GroupReport{Cluster: c, Group: "g"})
	}
	return r
}

// listed are the points of a list by cluster, in their order: names, with a minus for those
// without a value.
func listed(t *testing.T, md pmetric.Metrics, metric string, value func(i int) int64) map[string][]string {
	t.Helper()
	got := map[string][]string{}
	for _, rm := range md.ResourceMetrics().All() {
		cluster, _ := rm.Resource().Attributes().Get(gpusemconv.AttrClusterName)
		for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
			if m.Name() != metric {
				continue
			}
			ends := len(got[cluster.Str()])
			for i, p := range m.Gauge().DataPoints().All() {
				node, ok := p.Attributes().Get(gpusemconv.AttrHostName)
				require.True(t, ok)
				name := node.Str()
				if p.Flags().NoRecordedValue() {
					name = "-" + name
				} else {
					ends++
					assert.Equal(t, value(i), p.IntValue())
				}
				got[cluster.Str()] = append(got[cluster.Str()], name)
			}
			slices.Sort(got[cluster.Str()][ends:])
		}
	}
	return got
}

// oneBatch is that of a tick of few nodes.
func oneBatch(t *testing.T, tick []pmetric.Metrics) pmetric.Metrics {
	t.Helper()
	require.Len(t, tick, 1)
	return tick[0]
}

// A tick of many nodes comes in batches, so that pushes have their turn meanwhile.
func TestATickOfManyNodesComesInBatches(t *testing.T) {
	r := newReporter()
	rep := report("a")
	for i := range 2*nodesPerBatch + 1 {
		rep.Nodes = append(rep.Nodes, row("a", strconv.Itoa(i), nodesignal.StateActive))
	}
	seen := map[string]int{}
	tick := r.metrics(rep)
	require.Len(t, tick, 3)
	for i, md := range tick {
		nodes := 0
		for _, rm := range md.ResourceMetrics().All() {
			if name, ok := rm.Resource().Attributes().Get(gpusemconv.AttrHostName); ok {
				seen[name.Str()]++
				nodes++
			}
		}
		assert.Equal(t, []int{nodesPerBatch, nodesPerBatch, 1}[i], nodes)
	}
	assert.Len(t, seen, 2*nodesPerBatch+1)
}

// TestNodesThatLeaveTheRankList get a point without a value, once.
func TestNodesThatLeaveTheRankList(t *testing.T) {
	r := newReporter()
	active := func(cluster string, nodes ...string) (all []straggler.NodeReport) {
		for i, n := range nodes {
			all = append(all, row(cluster, n, nodesignal.StateActive))
			all[i].Gap = -float64(i)
		}
		return all
	}
	ranks := func(rep *straggler.Report) map[string][]string {
		return listed(t, oneBatch(t, r.metrics(rep)), gpusemconv.MetricStragglerRank, func(i int) int64 { return int64(i) + 1 })
	}
	rep := report("a", "b")
	rep.Nodes = append(active("a", "x", "y"), active("b", "x")...)
	assert.Equal(t, map[string][]string{"a": {"x", "y"}, "b": {"x"}}, ranks(rep))
	rep.Nodes = append(active("a", "y", "z"), active("b", "x")...)
	assert.Equal(t, map[string][]string{"a": {"y", "z", "-x"}, "b": {"x"}}, ranks(rep))
	assert.Equal(t, map[string][]string{"a": {"y", "z"}, "b": {"x"}}, ranks(rep))
	rep.Nodes = active("b", "x")
	assert.Equal(t, map[string][]string{"a": {"-y", "-z"}, "b": {"x"}}, ranks(rep))
	r.metrics(report("b"))
	assert.NotContains(t, r.listed, list{"a", gpusemconv.MetricStragglerRank}, "of a cluster that is gone nothing is kept")
}

// TestMissingNodesAreListed until they report again, or are forgotten.
func TestMissingNodesAreListed(t *testing.T) {
	r := newReporter()
	rep := report("a")
	seen := time.Unix(1_800_000_000, 0)
	for _, n := range []string{"x", "y", "z"} {
		missing := row("a", n, nodesignal.StateMissing)
		missing.Seen = seen
		rep.Nodes = append(rep.Nodes, missing)
	}
	missing := func() map[string][]string {
		return listed(t, oneBatch(t, r.metrics(rep)), gpusemconv.MetricStragglerMissing, func(int) int64 { return seen.Unix() })
	}
	assert.Equal(t, map[string][]string{"a": {"x", "y", "z"}}, missing())
	assert.Equal(t, 1, oneBatch(t, r.metrics(rep)).ResourceMetrics().Len(), "that of the cluster: a node that is gone has no other metric")
	rep.Nodes[0].State = nodesignal.StateActive
	rep.Nodes = rep.Nodes[:2]
	assert.Equal(t, map[string][]string{"a": {"y", "-x", "-z"}}, missing())
	assert.Equal(t, map[string][]string{"a": {"y"}}, missing())
}

// TestWhyThereIsNoVerdict: a group has all reasons. A node has its own while it lasts, and
// once when it ends.
func TestWhyThereIsNoVerdict(t *testing.T) {
	r := newReporter()
	rep := report("a")
	g := &rep.Groups[1]
	g.Detectable = 0.025
	g.Unjudged[unjudged.Judged], g.Unjudged[unjudged.FewPeers] = 5, 2
	got := values(oneBatch(t, r.metrics(rep)))
	assert.InDelta(t, 2.5, got[" gpu.straggler.detectable g"], 1e-9)
	reasons := 0
	for name, n := range got {
		if strings.HasPrefix(name, " gpu.straggler.unjudged ") {
			reasons++
			assert.InDelta(t, map[bool]float64{true: 2}[strings.Contains(name, "too_few_peers")], n, 0, name)
		}
	}
	assert.Equal(t, int(unjudged.Count)-1, reasons)

	node := func(why, before unjudged.Reason, until int64) map[string]float64 {
		n := row("a", "n", nodesignal.StateActive)
		n.Unjudged, n.UnjudgedBefore, n.Until = why, before, until
		rep.Nodes = []straggler.NodeReport{n}
		of := map[string]float64{}
		for name, x := range values(oneBatch(t, r.metrics(rep))) {
			if strings.Contains(name, "gpu.node.unjudged") {
				of[name] = x
			}
		}
		return of
	}
	assert.Empty(t, node(unjudged.Judged, unjudged.Judged, 0))
	assert.Equal(t, map[string]float64{"n gpu.node.unjudged g": 6}, node(unjudged.FewPeers, unjudged.Judged, 0))
	assert.Equal(t, map[string]float64{"n gpu.node.unjudged g": 3, "n gpu.node.unjudged.until g": 60}, node(unjudged.Calibrating, unjudged.Judged, 60_000))
	assert.Equal(t, map[string]float64{"n gpu.node.unjudged g": 0}, node(unjudged.Judged, unjudged.FewPeers, 0))
}

// TestTheMostSuspiciousComeFirst: by suspicion, then by loss, then as they are in the
// report, and ten of them at most.
func TestTheMostSuspiciousComeFirst(t *testing.T) {
	var nodes []straggler.NodeReport
	add := func(name string, suspicion, gap float64, state nodesignal.State) {
		nodes = append(nodes, straggler.NodeReport{NodeName: &straggler.NodeName{Node: name}, Suspicion: suspicion, Gap: gap, State: state})
	}
	add("calm", 0, 0.01, nodesignal.StateActive)
	add("alike", 0, 0, nodesignal.StateActive)
	add("gone", 2, 0.9, nodesignal.StateMissing)
	add("slow", 2, 0.1, nodesignal.StateActive)
	add("slower", 2, 0.2, nodesignal.StateActive)
	for i := range 9 {
		add(strconv.Itoa(i), 0, 0, nodesignal.StateActive)
	}
	var names []string
	for _, n := range suspects(nodes) {
		names = append(names, n.Node)
	}
	assert.Equal(t, []string{"slower", "slow", "calm", "alike", "0", "1", "2", "3", "4", "5"}, names)
}

func TestWhatAGroupIsComparedWith(t *testing.T) {
	r := newReporter()
	rep := report("a")
	g := &rep.Groups[1]
	g.Incident = true
	g.Signals[nodesignal.Throughput] = straggler.SignalReport{N: 8, Median: 10, Scale: 0.02, Threshold: 9.7, Fall: 0.1, FallKnown: true}
	g.Signals[nodesignal.CPU] = straggler.SignalReport{N: 8, Median: 1}
	got := values(oneBatch(t, r.metrics(rep)))
	for name, want := range map[string]float64{"incident g": 1, "signal.median g throughput": 10, "signal.scale g throughput": 0.02, "signal.fall g throughput": 0.1, "signal.threshold g throughput": 9.7} {
		assert.InDelta(t, want, got[" gpu.straggler."+name], 0, name)
	}
	assert.NotContains(t, got, " gpu.straggler.signal.median g compute", "of too few nodes")
	assert.NotContains(t, got, " gpu.straggler.signal.fall g cpu", "its usual level is not known")
}
