// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/detect/straggler"
	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/lastvalue/promtext"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodereport"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadatatest"
)

// written are the metrics that a gateway writes, each once.
func written(t testing.TB) []pmetric.Metric {
	r := newReporter()
	rep := report("a")
	g := &rep.Groups[1]
	g.Valid, g.Quorum, g.Group = true, true, "g"
	g.Signals[nodesignal.Throughput] = straggler.SignalReport{N: 5, Median: 1, FallKnown: true}
	rep.Nodes = []straggler.NodeReport{{NodeName: &straggler.NodeName{Cluster: "a", Group: "g", Node: "n"}, State: nodesignal.StateActive, Unjudged: unjudged.Calibrating, Until: 1}}
	var all []pmetric.Metric
	seen := map[string]bool{}
	for _, md := range r.metrics(rep) {
		for _, rm := range md.ResourceMetrics().All() {
			for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
				if !seen[m.Name()] {
					seen[m.Name()] = true
					all = append(all, m)
				}
			}
		}
	}
	require.Len(t, all, 19, "as many as gpusemconv has of gpu.straggler.*, and four of each node")
	return all
}

// TestReservedNames are those that a gateway writes, and nothing that an agent does.
func TestReservedNames(t *testing.T) {
	for _, m := range written(t) {
		assert.True(t, gpusemconv.IsReserved(m.Name(), m.Unit()), m.Name())
	}
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	res := nodescore.Result{HasScore: true, Mode: nodescore.ModeFleet}
	res.Signals.Set(nodesignal.Throughput, 1)
	nodereport.Append(rm, "s", 0, &res, true)
	require.Greater(t, rm.ScopeMetrics().At(0).Metrics().Len(), 6)
	for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
		assert.False(t, gpusemconv.IsReserved(m.Name(), m.Unit()), m.Name())
	}
	for _, tt := range []struct {
		name, unit string
		want       bool
	}{
		{"gpu.straggler.made.up", "", true},
		{"gpu_straggler_score", "", true},
		{".gpu--straggler__score", "", true},
		{"gpu.straggler", "", true},
		{"gpu", "straggler.threshold", true},
		{"gpu.node", "suspicion", true},
		{"gpu.ratio.straggler.threshold", "1", true},
		{"gpu.node.total.straggler", "", true},
		{"gpu", "{straggler}", false},
		{"gpu", "1/straggler", false},
		{"gpu.stragglers", "", false},
		{"GPU.straggler.score", "", false},
		{"gpu:straggler:score", "", false},
		{"my.gpu.straggler", "", false},
		{"gpu.node.heartbeat", "s", false},
		{"gpu.node", "", false},
		{"", "", false},
		{"", "gpu", false},
		{"°", "gpu.straggler", true},
	} {
		assert.Equal(t, tt.want, gpusemconv.IsReserved(tt.name, tt.unit), "%q %q", tt.name, tt.unit)
	}
}

// TestNoOtherNameIsTakenForAGateways: whatever Prometheus' rules turn into a name of a
// gateway, with a part's suffix too, is reserved.
func TestNoOtherNameIsTakenForAGateways(t *testing.T) {
	all := map[string]bool{}
	for _, m := range written(t) {
		all[promtext.MetricName(m.Name(), m.Unit(), promtext.KindGauge)] = true
		all[promtext.MetricName(m.Name(), "", promtext.KindGauge)] = true // without suffixes
	}
	names := slices.Sorted(maps.Keys(all))
	clashes := 0
	rapid.Check(t, func(t *rapid.T) {
		words := strings.Split(rapid.SampledFrom(names).Draw(t, "name"), "_")
		if words[len(words)-1] == "ratio" && rapid.Bool().Draw(t, "without") {
			words = words[:len(words)-1]
		}
		if rapid.Bool().Draw(t, "noise") {
			words = slices.Insert(words, rapid.IntRange(0, len(words)).Draw(t, "at"), rapid.SampledFrom([]string{"ratio", "total", "x", "s"}).Draw(t, "word"))
		}
		join := func(words []string) string {
			var out strings.Builder
			for _, w := range words {
				out.WriteString(rapid.SampledFrom([]string{".", "_", "-", "é", "__", "{", "/"}).Draw(t, "between"))
				out.WriteString(w)
			}
			return out.String()
		}
		cut := rapid.IntRange(1, len(words)).Draw(t, "unit from")
		name, unit := join(words[:cut]), strings.TrimLeft(join(words[cut:]), "/{")
		if unit == "" {
			unit = rapid.SampledFrom([]string{"", "1", "s"}).Draw(t, "unit")
		}
		for _, kind := range []promtext.Kind{promtext.KindGauge, promtext.KindCounter, promtext.KindNonMonotonic} {
			if all[promtext.MetricName(name, unit, kind)] {
				clashes++
				require.True(t, gpusemconv.IsReserved(name, unit), "%q %q", name, unit)
			}
		}
	})
	assert.Positive(t, clashes)
}

// TestReservedNamesAreRemoved: metrics with a gateway's names are taken out of a push, whatever
// their type. The rest of the push counts, and the log has one line per cluster.
func TestReservedNamesAreRemoved(t *testing.T) {
	r := newGatewayRig(t, nil, nil)
	forged := func(cluster string) pmetric.Metrics {
		md := fleet(1, 1, 1, 1, 1)
		for _, rm := range md.ResourceMetrics().All() {
			rm.Resource().Attributes().PutStr("k8s.cluster.name", cluster)
			ms := rm.ScopeMetrics().At(0).Metrics()
			for _, of := range written(t) {
				gauge(rm, of.Name(), 1)
			}
			m := ms.AppendEmpty()
			m.SetName("gpu_straggler_score")
			m.SetEmptySummary().DataPoints().AppendEmpty().SetCount(1)
			gauge(rm, "hw.temperature", 40, "hw.id", "GPU-1")
		}
		return md
	}
	assert.True(t, r.g.Capabilities().MutatesData)
	r.push(forged("prod"))
	r.push(forged("prod"))
	r.push(forged("other"))
	for _, md := range r.sink.AllMetrics() {
		assert.Len(t, values(md), 5*3, "the score, the signal and the temperature of each node")
	}
	metadatatest.AssertEqualProcessorStragglerRemoved(t, r.tel, []metricdata.DataPoint[int64]{
		{Attributes: attribute.NewSet(attribute.String("reason", "own_name")), Value: 3 * 5 * 19},
		{Attributes: attribute.NewSet(attribute.String("reason", "alike")), Value: 3 * 5},
	}, metricdatatest.IgnoreTimestamp())
	logged := r.logs.FilterMessageSnippet("only a gateway gives names like this").All()
	require.Len(t, logged, 2)
	assert.Equal(t, "prod", logged[0].ContextMap()["cluster"])
	assert.Equal(t, "other", logged[1].ContextMap()["cluster"])
	got := r.tick()
	assert.InDelta(t, 0, got["n0 gpu.node.straggler J/stage-0"], 0)
}
