// SPDX-License-Identifier: Apache-2.0

package nesting

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/test/heap"
)

// decoder is a request of pdata, which is alive as long as it is.
type decoder interface {
	UnmarshalProto(b []byte) error
	UnmarshalJSON(b []byte) error
}

var signals = map[string]struct {
	kind *Kind
	new  func() decoder
}{
	"metrics":  {Metrics, func() decoder { return pmetricotlp.NewExportRequest() }},
	"logs":     {Logs, func() decoder { return plogotlp.NewExportRequest() }},
	"traces":   {Traces, func() decoder { return ptraceotlp.NewExportRequest() }},
	"profiles": {Profiles, func() decoder { return pprofileotlp.NewExportRequest() }},
}

// taken is what a message takes once it is decoded.
func taken(t testing.TB, signal string, decode func(decoder) error) float64 {
	t.Helper()
	req := signals[signal].new()
	before := heap.Live()
	require.NoError(t, decode(req), signal)
	held := heap.Live() - before
	runtime.KeepAlive(req)
	return float64(held)
}

// within puts a message into others, by the numbers of their fields.
func within(m []byte, path ...protowire.Number) []byte {
	for _, field := range slices.Backward(path) {
		m = protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), m)
	}
	return m
}

// bombs are small pieces, repeated, at a place of a message.
var bombs = map[string]struct {
	signal string
	path   []protowire.Number
	piece  []byte
}{
	"resources of metrics":  {"metrics", nil, []byte{0x0a, 0}},
	"resources of logs":     {"logs", nil, []byte{0x0a, 0}},
	"resources of spans":    {"traces", nil, []byte{0x0a, 0}},
	"entities":              {"metrics", []protowire.Number{1, 1}, []byte{0x1a, 0}},
	"keys of entities":      {"metrics", []protowire.Number{1, 1, 3}, []byte{0x1a, 0}},
	"scopes":                {"metrics", []protowire.Number{1}, []byte{0x12, 0}},
	"deprecated scopes":     {"metrics", []protowire.Number{1}, []byte{0xc2, 0x3e, 0}},
	"metrics":               {"metrics", []protowire.Number{1, 2}, []byte{0x12, 0}},
	"gauges":                {"metrics", []protowire.Number{1, 2}, []byte{0x12, 2, 0x2a, 0}},
	"points of gauges":      {"metrics", []protowire.Number{1, 2, 2, 5}, []byte{0x0a, 0}},
	"points with a value":   {"metrics", []protowire.Number{1, 2, 2, 5}, []byte{0x0a, 9, 0x31, 1, 0, 0, 0, 0, 0, 0, 0}},
	"points of sums":        {"metrics", []protowire.Number{1, 2, 2, 7}, []byte{0x0a, 0}},
	"points of histograms":  {"metrics", []protowire.Number{1, 2, 2, 9}, []byte{0x0a, 0}},
	"exponential ones":      {"metrics", []protowire.Number{1, 2, 2, 10}, []byte{0x0a, 0}},
	"points of summaries":   {"metrics", []protowire.Number{1, 2, 2, 11}, []byte{0x0a, 0}},
	"quantiles":             {"metrics", []protowire.Number{1, 2, 2, 11, 1}, []byte{0x32, 0}},
	"buckets":               {"metrics", []protowire.Number{1, 2, 2, 10, 1, 8, 2}, []byte{1}},
	"buckets one by one":    {"metrics", []protowire.Number{1, 2, 2, 10, 1, 8}, []byte{0x10, 1}},
	"bounds one by one":     {"metrics", []protowire.Number{1, 2, 2, 9, 1}, []byte{0x39, 0, 0, 0, 0, 0, 0, 0, 0}},
	"exemplars":             {"metrics", []protowire.Number{1, 2, 2, 5, 1}, []byte{0x2a, 0}},
	"attributes":            {"metrics", []protowire.Number{1, 1}, []byte{0x0a, 0}},
	"attributes of points":  {"metrics", []protowire.Number{1, 2, 2, 5, 1}, []byte{0x3a, 0}},
	"attributes with texts": {"metrics", []protowire.Number{1, 1}, []byte{0x0a, 8, 0x0a, 1, 'k', 0x12, 3, 0x0a, 1, 'v'}},
	"values":                {"metrics", []protowire.Number{1, 1, 1, 2, 5}, []byte{0x0a, 0}},
	"lists":                 {"metrics", []protowire.Number{1, 1, 1, 2, 5}, []byte{0x0a, 2, 0x2a, 0}},
	"records":               {"logs", []protowire.Number{1, 2}, []byte{0x12, 0}},
	"bodies":                {"logs", []protowire.Number{1, 2}, []byte{0x12, 5, 0x2a, 3, 0x0a, 1, 'x'}},
	"spans":                 {"traces", []protowire.Number{1, 2}, []byte{0x12, 0}},
	"events":                {"traces", []protowire.Number{1, 2, 2}, []byte{0x5a, 0}},
	"links":                 {"traces", []protowire.Number{1, 2, 2}, []byte{0x6a, 0}},
	"profiles":              {"profiles", []protowire.Number{1, 2}, []byte{0x12, 0}},
	"samples":               {"profiles", []protowire.Number{1, 2, 2}, []byte{0x12, 0}},
	"values of samples":     {"profiles", []protowire.Number{1, 2, 2, 2, 4}, []byte{1}},
	"locations":             {"profiles", []protowire.Number{2}, []byte{0x12, 0}},
	"lines":                 {"profiles", []protowire.Number{2, 2}, []byte{0x1a, 0}},
	"strings":               {"profiles", []protowire.Number{2}, []byte{0x2a, 0}},
	"mappings":              {"profiles", []protowire.Number{2}, []byte{0x0a, 0}},
	"functions":             {"profiles", []protowire.Number{2}, []byte{0x1a, 0}},
	"attributes of tables":  {"profiles", []protowire.Number{2}, []byte{0x32, 0}},
	"stacks":                {"profiles", []protowire.Number{2}, []byte{0x3a, 0}},
}

