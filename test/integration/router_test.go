// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	otelattr "go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// router is Debian's nginx with configs/router/nginx.conf, before two gateways.
type router struct{ grpc, http string }

func startRouter(t *testing.T, gateways [2]gatewayPorts) router {
	t.Helper()
	nginx, err := exec.LookPath("nginx")
	require.NoError(t, err, "scripts/prometheus.sh prints where nginx is")
	text, err := os.ReadFile(root + "/configs/router/nginx.conf")
	require.NoError(t, err)
	r := router{loopback.FreeAddr(t), loopback.FreeAddr(t)}
	dir := t.TempDir()
	moved := strings.NewReplacer(
		"gateway-0:4317", gateways[0].grpc, "gateway-1:4317", gateways[1].grpc,
		"gateway-0:4318", gateways[0].http, "gateway-1:4318", gateways[1].http,
		"listen 4317 ", "listen "+r.grpc+" ", "listen 4318;", "listen "+r.http+";",
		// So that the test's user may write it.
		"access_log off;", strings.ReplaceAll("access_log off; client_body_temp_path D/b; proxy_temp_path D/p; fastcgi_temp_path D/f; uwsgi_temp_path D/u; scgi_temp_path D/s;", "D", dir),
		"fail_timeout=5s", "fail_timeout=1s",
	).Replace(string(text))
	require.NotContains(t, moved, "gateway-")
	require.NotContains(t, moved, ":4317")
	file := filepath.Join(dir, "nginx.conf")
	require.NoError(t, os.WriteFile(file, []byte(moved), 0o600))
	cmd := exec.Command(nginx, "-p", dir, "-e", "stderr", "-c", file, "-g", "daemon off; pid "+dir+"/pid; error_log stderr warn;")
	var log process.Log
	cmd.Stderr = &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("nginx:\n%s", log.Tail(40))
		}
	})
	eventually(t, "nginx listens", func() bool {
		_, err := send(t.Context(), http.MethodGet, "http://"+r.http+"/", nil)
		return err == nil
	})
	return r
}

// sdkPush is a plain program with OpenTelemetry's Go SDK: one gauge of a node, with the
// cluster as a header, as OTEL_EXPORTER_OTLP_HEADERS sets it.
func sdkPush(t *testing.T, r router, overHTTP bool, cluster, node string, value float64) {
	t.Helper()
	headers := map[string]string{"gpu-cluster": cluster}
	var exporter sdkmetric.Exporter
	var err error
	if overHTTP {
		exporter, err = otlpmetrichttp.New(t.Context(), otlpmetrichttp.WithEndpoint(r.http), otlpmetrichttp.WithInsecure(), otlpmetrichttp.WithHeaders(headers))
	} else {
		exporter, err = otlpmetricgrpc.New(t.Context(), otlpmetricgrpc.WithEndpoint(r.grpc), otlpmetricgrpc.WithInsecure(), otlpmetricgrpc.WithHeaders(headers))
	}
	require.NoError(t, err)
	mp := sdkmetric.NewMeterProvider(
		sdkmetric.WithResource(resource.NewSchemaless(otelattr.String("host.name", node), otelattr.String("k8s.cluster.name", cluster))),
		sdkmetric.WithReader(sdkmetric.NewPeriodicReader(exporter, sdkmetric.WithInterval(time.Hour))))
	gauge, err := mp.Meter("job").Float64Gauge("job.progress")
	require.NoError(t, err)
	gauge.Record(t.Context(), value)
	require.NoError(t, mp.ForceFlush(t.Context()), "%s of %s", node, cluster)
	require.NoError(t, mp.Shutdown(context.WithoutCancel(t.Context())))
}

// TestStockSendersBehindTwoGateways: all nodes of a cluster meet at one gateway, whatever
// they push over, and at the other one while theirs is away.
func TestStockSendersBehindTwoGateways(t *testing.T) {
	t.Parallel()
	ports := [2]gatewayPorts{newGatewayPorts(t), newGatewayPorts(t)}
	var gateways [2]*collector
	for i, p := range ports {
		gateways[i] = start(t, options{configs: []string{"configs/gateway.yaml", p.overlay(t)}})
	}
	r := startRouter(t, ports)
	const clusters = 8
	push := func(value float64) {
		t.Helper()
		for c := range clusters {
			for n := range 2 {
				sdkPush(t, r, n == 1, fmt.Sprint("cluster-", c), fmt.Sprint("node-", n), value)
			}
		}
	}
	// at returns how many nodes of each cluster a gateway has with that value.
	at := func(p gatewayPorts, value float64) map[string]int {
		found := map[string]int{}
		s := scrape(t, p.prom)
		for c := range clusters {
			for n := range 2 {
				name := fmt.Sprint("cluster-", c)
				if s.is(value, "job_progress", labels{"k8s_cluster_name": name, "host_name": fmt.Sprint("node-", n)}) {
					found[name]++
				}
			}
		}
		return found
	}
	push(1)
	var owned [2]map[string]int
	eventually(t, "each cluster is at one gateway, whole", func() bool {
		owned = [2]map[string]int{at(ports[0], 1), at(ports[1], 1)}
		return len(owned[0])+len(owned[1]) == clusters
	})
	for i := range owned {
		assert.NotEmpty(t, owned[i], "gateway %d has some of them", i)
		for cluster, nodes := range owned[i] {
			assert.Equal(t, 2, nodes, "%s at gateway %d, over gRPC and HTTP", cluster, i)
		}
	}

	// The router passes a gateway's answer back.
	md := pmetric.NewMetrics()
	score(md, "node-0", map[string]string{"k8s.cluster.name": "cluster-0"}, 0.9)
	var header metadata.MD
	_, err := grpcClient(t, r.grpc).Export(metadata.NewOutgoingContext(t.Context(), metadata.Pairs("gpu-cluster", "cluster-0")),
		pmetricotlp.NewExportRequestFromMetrics(md), grpc.Header(&header))
	require.NoError(t, err)
	assert.NotEmpty(t, header.Get("gpu-state-epoch"))

	gateways[0].kill()
	push(2)
	eventually(t, "the other gateway has all clusters", func() bool { return len(at(ports[1], 2)) == clusters })
}
