// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// TestSecretsStayOutOfSight gives a gateway a secret wherever it takes one. It looks
// for the secrets in the log at debug level, the debug pages, the gateway's own
// metrics, its printed configuration, and its errors.
func TestSecretsStayOutOfSight(t *testing.T) {
	t.Parallel()
	const secret = "s3cret-that-nobody-may-see"
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
	g := startGateway(t, overlay)

	// Pushes that pass and pushes that do not, with secrets of their own.
	body := process.Marshal(t, healthyFleet())
	for _, token := range []string{"Bearer " + secret + "-3", "Bearer " + secret + "-wrong", "Basic " + secret, secret} {
		process.Post(t, g.Push(), process.Protobuf, body, "Authorization", token)
		_, err := process.Send(t.Context(), nil, http.MethodPost, g.Push()+"?token="+secret+"-6", []byte("garbage"), "Authorization", token, "Content-Type", process.Protobuf)
		require.NoError(t, err)
	}
	for name, url := range map[string]string{
		"zpages: service":    zpages + "/debug/servicez",
		"zpages: pipelines":  zpages + "/debug/pipelinez",
		"zpages: extensions": zpages + "/debug/extensionz",
		"zpages: traces":     zpages + "/debug/tracez",
		"pprof: command":     pprof + "/debug/pprof/cmdline",
		"own metrics":        g.Telemetry + "/metrics",
		"metrics":            g.Prom + "/metrics",
		"an error's answer":  g.Fleet + "/api/v1/telemetry",
		"threshold API":      g.API + "/api/v1/thresholds",
	} {
		resp := process.Fetch(t, "http://"+url)
		assert.NotContains(t, string(resp.Body), secret, name)
	}
	assert.NotEmpty(t, g.Log.Lines("debug"), "the log is at debug level")

	// The error of a bad configuration does not have the secret beside the mistake.
	text, err := validate(t, process.Binary(t, "gpu-collector"), "configs/gateway.yaml", overlay, "\nprocessors: {straggler: {mode: judge}}\n")
	require.Error(t, err)
	assert.NotContains(t, text, secret, "validate")
	text, err = validate(t, process.Binary(t, "gpu-collector"), "configs/gateway.yaml", overlay, "\nextensions: {basicauth/out: {client_auth: {pasword: typo}}}\n")
	require.Error(t, err)
	assert.NotContains(t, text, secret, "validate, of a typing error beside it")

	g.Stop()
	assert.Empty(t, g.Log.Lines(secret), "the log")
}

// TestListeningBeyondLoopbackIsDocumented: the top of a file whose ports are open has the
// variable that closes them, and that anybody can push.
func TestListeningBeyondLoopbackIsDocumented(t *testing.T) {
	t.Parallel()
	const narrowed = "${env:GPU_COLLECTOR_LISTEN:-0.0.0.0}:"
	wide := regexp.MustCompile(`(?m)^[^#\n]*endpoint: "?(\$\{env:\w+:-)?(0\.0\.0\.0)?\}?:`)
	files, err := filepath.Glob(process.Root + "/configs/*.yaml")
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		head, servers, _ := strings.Cut(string(text), "\nreceivers:")
		assert.NotRegexp(t, wide, strings.ReplaceAll(servers, narrowed, "narrowed:"), file)
		open := strings.Count(servers, narrowed)
		if filepath.Base(file) == "gateway.yaml" {
			assert.Equal(t, 3, open, "gRPC, HTTP and Prometheus")
		}
		if open > 0 {
			assert.Contains(t, head, "GPU_COLLECTOR_LISTEN", file)
			assert.Contains(t, strings.ReplaceAll(head, "\n# ", " "), "anybody who reaches the ports", file)
		}
	}
}
