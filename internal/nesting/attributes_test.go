// SPDX-License-Identifier: Apache-2.0

package nesting

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"
)

// shipped are the limits that admission has by default.
var shipped = Limits{Bytes: room, Attributes: Attributes{128, 64 << 10}, PointAttributes: Attributes{128, 16 << 10}}

// owned are the places of attributes: a piece is one of them, in protobuf.
var owned = map[string]struct {
	signal string
	path   []protowire.Number
	field  protowire.Number
	point  bool
}{
	"resource of metrics": {"metrics", []protowire.Number{1, 1}, 1, false},
	"resource of logs":    {"logs", []protowire.Number{1, 1}, 1, false},
	"resource of spans":   {"traces", []protowire.Number{1, 1}, 1, false},
	"scope":               {"metrics", []protowire.Number{1, 2, 1}, 3, false},
	"scope of logs":       {"logs", []protowire.Number{1, 2, 1}, 3, false},
	"record":              {"logs", []protowire.Number{1, 2, 2}, 6, false},
	"span":                {"traces", []protowire.Number{1, 2, 2}, 9, false},
	"event":               {"traces", []protowire.Number{1, 2, 2, 11}, 3, false},
	"link":                {"traces", []protowire.Number{1, 2, 2, 13}, 4, false},
	"metadata":            {"metrics", []protowire.Number{1, 2, 2}, 12, true},
	"gauge":               {"metrics", []protowire.Number{1, 2, 2, 5, 1}, 7, true},
	"sum":                 {"metrics", []protowire.Number{1, 2, 2, 7, 1}, 7, true},
	"histogram":           {"metrics", []protowire.Number{1, 2, 2, 9, 1}, 9, true},
	"exponential":         {"metrics", []protowire.Number{1, 2, 2, 10, 1}, 1, true},
	"summary":             {"metrics", []protowire.Number{1, 2, 2, 11, 1}, 7, true},
	"exemplar":            {"metrics", []protowire.Number{1, 2, 2, 5, 1, 5}, 7, true},
	"deprecated scope":    {"metrics", []protowire.Number{1, 1000, 1}, 3, false},
}

// some are so many attributes with values of so many bytes.
func some(field protowire.Number, n, size int) []byte {
	one := within([]byte(strings.Repeat("v", size)), field, 2, 1)
	return bytes.Repeat(one, n)
}

func TestAttributes(t *testing.T) {
	limits := Limits{Bytes: room, Attributes: Attributes{8, 300}, PointAttributes: Attributes{5, 200}}
	for name, o := range owned {
		most := limits.Attributes
		if o.point {
			most = limits.PointAttributes
		}
		each := len(some(o.field, 1, 0)) - 2 // without its own tag and length
		for what, tt := range map[string]struct {
			n, size int
			ok      bool
		}{
			"as many as may be":  {most.Count, 1, true},
			"one more":           {most.Count + 1, 1, false},
			"as long as may be":  {1, most.Bytes - each - 4, true}, // longer lengths have two bytes
			"longer":             {1, most.Bytes - each + 1, false},
			"long together":      {2, most.Bytes / 2, false},
			"more than messages": {100_000, 0, false},
		} {
			body := within(some(o.field, tt.n, tt.size), o.path...)
			_, whole := Check(body, signals[o.signal].kind, &limits)
			light := CheckAttributes(body, signals[o.signal].kind, &limits)
			if tt.ok {
				require.NoError(t, whole, "%s: %s", name, what)
				require.NoError(t, light, "%s: %s", name, what)
				continue
			}
			require.ErrorIs(t, whole, ErrAttributes, "%s: %s", name, what)
			require.ErrorIs(t, light, ErrAttributes, "%s: %s", name, what)
			_, err := Check(body, signals[o.signal].kind, &Limits{Bytes: room})
			require.NoError(t, err, "no limits")
		}
	}
}

