// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/internal/unjudged"
)

func report(clusters ...string) *straggler.Report {
	r := &straggler.Report{At: noon}
	for _, c := range clusters {
		r.Groups = append(r.Groups, straggler.GroupReport{Cluster: c}, straggler.GroupReport{Cluster: c, Group: "g"})
	}
	return r
}

// ranks are the points of the rank list in their order: names, with a minus
// for those without a value.
func ranks(t *testing.T, md pmetric.Metrics) map[string][]string {
	got := map[string][]string{}
	for _, rm := range md.ResourceMetrics().All() {
		cluster, _ := rm.Resource().Attributes().Get(gpusemconv.AttrClusterName)
		for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
			if m.Name() != gpusemconv.MetricStragglerRank {
				continue
			}
			for i, p := range m.Gauge().DataPoints().All() {
				node, ok := p.Attributes().Get(gpusemconv.AttrHostName)
				require.True(t, ok)
				name := node.Str()
				if p.Flags().NoRecordedValue() {
					name = "-" + name
				} else {
					assert.EqualValues(t, i+1, p.IntValue())
				}
				got[cluster.Str()] = append(got[cluster.Str()], name)
			}
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
	ids := newIdentifier(createDefaultConfig().(*Config))
	r := reporter{ids: &ids}
	rep := report("a")
	for i := range 2*nodesPerBatch + 1 {
		rep.Nodes = append(rep.Nodes, straggler.NodeReport{NodeName: &straggler.NodeName{Cluster: "a", Group: "g", Node: strconv.Itoa(i)}, State: nodesignal.StateActive})
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

// TestWhoLeavesTheRankListIsTakenOff with a point without a value, once.
func TestWhoLeavesTheRankListIsTakenOff(t *testing.T) {
	ids := newIdentifier(createDefaultConfig().(*Config))
	r := reporter{ids: &ids}
	rank := func(cluster string, nodes ...string) (all []straggler.Rank) {
		for i, n := range nodes {
			all = append(all, straggler.Rank{Rank: i + 1, NodeReport: straggler.NodeReport{NodeName: &straggler.NodeName{Cluster: cluster, Group: "g", Node: n}}})
		}
		return all
	}
	rep := report("a", "b")
	rep.Ranks = append(rank("a", "x", "y"), rank("b", "x")...)
	assert.Equal(t, map[string][]string{"a": {"x", "y"}, "b": {"x"}}, ranks(t, oneBatch(t, r.metrics(rep))))
	rep.Ranks = append(rank("a", "y", "z"), rank("b", "x")...)
	assert.Equal(t, map[string][]string{"a": {"y", "z", "-x"}, "b": {"x"}}, ranks(t, oneBatch(t, r.metrics(rep))))
	assert.Equal(t, map[string][]string{"a": {"y", "z"}, "b": {"x"}}, ranks(t, oneBatch(t, r.metrics(rep))))
	rep.Ranks = rank("b", "x")
	assert.Equal(t, map[string][]string{"a": {"-y", "-z"}, "b": {"x"}}, ranks(t, oneBatch(t, r.metrics(rep))))
	r.metrics(report("b"))
	assert.NotContains(t, r.ranked, "a", "of a cluster that is gone nothing is kept")
}

// TestWhyThereIsNoVerdict is said of each group for all reasons, and of a node while it
// is so and once when it ends.
func TestWhyThereIsNoVerdict(t *testing.T) {
	ids := newIdentifier(createDefaultConfig().(*Config))
	r := reporter{ids: &ids}
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
		rep.Nodes = []straggler.NodeReport{{
			NodeName: &straggler.NodeName{Cluster: "a", Group: "g", Node: "n"}, State: nodesignal.StateActive,
			Unjudged: why, UnjudgedBefore: before, Until: until,
		}}
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

func TestWhatEachPartOfAGroupIsComparedWith(t *testing.T) {
	ids := newIdentifier(createDefaultConfig().(*Config))
	r := reporter{ids: &ids}
	rep := report("a")
	g := &rep.Groups[1]
	g.Incident, g.SplitBy = true, nodesignal.Compute
	signal := func(centre float64) (s [nodesignal.Count]straggler.SignalReport) {
		s[nodesignal.Throughput] = straggler.SignalReport{Known: true, Fall: 0.1, Threshold: 0.97 * centre, Params: straggler.Params{Centre: centre, Relative: true, MinGap: 0.05, Scale: 0.02, Limits: [...]float64{11, 9, 12}}}
		return s
	}
	g.Cohorts = []straggler.CohortReport{{Signals: signal(5)}, {From: 8, HasFrom: true, Signals: signal(10)}}
	got := values(oneBatch(t, r.metrics(rep)))
	assert.InDelta(t, 1, got[" gpu.straggler.incident g"], 0)
	assert.InDelta(t, 5, got[" gpu.straggler.signal.median g throughput 1"], 0)
	assert.InDelta(t, 10, got[" gpu.straggler.signal.median g throughput 2"], 0)
	assert.InDelta(t, 0.02, got[" gpu.straggler.signal.scale g throughput 2"], 0)
	assert.InDelta(t, 0.1, got[" gpu.straggler.signal.fall g throughput 2"], 0)
	assert.InDelta(t, 10*(1-0.02*1.5), got[" gpu.straggler.signal.threshold g throughput 2"], 1e-9)

	unknown := &g.Cohorts[0].Signals[nodesignal.Compute]
	unknown.Params = g.Cohorts[0].Signals[nodesignal.Throughput].Params
	assert.NotContains(t, values(oneBatch(t, r.metrics(rep))), " gpu.straggler.signal.median g compute 1", "of too few nodes")
}
