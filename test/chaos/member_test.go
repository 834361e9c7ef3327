// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// member is a collector of a tier. Its addresses outlive restarts.
type member struct {
	*process.Process
	name                                                      string
	grpc, http, prom, health, pprof, telemetry, api, fleetAPI string
	before                                                    level
}

// level is what a process takes.
type level struct{ heap, goroutines int }

// newMember prepares a collector: a shipped configuration at addresses of its
// own, and overlays over it.
func newMember(t *testing.T, name string, env []string, configs ...string) *member {
	t.Helper()
	m := &member{name: name}
	for _, addr := range []*string{&m.grpc, &m.http, &m.prom, &m.health, &m.pprof, &m.telemetry, &m.api, &m.fleetAPI} {
		*addr = loopback.FreeAddr(t)
	}
	c := process.Command{Path: *binary, Dir: root, Env: append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "STATE_DIRECTORY=" + t.TempDir(),
	}, env...)}
	for _, text := range append(configs, m.overlay(t, configs)) {
		c.Args = append(c.Args, "--config", asFile(t, text))
	}
	m.Process = process.New(c)
	t.Cleanup(func() {
		assert.NoError(t, m.Stop(), m.name)
		if t.Failed() {
			t.Logf("log of %s:\n%s", m.name, m.Log.Tail(40))
		}
	})
	return m
}

// asFile returns the name of a file with the text, which may be one already.
func asFile(t *testing.T, text string) string {
	t.Helper()
	if !strings.Contains(text, "\n") {
		return text
	}
	file := t.TempDir() + "/config.yaml"
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// overlay moves a shipped configuration, the first of the member's, to its
// addresses and to shorter times.
func (m *member) overlay(t *testing.T, configs []string) string {
	t.Helper()
	receivers := fmt.Sprintf("receivers: {fleet_otlp: {protocols: {grpc: {endpoint: %q}, http: {endpoint: %q}}}}", m.grpc, m.http)
	common := fmt.Sprintf("healthcheckv2: {http: {endpoint: %q}}, pprof: {endpoint: %q}", m.health, m.pprof)
	_, port, err := net.SplitHostPort(m.telemetry)
	require.NoError(t, err)
	telemetry := fmt.Sprintf("telemetry: {metrics: {readers: [{pull: {exporter: {prometheus: {host: 127.0.0.1, port: %s}}}}]}}", port)
	switch configs[0] {
	case "configs/agent.yaml":
		return fmt.Sprintf(`
%s
processors: {straggler: {push_interval: %s}}
exporters:
  otlp_grpc: {timeout: 1s}
  otlp_grpc/events: {timeout: 1s}
extensions: {exposition: {http: {endpoint: %q}}, %s}
service:
  extensions: [straggler_threshold, exposition, healthcheckv2, pprof]
  %s
  pipelines:
    metrics: {receivers: [fleet_otlp]}
    logs: {receivers: [fleet_otlp]}
`, receivers, interval, m.prom, common, telemetry)
	case "configs/shard.yaml":
		return fmt.Sprintf(`
%s
# Without deadbands the gateway's state is the agents' to the bit.
processors: {diff: {deadbands: []}}
exporters: {otlp_grpc: {timeout: 500ms}, otlp_grpc/events: {timeout: 500ms}}
extensions: {%s}
service:
  extensions: [straggler_threshold, exposition, healthcheckv2, pprof]
  %s
`, receivers, common, telemetry)
	case "configs/gateway.yaml":
		return fmt.Sprintf(`
%s
processors: {straggler: {push_interval: %s}}
extensions: {exposition: {http: {endpoint: %q}}, %s, straggler_threshold: {api: {endpoint: %q}}, fleet_view: {http: {endpoint: %q}}}
service:
  extensions: [straggler_threshold, exposition, fleet_view, healthcheckv2, pprof]
  %s
`, receivers, interval, m.prom, common, m.api, m.fleetAPI, telemetry)
	default:
		require.Fail(t, "no overlay for "+configs[0])
		return ""
	}
}

// level returns what the process takes after a garbage collection.
func (m *member) level(t *testing.T) level {
	t.Helper()
	var l level
	read := func(page, format string, into *int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.pprof+"/debug/pprof/"+page, http.NoBody)
		require.NoError(t, err)
		resp, err := httpClient.Do(req)
		require.NoError(t, err, m.name)
		defer func() { _ = resp.Body.Close() }()
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			if n, _ := fmt.Sscanf(lines.Text(), format, into); n == 1 {
				_, err = io.Copy(io.Discard, resp.Body)
				require.NoError(t, err)
				return
			}
		}
		require.Fail(t, m.name+" has no "+format, lines.Err())
	}
	// Twice: what has a finalizer, or was pooled, is free after the second.
	read("heap?gc=1&debug=1", "# HeapAlloc = %d", &l.heap)
	read("heap?gc=1&debug=1", "# HeapAlloc = %d", &l.heap)
	read("goroutine?debug=1", "goroutine profile: total %d", &l.goroutines)
	return l
}
