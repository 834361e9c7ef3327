// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/test/loopback"
)

// TestSecretsStayOutOfSight gives a gateway a secret wherever it takes one. It looks
// for the secrets in the log at debug level, the debug pages, the gateway's own
// metrics, its printed configuration, and its errors.
func TestSecretsStayOutOfSight(t *testing.T) {
	t.Parallel()
	const secret = "s3cret-that-nobody-may-see"
	ports := newGatewayPorts(t)
	zpages, pprof := loopback.FreeAddr(t), loopback.FreeAddr(t)
	overlay := fmt.Sprintf(`
extensions:
  basicauth/in: {htpasswd: {inline: "lab:%[1]s-1"}}
  basicauth/out: {client_auth: {username: lab, password: "%[1]s-2"}}
  bearertokenauth: {token: "%[1]s-3"}
  zpages: {endpoint: %[2]q}
  pprof: {endpoint: %[3]q}
  fleet_view:
    history: {storage: prometheus, prometheus: {http: {endpoint: "http://127.0.0.1:1", headers: {X-Key: "%[1]s-4"}, auth: {authenticator: basicauth/out}}}}
receivers:
  fleet_otlp:
    protocols:
      grpc: {auth: {authenticator: basicauth/in}}
      http: {auth: {authenticator: bearertokenauth}}
exporters:
  otlp_grpc: {endpoint: "127.0.0.1:1", tls: {insecure: true}, headers: {x-key: "%[1]s-5"}, sending_queue: {enabled: false}, retry_on_failure: {enabled: false}}
service:
  extensions: [basicauth/in, basicauth/out, bearertokenauth, zpages, pprof, straggler_threshold, exposition, fleet_view, healthcheckv2]
  telemetry:
    logs: {level: debug}
  pipelines:
    metrics: {exporters: [fleet_view, otlp_grpc]}
`, secret, zpages, pprof)
	configs := []string{"configs/gateway.yaml", ports.overlay(t), overlay}
	g := start(t, options{configs: configs})

	// Pushes that pass and pushes that do not, with secrets of their own.
	md := pmetric.NewMetrics()
	healthyFleet(md, "lab")
	body := marshal(t, md)
	for _, token := range []string{"Bearer " + secret + "-3", "Bearer " + secret + "-wrong", "Basic " + secret, secret} {
		post(t, "http://"+ports.http+"/v1/metrics", protobufType, body, "Authorization", token)
		_, err := send(t.Context(), http.MethodPost, "http://"+ports.http+"/v1/metrics?token="+secret+"-6", []byte("garbage"), "Authorization", token, "Content-Type", protobufType)
		require.NoError(t, err)
	}
	for name, url := range map[string]string{
		"zpages: service":    zpages + "/debug/servicez",
		"zpages: pipelines":  zpages + "/debug/pipelinez",
		"zpages: extensions": zpages + "/debug/extensionz",
		"zpages: traces":     zpages + "/debug/tracez",
		"pprof: command":     pprof + "/debug/pprof/cmdline",
		"own metrics":        ports.telemetry + "/metrics",
		"metrics":            ports.prom + "/metrics",
		"an error's answer":  ports.fleet + "/api/v1/telemetry",
		"threshold API":      ports.api + "/api/v1/thresholds",
	} {
		resp := get(t, "http://"+url)
		assert.NotContains(t, string(resp.body), secret, name)
	}
	assert.NotEmpty(t, g.log.Lines("debug"), "the log is at debug level")

	// A configuration that does not run says what, without the secret beside it.
	text, err := validate(t, collectorBinary, "configs/gateway.yaml", overlay, "\nprocessors: {straggler: {mode: judge}}\n")
	require.Error(t, err)
	assert.NotContains(t, text, secret, "validate")
	text, err = validate(t, collectorBinary, "configs/gateway.yaml", overlay, "\nextensions: {basicauth/out: {client_auth: {pasword: typo}}}\n")
	require.Error(t, err)
	assert.NotContains(t, text, secret, "validate, of a typing error beside it")

	g.stop()
	assert.Empty(t, g.log.Lines(secret), "the log")
}

// endpoints are the values of endpoint in a configuration, and the variable of
// ours that makes one listen on all addresses.
var endpoints = regexp.MustCompile(`(?m)^([^#\n]*)endpoint: "?((?:\$\{[^}]*\}|[^\s"},])+)`)

// TestListeningBeyondLoopbackIsSaid: what listens on more than loopback says so
// at the top of its file, and that anybody can push then.
func TestListeningBeyondLoopbackIsSaid(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(root + "/configs/*.yaml")
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		head, _, _ := strings.Cut(string(text), "\nreceivers:")
		open := 0
		_, servers, _ := strings.Cut(string(text), "\nreceivers:")
		for _, m := range endpoints.FindAllStringSubmatch(servers, -1) {
			at := m[2]
			host := regexp.MustCompile(`\$\{env:[A-Z_]+:-([^}]*)\}`).ReplaceAllString(at, "$1")
			if h, _, err := net.SplitHostPort(host); err == nil && (h == "0.0.0.0" || h == "") {
				open++
				assert.Contains(t, at, "${env:GPU_COLLECTOR_LISTEN:-", "%s: %s can be narrowed", file, at)
			}
		}
		if filepath.Base(file) == "gateway.yaml" {
			assert.Equal(t, 3, open, "gRPC, HTTP and Prometheus")
		}
		if open > 0 {
			assert.Contains(t, head, "GPU_COLLECTOR_LISTEN", file)
			assert.Contains(t, strings.ReplaceAll(head, "\n# ", " "), "anybody who reaches the ports", file)
		}
	}
}