// TestAttributesOfOneThing: what a decoder puts together counts together, and what it
// keeps apart counts apart.
func TestAttributesOfOneThing(t *testing.T) {
	limits := Limits{Bytes: room, Attributes: Attributes{8, 300}, PointAttributes: Attributes{8, 300}}
	four := some(1, 4, 1)
	repeat := func(n int, m []byte, path ...protowire.Number) []byte { return bytes.Repeat(within(m, path...), n) }
	for name, tt := range map[string]struct {
		body []byte
		ok   bool
	}{
		"resources":                {repeat(3, four, 1, 1), true},
		"one resource in parts":    {within(repeat(3, four, 1), 1), false},
		"a scope in parts":         {within(repeat(3, some(3, 4, 1), 1), 1, 2), false},
		"a resource and its scope": {within(append(within(some(1, 8, 1), 1), within(some(3, 8, 1), 2, 1)...), 1), true},
		"points":                   {within(repeat(3, some(7, 4, 1), 1), 1, 2, 2, 5), true},
		"a point and its exemplar": {within(append(some(7, 8, 1), within(some(7, 8, 1), 5)...), 1, 2, 2, 5, 1), true},
		"behind an exemplar":       {within(append(within(some(7, 8, 1), 5), some(7, 9, 1)...), 1, 2, 2, 5, 1), false},
		"a map in a value":         {within(some(1, 20, 1), 1, 1, 1, 2, 6), true},
	} {
		_, whole := Check(tt.body, Metrics, &limits)
		light := CheckAttributes(tt.body, Metrics, &limits)
		if tt.ok {
			require.NoError(t, whole, name)
			require.NoError(t, light, name)
		} else {
			require.ErrorIs(t, whole, ErrAttributes, name)
			require.ErrorIs(t, light, ErrAttributes, name)
		}
	}
}

func TestAttributesInJSON(t *testing.T) {
	limits := Limits{Bytes: room, Attributes: Attributes{8, 800}, PointAttributes: Attributes{5, 500}}
	attrs := func(n, size int) string {
		one := `{"key":"k","value":{"stringValue":"` + strings.Repeat("v", size) + `"}}`
		return strings.TrimSuffix(strings.Repeat(one+",", n), ",")
	}
	const metric, point = `{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{`, `{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"gauge":{"dataPoints":[{`
	for name, tt := range map[string]struct {
		before, after string
		most          Attributes
	}{
		"resource":         {`{"resourceMetrics":[{"resource":{"attributes":[`, `]}}]}`, limits.Attributes},
		"old name":         {`{"resource_metrics":[{"resource":{"attributes":[`, `]}}]}`, limits.Attributes},
		"escaped name":     {`{"resourceMetrics":[{"resource":{"\u0061ttributes":[`, `]}}]}`, limits.Attributes},
		"escaped resource": {`{"resourceMetrics":[{"r\u0065source":{"attributes":[`, `]}}]}`, limits.PointAttributes},
		"in parts":         {`{"resourceMetrics":[{"resource":{"attributes":[{},{}]},"resource":{"attributes":[`, `]}}]}`, Attributes{6, 0}},
		"scope":            {`{"resourceMetrics":[{"scopeMetrics":[{"scope":{"attributes":[`, `]}}]}]}`, limits.Attributes},
		"record":           {`{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"attributes":[`, `]}]}]}]}`, limits.Attributes},
		"second record":    {`{"resourceLogs":[{"scopeLogs":[{"log_records":[{"attributes":[{},{}]},{"attributes":[`, `]}]}]}]}`, limits.Attributes},
		"span":             {`{"resourceSpans":[{"scopeSpans":[{"spans":[{"attributes":[`, `]}]}]}]}`, limits.Attributes},
		"metadata":         {metric + `"metadata":[`, `]}]}]}]}`, limits.PointAttributes},
		"point":            {point + `"attributes":[`, `]}]}}]}]}]}`, limits.PointAttributes},
		"exemplar":         {point + `"attributes":[{}],"exemplars":[{"filteredAttributes":[`, `]}]}]}}]}]}]}`, limits.PointAttributes},
		"behind exemplar":  {point + `"exemplars":[{"filtered_attributes":[{},{},{}]}],"attributes":[`, `]}]}}]}]}]}`, limits.PointAttributes},
		"behind a map":     {point + `"attributes":[{"value":{"kvlistValue":{"values":[{},{},{},{},{},{}]}}},`, `]}]}}]}]}]}`, Attributes{4, 0}},
	} {
		_, err := CheckJSON([]byte(tt.before+attrs(tt.most.Count, 1)+tt.after), &limits)
		require.NoError(t, err, name)
		_, err = CheckJSON([]byte(tt.before+attrs(tt.most.Count+1, 1)+tt.after), &limits)
		require.ErrorIs(t, err, ErrAttributes, name)
		if tt.most.Bytes > 0 {
			_, err = CheckJSON([]byte(tt.before+attrs(1, tt.most.Bytes-len(attrs(1, 0)))+tt.after), &limits)
			require.NoError(t, err, name)
			_, err = CheckJSON([]byte(tt.before+attrs(1, tt.most.Bytes+1)+tt.after), &limits)
			require.ErrorIs(t, err, ErrAttributes, name)
		}
	}
}

