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

func (c *content) add(n uint64)    { *c = content(lastvalue.Mix(uint64(*c), n)) }
func (c *content) float(x float64) { c.add(math.Float64bits(x)) }

// optional tells an absent value from any that is there.
func (c *content) optional(has bool, x float64) {
	c.add(boolBit(has))
	if has {
		c.float(x)
	}
}

func (c *content) counts(s pcommon.UInt64Slice) {
	c.add(uint64(s.Len()))
	for i := range s.Len() {
		c.add(s.At(i))
	}
}

func histogramValue(dp pmetric.HistogramDataPoint) value {
	var c content
	c.add(dp.Count())
	c.optional(dp.HasSum(), dp.Sum())
	c.optional(dp.HasMin(), dp.Min())
	c.optional(dp.HasMax(), dp.Max())
	c.counts(dp.BucketCounts())
	bounds := dp.ExplicitBounds()
	c.add(uint64(bounds.Len()))
	for i := range bounds.Len() {
		c.float(bounds.At(i))
	}
	return value{kind: lastvalue.KindHash, bits: uint64(c)}
}

func exponentialValue(dp pmetric.ExponentialHistogramDataPoint) value {
	var c content
	c.add(dp.Count())
	c.optional(dp.HasSum(), dp.Sum())
	c.optional(dp.HasMin(), dp.Min())
	c.optional(dp.HasMax(), dp.Max())
	c.add(uint64(uint32(dp.Scale())))
	c.add(dp.ZeroCount())
	c.float(dp.ZeroThreshold())
	c.add(uint64(uint32(dp.Positive().Offset())))
	c.counts(dp.Positive().BucketCounts())
	c.add(uint64(uint32(dp.Negative().Offset())))
	c.counts(dp.Negative().BucketCounts())
	return value{kind: lastvalue.KindHash, bits: uint64(c)}
}

func summaryValue(dp pmetric.SummaryDataPoint) value {
	var c content
	c.add(dp.Count())
	c.float(dp.Sum())
	quantiles := dp.QuantileValues()
	c.add(uint64(quantiles.Len()))
	for i := range quantiles.Len() {
		c.float(quantiles.At(i).Quantile())
		c.float(quantiles.At(i).Value())
	}
	return value{kind: lastvalue.KindHash, bits: uint64(c)}
}
