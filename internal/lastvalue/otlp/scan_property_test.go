// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
)

// drawn makes messages field by field: in any order, some of them twice or not
// at all, some of a form that only pdata reads. Plain ones are of the same few series.
type drawn struct {
	*rapid.T
	plain bool
}

// some reports true once in n.
func (d drawn) some(n int, what string) bool { return rapid.IntRange(1, n).Draw(d.T, what) == n }

// odd is some of what no message has that is plain.
func (d drawn) odd(n int, what string) bool { return !d.plain && d.some(n, what) }

func (d drawn) pick(what string, of ...part) part { return rapid.SampledFrom(of).Draw(d.T, what) }

// message joins fields in any order.
func (d drawn) message(fields []part) part {
	if d.odd(40, "unknown field") {
		fields = append(fields, d.pick("unknown", part(nil).text(99, "x"), part(nil).varint(15, 1), part(nil).raw(0x7b, 0x7c)))
	}
	if len(fields) > 1 && d.some(3, "reorder") {
		fields = rapid.Permutation(fields).Draw(d.T, "order")
	}
	var out part
	for _, f := range fields {
		out = append(out, f...)
	}
	return out
}

// repeat calls draw from none to most times.
func (d drawn) repeat(most int, what string, draw func() part) (out []part) {
	for range rapid.IntRange(0, most).Draw(d.T, what) {
		out = append(out, draw())
	}
	return out
}

// once is one field mostly, seldom none or two.
func (d drawn) once(what string, draw func() part) (out []part) {
	n := 1
	if d.odd(12, what+" is odd") {
		n = rapid.SampledFrom([]int{0, 2}).Draw(d.T, what+" count")
	}
	for range n {
		out = append(out, draw())
	}
	return out
}

func (d drawn) value(depth int) part {
	if depth > 0 && d.odd(10, "array") {
		var members part
		for _, m := range d.repeat(2, "members", func() part { return d.value(depth - 1) }) {
			members = members.bytes(1, m)
		}
		return part(nil).bytes(5, members)
	}
	return d.pick("value", str("a"), str("b"), str(""), nil, part(nil).varint(3, 1), part(nil).varint(2, 1), part(nil).varint(2, 9),
		part(nil).fixed(4, 1), part(nil).text(7, "a"), str("a").varint(3, 1), part(nil).bytes(6, part(nil).bytes(1, gpu0)))
}

func (d drawn) attribute() part {
	if !d.odd(4, "odd attribute") {
		return d.pick("attribute", gpu0, gpu1)
	}
	key := d.pick("key", part(nil).text(1, "hw.id"), part(nil).text(1, "k"), nil)
	return d.message(append(d.once("attribute value", func() part { return part(nil).bytes(2, d.value(2)) }), key))
}

func (d drawn) point() part {
	fields := []part{part(nil).bytes(7, d.attribute())}
	if !d.plain {
		fields = d.repeat(2, "attributes", func() part { return part(nil).bytes(7, d.attribute()) })
	}
	fields = append(fields, d.once("time", func() part {
		if d.some(20, "ahead") {
			return part(nil).fixed(3, at+uint64(rapid.SampledFrom([]time.Duration{time.Minute + time.Second, 4 * time.Minute, 365 * 24 * time.Hour, math.MaxInt64}).Draw(d.T, "by")))
		}
		if d.some(20, "set back") {
			return part(nil).fixed(3, at-uint64(rapid.SampledFrom([]time.Duration{4 * time.Minute, 6 * time.Minute, time.Hour}).Draw(d.T, "by")))
		}
		return part(nil).fixed(3, at+uint64(rapid.IntRange(-1, 3).Draw(d.T, "time"))*1e9)
	})...)
	fields = append(fields, d.once("number", func() part {
		return d.pick("number", part(nil).fixed(4, math.Float64bits(5)), part(nil).fixed(4, math.Float64bits(5.5)),
			part(nil).fixed(4, math.Float64bits(9)), part(nil).fixed(6, 0), nil, part(nil).fixed(4, 0x7ff8_0000_0000_0001), part(nil).fixed(6, 6), part(nil).fixed(6, 2*at/1e9))
	})...)
	if d.some(6, "start") {
		fields = append(fields, part(nil).fixed(2, rapid.Uint64Range(0, 1).Draw(d.T, "start time")))
	}
	if d.some(8, "flags") {
		fields = append(fields, part(nil).varint(8, rapid.Uint64Range(0, 3).Draw(d.T, "flag")))
	}
	if d.odd(60, "exemplar") {
		fields = append(fields, part(nil).bytes(5, part(nil).fixed(3, 1)))
	}
	return d.message(fields)
}

