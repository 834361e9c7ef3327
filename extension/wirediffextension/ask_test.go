// SPDX-License-Identifier: Apache-2.0

package wirediffextension

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/extension/extensiontest"

	"github.com/gpu-collector/gpu-collector/extension/wirediffextension/internal/metadata"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/resync"
)

// What finds no room here is asked for in the answer to the node's next push that
// another tier reduced: over gRPC, over HTTP, and where a push has to be decoded.
func TestANodeThatIsNotWholeIsAskedFor(t *testing.T) {
	push := map[string]func(ctx context.Context, t *testing.T, e *wireDiff, msg []byte){
		"grpc": func(ctx context.Context, t *testing.T, e *wireDiff, msg []byte) {
			t.Helper()
			ctx, req := received(ctx, t, msg)
			_, err := e.intercept(ctx, req, nil, func(_ context.Context, req any) (any, error) { return req, nil })
			require.NoError(t, err)
		},
		"http": func(ctx context.Context, t *testing.T, e *wireDiff, msg []byte) {
			t.Helper()
			postTo(ctx, t, e, msg)
		},
	}
	for name, push := range push {
		for _, decoded := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				cfg := createDefaultConfig().(*Config)
				cfg.MaxSeriesPerNode = 1
				e, err := newExtension(cfg, extensiontest.NewNopSettings(metadata.Type))
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, e.Shutdown(context.Background())) })
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
					push(ctx, t, e, encode(t, md))
					assert.Equal(t, want, answer.Requests(), "push %d", i)
				}
				assert.EqualValues(t, 1, e.table.Stats().Asked)
			})
		}
	}
}

// postTo pushes over HTTP, behind a middleware that has the answer.
func postTo(ctx context.Context, t *testing.T, e *wireDiff, msg []byte) {
	t.Helper()
	wrap, err := e.GetHTTPHandler(ctx)
	require.NoError(t, err)
	h, err := wrap(ctx, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	require.NoError(t, err)
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/metrics", bytes.NewReader(msg))
	req.Header.Set("Content-Type", contentProtobuf)
	h.ServeHTTP(httptest.NewRecorder(), req)
}
