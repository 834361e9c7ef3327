// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
)

// nested is a push whose one attribute is a list in a list in a list, as deep as
// fits into so many bytes.
func nested(size int) []byte {
	// KeyValue.value, Resource.attributes, ResourceMetrics.resource, and the request's.
	return lists(size, 2, 1, 1, 1)
}

// nestedBody is a push of logs with such a list as the body of a record.
func nestedBody(size int) []byte { return lists(size, 5, 2, 2, 1) }

// lists is a list in lists within messages, by the numbers of their fields.
func lists(size int, within ...protowire.Number) []byte {
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
		wrap(1) // ArrayValue.values
		wrap(5) // AnyValue.array_value
	}
	for _, field := range within {
		wrap(field)
	}
	return buf[at:]
}

// TestDeepNesting sends lists in lists, up to what the receivers take: a decoder
// that calls itself for each would run out of stack, and nothing recovers from
// that.
func TestDeepNesting(t *testing.T) {
	g := gateway(t, options{})
	b := beside(t, alone(g), "nesting")
	client := keepAlive(t)
	g.forgetPeak()
	for _, size := range []int{10_000, 100_000, mib, 4 * mib, 16*mib - 100} {
		for path, body := range map[string][]byte{"/v1/metrics": nested(size), "/v1/logs": nestedBody(size)} {
			method := map[string]string{"/v1/metrics": metricsMethod, "/v1/logs": logsMethod}[path]
			st := g.post(client, path, protobufType, body)
			err := exportRaw(t.Context(), g.conn, method, body)
			switch {
			case len(body) <= 64<<10:
				assert.Equal(t, http.StatusOK, st)
				require.NoError(t, err)
			case path == "/v1/logs":
				assert.Equal(t, http.StatusBadRequest, st)
				require.ErrorContains(t, err, "nested deeper than 100 levels")
			default: // too long for an attribute before all
				assert.Equal(t, http.StatusBadRequest, st)
				require.ErrorContains(t, err, "too many attributes, or too long ones")
			}
		}
	}
	grown(b, "hostile_nesting", 100)
	// A parser that takes commas for brackets goes as deep.
	commas := `{"resourceMetrics":[{"resource":{"attributes":[{"value":` + strings.Repeat(`,"arrayValue":,"values":,`, 600_000)
	code, text := g.postText(client, "/v1/metrics", jsonType, []byte(commas))
	assert.Equal(t, http.StatusBadRequest, code)
	assert.Contains(t, text, "not well-formed JSON", "nobody has decoded it")
	b.endCalm(8*mib, 4096)
}
