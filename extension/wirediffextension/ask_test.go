// SPDX-License-Identifier: Apache-2.0

package wirediffextension

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc/encoding"

	"github.com/gpu-collector/gpu-collector/extension/wirediffextension/internal/metadata"
	"github.com/gpu-collector/gpu-collector/internal/delta/resync"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
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
	serveTo(ctx, t, e, msg, func(*http.Request) {})
}

// serveTo is postTo with a receiver behind.
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

// What the pipeline behind accepts and cannot keep, the node's next push brings
// again: over gRPC and over HTTP, with somebody who answers for others and without.
// Until there may be room, whole states of its cluster do not come to the pipeline.
func TestWhatIsNotKeptComesAgain(t *testing.T) {
	for _, answered := range []bool{false, true} {
		for _, protocol := range []string{"grpc", "http"} {
			synctest.Test(t, func(t *testing.T) {
				e, err := newExtension(createDefaultConfig().(*Config), extensiontest.NewNopSettings(metadata.Type))
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, e.Shutdown(context.Background())) })
				for i, want := range []int{
					3, // with its heartbeat, and is lost
					0, // waits
					3,
					1, 1,
				} {
					if i == 2 {
						time.Sleep(pause)
					}
					ctx := t.Context()
					if answered {
						ctx, _ = resync.ContextWithAnswer(ctx)
					}
					points := 0
					take := func(ctx context.Context, md pmetric.Metrics) {
						points = md.DataPointCount()
						if i == 0 {
							resync.AnswerOf(ctx).Lose()
						}
					}
					msg := encode(t, report("n", time.Duration(i)*time.Second, 2, 1))
					if protocol == "grpc" {
						ctx, req := received(ctx, t, msg)
						_, err := e.intercept(ctx, req, nil, func(ctx context.Context, req any) (any, error) {
							msg, err := encoding.GetCodecV2("proto").Marshal(req)
							take(ctx, decoded(t, msg.Materialize()))
							return req, err
						})
						require.NoError(t, err)
					} else {
						serveTo(ctx, t, e, msg, func(r *http.Request) {
							body, err := io.ReadAll(r.Body)
							require.NoError(t, err)
							take(r.Context(), decoded(t, body))
						})
					}
					assert.Equal(t, want, points, "push %d", i)
				}
			})
		}
	}
}

// While nodes that are new wait, deltas go on: the next one does not include them.
func TestDeltasDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, err := newExtension(createDefaultConfig().(*Config), extensiontest.NewNopSettings(metadata.Type))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, e.Shutdown(context.Background())) })
		push := func(md pmetric.Metrics, keep bool) (points int) {
			ctx, req := received(t.Context(), t, encode(t, md))
			_, err := e.intercept(ctx, req, nil, func(ctx context.Context, req any) (any, error) {
				msg, err := encoding.GetCodecV2("proto").Marshal(req)
				points = decoded(t, msg.Materialize()).DataPointCount()
				if !keep {
					resync.AnswerOf(ctx).Lose()
				}
				return req, err
			})
			require.NoError(t, err)
			return points
		}
		require.Equal(t, 3, push(report("a", 0, 2, 1), false), "with its heartbeat, and is lost")
		require.Zero(t, push(report("b", 0, 2, 1), true), "waits")
		deltas := report("c", 0, 2, 1)
		sum := deltas.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().AppendEmpty()
		sum.SetName("steps")
		sum.SetEmptySum().SetAggregationTemporality(pmetric.AggregationTemporalityDelta)
		sum.Sum().DataPoints().AppendEmpty().SetIntValue(5)
		assert.Equal(t, 4, push(deltas, true))
	})
}
