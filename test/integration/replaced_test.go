// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/nameserver"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// TestAReplacedServerIsFound gives the only server behind a name another
// address, as Kubernetes does with each pod. gRPC by itself would not ask for
// the name before 30 s have passed since it last did.
func TestAReplacedServerIsFound(t *testing.T) {
	t.Parallel()
	hosts := []string{"127.0.0.1", "127.0.0.2"}
	port := process.Port(loopback.FreeAddr(t))
	names := nameserver.Start(t, hosts[0])
	sink := &process.NextHop{Take: func(context.Context, pmetric.Metrics) error { return nil }}
	former := sink.Listen(t, net.JoinHostPort(hosts[0], port))
	addr := loopback.FreeAddr(t)
	process.Run(t, process.Options{Config: []string{fmt.Sprintf(`
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
	client := process.Dial(t, addr)
	push := func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		md := pmetric.NewMetrics()
		process.Gauge(process.Node(md, "a"), "test.value", "", 1)
		_, err := process.Export(ctx, client, md)
		return err == nil
	}
	process.Eventually(t, "the server is found", push)

	names.Set(hosts[1])
	sink.Listen(t, net.JoinHostPort(hosts[1], port))
	former.Stop()
	process.Eventually(t, "the server that took its place is found", push)
}
