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
	log   bytes.Buffer // of all its lives, for whoever comes after Stop
}

// Prometheus starts Debian's server with that configuration file, and has it take remote
// writes. Its absence is a failure: it is what such a test is about.
func Prometheus(t testing.TB, configuration string, flags ...string) *Server {
	t.Helper()
	return prometheus(t, "prometheus", configuration, append(flags, "--web.enable-remote-write-receiver"))
}

// PrometheusOTLP starts a server of version 3, and has it take OTLP at /api/v1/otlp.
func PrometheusOTLP(t testing.TB, configuration string, flags ...string) *Server {
	t.Helper()
	return prometheus(t, "prometheus-otlp", configuration, append(flags, "--web.enable-otlp-receiver"))
}

func prometheus(t testing.TB, binary, configuration string, flags []string) *Server {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(config, []byte(configuration), 0o600))
	addr := loopback.FreeAddr(t)
	return run(t, binary, addr, "/-/ready", append([]string{
		"--config.file=" + config, "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + addr, "--log.level=warn",
	}, flags...))
}

// VictoriaMetrics starts Debian's server.
func VictoriaMetrics(t testing.TB, flags ...string) *Server {
	t.Helper()
	return victoriaMetrics(t, "victoria-metrics", flags)
}

// VictoriaMetricsOTLP starts a server that takes OTLP at /opentelemetry.
func VictoriaMetricsOTLP(t testing.TB, flags ...string) *Server {
	t.Helper()
	return victoriaMetrics(t, "victoria-metrics-otlp", append(flags, "-opentelemetry.usePrometheusNaming"))
}

func victoriaMetrics(t testing.TB, binary string, flags []string) *Server {
	t.Helper()
	addr := loopback.FreeAddr(t)
	return run(t, binary, addr, "/health", append([]string{
		"-storageDataPath=" + t.TempDir(), "-httpListenAddr=" + addr, "-memory.allowedBytes=128MB", "-loggerLevel=WARN",
	}, flags...))
}

func run(t testing.TB, binary, addr, ready string, args []string) *Server {
	t.Helper()
	path, err := exec.LookPath(binary)
	require.NoError(t, err, "run make proof SUITES='integration stores', or put the server on the PATH")
	s := &Server{Addr: addr, t: t, path: path, args: args, ready: ready}
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
	if s.cmd == nil {
		return
	}
	cmd := s.cmd
	s.cmd = nil
	require.NoError(s.t, cmd.Process.Signal(syscall.SIGTERM))
	_ = cmd.Wait()
}
