// SPDX-License-Identifier: Apache-2.0

package otlp // import "github.com/gpu-collector/gpu-collector/internal/lastvalue/otlp"

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
)

// keepAttributes is how much room an odd resource leaves for the next.
const keepAttributes = 256

// identity writes resource attributes in a canonical form: sorted by key, each
// text preceded by its length, each value by its type. Its buffers are reused.
type identity struct {
	buf  []byte
	keys []attribute
}

type attribute struct {
	key   string
	value pcommon.Value
}

// node returns the key of the node that a resource stands for.
func (id *identity) node(attrs pcommon.Map) lastvalue.NodeKey {
	id.buf = id.buf[:0]
	id.attributes(attrs)
	key := lastvalue.KeyOf(id.buf)
	// No pdata is kept, nor the room that one odd resource took.
	if clear(id.keys[:cap(id.keys)]); cap(id.keys) > keepAttributes {
		id.keys, id.buf = nil, nil
	}
	return key
}

// attributes uses id.keys as a stack, for a map may hold maps.
func (id *identity) attributes(attrs pcommon.Map) {
	from := len(id.keys)
	for k, v := range attrs.All() {
		id.keys = append(id.keys, attribute{k, v})
	}
	to := len(id.keys)
	slices.SortStableFunc(id.keys[from:to], func(a, b attribute) int { return strings.Compare(a.key, b.key) })
	id.number(uint64(to - from))
	for i := from; i < to; i++ {
		id.text(id.keys[i].key)
		id.value(id.keys[i].value)
	}
	id.keys = id.keys[:from]
}

func (id *identity) value(v pcommon.Value) {
	id.buf = append(id.buf, byte(v.Type()))
	switch v.Type() {
	case pcommon.ValueTypeStr:
		id.text(v.Str())
	case pcommon.ValueTypeInt:
		id.number(uint64(v.Int()))
	case pcommon.ValueTypeDouble:
		id.number(math.Float64bits(v.Double()))
	case pcommon.ValueTypeBool:
		id.number(boolBit(v.Bool()))
	case pcommon.ValueTypeBytes:
		b := v.Bytes()
		id.number(uint64(b.Len()))
		for i := range b.Len() {
			id.buf = append(id.buf, b.At(i))
		}
	case pcommon.ValueTypeMap:
		id.attributes(v.Map())
	case pcommon.ValueTypeSlice:
		s := v.Slice()
		id.number(uint64(s.Len()))
		for i := range s.Len() {
			id.value(s.At(i))
		}
	case pcommon.ValueTypeEmpty:
	}
}

func (id *identity) text(s string) {
	id.number(uint64(len(s)))
	id.buf = append(id.buf, s...)
}

func (id *identity) number(n uint64) {
	id.buf = binary.BigEndian.AppendUint64(id.buf, n)
}

func scopeHash(scope pcommon.InstrumentationScope) uint64 {
	return scopeIdentity(lastvalue.HashString(scope.Name()), lastvalue.HashString(scope.Version()),
		attributesHash(scope.Attributes()))
}

func scopeIdentity(name, version, attrs uint64) uint64 {
	return lastvalue.Mix(lastvalue.Mix(name, version), attrs)
}

func metricHash(m pmetric.Metric, scope uint64) uint64 {
	return metricIdentity(scope, lastvalue.HashString(m.Name()), lastvalue.HashString(m.Unit()),
		m.Type(), temporality(m), isMonotonic(m))
}

// metricIdentity covers what makes a metric another stream: the data model's
// identifying properties (OpenTelemetry specification, metrics data model,
// "Timeseries Model"), without the description.
func metricIdentity(scope, name, unit uint64, kind pmetric.MetricType, temporality pmetric.AggregationTemporality, monotonic bool) uint64 {
	h := lastvalue.Mix(lastvalue.Mix(scope, name), unit)
	return lastvalue.Mix(h, uint64(kind)<<16|uint64(temporality)<<8|boolBit(monotonic))
}

// seriesKey is the identity of a point within its node.
func seriesKey(metric uint64, attrs pcommon.Map) uint64 {
	return lastvalue.Mix(metric, attributesHash(attrs))
}

// attributesHash is a sum, so the order of the attributes does not matter.
func attributesHash(attrs pcommon.Map) uint64 {
	var sum uint64
	for k, v := range attrs.All() {
		sum += attributeHash(lastvalue.HashString(k), valueHash(v))
	}
	return sum
}

func attributeHash(key, value uint64) uint64 { return lastvalue.Mix(key, value) }

func valueHash(v pcommon.Value) uint64 {
	var h uint64
	switch v.Type() {
	case pcommon.ValueTypeStr:
		h = lastvalue.HashString(v.Str())
	case pcommon.ValueTypeInt:
		h = uint64(v.Int())
	case pcommon.ValueTypeDouble:
		h = math.Float64bits(v.Double())
	case pcommon.ValueTypeBool:
		h = boolBit(v.Bool())
	case pcommon.ValueTypeBytes:
		b := v.Bytes()
		h = lastvalue.HashLength(b.Len())
		for i := range b.Len() {
			h = lastvalue.Mix(h, uint64(b.At(i)))
		}
	case pcommon.ValueTypeMap:
		h = attributesHash(v.Map())
	case pcommon.ValueTypeSlice:
		s := v.Slice()
		h = lastvalue.HashLength(s.Len())
		for i := range s.Len() {
			h = lastvalue.Mix(h, valueHash(s.At(i)))
		}
	case pcommon.ValueTypeEmpty:
	}
	return typedHash(v.Type(), h)
}

func typedHash(kind pcommon.ValueType, h uint64) uint64 { return lastvalue.Mix(h, uint64(kind)) }

func boolBit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}
