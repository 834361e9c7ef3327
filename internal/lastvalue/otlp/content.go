// SPDX-License-Identifier: Apache-2.0

package otlp // import "github.com/gpu-collector/gpu-collector/internal/lastvalue/otlp"

import (
	"math"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
)

// content hashes what a histogram says. A change goes unnoticed with a chance
// of 2^-64, and then until the next change or resync.
type content uint64

func (c *content) float(x float64) { c.add(math.Float64bits(x)) }

func (c *content) add(numbers ...uint64) {
	for _, n := range numbers {
		*c = content(lastvalue.Mix(uint64(*c), n))
	}
}

// optional tells an absent value, which reads as 0, from one that is there.
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
