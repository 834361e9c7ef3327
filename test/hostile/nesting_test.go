// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
)

// The fields that lead to a list: the value of a resource's attribute, and the body of a
// log record. Each is a level, and so is the message that it holds.
var (
	toAttribute = []protowire.Number{2, 1, 1, 1}
	toBody      = []protowire.Number{5, 2, 2, 1}
)

// nested is a push whose one attribute is a list in a list in a list, as deep as
// fits into so many bytes.
func nested(size int) []byte { return lists(size, size, toAttribute) }

// lists is a list in lists within messages, by the numbers of their fields: so many
// levels below these, or as many as fit into so many bytes.
func lists(size, levels int, within []protowire.Number) []byte {
	// Written from the inside out, back to front.
	buf := make([]byte, size+64)
	at := len(buf)
	wrap := func(field protowire.Number) {
		head := protowire.AppendTag(nil, field, protowire.BytesType)
		head = protowire.AppendVarint(head, uint64(len(buf)-at))
		at -= len(head)
		copy(buf[at:], head)
	}
	const values, arrayValue, nobodys = 1, 5, "\x78\x01"
	at -= copy(buf[at-len(nobodys):], nobodys) // what is empty is no level
	if levels%2 == 1 {
		wrap(arrayValue)
	}
	for range levels / 2 {
		if at <= 96 {
			break
		}
		wrap(values)
		wrap(arrayValue)
	}
	for _, field := range within {
		wrap(field)
	}
	return buf[at:]
}

// listsJSON is the same in JSON, of so many levels in all.
func listsJSON(levels int, within string) []byte {
	pieces := []string{`{"arrayValue":`, `{"values":`, `[`}
	open := []byte(within)
	for i := range levels - strings.Count(within, "{") - strings.Count(within, "[") - 1 {
		open = append(open, pieces[i%3]...)
	}
	open = append(open, '{')
	if bytes.HasSuffix(open, []byte(`"values":{`)) {
		open[len(open)-1] = '['
	}
	for _, c := range slices.Backward(open) {
		switch c {
		case '{':
			open = append(open, '}')
		case '[':
			open = append(open, ']')
		}
	}
	return open
}

// TestDeepNesting sends lists in lists. A message may have as many levels as the docs
// promise: a parser that calls itself for each would run out of stack, and nothing recovers
// from that.
func TestDeepNesting(t *testing.T) {
	const most, promise = 100, "nested deeper than 100 levels"
	for where, start := range fronts {
		t.Run(where, func(t *testing.T) {
			f := start(t, options{})
			g := f.door
			b := beside(t, f, "nesting_"+where)
			client := keepAlive(t)
			for path, of := range map[string]struct {
				method string
				to     []protowire.Number
				toJSON string
			}{
				"/v1/metrics": {metricsMethod, toAttribute, `{"resourceMetrics":[{"resource":{"attributes":[{"key":"k","value":`},
				"/v1/logs":    {logsMethod, toBody, `{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":`},
			} {
				for _, levels := range []int{most, most + 1, 100_000} {
					code, text := g.postText(client, path, jsonType, listsJSON(levels, of.toJSON))
					deep := levels > most
					assert.Equal(t, map[bool]int{false: http.StatusOK, true: http.StatusBadRequest}[deep], code, "%s of %d levels: %s", path, levels, text)
					assert.Equal(t, deep, strings.Contains(text, promise), "%s of %d levels: %s", path, levels, text)
				}
				for _, size := range []int{64 << 10, largest - 100} {
					body := lists(size, size, of.to)
					code, text := g.postText(client, path, protobufType, body)
					assert.Equal(t, http.StatusBadRequest, code, "%s of %d bytes: %s", path, size, text)
					assert.Contains(t, text, promise)
					require.ErrorContains(t, exportRaw(t.Context(), g.conn, of.method, body), promise)
				}
			}
			grown(b, b.figure, inFlight)
			// A parser that takes commas for brackets goes as deep.
			commas := `{"resourceMetrics":[{"resource":{"attributes":[{"value":` + strings.Repeat(`,"arrayValue":,"values":,`, 60_000)
			code, text := g.postText(client, "/v1/metrics", jsonType, []byte(commas))
			assert.Equal(t, http.StatusBadRequest, code)
			assert.Contains(t, text, "the message is malformed", "nobody has decoded it")
			b.endCalm(8*mib, 4096)
		})
	}
}
