// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bytes"
	"net/http"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// The answers that a door may give to any message: it is taken, or it is bad.
// Internal is gRPC's own answer to a message that its codec cannot read.
var (
	httpAnswers = map[int]bool{http.StatusOK: true, http.StatusBadRequest: true, http.StatusRequestEntityTooLarge: true}
	grpcAnswers = map[codes.Code]bool{codes.OK: true, codes.InvalidArgument: true, codes.Internal: true, codes.ResourceExhausted: true}
)

// TestMalformed sends a corpus of broken messages to every door of a gateway, and
// of a shard.
func TestMalformed(t *testing.T) {
	for where, start := range fronts {
		t.Run(where, func(t *testing.T) {
			f := start(t, options{})
			g := f.door
			name := "malformed" + map[string]string{"gateway": "", "shard": "_shard"}[where]
			b := beside(t, f, name)
			logs, err := plogotlp.NewExportRequestFromLogs(sampleLogs("bad")).MarshalProto()
			require.NoError(t, err)
			metrics := marshal(t, sample("bad"))
			client := keepAlive(t)
			sent := 0
			for path, doors := range map[string]struct {
				method    string
				proto     []byte
				json      string
				container string
			}{
				"/v1/metrics": {metricsMethod, metrics, metricsJSON(t, sample("bad")), "resourceMetrics"},
				"/v1/logs":    {logsMethod, logs, logsJSON(t, sampleLogs("bad")), "resourceLogs"},
			} {
				if where == "shard" && path == "/v1/logs" {
					continue // the doors to which are the gateway's
				}
				refused := 0
				for name, body := range malformedProto(t, doors.proto) {
					code := g.post(client, path, protobufType, body)
					require.True(t, httpAnswers[code], "%s: %s: %d", path, name, code)
					err := exportRaw(t.Context(), g.conn, doors.method, body)
					require.True(t, grpcAnswers[status.Code(err)], "%s: %s: %v", path, name, err)
					assert.Equal(t, code == http.StatusOK, err == nil, "%s: %s: %d over HTTP, %v over gRPC", path, name, code, err)
					if sent += 2; err != nil {
						refused++
					}
				}
				assert.Greater(t, refused, 100, "most are refused")
				refused = 0
				for name, body := range malformedJSON(t, doors.json, doors.container) {
					code, answer := g.postText(client, path, jsonType, body)
					require.True(t, httpAnswers[code] || cannotQuote(code, answer, body), "%s: %s: %d %q", path, name, code, answer)
					if sent++; code != http.StatusOK {
						refused++
					}
				}
				assert.Greater(t, refused, 100, "most of JSON too")
				assert.Equal(t, http.StatusUnsupportedMediaType, g.post(client, path, "text/plain", doors.proto))
				code, _ := g.get("http://" + g.http + path)
				assert.Equal(t, http.StatusMethodNotAllowed, code)
			}
			assert.Equal(t, http.StatusNotFound, g.post(client, "/v1/traces", protobufType, metrics))
			assert.Equal(t, codes.Unimplemented, status.Code(exportRaw(t.Context(), g.conn, tracesMethod, metrics)))
			grown(b, b.figure, inFlight)
			figure.Print(b.figure+"_log_bytes_per_push", float64(g.usage().logged-b.before[g].logged)/float64(sent), "B", 50, true)
			b.endCalm(16*mib, 50*sent)
		})
	}
}

// cannotQuote is the only case of a 500 from the otlp receiver for a malformed
// message. Its refusal has bytes that are no UTF-8, and protobuf takes those for no
// text. The bytes are quoted, or are 0xff: so json-iterator names the character in
// the place of a digit. Senders repeat neither 400 nor 500.
func cannotQuote(code int, answer string, body []byte) bool {
	return code == http.StatusInternalServerError && answer == `{"code": 13, "message": "failed to marshal error message"}` &&
		(!utf8.Valid(body) || bytes.Contains(body, []byte(`"intValue":-}`)))
}
