// SPDX-License-Identifier: Apache-2.0

package otlp // import "github.com/gpu-collector/gpu-collector/internal/lastvalue/otlp"

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"sync"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
)

var identities = sync.Pool{New: func() any { return new([]byte) }}

// nodeKey is of the node that a resource stands for.
func nodeKey(attrs pcommon.Map) lastvalue.NodeKey {
	room := identities.Get().(*[]byte)
	defer identities.Put(room)
	*room = appendAttributes((*room)[:0], attrs)
	return lastvalue.KeyOf(*room)
}

// appendAttributes writes attributes in a canonical form: sorted by key, each text preceded
// by its length, each value by its type.
func appendAttributes(to []byte, attrs pcommon.Map) []byte {
	type attribute struct {
		key   string
		value pcommon.Value
	}
	sorted := make([]attribute, 0, 16)
	for k, v := range attrs.All() {
		sorted = append(sorted, attribute{k, v})
	}
	slices.SortStableFunc(sorted, func(a, b attribute) int { return strings.Compare(a.key, b.key) })
	to = appendNumber(to, uint64(len(sorted)))
	for _, a := range sorted {
		to = appendValue(appendText(to, a.key), a.value)
	}
	return to
}

func appendValue(to []byte, v pcommon.Value) []byte {
	to = append(to, byte(v.Type()))
	switch v.Type() {
	case pcommon.ValueTypeStr:
		return appendText(to, v.Str())
	case pcommon.ValueTypeBytes:
		return appendText(to, string(v.Bytes().AsRaw()))
	case pcommon.ValueTypeMap:
		return appendAttributes(to, v.Map())
	case pcommon.ValueTypeSlice:
		to = appendNumber(to, uint64(v.Slice().Len()))
		for _, of := range v.Slice().All() {
			to = appendValue(to, of)
		}
		return to
	default:
		return appendNumber(to, numberOf(v))
	}
}

func appendText(to []byte, s string) []byte { return append(appendNumber(to, uint64(len(s))), s...) }

func appendNumber(to []byte, n uint64) []byte { return binary.BigEndian.AppendUint64(to, n) }

// numberOf is what a value holds that is one number, and 0 of any other.
func numberOf(v pcommon.Value) uint64 {
	switch v.Type() {
	case pcommon.ValueTypeInt:
		return uint64(v.Int())
	case pcommon.ValueTypeDouble:
		return math.Float64bits(v.Double())
	case pcommon.ValueTypeBool:
		return boolBit(v.Bool())
	default:
		return 0
	}
}

func boolBit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// attributesHash is a sum, so the order of the attributes does not matter.
func attributesHash(attrs pcommon.Map) uint64 {
	var sum uint64
	for k, v := range attrs.All() {
		sum += lastvalue.Mix(lastvalue.HashString(k), valueHash(v))
	}
	return sum
}

func valueHash(v pcommon.Value) uint64 {
	switch v.Type() {
	case pcommon.ValueTypeStr:
		return typedHash(pcommon.ValueTypeStr, lastvalue.HashString(v.Str()))
	case pcommon.ValueTypeBytes, pcommon.ValueTypeMap, pcommon.ValueTypeSlice:
		return typedHash(v.Type(), lastvalue.HashBytes(appendValue(nil, v)))
	default:
		return typedHash(v.Type(), numberOf(v))
	}
}

func typedHash(kind pcommon.ValueType, h uint64) uint64 { return lastvalue.Mix(h, uint64(kind)) }

func scopeHash(scope pcommon.InstrumentationScope) uint64 {
	return scopeIdentity(lastvalue.HashString(scope.Name()), lastvalue.HashString(scope.Version()), attributesHash(scope.Attributes()))
}

func scopeIdentity(name, version, attrs uint64) uint64 {
	return lastvalue.Mix(lastvalue.Mix(name, version), attrs)
}

func metricHash(m pmetric.Metric, scope uint64) uint64 {
	temporality, monotonic := aggregation(m)
	return metricIdentity(scope, lastvalue.HashString(m.Name()), lastvalue.HashString(m.Unit()), m.Type(), temporality, monotonic)
}

// metricIdentity covers what makes a metric another stream: the data model's
// identifying properties (OpenTelemetry specification, metrics data model,
// "Timeseries Model"), without the description.
func metricIdentity(scope, name, unit uint64, kind pmetric.MetricType, temporality pmetric.AggregationTemporality, monotonic bool) uint64 {
	h := lastvalue.Mix(lastvalue.Mix(scope, name), unit)
	return lastvalue.Mix(h, uint64(kind)<<16|uint64(temporality)<<8|boolBit(monotonic))
}

// aggregation is how the points of a metric add up.
func aggregation(m pmetric.Metric) (temporality pmetric.AggregationTemporality, monotonic bool) {
	switch m.Type() {
	case pmetric.MetricTypeSum:
		return m.Sum().AggregationTemporality(), m.Sum().IsMonotonic()
	case pmetric.MetricTypeHistogram:
		return m.Histogram().AggregationTemporality(), false
	case pmetric.MetricTypeExponentialHistogram:
		return m.ExponentialHistogram().AggregationTemporality(), false
	default:
		return pmetric.AggregationTemporalityUnspecified, false
	}
}

// content hashes a histogram's content. A change goes unnoticed with a chance
// of 2^-64, and then until the next change or resync.
type content uint64

func (c *content) float(x float64) { c.add(math.Float64bits(x)) }

func (c *content) add(numbers ...uint64) {
	for _, n := range numbers {
		*c = content(lastvalue.Mix(uint64(*c), n))
	}
}

// optional distinguishes an absent value, which reads as 0, from one that is there.
func (c *content) optional(has bool, x float64) { c.add(boolBit(has), math.Float64bits(x)) }

func (c *content) counts(s pcommon.UInt64Slice) {
	c.add(uint64(s.Len()))
	for _, n := range s.All() {
		c.add(n)
	}
}

func (c *content) value() value { return value{kind: lastvalue.KindHash, bits: uint64(*c)} }

func histogramValue(dp pmetric.HistogramDataPoint) value {
	var c content
	c.add(dp.Count())
	c.optional(dp.HasSum(), dp.Sum())
	c.optional(dp.HasMin(), dp.Min())
	c.optional(dp.HasMax(), dp.Max())
	c.counts(dp.BucketCounts())
	for _, bound := range dp.ExplicitBounds().All() {
		c.float(bound)
	}
	return c.value()
}

func exponentialValue(dp pmetric.ExponentialHistogramDataPoint) value {
	var c content
	c.add(dp.Count(), dp.ZeroCount(), uint64(dp.Scale()))
	c.optional(dp.HasSum(), dp.Sum())
	c.optional(dp.HasMin(), dp.Min())
	c.optional(dp.HasMax(), dp.Max())
	c.float(dp.ZeroThreshold())
	for _, half := range [...]pmetric.ExponentialHistogramDataPointBuckets{dp.Positive(), dp.Negative()} {
		c.add(uint64(half.Offset()))
		c.counts(half.BucketCounts())
	}
	return c.value()
}

func summaryValue(dp pmetric.SummaryDataPoint) value {
	var c content
	c.add(dp.Count())
	c.float(dp.Sum())
	for _, q := range dp.QuantileValues().All() {
		c.float(q.Quantile())
		c.float(q.Value())
	}
	return c.value()
}
