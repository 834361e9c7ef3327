// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"

	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/nameserver"
)

// sink accepts every push.
type sink struct {
	pmetricotlp.UnimplementedGRPCServer
}

func (*sink) Export(context.Context, pmetricotlp.ExportRequest) (pmetricotlp.ExportResponse, error) {
	return pmetricotlp.NewExportResponse(), nil
}

func startSink(t *testing.T, addr string) *grpc.Server {
	t.Helper()
	listener, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	server := grpc.NewServer()
	pmetricotlp.RegisterGRPCServer(server, &sink{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener) // until it is stopped
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return server
}

// TestAReplacedServerIsFound gives the only server behind a name another
// address, as Kubernetes does with each pod. gRPC by itself would not ask for
// the name before 30 s have passed since it last did.
func TestAReplacedServerIsFound(t *testing.T) {
	t.Parallel()
	hosts := []string{"127.0.0.1", "127.0.0.2"}
	port := portOf(t, loopback.FreeAddr(t))
	names := nameserver.Start(t, hosts[0])
	former := startSink(t, net.JoinHostPort(hosts[0], port))
	addr := loopback.FreeAddr(t)
	start(t, options{configs: []string{fmt.Sprintf(`
receivers:
  otlp: {protocols: {grpc: {endpoint: %q}}}
exporters:
  otlp_grpc:
    endpoint: dns://%s/servers.test:%s
    tls: {insecure: true}
    retry_on_failure: {enabled: false}
    sending_queue: {enabled: false}
service:
  telemetry: {metrics: {level: none}}
  pipelines: {metrics: {receivers: [otlp], exporters: [otlp_grpc]}}
`, addr, names.Addr, port)}})
	client := grpcClient(t, addr)
	push := func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		md := pmetric.NewMetrics()
		gauge(node(md, "a", nil), "test.value", "", 1)
		_, err := client.Export(ctx, pmetricotlp.NewExportRequestFromMetrics(md))
		return err == nil
	}
	eventually(t, "the server is found", push)

	names.Set(hosts[1])
	startSink(t, net.JoinHostPort(hosts[1], port))
	former.Stop()
	eventually(t, "the server that took its place is found", push)
}