// TestSizes holds what Check says against the memory that pdata takes: for small
// pieces by the ten thousand it is never too little, nor more than twice.
func TestSizes(t *testing.T) {
	for name, b := range bombs {
		body := within(bytes.Repeat(b.piece, 20_000), b.path...)
		real := taken(t, b.signal, func(d decoder) error { return d.UnmarshalProto(body) })
		size, err := Check(body, signals[b.signal].kind, &Limits{Bytes: room})
		require.NoError(t, err, name)
		ratio := float64(size) / real
		t.Logf("%-22s %5.1f bytes of a byte, counted %.2f times", name, real/float64(len(body)), ratio)
		assert.GreaterOrEqual(t, ratio, 1.0, name)
		most := 2.1
		if name == "buckets one by one" || name == "lines" { // a field may be a list of numbers
			most = 4
		}
		assert.LessOrEqual(t, ratio, most, name)
		assert.LessOrEqual(t, size, int64(Worst*len(body)), name)

		_, err = Check(body, signals[b.signal].kind, &Limits{Bytes: size - 1})
		require.ErrorIs(t, err, ErrTooLarge, name)
	}
}

// honest is a node's report, as agents send it.
func honest(nodes, gpus int) pmetric.Metrics {
	md := pmetric.NewMetrics()
	for n := range nodes {
		rm := md.ResourceMetrics().AppendEmpty()
		rm.Resource().Attributes().PutStr("host.name", fmt.Sprint("node", n))
		rm.Resource().Attributes().PutStr("k8s.cluster.name", "prod")
		metrics := rm.ScopeMetrics().AppendEmpty().Metrics()
		for i := range 40 {
			m := metrics.AppendEmpty()
			m.SetName(fmt.Sprint("hw.gpu.metric.", i))
			m.SetUnit("1")
			points := m.SetEmptyGauge().DataPoints()
			for g := range gpus {
				p := points.AppendEmpty()
				p.SetTimestamp(1_700_000_000_000_000_000)
				p.SetDoubleValue(float64(i*g) / 3)
				p.Attributes().PutStr("hw.id", fmt.Sprintf("GPU-%032d", g))
				p.Attributes().PutStr("hw.type", "gpu")
				p.Attributes().PutInt("hw.index", int64(g))
			}
		}
	}
	return md
}

// TestSizeOfHonestReports: a report reserves no more than twice what it takes, and
// one in JSON no more than three times.
func TestSizeOfHonestReports(t *testing.T) {
	req := pmetricotlp.NewExportRequestFromMetrics(honest(50, 8))
	body, err := req.MarshalProto()
	require.NoError(t, err)
	text, err := req.MarshalJSON()
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		body  []byte
		check func() (int64, error)
		dec   func(decoder) error
		most  float64
	}{
		"protobuf": {body, func() (int64, error) { return Check(body, Metrics, &Limits{Bytes: room}) }, func(d decoder) error { return d.UnmarshalProto(body) }, 2},
		"json":     {text, func() (int64, error) { return CheckJSON(text, &Limits{Bytes: room}) }, func(d decoder) error { return d.UnmarshalJSON(text) }, 3},
	} {
		real := taken(t, "metrics", tt.dec)
		size, err := tt.check()
		require.NoError(t, err)
		t.Logf("%s: %d bytes become %.0f, counted %.2f times", name, len(tt.body), real, float64(size)/real)
		assert.GreaterOrEqual(t, float64(size), real, name)
		assert.LessOrEqual(t, float64(size), tt.most*real, name)
	}
}

