// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/process"
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
	for where, start := range map[string]func(*testing.T) front{
		"": func(t *testing.T) front { return alone(gateway(t)) }, "_shard": behindShard,
	} {
		t.Run("gateway"+where, func(t *testing.T) {
			f := start(t)
			g := f.door
			b := beside(t, f, "malformed"+where)
			client, sent := keepAlive(t), 0
			metrics, metricsJSON := texts(t, pmetricotlp.NewExportRequestFromMetrics(sample("bad")))
			logs, logsJSON := texts(t, plogotlp.NewExportRequestFromLogs(sampleLogs("bad")))
			for path, doors := range map[string]struct {
				method      string
				proto, json []byte
				container   string
			}{
				"/v1/metrics": {process.MetricsMethod, metrics, metricsJSON, "resourceMetrics"},
				"/v1/logs":    {logsMethod, logs, logsJSON, "resourceLogs"},
			} {
				if where != "" && path == "/v1/logs" {
					continue // the doors to which are the gateway's
				}
				refused := 0
				for name, body := range malformedProto(t, doors.proto) {
					code, _ := g.post(client, path, process.Protobuf, body)
					require.True(t, httpAnswers[code], "%s: %s: %d", path, name, code)
					err := process.ExportRaw(t.Context(), g.conn, doors.method, body)
					require.True(t, grpcAnswers[status.Code(err)], "%s: %s: %v", path, name, err)
					assert.Equal(t, code == http.StatusOK, err == nil, "%s: %s: %d over HTTP, %v over gRPC", path, name, code, err)
					if sent += 2; err != nil {
						refused++
					}
				}
				assert.Greater(t, refused, 50, "most are refused")
				refused = 0
				for name, body := range malformedJSON(string(doors.json), doors.container) {
					code, answer := g.post(client, path, process.JSON, body)
					require.True(t, httpAnswers[code], "%s: %s: %d %q", path, name, code, answer)
					if sent++; code != http.StatusOK {
						refused++
					}
				}
				assert.Greater(t, refused, 50, "most of JSON too")
			}
			assert.Equal(t, codes.Unimplemented, status.Code(process.ExportRaw(t.Context(), g.conn, tracesMethod, metrics)))
			grown(b, b.figure, inFlight)
			figure.Print(b.figure+"_log_bytes_per_push", float64(g.usage().logged-b.before[g].logged)/float64(sent), "B", 50, true)
			b.endCalm(16*mib, 50*sent)
		})
	}
}
