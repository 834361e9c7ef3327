// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
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

	t.Run("a name that is too long", func(t *testing.T) {
		md := pmetric.NewMetrics()
		score(md, strings.Repeat("h", 60_000), map[string]string{"k8s.cluster.name": "huge"}, 0.1)
		assert.Equal(t, http.StatusOK, g.post(protobufType, marshal(t, md)).status)
		assert.InDelta(t, 1, g.rejected("name_too_long"), 0)
		g.requireFleet("huge")
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