// mostOf is the greatest number of attributes of anything that is decoded.
func mostOf(md pmetric.Metrics) (attributes, points int) {
	of := func(to *int, m pcommon.Map) { *to = max(*to, m.Len()) }
	for _, rm := range md.ResourceMetrics().All() {
		of(&attributes, rm.Resource().Attributes())
		for _, sm := range rm.ScopeMetrics().All() {
			of(&attributes, sm.Scope().Attributes())
			for _, m := range sm.Metrics().All() {
				of(&points, m.Metadata())
				if m.Type() != pmetric.MetricTypeGauge {
					continue
				}
				for _, p := range m.Gauge().DataPoints().All() {
					of(&points, p.Attributes())
					for _, e := range p.Exemplars().All() {
						of(&points, e.FilteredAttributes())
					}
				}
			}
		}
	}
	return attributes, points
}

// FuzzAttributes: no message passes that pdata finds more attributes in than may be,
// whatever it is made of.
func FuzzAttributes(f *testing.F) {
	limits := Limits{Bytes: room, Attributes: Attributes{3, 1000}, PointAttributes: Attributes{2, 1000}}
	for _, o := range owned {
		f.Add(within(some(o.field, 4, 1), o.path...))
	}
	req := pmetricotlp.NewExportRequestFromMetrics(honest(1, 1))
	text, err := req.MarshalJSON()
	require.NoError(f, err)
	f.Add(text)
	f.Add([]byte(`{"resourceMetrics":[{"resource":{"\u0061ttributes":[{},{}]},"resource":{"attributes":[{},null]}}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		req := pmetricotlp.NewExportRequest()
		if req.UnmarshalProto(body) == nil {
			attributes, points := mostOf(req.Metrics())
			if attributes > limits.Attributes.Count || points > limits.PointAttributes.Count {
				_, err := Check(body, Metrics, &limits)
				require.Error(t, err)
				require.ErrorIs(t, CheckAttributes(body, Metrics, &limits), ErrAttributes)
			}
		}
		req = pmetricotlp.NewExportRequest()
		if req.UnmarshalJSON(body) == nil {
			attributes, points := mostOf(req.Metrics())
			if attributes > limits.Attributes.Count || points > limits.PointAttributes.Count {
				_, err := CheckJSON(body, &limits)
				require.Error(t, err)
			}
		}
	})
}

// TestBothPassesAgree: a message that the short pass lets in has no more attributes
// than the long one allows, and the other way round.
func TestBothPassesAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := Limits{
			Bytes:      room,
			Attributes: Attributes{rapid.IntRange(1, 4).Draw(t, "n"), rapid.IntRange(1, 60).Draw(t, "bytes")}, PointAttributes: Attributes{rapid.IntRange(1, 4).Draw(t, "n"), rapid.IntRange(1, 60).Draw(t, "bytes")},
		}
		var build func(depth int) []byte
		build = func(depth int) []byte {
			var m []byte
			for range rapid.IntRange(0, 5).Draw(t, "fields") {
				m = protowire.AppendTag(m, protowire.Number(rapid.SampledFrom([]int{1, 1, 2, 2, 3, 5, 5, 6, 7, 9, 10, 11, 12, 1000}).Draw(t, "number")), protowire.BytesType)
				var inner []byte
				if depth < 7 {
					inner = build(depth + 1)
				}
				m = protowire.AppendBytes(m, inner)
			}
			return m
		}
		m := build(0)
		for name, s := range signals {
			_, whole := Check(m, s.kind, &limits)
			light := CheckAttributes(m, s.kind, &limits)
			require.Equal(t, fmt.Sprint(whole), fmt.Sprint(light), name)
		}
	})
}

// TestHonestAttributesPass holds that the shipped limits take what SDKs and
// Kubernetes write.
func TestHonestAttributesPass(t *testing.T) {
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	for i := range 60 {
		rl.Resource().Attributes().PutStr(fmt.Sprint("k8s.pod.annotation.", i), strings.Repeat("x", 500))
	}
	r := rl.ScopeLogs().AppendEmpty().LogRecords().AppendEmpty()
	for i := range 127 {
		r.Attributes().PutStr(fmt.Sprint("key", i), "value")
	}
	r.Attributes().PutStr("exception.stacktrace", strings.Repeat("at com.example.Main(Main.java:1)\n", 1000))
	body, err := plogotlp.NewExportRequestFromLogs(ld).MarshalProto()
	require.NoError(t, err)
	_, err = Check(body, Logs, &shipped)
	require.NoError(t, err)
	require.NoError(t, CheckAttributes(body, Logs, &shipped))
	for _, gpus := range []int{8, 16} {
		req := pmetricotlp.NewExportRequestFromMetrics(honest(3, gpus))
		body, err = req.MarshalProto()
		require.NoError(t, err)
		assert.NoError(t, CheckAttributes(body, Metrics, &shipped))
		text, err := req.MarshalJSON()
		require.NoError(t, err)
		_, err = CheckJSON(text, &shipped)
		require.NoError(t, err)
	}
}

// TestNoJSON: pdata's parser takes some texts for lists in lists that are no JSON, and
// have fewer brackets than it goes deep.
func TestNoJSON(t *testing.T) {
	const value = `{"resourceMetrics":[{"resource":{"attributes":[{"value":`
	for name, text := range map[string]string{
		"commas for brackets": value + strings.Repeat(`,"arrayValue":,"values":,`, 1000),
		"a comma for a list":  `{"resourceMetrics":,{"resource":{}}]}`,
		"a comma at first":    `,"resourceMetrics":[]}`,
		"a comma in a list":   `{"resourceMetrics":[,{}]}`,
		"two commas":          `{"resourceMetrics":[{},,{}]}`,
		"closed too often":    `}}}` + strings.Repeat("[", 101),
		"closed by another":   `{"resourceMetrics":[{"resource":{"attributes":[}]]}]}`,
		"a second one":        `{}{}`,
		"no name":             `{{}}`,
		"no colon":            `{"resourceMetrics"[{}]}`,
		"two texts":           `{"a" "resourceMetrics":[]}`,
		"a colon in a list":   `{"resourceMetrics":["a":{}]}`,
	} {
		_, err := CheckJSON([]byte(text), &Limits{Bytes: room})
		require.ErrorIs(t, err, ErrNoJSON, name)
	}
	for _, text := range []string{
		" \n{ \"a\" : [ 1 , -2.5e+3 , true , null , \"x\" , { } , [ ] , [ [ ] ] ] ,\t\"b\" : { \"c\" : \"\\\"\" , \"d\" : false } }\r\n", `{}`, `[]`, `null`, `"x"`, ``, `1`,
	} {
		_, err := CheckJSON([]byte(text), &Limits{Bytes: room})
		require.NoError(t, err, text)
	}
}
