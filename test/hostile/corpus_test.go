// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpu-collector/gpu-collector/test/process"
)

// sample has every kind of metric.
func sample(cluster string) pmetric.Metrics {
	md := pmetric.NewMetrics()
	ms := process.Node(md, "sample", "k8s.cluster.name", cluster)
	process.Gauge(ms, "gpu.node.health_score", "1", 0.97, "gpu.node.state", "active")
	process.Gauge(ms, "hw.temperature", "1", 50, "hw.id", "GPU-1")
	add := func(name string) pmetric.Metric {
		m := ms.AppendEmpty()
		m.SetName(name)
		return m
	}
	sum := add("hw.errors").SetEmptySum()
	sum.SetIsMonotonic(true)
	sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	p := sum.DataPoints().AppendEmpty()
	p.SetIntValue(3)
	p.Attributes().PutStr("hw.id", "GPU-1")
	p.Attributes().PutStr("hw.type", "gpu")
	h := add("histogram").SetEmptyHistogram().DataPoints().AppendEmpty()
	h.SetCount(3)
	h.BucketCounts().FromRaw([]uint64{1, 2})
	h.ExplicitBounds().FromRaw([]float64{1})
	add("exponential").SetEmptyExponentialHistogram().DataPoints().AppendEmpty().Positive().BucketCounts().FromRaw([]uint64{1})
	add("summary").SetEmptySummary().DataPoints().AppendEmpty().QuantileValues().AppendEmpty().SetValue(1)
	return md
}

func sampleLogs(cluster string) plog.Logs {
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	rl.Resource().Attributes().PutStr("host.name", "sample")
	rl.Resource().Attributes().PutStr("k8s.cluster.name", cluster)
	r := rl.ScopeLogs().AppendEmpty().LogRecords().AppendEmpty()
	r.SetEventName("gpu.straggler")
	r.Body().SetStr("text")
	r.Attributes().PutStr("gpu.straggler.episode.id", "x")
	r.Attributes().PutEmptySlice("list").AppendEmpty().SetEmptyMap().PutDouble("nan", math.NaN())
	return ld
}

// nested is a push whose one attribute is a list in a list in a list, as deep as
// fits into so many bytes.
func nested(size int) []byte {
	// Written from the inside out, back to front.
	buf := make([]byte, size+64)
	at := len(buf)
	wrap := func(field protowire.Number) {
		head := protowire.AppendTag(nil, field, protowire.BytesType)
		head = protowire.AppendVarint(head, uint64(len(buf)-at))
		at -= len(head)
		copy(buf[at:], head)
	}
	for at > 96 {
		wrap(1) // a list's values
		wrap(5) // the list of a value
	}
	for _, field := range []protowire.Number{2, 1, 1, 1} { // to the value of a resource's attribute
		wrap(field)
	}
	return buf[at:]
}

// boundaries are the offsets in a message at which a tag, a length or a content
// begins or ends, at any depth.
func boundaries(msg []byte, at int, add func(int)) {
	for len(msg) > 0 {
		add(at)
		num, typ, n := protowire.ConsumeTag(msg)
		if n < 0 || num > 100 {
			return
		}
		add(at + n)
		size := protowire.ConsumeFieldValue(num, typ, msg[n:])
		if size < 0 {
			return
		}
		if typ == protowire.BytesType {
			content, _ := protowire.ConsumeBytes(msg[n:])
			boundaries(content, at+n+size-len(content), add)
		}
		msg, at = msg[n+size:], at+n+size
		add(at)
	}
}

// malformedProto are mutations of a message at each of its boundaries, and some of its own.
// Fuzzing has more: FuzzEquivalence of what is compared, FuzzDecoded of what is decoded.
func malformedProto(t *testing.T, msg []byte) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	splice := func(at int, in ...byte) []byte {
		return append(append(append([]byte{}, msg[:at]...), in...), msg[min(len(msg), at+1):]...)
	}
	boundaries(msg, 0, func(at int) {
		out[fmt.Sprint("truncated at ", at)] = msg[:at]
		out[fmt.Sprint("over-long varint at ", at)] = splice(at, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f)
		out[fmt.Sprint("huge length at ", at)] = splice(at, 0xff, 0xff, 0xff, 0xff, 0x07)
	})
	require.Greater(t, len(out), 60)
	out["zeros"] = make([]byte, 1000)
	out["groups in groups"] = []byte(strings.Repeat("\x0b", 1<<20))
	out["empty fields without end"] = []byte(strings.Repeat("\x0a\x00", 1<<19))
	out["as deep as fits"] = nested(largest - 100)
	return out
}

// malformedJSON is the same for JSON.
func malformedJSON(msg, container string) map[string][]byte {
	out := map[string][]byte{}
	for i, c := range []byte(msg) {
		if strings.IndexByte(`{}[]:`, c) < 0 {
			continue
		}
		out[fmt.Sprint("truncated at ", i)] = []byte(msg[:i])
		out[fmt.Sprint("without ", i)] = []byte(msg[:i] + msg[i+1:])
		out[fmt.Sprint("twice ", i)] = []byte(msg[:i+1] + msg[i:])
	}
	out["deep list"] = []byte(`{"` + container + `":` + strings.Repeat("[", 1<<20))
	out["deep values"] = []byte(`{"` + container + `":[{"resource":{"attributes":[{"key":"k","value":` + strings.Repeat(`{"arrayValue":{"values":[`, 1<<19))
	out["the same key without end"] = []byte(`{` + strings.Repeat(`"`+container+`":[],`, 1<<16) + `"x":0}`)
	out["text"], out["nothing"] = []byte("hello"), nil
	return out
}

// texts are a push in both formats.
func texts(t *testing.T, request interface {
	MarshalProto() ([]byte, error)
	MarshalJSON() ([]byte, error)
},
) (proto, text []byte) {
	t.Helper()
	proto, err := request.MarshalProto()
	require.NoError(t, err)
	text, err = request.MarshalJSON()
	require.NoError(t, err)
	return proto, text
}
