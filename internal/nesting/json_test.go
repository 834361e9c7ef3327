// SPDX-License-Identifier: Apache-2.0

package nesting

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"pgregory.net/rapid"
)

// spaced has a space before each sign and text of a message, so that nothing of it is in
// the form that encoders write.
func spaced(m string) string {
	var out strings.Builder
	text, hidden := false, false
	for _, b := range []byte(m) {
		if !text && strings.IndexByte(`"{}[]:,`, b) >= 0 {
			out.WriteByte(' ')
		}
		out.WriteByte(b)
		if text = text != (b == '"' && !hidden); !text {
			hidden = false
		} else {
			hidden = b == '\\' && !hidden
		}
	}
	return out.String()
}

// TestFormsOfJSONCountAlike: what is read at once in the form that encoders write counts as
// in any other form, whatever is wrong with it.
func TestFormsOfJSONCountAlike(t *testing.T) {
	same := func(t require.TestingT, m string) {
		for _, bytes := range []int64{room, 3000, 300} {
			limits := &Limits{Bytes: bytes, Attributes: Attributes{4, room}, PointAttributes: Attributes{3, room}}
			size, err := CheckJSON([]byte(m), limits)
			slow, slowErr := CheckJSON([]byte(spaced(m)), limits)
			require.Equal(t, slowErr, err, "%s", m)
			if err == nil {
				require.Equal(t, slow, size, "%s", m)
			}
		}
	}
	text, err := pmetricotlp.NewExportRequestFromMetrics(honest(3, 8)).MarshalJSON()
	require.NoError(t, err)
	same(t, string(text))
	assert.NotEqual(t, len(text), len(spaced(string(text))))
	for from := range 600 { // cut anywhere
		same(t, string(text[:from]))
	}
	for depth := range MaxDepth + 4 {
		same(t, `{"x":`+strings.Repeat("[", depth)+`{"attributes":[{"key":"a","value":{"stringValue":"b"}}]}`)
	}
	texts := rapid.SampledFrom([]string{"", "a", "stringValue", "values", `\"`, `\\`, `\\\"`, "sixteen bytes...", "seventeen bytes..", strings.Repeat("x", 23), strings.Repeat("x", 24), strings.Repeat("é", 40), `{"key":"`, `[[`})
	rapid.Check(t, func(t *rapid.T) {
		var out strings.Builder
		var value func(depth int)
		attribute := func(depth int) {
			out.WriteString(`{"key":"` + texts.Draw(t, "key") + `","value":{"`)
			kind := rapid.SampledFrom([]string{"stringValue", "intValue", "boolValue", "arrayValue", "a"}).Draw(t, "kind")
			out.WriteString(kind + `":`)
			value(depth + 1)
			out.WriteString(rapid.SampledFrom([]string{"}}", "}}", "}}", "}", "},}", "]}"}).Draw(t, "end"))
		}
		value = func(depth int) {
			switch pick := rapid.IntRange(0, 8).Draw(t, "value"); {
			case pick < 5 || depth > 4:
				out.WriteString(`"` + texts.Draw(t, "text") + `"`)
			case pick == 5:
				out.WriteString(rapid.SampledFrom([]string{"1.5e3", "true", "null", "-0", ""}).Draw(t, "plain"))
			case pick == 6:
				out.WriteString(`{"values":[`)
				value(depth + 1)
				out.WriteString(`]}`)
			default:
				out.WriteString(`{"attributes":[`)
				for i := range rapid.IntRange(0, 5).Draw(t, "attributes") {
					if i > 0 {
						out.WriteString(rapid.SampledFrom([]string{",", ",", ",", "", ",,", ",["}).Draw(t, "between"))
					}
					attribute(depth + 1)
				}
				out.WriteString(`]}`)
			}
		}
		out.WriteString(`{"resource":`)
		value(0)
		out.WriteString(`}`)
		same(t, out.String())
	})
}
