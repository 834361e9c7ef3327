// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const mib = 1 << 20

// target is a gateway under attack.
type target struct {
	gatewayPorts
	*collector
	client pmetricotlp.GRPCClient
}

// push sends a valid request over gRPC.
func (g *target) push(ctx context.Context, md pmetric.Metrics) error {
	_, err := g.client.Export(ctx, pmetricotlp.NewExportRequestFromMetrics(md))
	return err
}

func (g *target) post(contentType string, body []byte, headers ...string) response {
	g.t.Helper()
	return post(g.t, "http://"+g.http+"/v1/metrics", contentType, body, headers...)
}

// rejected returns how many values were ignored for a reason.
func (g *target) rejected(reason string) float64 {
	g.t.Helper()
	v, _ := scrape(g.t, g.telemetry).value("otelcol_processor_straggler_rejected", labels{"reason": reason})
	return v
}

// requireFleet pushes a healthy fleet of a cluster and requires that its
// threshold comes back: whatever came before, the gateway does its work.
func (g *target) requireFleet(cluster string) {
	g.t.Helper()
	md := pmetric.NewMetrics()
	healthyFleet(md, cluster)
	eventually(g.t, "the threshold of "+cluster, func() bool {
		var header metadata.MD
		ctx := metadata.AppendToOutgoingContext(g.t.Context(), "gpu-cluster", cluster, "gpu-group", `"default"`)
		_, err := g.client.Export(ctx, pmetricotlp.NewExportRequestFromMetrics(md), grpc.Header(&header))
		require.NoError(g.t, err)
		return len(header.Get("gpu-straggler-threshold")) == 1 && len(header.Get("gpu-straggler-params")) == 1 &&
			header.Get("gpu-straggler-quorum-met")[0] == "true"
	})
}

// healthyFleet adds six nodes of a cluster.
func healthyFleet(md pmetric.Metrics, cluster string) {
	for n := range 6 {
		score(md, fmt.Sprintf("good%d", n), map[string]string{"k8s.cluster.name": cluster}, 0.97)
	}
}

