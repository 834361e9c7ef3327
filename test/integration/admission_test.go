// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// nextHop is an OTLP server whose answer the test decides.
type nextHop struct {
	pmetricotlp.UnimplementedGRPCServer
	export func(context.Context, pmetric.Metrics) error
}

func (n *nextHop) Export(ctx context.Context, req pmetricotlp.ExportRequest) (pmetricotlp.ExportResponse, error) {
	return pmetricotlp.NewExportResponse(), n.export(ctx, req.Metrics())
}

// serveNextHop runs one until the test ends and returns its address.
func serveNextHop(t *testing.T, export func(context.Context, pmetric.Metrics) error) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := grpc.NewServer()
	pmetricotlp.RegisterGRPCServer(srv, &nextHop{export: export})
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	t.Cleanup(func() { srv.Stop(); <-done })
	return ln.Addr().String()
}

// retryDelay returns what a refusal asks the sender to wait.
func retryDelay(err error) time.Duration {
	for _, d := range status.Convert(err).Details() {
		if r, ok := d.(*errdetails.RetryInfo); ok {
			return r.GetRetryDelay().AsDuration()
		}
	}
	return 0
}

// TestRefusalPassesThroughAShard: what the gateway asks for reaches the agent,
// who would drop the data otherwise.
func TestRefusalPassesThroughAShard(t *testing.T) {
	t.Parallel()
	refusal, err := status.New(codes.ResourceExhausted, "full").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(3 * time.Second)})
	require.NoError(t, err)
	next := serveNextHop(t, func(context.Context, pmetric.Metrics) error { return refusal.Err() })
	ports := newGatewayPorts(t)
	start(t, options{configs: []string{"configs/shard.yaml", fmt.Sprintf(`
receivers:
  fleet_otlp:
    protocols:
      grpc: {endpoint: %q}
      http: {endpoint: %q}
# Pushes wait for the gateway, where the shard batches as it is shipped.
processors:
  diff: {flush_interval: 0s}
exporters:
  otlp_grpc: {compression: none}
extensions:
  healthcheckv2: {http: {endpoint: %q}}
service:
  telemetry:
    metrics: {level: none}
`, ports.grpc, ports.http, ports.health)}, env: []string{
		"GPU_COLLECTOR_GATEWAY=" + next, "GPU_COLLECTOR_INSECURE=true",
	}})
	md := pmetric.NewMetrics()
	gauge(node(md, "n0", nil), "hw.gpu.utilization", "1", 0.5)
	_, err = grpcClient(t, ports.grpc).Export(t.Context(), pmetricotlp.NewExportRequestFromMetrics(md))
	assert.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	assert.Equal(t, 3*time.Second, retryDelay(err))
	resp := post(t, "http://"+ports.http+"/v1/metrics", protobufType, marshal(t, md))
	assert.Equal(t, http.StatusTooManyRequests, resp.status)
	assert.Equal(t, "3", resp.header.Get("Retry-After"))

	// No pipeline serves traces here.
	conn, err := grpc.NewClient("passthrough:///"+ports.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = ptraceotlp.NewGRPCClient(conn).Export(t.Context(), ptraceotlp.NewExportRequest())
	assert.Equal(t, codes.Unimplemented, status.Code(err), "%v", err)
}
