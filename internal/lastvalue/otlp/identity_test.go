// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
	nodeidentity "github.com/gpu-collector/gpu-collector/internal/reading/identity"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
)

// anyAttributes draws a small attribute set, so that equal ones are common.
func anyAttributes(t *rapid.T, depth int) map[string]any {
	out := map[string]any{}
	for _, k := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"", "a", "b", "ab"}), 0, 3, rapid.ID).Draw(t, "keys") {
		out[k] = anyValue(t, depth)
	}
	return out
}

func anyValue(t *rapid.T, depth int) any {
	switch kind := rapid.IntRange(0, 6+depth).Draw(t, "kind"); kind {
	case 0:
		return rapid.SampledFrom([]string{"", "a", "1", "true"}).Draw(t, "string")
	case 1:
		return rapid.Int64Range(0, 1).Draw(t, "int")
	case 2:
		return float64(rapid.Int64Range(0, 1).Draw(t, "double"))
	case 3:
		return rapid.Bool().Draw(t, "bool")
	case 4:
		return []byte(rapid.SampledFrom([]string{"", "a", "1"}).Draw(t, "bytes"))
	case 5, 6:
		return nil
	case 7:
		return anyAttributes(t, depth-1)
	default:
		values := make([]any, rapid.IntRange(0, 2).Draw(t, "length"))
		for i := range values {
			values[i] = anyValue(t, depth-1)
		}
		return values
	}
}

// Two attribute sets have one identity exactly when they are equal, in whatever
// order they come.
func TestIdentityIsEquality(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := pcommon.NewMap(), pcommon.NewMap()
		require.NoError(t, a.FromRaw(anyAttributes(t, 2)))
		require.NoError(t, b.FromRaw(anyAttributes(t, 2)))
		assert.Equal(t, a.Equal(b), nodeKey(a) == nodeKey(b), "%v %v", a.AsRaw(), b.AsRaw())
		assert.Equal(t, a.Equal(b), attributesHash(a) == attributesHash(b), "%v %v", a.AsRaw(), b.AsRaw())

		var keys []string
		for k := range a.All() {
			keys = append(keys, k)
		}
		reversed := pcommon.NewMap()
		for _, k := range slices.Backward(keys) {
			v, _ := a.Get(k)
			v.CopyTo(reversed.PutEmpty(k))
		}
		assert.Equal(t, nodeKey(a), nodeKey(reversed))
		assert.Equal(t, attributesHash(a), attributesHash(reversed))
	})
}

// The table names a resource as the readers do.
func TestAResourceHasTheReadersNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		attrs := pcommon.NewMap()
		for _, key := range []string{"k8s.node.name", "host.name", "host.id", "k8s.cluster.name", "ingero.node.id"} {
			if rapid.Bool().Draw(t, key) {
				require.NoError(t, attrs.PutEmpty(key).FromRaw(anyValue(t, 1)))
			}
		}
		var want nodeidentity.Names
		metricreading.Identify(&want, attrs)
		var o observer
		o.attributes(attrs)
		got := lastvalue.Identify(o.attrs)
		assert.Equal(t, want.Node(), got.Node())
		assert.Equal(t, want.Cluster("", ""), got.Cluster("", ""))
		if want.Node() != "" {
			assert.True(t, isNode(attrs))
		}
	})
}

// A sender that can compute a hash can make up two series with the same key: the hash of a
// list does not begin with its length alone.
func TestListsHaveNoKnownHash(t *testing.T) {
	assert.NotEqual(t, typedHash(pcommon.ValueTypeSlice, 0), valueHash(pcommon.NewValueSlice()))
	assert.NotEqual(t, typedHash(pcommon.ValueTypeBytes, 0), valueHash(pcommon.NewValueBytes()))
}

// requireAllDiffer makes one thing after another, and each of them is another.
func requireAllDiffer[T any, H comparable](t *testing.T, make func() T, hash func(T) H, edits map[string]func(T)) {
	seen := map[H]string{hash(make()): "none"}
	require.Contains(t, seen, hash(make()))
	for name, edit := range edits {
		x := make()
		edit(x)
		h := hash(x)
		require.NotContains(t, seen, h, "%s is as %s", name, seen[h])
		seen[h] = name
	}
}