// TestHostileInput does to one gateway what broken and malicious senders do.
func TestHostileInput(t *testing.T) {
	t.Parallel()
	ports := newGatewayPorts(t)
	g := &target{gatewayPorts: ports, collector: start(t, options{configs: []string{"configs/gateway.yaml", ports.overlay(t), `
processors:
  straggler:
    # Nodes pushed once stay known during the test.
    ttl_multiplier: 600
`}})}
	g.client = grpcClient(t, ports.grpc)
	g.requireFleet("before")

	t.Run("malformed", func(t *testing.T) {
		for name, a := range map[string]struct {
			contentType, body string
			status            int
		}{
			"protobuf":           {protobufType, "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01garbage", http.StatusBadRequest},
			"truncated protobuf": {protobufType, string(marshal(t, step(0))[:100]), http.StatusBadRequest},
			"json":               {jsonType, `{"resourceMetrics": [{"resource"`, http.StatusBadRequest},
			"another json":       {jsonType, `{"resourceMetrics": 5}`, http.StatusBadRequest},
			"deep json":          {jsonType, strings.Repeat(`{"resourceMetrics":[`, 20_000), http.StatusBadRequest},
			"text":               {"text/plain", "hello", http.StatusUnsupportedMediaType},
		} {
			assert.Equal(t, a.status, g.post(a.contentType, []byte(a.body), "gpu-cluster", "before").status, name)
		}
		resp := g.post(protobufType, []byte("not gzip"), "Content-Encoding", "gzip")
		assert.Equal(t, http.StatusBadRequest, resp.status)

		for _, garbage := range []string{"", "\xff", "\x0a\xff\xff\xff\xff\x0f", strings.Repeat("\x0a\x02", 1000)} {
			err := exportRaw(t, ports.grpc, []byte(garbage))
			if garbage == "" {
				assert.NoError(t, err, "an empty push is legal")
			} else {
				assert.Error(t, err)
			}
		}
	})

	t.Run("10 MB attribute", func(t *testing.T) {
		md := pmetric.NewMetrics()
		score(md, "huge", map[string]string{"k8s.cluster.name": "huge", "junk": strings.Repeat("x", 10*mib)}, 0.1)
		score(md, strings.Repeat("h", 10*mib), map[string]string{"k8s.cluster.name": "huge"}, 0.1)
		healthyFleet(md, "huge")
		body := marshal(t, md)
		// Over what the receivers take as a whole.
		resp, err := send(t.Context(), http.MethodPost, "http://"+g.http+"/v1/metrics", body, "Content-Type", protobufType)
		// The server closes when it has read enough, which a client that still writes may see
		// before the answer.
		if err != nil {
			assert.True(t, errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE), "%v", err)
		} else {
			assert.Equal(t, http.StatusRequestEntityTooLarge, resp.status)
		}
		assert.Equal(t, http.StatusRequestEntityTooLarge, g.post(protobufType, gzipped(t, body), "Content-Encoding", "gzip").status)
		assert.Equal(t, codes.ResourceExhausted, status.Code(g.push(t.Context(), md)))

		// Within it, and within what an attribute may have.
		for _, encoding := range []string{"", "gzip"} {
			before := g.rejected("name_too_long")
			md := pmetric.NewMetrics()
			score(md, strings.Repeat("h", 60_000), map[string]string{"k8s.cluster.name": "huge"}, 0.1)
			healthyFleet(md, "huge")
			body := marshal(t, md)
			headers := []string{}
			if encoding != "" {
				body, headers = gzipped(t, body), []string{"Content-Encoding", encoding}
			}
			assert.Equal(t, http.StatusOK, g.post(protobufType, body, headers...).status)
			assert.InDelta(t, 1, g.rejected("name_too_long")-before, 0)
		}
		// 200 MB of zeros in 200 KB.
		bomb := gzipped(t, make([]byte, 200*mib))
		assert.Equal(t, http.StatusRequestEntityTooLarge, g.post(protobufType, bomb, "Content-Encoding", "gzip").status)
		g.requireFleet("huge")
	})

	t.Run("headers", func(t *testing.T) {
		invalid := func() float64 {
			var sum float64
			for _, s := range scrape(t, g.telemetry).with("otelcol_extension_straggler_threshold_requests", labels{"outcome": "invalid"}) {
				sum += s.value
			}
			return sum
		}
		before := invalid()
		body := marshal(t, step(0))
		groups := strings.TrimSuffix(strings.Repeat(`"stage", `, 1000), ", ")
		attacks := [][]string{
			{"gpu-cluster", strings.Repeat("c", 1000)},
			{"gpu-cluster", "b\xfccher"},
			{"gpu-cluster", "before", "gpu-group", groups},
			{"gpu-cluster", "before", "gpu-group", `"unterminated`},
			{"gpu-cluster", "before", "gpu-group", `;;;=`},
		}
		for _, headers := range attacks {
			resp := g.post(protobufType, body, headers...)
			assert.Equal(t, http.StatusOK, resp.status, "headers never cost the data")
			assert.Empty(t, resp.header.Get("gpu-straggler-params"))
		}
		assert.InDelta(t, float64(len(attacks)), invalid()-before, 0)
	})

	t.Run("attribute that nobody reads", func(t *testing.T) {
		junk := func(size int) pmetric.Metrics {
			md := pmetric.NewMetrics()
			score(md, "junk", map[string]string{"k8s.cluster.name": "before", "junk": strings.Repeat("x", size)}, 0.97)
			return md
		}
		assert.Equal(t, codes.ResourceExhausted, status.Code(g.push(t.Context(), junk(3*mib))), "the receiver's own bound")
		before := g.rejected("attribute_too_long")
		assert.Equal(t, http.StatusOK, g.post(protobufType, marshal(t, junk(10_000))).status)
		require.NoError(t, g.push(t.Context(), junk(10_000)))
		assert.InDelta(t, 2, g.rejected("attribute_too_long")-before, 0)
		served := scrape(t, g.prom)
		score := served.with("gpu_node_health_score_ratio", labels{"host_name": "junk"})
		require.Len(t, score, 1)
		assert.Empty(t, score[0].labels["junk"], "the value is there, without the attribute")
		assert.True(t, served.is(1, "gpu_exposition_hidden", labels{"k8s_cluster_name": "before", "reason": "resource_label"}))
	})

	g.requireFleet("before")
	assert.False(t, g.Ended())
	assert.Zero(t, g.log.Count("panic"))
}

// exportRaw sends bytes as an export request.
func exportRaw(t *testing.T, addr string, body []byte) error {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	var reply []byte
	return conn.Invoke(t.Context(), "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export", &body, &reply,
		grpc.ForceCodecV2(rawCodec{}))
}

// rawCodec passes bytes through as if they were protobuf.
type rawCodec struct{}

// Marshal implements encoding.CodecV2.
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

// Unmarshal implements encoding.CodecV2.
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// Name implements encoding.CodecV2.
func (rawCodec) Name() string { return "proto" }