func (d drawn) data() part {
	fields := d.repeat(3, "points", func() part { return part(nil).bytes(1, d.point()) })
	field := 5
	if !d.some(2, "gauge") {
		field = 7
		if d.odd(6, "histogram") {
			field = 9
		}
		fields = append(fields, d.once("temporality", func() part {
			return part(nil).varint(2, rapid.SampledFrom([]uint64{2, 2, 2, 2, 1, 0, 1<<32 + 2}).Draw(d.T, "temporality"))
		})...)
	}
	if field == 7 && !d.plain {
		fields = append(fields, d.once("monotonic", func() part { return part(nil).varint(3, rapid.Uint64Range(0, 2).Draw(d.T, "monotonic")) })...)
	}
	tag := map[int]part{5: part(nil).raw(5<<3 | 2), 7: part(nil).raw(7<<3 | 2), 9: part(nil).raw(9<<3 | 2)}[field]
	body := d.message(fields)
	return append(append(part(nil), tag...), part(nil).bytes(1, body)[1:]...)
}

func (d drawn) metric() part {
	fields := d.once("data", d.data)
	fields = append(fields, d.once("name", func() part {
		return d.pick("name", part(nil).text(1, "hw.temperature"), part(nil).text(1, "hw.power"),
			part(nil).text(1, "gpu.node.straggler"), part(nil).text(1, "gpu.node.heartbeat"))
	})...)
	if !d.plain {
		fields = append(fields, d.once("unit", func() part { return d.pick("unit", part(nil).text(3, "W"), part(nil).text(3, "")) })...)
	}
	if d.some(3, "description") {
		fields = append(fields, part(nil).text(2, "What it is."))
	}
	if d.odd(10, "metadata") {
		fields = append(fields, part(nil).bytes(12, d.attribute()))
	}
	return d.message(fields)
}

func (d drawn) scope() part {
	fields := d.repeat(3, "metrics", func() part { return part(nil).bytes(2, d.metric()) })
	fields = append(fields, d.once("scope", func() part {
		scope := []part{part(nil).text(1, "nvml")}
		if d.odd(4, "scope attribute") {
			scope = append(scope, part(nil).bytes(3, d.attribute()), part(nil).varint(4, 1))
		}
		return part(nil).bytes(1, d.message(scope))
	})...)
	if d.some(5, "scope schema") {
		fields = append(fields, part(nil).text(3, "https://example.com"))
	}
	return d.message(fields)
}

func (d drawn) request() part {
	return d.message(d.repeat(3, "resources", func() part {
		fields := d.repeat(2, "scopes", func() part { return part(nil).bytes(2, d.scope()) })
		fields = append(fields, d.once("resource", func() part {
			attrs := []part{part(nil).bytes(1, attr("host.name", d.pick("node", str("n1"), str("n2"))))}
			if d.odd(4, "resource attribute") {
				attrs = append(attrs, part(nil).bytes(1, d.attribute()), part(nil).varint(2, 1))
			}
			return part(nil).bytes(1, d.message(attrs))
		})...)
		return part(nil).bytes(1, d.message(fields))
	}))
}

// For any well-formed requests, in any sequence, whatever the next hop answers,
// the ways in let the same through.
func equivalence(t *rapid.T) {
	d := drawn{t, rapid.Bool().Draw(t, "plain")}
	s := newSame(drawSettings(t))
	var sent []part
	for range rapid.IntRange(1, 8).Draw(t, "pushes") {
		if len(sent) == 0 || d.some(2, "new request") {
			sent = append(sent, d.request())
		}
		s.push(t, rapid.SampledFrom(sent).Draw(t, "request"), !d.some(4, "refused"))
		if d.some(2, "flush") {
			s.flush(t)
		}
		s.pass(rapid.SampledFrom([]time.Duration{time.Second, 20 * time.Second, 50 * time.Second, 2 * time.Hour}).Draw(t, "passes"))
	}
	s.end(t, rapid.SampledFrom(sent).Draw(t, "known"))
}

// drawSettings has a table of limits that some requests are over, or of none, with a flush
// interval or without.
func drawSettings(t *rapid.T) func(*lastvalue.Settings) {
	nodes, series := rapid.SampledFrom([]int{8, 1}).Draw(t, "max_nodes"), rapid.SampledFrom([]int{1000, 2}).Draw(t, "max_series")
	bytes, drop := rapid.SampledFrom([]int{0, 1_500, 3_000}).Draw(t, "max_bytes"), rapid.Bool().Draw(t, "drop")
	collect := rapid.Bool().Draw(t, "collect")
	return func(s *lastvalue.Settings) {
		s.MaxNodes, s.MaxSeries, s.MaxBytes, s.DropOver, s.Collect = nodes, series, bytes, drop, collect
	}
}

func TestEquivalence(t *testing.T) { rapid.Check(t, equivalence) }

func FuzzRequests(f *testing.F) { f.Fuzz(rapid.MakeFuzz(equivalence)) }