func TestTheContentOfAHistogram(t *testing.T) {
	type histogram = pmetric.HistogramDataPoint
	requireAllDiffer(t, pmetric.NewHistogramDataPoint, histogramValue, map[string]func(histogram){
		"count":   func(dp histogram) { dp.SetCount(1) },
		"sum":     func(dp histogram) { dp.SetSum(0) },
		"sum 1":   func(dp histogram) { dp.SetSum(1) },
		"min":     func(dp histogram) { dp.SetMin(0) },
		"max":     func(dp histogram) { dp.SetMax(0) },
		"bucket":  func(dp histogram) { dp.BucketCounts().FromRaw([]uint64{0}) },
		"buckets": func(dp histogram) { dp.BucketCounts().FromRaw([]uint64{0, 1}) },
		"moved":   func(dp histogram) { dp.BucketCounts().FromRaw([]uint64{1, 0}) },
		"bounds":  func(dp histogram) { dp.ExplicitBounds().FromRaw([]float64{1}) },
	})
	type exponential = pmetric.ExponentialHistogramDataPoint
	requireAllDiffer(t, pmetric.NewExponentialHistogramDataPoint, exponentialValue, map[string]func(exponential){
		"count":           func(dp exponential) { dp.SetCount(1) },
		"sum":             func(dp exponential) { dp.SetSum(0) },
		"min":             func(dp exponential) { dp.SetMin(0) },
		"max":             func(dp exponential) { dp.SetMax(0) },
		"scale":           func(dp exponential) { dp.SetScale(-1) },
		"zeros":           func(dp exponential) { dp.SetZeroCount(1) },
		"zero threshold":  func(dp exponential) { dp.SetZeroThreshold(1) },
		"positive offset": func(dp exponential) { dp.Positive().SetOffset(1) },
		"positive":        func(dp exponential) { dp.Positive().BucketCounts().FromRaw([]uint64{1}) },
		"negative offset": func(dp exponential) { dp.Negative().SetOffset(1) },
		"negative":        func(dp exponential) { dp.Negative().BucketCounts().FromRaw([]uint64{1}) },
	})
	type summary = pmetric.SummaryDataPoint
	requireAllDiffer(t, pmetric.NewSummaryDataPoint, summaryValue, map[string]func(summary){
		"count":    func(dp summary) { dp.SetCount(1) },
		"sum":      func(dp summary) { dp.SetSum(1) },
		"quantile": func(dp summary) { dp.QuantileValues().AppendEmpty().SetQuantile(0.5) },
		"value":    func(dp summary) { dp.QuantileValues().AppendEmpty().SetValue(0.5) },
	})
}

// The data model's identifying properties, and nothing else.
func TestWhatIsAnotherMetric(t *testing.T) {
	type scoped struct {
		scope pcommon.InstrumentationScope
		pmetric.Metric
	}
	build := func() scoped {
		s := scoped{pcommon.NewInstrumentationScope(), pmetric.NewMetric()}
		s.SetEmptySum().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		return s
	}
	hash := func(s scoped) uint64 { return metricHash(s.Metric, scopeHash(s.scope)) }
	requireAllDiffer(t, build, hash, map[string]func(scoped){
		"scope":           func(s scoped) { s.scope.SetName("x") },
		"version":         func(s scoped) { s.scope.SetVersion("x") },
		"scope attribute": func(s scoped) { s.scope.Attributes().PutStr("x", "") },
		"name":            func(s scoped) { s.SetName("x") },
		"unit":            func(s scoped) { s.SetUnit("x") },
		"type":            func(s scoped) { s.SetEmptyGauge() },
		"monotonic":       func(s scoped) { s.Sum().SetIsMonotonic(true) },
		"temporality":     func(s scoped) { s.Sum().SetAggregationTemporality(pmetric.AggregationTemporalityDelta) },
	})
	described := build()
	described.SetDescription("x")
	assert.Equal(t, hash(build()), hash(described))
}