// TestSizesInJSON are the bombs in JSON, by the names of their lists.
func TestSizesInJSON(t *testing.T) {
	for name, tt := range map[string]struct{ signal, before, piece, after string }{
		"resources":    {"metrics", `{"resourceMetrics":[`, `{}`, `]}`},
		"old names":    {"metrics", `{"resource_metrics":[`, `{}`, `]}`},
		"attributes":   {"metrics", `{"resourceMetrics":[{"resource":{"attributes":[`, `{}`, `]}}]}`},
		"escaped name": {"metrics", `{"resourceMetrics":[{"resource":{"\u0061ttributes":[`, `{}`, `]}}]}`},
		"texts":        {"metrics", `{"resourceMetrics":[{"resource":{"attributes":[`, `{"key":"\"","value":{"stringValue":"1"}}`, `]}}]}`},
		"values":       {"metrics", `{"resourceMetrics":[{"resource":{"attributes":[{"value":{"arrayValue":{"values":[`, `{}`, `]}}}]}}]}`},
		"points":       {"metrics", `{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"gauge":{"dataPoints":[`, `{}`, `]}}]}]}]}`},
		"exponential":  {"metrics", `{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"exponentialHistogram":{"dataPoints":[`, `{}`, `]}}]}]}]}`},
		"exemplars":    {"metrics", `{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"gauge":{"dataPoints":[{"exemplars":[`, `{}`, `]}]}}]}]}]}`},
		"buckets":      {"metrics", `{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"histogram":{"dataPoints":[{"bucketCounts":[`, `1`, `]}]}}]}]}]}`},
		"records":      {"logs", `{"resourceLogs":[{"scopeLogs":[{"logRecords":[`, `{}`, `]}]}]}`},
		"spans":        {"traces", `{"resourceSpans":[{"scopeSpans":[{"spans":[`, `{}`, `]}]}]}`},
	} {
		body := []byte(tt.before + strings.Repeat(tt.piece+",", 20_000) + tt.piece + tt.after)
		real := taken(t, tt.signal, func(d decoder) error { return d.UnmarshalJSON(body) })
		size, err := CheckJSON(body, &Limits{Bytes: room})
		require.NoError(t, err, name)
		t.Logf("%-12s %5.1f bytes of a byte, counted %.2f times", name, real/float64(len(body)), float64(size)/real)
		assert.GreaterOrEqual(t, float64(size), real, name)
		assert.LessOrEqual(t, size, int64(Worst*len(body)), name)
		_, err = CheckJSON(body, &Limits{Bytes: size - 1})
		require.ErrorIs(t, err, ErrTooLarge, name)
	}
}

func TestDepthOfJSON(t *testing.T) {
	nested := func(n int, before, open string) []byte { return []byte(before + strings.Repeat(open, n)) }
	for name, tt := range map[string]struct {
		body []byte
		deep bool
	}{
		"lists of an unknown name": {nested(598_000, `{"x":`, "["), true},
		"objects":                  {nested(1000, `{"x":`, `{"x":`), true},
		"at the limit":             {nested(99, `{"x":`, "["), false},
		"over it":                  {nested(100, `{"x":`, "["), true},
		"behind what is closed":    {nested(101, `{"x":[[[[]]]],"y":`, "["), true},
		"in a text":                {[]byte(`{"x":"` + strings.Repeat("[", 200) + `\"` + strings.Repeat("[", 200)), false},
		"behind a text":            {[]byte(`{"x\\":"\\","y":` + strings.Repeat("[", 200)), true},
		"ends in a text":           {[]byte(`{"x":"\`), false},
	} {
		_, err := CheckJSON(tt.body, &Limits{Bytes: room})
		if tt.deep {
			require.ErrorIs(t, err, ErrTooDeep, name)
		} else {
			require.NoError(t, err, name)
		}
	}
}

// TestNoMessageIsWorse: nothing that anybody sends counts for more than Worst, so
// that a message may be let in by its length.
func TestNoMessageIsWorse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var build func(depth int) []byte
		build = func(depth int) []byte {
			var m []byte
			for range rapid.IntRange(0, 3).Draw(t, "fields") {
				m = protowire.AppendTag(m, rapid.Custom(func(t *rapid.T) protowire.Number {
					return protowire.Number(rapid.IntRange(1, 13).Draw(t, "number"))
				}).Draw(t, "field"), protowire.BytesType)
				var inner []byte
				if depth < 8 {
					inner = build(depth + 1)
				}
				m = protowire.AppendBytes(m, inner)
			}
			return m
		}
		m := build(0)
		for name, s := range signals {
			size, err := Check(m, s.kind, &Limits{Bytes: room})
			require.NoError(t, err)
			require.LessOrEqual(t, size, int64(Worst*len(m)), name)
		}
	})
}

func BenchmarkReport(b *testing.B) {
	req := pmetricotlp.NewExportRequestFromMetrics(honest(1, 8))
	body, err := req.MarshalProto()
	require.NoError(b, err)
	text, err := req.MarshalJSON()
	require.NoError(b, err)
	for name, f := range map[string]func() error{
		"check":       func() error { _, err := Check(body, Metrics, &shipped); return err },
		"attributes":  func() error { return CheckAttributes(body, Metrics, &shipped) },
		"check json":  func() error { _, err := CheckJSON(text, &shipped); return err },
		"decode":      func() error { return pmetricotlp.NewExportRequest().UnmarshalProto(body) },
		"decode json": func() error { return pmetricotlp.NewExportRequest().UnmarshalJSON(text) },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if f() != nil {
					b.Fatal("refused")
				}
			}
		})
	}
}
