// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/test/loopback"
)

// TestAReceiverComparesPushes: the next hop gets what changed, a refused push changes
// nothing, and a client without the token neither.
func TestAReceiverComparesPushes(t *testing.T) {
	t.Parallel()
	var (
		mu     sync.Mutex
		refuse error
		took   map[string]float64 // of the last push that arrived
	)
	next := serveNextHop(t, func(_ context.Context, md pmetric.Metrics) error {
		mu.Lock()
		defer mu.Unlock()
		took = map[string]float64{}
		for _, rm := range md.ResourceMetrics().All() {
			for _, sm := range rm.ScopeMetrics().All() {
				for _, m := range sm.Metrics().All() {
					for _, dp := range m.Gauge().DataPoints().All() {
						gpu, _ := dp.Attributes().Get("hw.id")
						took[m.Name()+gpu.Str()] = dp.DoubleValue()
					}
				}
			}
		}
		return refuse
	})
	answer := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		refuse = err
	}
	grpcAddr, httpAddr, telemetry := loopback.FreeAddr(t), loopback.FreeAddr(t), loopback.FreeAddr(t)
	start(t, options{configs: []string{fmt.Sprintf(`
extensions:
  exposition:
  bearertokenauth: {token: "let-me-in"}
receivers:
  fleet_otlp:
    table: exposition
    protocols:
      grpc: {endpoint: %q, auth: {authenticator: bearertokenauth}}
      http: {endpoint: %q, auth: {authenticator: bearertokenauth}}
processors:
  diff: {table: exposition, resync_interval: 0s} # what is sent is by change alone
exporters:
  otlp_grpc:
    endpoint: %q
    tls: {insecure: true}
    compression: none
    sending_queue: {enabled: false}
    retry_on_failure: {enabled: false}
service:
  extensions: [exposition, bearertokenauth]
  pipelines:
    metrics: {receivers: [fleet_otlp], processors: [diff], exporters: [otlp_grpc]}
  telemetry:
    metrics: %s
`, grpcAddr, httpAddr, next, telemetryReader(t, telemetry))}})

	const token = "Bearer let-me-in"
	report := func(host string, values ...float64) pmetric.Metrics {
		md := pmetric.NewMetrics()
		metrics := node(md, host, nil)
		for i, v := range values {
			gauge(metrics, "hw.temperature", "Cel", v).Attributes().PutStr("hw.id", fmt.Sprintf("/GPU-%d", i))
		}
		return md
	}
	client := grpcClient(t, grpcAddr)
	overGRPC := func(md pmetric.Metrics, token string) error {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", token)
		_, err := client.Export(ctx, pmetricotlp.NewExportRequestFromMetrics(md))
		return err
	}
	overHTTP := func(md pmetric.Metrics, token string) error {
		resp := post(t, "http://"+httpAddr+"/v1/metrics", protobufType, gzipped(t, marshal(t, md)),
			"Authorization", token, "Content-Encoding", "gzip")
		if resp.status != http.StatusOK {
			return fmt.Errorf("status %d: %s", resp.status, resp.body)
		}
		return nil
	}
	wantTook := func(points ...string) {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		names := make([]string, 0, len(took))
		for name := range took {
			names = append(names, name)
		}
		assert.ElementsMatch(t, points, names)
		took = nil
	}
	const beat, gpu0, gpu1 = "gpu.node.heartbeat", "hw.temperature/GPU-0", "hw.temperature/GPU-1"

	for host, push := range map[string]func(pmetric.Metrics, string) error{"grpc-node": overGRPC, "http-node": overHTTP} {
		require.NoError(t, push(report(host, 60, 61), token))
		wantTook(beat, gpu0, gpu1)
		require.NoError(t, push(report(host, 60, 61), token))
		wantTook(beat)

		answer(errors.New("not now"))
		require.Error(t, push(report(host, 60, 75), token))
		wantTook(beat, gpu1)
		answer(nil)
		require.NoError(t, push(report(host, 60, 75), token))
		wantTook(beat, gpu1)
		require.NoError(t, push(report(host, 60, 75), token))
		wantTook(beat)

		other := "other-" + host // of two reports it has no pace yet, so that no time between them is a pause
		require.NoError(t, push(report(other, 60, 75), token))
		wantTook(beat, gpu0, gpu1)
		for i := range 20 {
			require.Error(t, push(report(other, 99, 99), "Bearer let-me-guess"))
			require.Error(t, push(report(fmt.Sprintf("stranger-%d", i), 99), ""))
		}
		wantTook()
		require.NoError(t, push(report(other, 60, 75), token))
		wantTook(beat)
	}
	assert.Equal(t, codes.Unauthenticated, status.Code(overGRPC(report("grpc-node", 1), "")))
	eventually(t, "the table has the four nodes and their series", func() bool {
		s := scrape(t, telemetry)
		return s.is(4, "otelcol_processor_diff_nodes", nil) && s.is(8, "otelcol_processor_diff_series", nil) &&
			s.is(14, "otelcol_receiver_fleet_otlp_pushes", labels{"read": "bytes"})
	})
}
