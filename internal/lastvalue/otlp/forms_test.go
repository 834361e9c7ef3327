// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"encoding/json"
	"maps"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protowire"
)

// part builds messages field by field, in whatever order and form.
type part []byte

func (p part) bytes(field protowire.Number, b []byte) part {
	return protowire.AppendBytes(protowire.AppendTag(p, field, protowire.BytesType), b)
}

func (p part) text(field protowire.Number, s string) part { return p.bytes(field, []byte(s)) }

func (p part) varint(field protowire.Number, n uint64) part {
	return protowire.AppendVarint(protowire.AppendTag(p, field, protowire.VarintType), n)
}

func (p part) fixed(field protowire.Number, n uint64) part {
	return protowire.AppendFixed64(protowire.AppendTag(p, field, protowire.Fixed64Type), n)
}

// raw appends what no encoder writes.
func (p part) raw(b ...byte) part { return append(p, b...) }

// long is bytes with a length in more bytes than it takes.
func (p part) long(field protowire.Number, b []byte) part {
	p = protowire.AppendTag(p, field, protowire.BytesType)
	return append(append(p, byte(len(b))&0x7f|0x80, byte(len(b)>>7)&0x7f|0x80, 0x80, 0), b...)
}

func attr(key string, value part) part { return part(nil).text(1, key).bytes(2, value) }

func str(s string) part { return part(nil).text(1, s) }

var (
	node     = part(nil).bytes(1, attr("host.name", str("n1")))
	gpu0     = attr("hw.id", str("GPU-0"))
	gpu1     = attr("hw.id", str("GPU-1"))
	at       = uint64(testEpoch)
	point0   = part(nil).bytes(7, gpu0).fixed(3, at).fixed(4, math.Float64bits(0.5))
	point1   = part(nil).bytes(7, gpu1).fixed(3, at).fixed(4, math.Float64bits(1.5))
	twoGauge = part(nil).bytes(1, point0).bytes(1, point1)
)

func gaugeOf(points ...part) part {
	var g part
	for _, p := range points {
		g = g.bytes(1, p)
	}
	return part(nil).text(1, "hw.temperature").text(3, "Cel").bytes(5, g)
}

func sumOf(temporality uint64, points ...part) part {
	var s part
	for _, p := range points {
		s = s.bytes(1, p)
	}
	return part(nil).text(1, "hw.errors").bytes(7, s.varint(2, temporality).varint(3, 1))
}

func scopeOf(metrics ...part) part {
	s := part(nil).bytes(1, part(nil).text(1, "nvml").text(2, "0.1"))
	for _, m := range metrics {
		s = s.bytes(2, m)
	}
	return s
}

func requestOf(metrics ...part) part {
	return part(nil).bytes(1, part(nil).bytes(1, node).bytes(2, scopeOf(metrics...)))
}

// requestOn is a request of one metric on the given resource.
func requestOn(resource part) part {
	return part(nil).bytes(1, part(nil).bytes(1, resource).bytes(2, scopeOf(gaugeOf(point0, point1))))
}

func pointRequest(p part) part { return requestOf(gaugeOf(p, point1)) }

func scopeRequest(value part) part {
	return part(nil).bytes(1, part(nil).bytes(1, node).bytes(2,
		part(nil).bytes(1, part(nil).text(1, "s").bytes(3, attr("a", value))).bytes(2, gaugeOf(point0))))
}

func valueRequests(out map[string][]byte, name string, value part) {
	out["point attribute "+name] = pointRequest(point0.bytes(7, attr("a", value)))
	out["metadata "+name] = requestOf(gaugeOf(point0).bytes(12, attr("a", value)))
}

func resourceValue(value part) part { return requestOn(node.bytes(1, attr("a", value))) }

// flat are values that are compared by their bytes.
var flat = map[string]part{
	"of no type": nil, "empty text": str(""), "text": str("x"), "not UTF-8": str("\xff\xfe"),
	"int": part(nil).varint(3, 1), "negative": part(nil).varint(3, math.MaxUint64),
	"two types": str("x").varint(3, 1),
}

