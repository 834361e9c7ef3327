// SPDX-License-Identifier: Apache-2.0

package wirediffextension

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc/encoding"

	"github.com/gpu-collector/gpu-collector/extension/wirediffextension/internal/metadata"
	"github.com/gpu-collector/gpu-collector/internal/delta"
	"github.com/gpu-collector/gpu-collector/internal/delta/resync"
	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// The door asks for a node without room in the answer to the next push that another tier
// reduced: over gRPC, over HTTP, and where a push has to be decoded.
func TestANodeThatIsNotWholeIsAskedFor(t *testing.T) {
	push := map[string]func(ctx context.Context, t *testing.T, e *wireDiff, engine *delta.Engine, msg []byte){
		"grpc": func(ctx context.Context, t *testing.T, e *wireDiff, engine *delta.Engine, msg []byte) {
			t.Helper()
			ctx, req, codec := received(ctx, t, msg)
			_, err := e.intercept(ctx, req, export, func(ctx context.Context, req any) (any, error) {
				msg, err := encoding.GetCodecV2("proto").Marshal(req)
				require.NoError(t, err)
				return req, engine.Consume(ctx, decoded(t, msg.Materialize()))
			}, codec)
			require.NoError(t, err)
		},
		"http": func(ctx context.Context, t *testing.T, e *wireDiff, engine *delta.Engine, msg []byte) {
			t.Helper()
			serveTo(ctx, t, e, msg, func(r *http.Request) {
				body, err := io.ReadAll(r.Body)
				require.NoError(t, err)
				require.NoError(t, engine.Consume(r.Context(), decoded(t, body)))
			})
		},
	}
	for name, push := range push {
		for _, decoded := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				engine := testEngine(&hop{state: map[string]float64{}}, func(s *statetable.Settings) { s.MaxSeriesPerNode = 1 })
				e := newAttached(t, extensiontest.NewNopSettings(metadata.Type), engine)
				for i, want := range [][]resync.Request{nil, {{Node: "n"}}, nil} {
					md := report("n", time.Duration(i)*time.Second, 1, float64(i))
					sm := md.ResourceMetrics().At(0).ScopeMetrics().At(0)
					beat := sm.Metrics().AppendEmpty()
					beat.SetName(gpusemconv.MetricNodeHeartbeat)
					beat.SetEmptyGauge().DataPoints().AppendEmpty().SetIntValue(1_700_000_000)
					if decoded {
						sm.Metrics().AppendEmpty().SetEmptySummary().DataPoints().AppendEmpty()
					}
					ctx, answer := resync.ContextWithAnswer(t.Context())
					push(ctx, t, e, engine, encode(t, md))
					assert.Equal(t, want, answer.Requests(), "push %d", i)
				}
				assert.EqualValues(t, 1, engine.Table.Stats().Asked)
			})
		}
	}
}

// serveTo pushes over HTTP to a receiver behind the extension.
func serveTo(ctx context.Context, t *testing.T, e *wireDiff, msg []byte, receive func(*http.Request)) {
	t.Helper()
	wrap, err := e.GetHTTPHandler(ctx)
	require.NoError(t, err)
	h, err := wrap(ctx, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		receive(r)
		w.WriteHeader(http.StatusOK)
	}))
	require.NoError(t, err)
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/metrics", bytes.NewReader(msg))
	req.Header.Set("Content-Type", contentProtobuf)
	h.ServeHTTP(httptest.NewRecorder(), req)
}

// decoded is what a receiver is handed.
func decoded(t *testing.T, msg []byte) pmetric.Metrics {
	t.Helper()
	req := pmetricotlp.NewExportRequest()
	require.NoError(t, req.UnmarshalProto(msg))
	return req.Metrics()
}
