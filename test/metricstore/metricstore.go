// SPDX-License-Identifier: Apache-2.0

// Package metricstore runs real servers that keep metrics, for tests: Prometheus and
// VictoriaMetrics, from the PATH that scripts/prometheus.sh and `make test-stores` give.
package metricstore

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// Server is a server that takes pushes and answers PromQL. Between Stop and Start it
// keeps its data and its address.
type Server struct {
	Addr  string
	t     testing.TB
	path  string
	args  []string
	ready string // the path that answers 200 once it is
	cmd   *exec.Cmd
	log   bytes.Buffer // of all its runs; read it after Stop
}

// Prometheus starts Debian's server with that configuration file, and has it take remote
// writes. Its absence is a failure: it is what such a test is about.
func Prometheus(t testing.TB, configuration string) *Server {
	t.Helper()
	return prometheus(t, "prometheus", configuration, "--web.enable-remote-write-receiver")
}

// PrometheusOTLP starts a server of version 3, and has it take OTLP at /api/v1/otlp.
func PrometheusOTLP(t testing.TB, configuration string) *Server {
	t.Helper()
	return prometheus(t, "prometheus-otlp", configuration, "--web.enable-otlp-receiver")
}

func prometheus(t testing.TB, binary, configuration, takes string) *Server {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(config, []byte(configuration), 0o600))
	return run(t, binary, "/-/ready", "--web.listen-address=",
		"--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--log.level=warn", takes)
}

// VictoriaMetrics starts Debian's server.
func VictoriaMetrics(t testing.TB, flag string) *Server {
	t.Helper()
	return victoriaMetrics(t, "victoria-metrics", flag)
}

// VictoriaMetricsOTLP starts a server that takes OTLP at /opentelemetry.
func VictoriaMetricsOTLP(t testing.TB, flag string) *Server {
	t.Helper()
	return victoriaMetrics(t, "victoria-metrics-otlp", flag, "-opentelemetry.usePrometheusNaming")
}

func victoriaMetrics(t testing.TB, binary string, flags ...string) *Server {
	t.Helper()
	return run(t, binary, "/health", "-httpListenAddr=",
		append(flags, "-storageDataPath="+t.TempDir(), "-memory.allowedBytes=128MB", "-loggerLevel=WARN")...)
}

func run(t testing.TB, binary, ready, listen string, args ...string) *Server {
	t.Helper()
	path, err := exec.LookPath(binary)
	require.NoError(t, err, "run make proof SUITES='integration stores', or put the server on the PATH")
	addr := loopback.FreeAddr(t)
	s := &Server{Addr: addr, t: t, path: path, args: append(args, listen+addr), ready: ready}
	t.Cleanup(func() {
		s.Stop()
		if t.Failed() {
			t.Logf("log of %s:\n%s", binary, s.log.String())
		}
	})
	s.Start()
	return s
}

// URL is the server's address for a path.
func (s *Server) URL(path string) string { return "http://" + s.Addr + path }

// Start starts the server and waits until it is ready.
func (s *Server) Start() {
	s.t.Helper()
	s.cmd = exec.CommandContext(context.Background(), s.path, s.args...)
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	require.NoError(s.t, s.cmd.Start())
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	require.True(s.t, process.Within(process.StartDeadline, func() bool {
		resp, err := client.Get(s.URL(s.ready))
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}), "%s is not ready", s.path)
}

// Stop ends the server as an orchestrator does, if it runs.
func (s *Server) Stop() {
	if s.cmd.ProcessState == nil {
		require.NoError(s.t, s.cmd.Process.Signal(syscall.SIGTERM))
		_ = s.cmd.Wait()
	}
}