// nested are values that are not compared by their bytes.
var nested = map[string]part{
	"true": part(nil).varint(2, 1), "seven as bool": part(nil).varint(2, 7), "false": part(nil).varint(2, 0),
	"double":           part(nil).fixed(4, 1),
	"array":            part(nil).bytes(5, part(nil).bytes(1, str("x")).bytes(1, nil).bytes(1, part(nil).varint(3, 1))),
	"no array":         part(nil).bytes(5, nil),
	"array of arrays":  part(nil).bytes(5, part(nil).bytes(1, part(nil).bytes(5, part(nil).bytes(1, str("x"))))),
	"array, replaced":  part(nil).bytes(5, nil).varint(3, 1),
	"array after text": str("x").bytes(5, nil),
	"unknown in array": part(nil).bytes(5, part(nil).varint(2, 1)),
	"map":              part(nil).bytes(6, part(nil).bytes(1, attr("k", str("v")))),
	"by index":         part(nil).varint(8, 1),
	"bytes":            part(nil).text(7, "ab"),
	"empty bytes":      part(nil).text(7, ""),
	"int in ten bytes": part(nil).raw(0x18, 0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x7e), // and more than 64 bits
}

// regular has the forms that are compared by bytes.
func regular(t testing.TB) map[string][]byte {
	// These share a slot of the known attributes, and are distinguished all the same.
	alike := func(key, value string) part {
		return part(nil).bytes(7, attr(key, str(value+"-same-end"))).fixed(3, at).fixed(4, 1)
	}
	out := map[string][]byte{
		"attributes that end alike":   requestOf(gaugeOf(alike("one", "a"), alike("two", "a"), alike("one", "b"), alike("two", "b"), alike("one", "c"))),
		"empty":                       {},
		"empty resource":              part(nil).bytes(1, nil),
		"no resource":                 part(nil).bytes(1, part(nil).bytes(2, scopeOf(gaugeOf(point0)))),
		"no scope":                    part(nil).bytes(1, part(nil).bytes(1, node).bytes(2, part(nil).bytes(2, gaugeOf(point0)))),
		"gauge":                       requestOf(gaugeOf(point0, point1)),
		"same series twice":           requestOf(gaugeOf(point0, point0, point1)),
		"same series, metrics":        requestOf(gaugeOf(point0), gaugeOf(point1.fixed(4, 1), point0.fixed(4, 2))),
		"cumulative sum":              requestOf(sumOf(2, point0.fixed(2, 7), point1)),
		"monotonic as seven":          requestOf(sumOf(2, point0), sumOf(2, point0).bytes(7, part(nil).bytes(1, point0).varint(2, 2).varint(3, 7))[len(sumOf(2, point0)):].text(1, "hw.errors")),
		"delta sum":                   requestOf(sumOf(1, point0, point1), gaugeOf(point0)),
		"sum of no known temporality": requestOf(sumOf(0, point0), sumOf(9, point0)),
		"temporality beyond 32 bits":  requestOf(sumOf(1<<32+2, point0)),
		"attributes last":             pointRequest(part(nil).fixed(3, at).fixed(4, 1).bytes(7, gpu0)),
		"attributes apart":            pointRequest(part(nil).bytes(7, gpu0).fixed(3, at).bytes(7, gpu1).fixed(4, 1)),
		"attributes of the metric before and more": requestOf(gaugeOf(point0), gaugeOf(point0.bytes(7, gpu1)),
			gaugeOf(part(nil).bytes(7, gpu0).bytes(7, gpu1).fixed(4, 1)), gaugeOf(point0)),
		"no attributes":              pointRequest(part(nil).fixed(3, at).fixed(4, 1)),
		"no time":                    requestOf(gaugeOf(part(nil).bytes(7, gpu0).fixed(4, 1))),
		"no value":                   pointRequest(part(nil).bytes(7, gpu0).fixed(3, at)),
		"value twice":                pointRequest(point0.fixed(6, 7)),
		"value twice, double last":   pointRequest(part(nil).bytes(7, gpu0).fixed(6, 7).fixed(4, 7)),
		"time twice":                 pointRequest(point0.fixed(3, at+1e9)),
		"NaN":                        pointRequest(point0.fixed(4, 0x7ff8_0000_dead_beef)),
		"other flag":                 pointRequest(point0.varint(8, 2)),
		"flag beyond 32 bits":        pointRequest(point0.varint(8, 1<<32)),
		"flags set and cleared":      pointRequest(point0.varint(8, 1).varint(8, 0)),
		"name and unit twice":        requestOf(gaugeOf(point0).text(1, "other").text(3, "W")),
		"name after data":            requestOf(part(nil).bytes(5, twoGauge).text(1, "m")),
		"no recorded value":          pointRequest(point0.varint(8, 1)),
		"no recorded value, first":   requestOf(gaugeOf(point0.varint(8, 1), point1)),
		"ended and back":             requestOf(gaugeOf(point1, point0.varint(8, 1), point0)),
		"there and ended":            requestOf(gaugeOf(point0, point0.varint(8, 1), point1)),
		"ahead":                      requestOf(gaugeOf(part(nil).bytes(7, gpu0).fixed(3, at+3600e9).fixed(4, 1), point0, point1)),
		"scope after metrics":        part(nil).bytes(1, part(nil).bytes(1, node).bytes(2, part(nil).bytes(2, gaugeOf(point0)).bytes(1, part(nil).text(1, "late")))),
		"resource after scopes":      part(nil).bytes(1, part(nil).bytes(2, scopeOf(gaugeOf(point0))).bytes(1, node)),
		"schema urls":                part(nil).bytes(1, part(nil).bytes(1, node).text(3, "a").bytes(2, scopeOf(gaugeOf(point0)).text(3, "b")).text(3, "c")),
		"temporality after points":   requestOf(part(nil).bytes(7, part(nil).bytes(1, point0).varint(2, 2).varint(3, 0).bytes(1, point1))),
		"dropped count":              requestOn(node.varint(2, 300)),
		"long lengths":               part(nil).long(1, part(nil).long(1, node).long(2, part(nil).long(2, part(nil).text(1, "m").long(5, part(nil).long(1, point0).long(1, point1))))),
		"two nodes":                  append(requestOf(gaugeOf(point0)), requestOn(part(nil).bytes(1, attr("host.id", str("2"))))...),
		"one node twice":             append(requestOf(gaugeOf(point0)), requestOf(gaugeOf(point0, point1))...),
		"not a node":                 requestOn(part(nil).bytes(1, attr("k8s.cluster.name", str("c")))),
		"resource attribute order":   append(requestOn(node.bytes(1, gpu0)), requestOn(part(nil).bytes(1, gpu0).bytes(1, attr("host.name", str("n1"))))...),
		"attribute key twice":        requestOn(node.bytes(1, attr("host.name", str("n2")))),
		"point attribute order":      append(pointRequest(point0.bytes(7, gpu1)), pointRequest(part(nil).bytes(7, gpu1).bytes(7, gpu0).fixed(3, at))...),
		"verdict only":               requestOf(part(nil).text(1, "gpu.node.straggler").bytes(5, twoGauge)),
		"heartbeat of another tier":  requestOf(gaugeOf(point0), part(nil).text(1, "gpu.node.heartbeat").bytes(5, part(nil).bytes(1, part(nil).fixed(6, at/1e9)))),
		"sum named as the heartbeat": requestOf(part(nil).text(1, "gpu.node.heartbeat").bytes(7, twoGauge)),
	}
	for name, value := range flat {
		out["resource attribute "+name] = resourceValue(value)
		valueRequests(out, name, value)
	}
	// pdata reads resources.
	for name, value := range nested {
		out["resource attribute "+name] = resourceValue(value)
	}
	out["unknown field in resource"] = requestOn(node.text(9, "x"))
	out["entity"] = requestOn(node.bytes(3, part(nil).text(1, "x")))
	maps.Copy(out, goldens(t))
	return out
}

// irregular has forms that are left to pdata: legal, or malformed.
func irregular() map[string][]byte {
	group := func(p part) part { return p.raw(0x7b, 0x08, 0x01, 0x7c) }
	histogram := part(nil).text(1, "h").bytes(9, part(nil).bytes(1, part(nil).fixed(3, at).fixed(4, 3)).varint(2, 2))
	out := map[string][]byte{
		"unknown field in request": requestOf(gaugeOf(point0)).text(9, "x"),
		"unknown field in metric":  requestOf(gaugeOf(point0).text(99, "x")),
		"unknown field in point":   pointRequest(point0.varint(9, 1)),
		"unknown field in sum":     requestOf(part(nil).bytes(7, part(nil).bytes(1, point0).text(9, ""))),
		"fixed32":                  pointRequest(point0.raw(0x4d, 1, 2, 3, 4)),
		"group":                    pointRequest(group(point0)),
		"group in request":         group(requestOf(gaugeOf(point0))),
		"end of no group":          pointRequest(point0.raw(0x7c)),
		"group without end":        pointRequest(point0.raw(0x7b, 0x08, 0x01)),
		"tag in two bytes":         pointRequest(point0.raw(0x99, 0x00).raw(1, 2, 3, 4, 5, 6, 7, 8)),
		"field zero":               pointRequest(point0.raw(0x01, 1, 2, 3, 4, 5, 6, 7, 8)),
		"exemplar":                 pointRequest(point0.bytes(5, part(nil).fixed(3, 1))),
		"malformed exemplar":       pointRequest(point0.bytes(5, part(nil).raw(0xff))),
		"resource twice":           part(nil).bytes(1, part(nil).bytes(1, node).bytes(1, part(nil).bytes(1, gpu0)).bytes(2, scopeOf(gaugeOf(point0)))),
		"scope twice":              part(nil).bytes(1, part(nil).bytes(1, node).bytes(2, scopeOf(gaugeOf(point0)).bytes(1, part(nil).text(1, "two")))),
		"gauge twice":              requestOf(gaugeOf(point0).bytes(5, part(nil).bytes(1, point1))),
		"gauge and sum":            requestOf(gaugeOf(point0).bytes(7, part(nil).bytes(1, point1).varint(2, 2))),
		"empty gauge":              requestOf(gaugeOf(), gaugeOf(point0)),
		"sum without points":       requestOf(sumOf(1), gaugeOf(point0)),
		"scope without metrics":    part(nil).bytes(1, part(nil).bytes(1, node).bytes(2, scopeOf()).bytes(2, scopeOf(gaugeOf(point0)))),
		"scope's dropped count":    part(nil).bytes(1, part(nil).bytes(1, node).bytes(2, part(nil).bytes(1, part(nil).varint(4, 5)).bytes(2, gaugeOf(point0)))),
		"metric without data":      requestOf(part(nil).text(1, "m"), gaugeOf(point0)),
		"histogram":                requestOf(gaugeOf(point0), histogram),
		"deprecated scope metrics": part(nil).bytes(1, part(nil).bytes(1, node).bytes(1000, scopeOf(gaugeOf(point0)))),
		"wrong type of name":       requestOf(gaugeOf(point0).varint(1, 1)),
		"wrong type of value":      pointRequest(point0.varint(4, 1)),
		"wrong type of resource":   part(nil).varint(1, 1),
		"temporality in a gauge":   requestOf(part(nil).bytes(5, twoGauge.varint(2, 2))),
		"long varint":              pointRequest(point0.raw(0x40, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01)),
		"length beyond the end":    part(nil).raw(0x0a, 0x05, 0x00),
		"negative length":          part(nil).raw(0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01),
		"attribute value twice":    pointRequest(part(nil).bytes(7, gpu0.bytes(2, part(nil).varint(3, 1)))),
		"attribute key by index":   pointRequest(part(nil).bytes(7, gpu0.varint(3, 1))),
	}
	for name, value := range map[string]part{
		"malformed array":    part(nil).bytes(5, part(nil).raw(0x0a, 9)),
		"malformed in array": part(nil).bytes(5, part(nil).bytes(1, part(nil).raw(0x0a, 9))),
		"malformed":          part(nil).raw(0x0a, 9),
	} {
		out["resource attribute "+name] = resourceValue(value)
		valueRequests(out, name, value)
	}
	for name, value := range nested {
		valueRequests(out, name, value)
		out["scope attribute "+name] = scopeRequest(value)
	}
	for name, value := range flat {
		out["scope attribute "+name] = scopeRequest(value)
	}
	return out
}

// goldens are the reports of recorded machines.
func goldens(t testing.TB) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for _, name := range []string{"a100_mig", "b200", "eight_gpus", "h100", "t4"} {
		text, err := os.ReadFile("../../../receiver/nvmlreceiver/testdata/" + name + ".yaml")
		require.NoError(t, err)
		var raw map[string]any
		require.NoError(t, yaml.Unmarshal(text, &raw))
		body, err := json.Marshal(raw)
		require.NoError(t, err)
		md, err := new(pmetric.JSONUnmarshaler).UnmarshalMetrics(body)
		require.NoError(t, err)
		out[name] = encode(t, md)
	}
	return out
}
