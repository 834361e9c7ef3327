// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/procfs"

	"github.com/gpu-collector/gpu-collector/test/loopback"
)

// process is a Collector of the distribution under a configuration of its own.
type process struct {
	name, endpoint, telemetry, prometheus, pprof string

	cmd    *exec.Cmd
	dir    string
	exited chan struct{}
	err    error // once exited is closed

	mu   sync.Mutex
	said []string // the last lines of its log
	gc   gcTrace
}

// tail is how much of a process's log is kept for when it fails.
const tail = 20

// start runs the binary under the configurations and returns once it is ready.
// Its ports are free ones, and its next hop is next.
func start(ctx context.Context, binary, name, next string, configs ...string) (_ *process, err error) {
	p := &process{name: name, exited: make(chan struct{})}
	var addrs [8]string
	for i := range addrs {
		if addrs[i], err = loopback.Addr(ctx); err != nil {
			return nil, err
		}
	}
	p.endpoint, p.telemetry, p.prometheus, p.pprof = addrs[0], addrs[1], addrs[2], addrs[3]
	telemetryHost, telemetryPort, _ := strings.Cut(p.telemetry, ":")
	if p.dir, err = os.MkdirTemp("", "bench-tiers-"); err != nil {
		return nil, err
	}
	var args []string
	for _, c := range configs {
		args = append(args, "--config", c)
	}
	overrides := []string{
		"receivers::otlp::protocols::grpc::endpoint: " + p.endpoint,
		fmt.Sprintf("service::telemetry::metrics::readers: [{pull: {exporter: {prometheus: {host: %s, port: %s}}}}]", telemetryHost, telemetryPort),
	}
	if strings.HasPrefix(configs[0], "configs/") {
		overrides = append(overrides,
			"receivers::otlp::protocols::http::endpoint: "+addrs[7],
			"extensions::healthcheckv2::http::endpoint: "+addrs[4])
	}
	if configs[0] == gatewayConfig {
		overrides = append(overrides,
			"exporters::prometheus::endpoint: "+p.prometheus,
			"extensions::straggler_threshold::api::endpoint: "+addrs[5],
			"extensions::fleet_view::http::endpoint: "+addrs[6],
			// A pprof server costs nothing until it is asked.
			"extensions::pprof::endpoint: "+p.pprof,
			"service::extensions: [admission, straggler_threshold, fleet_view, healthcheckv2, pprof]")
	}
	for _, o := range overrides {
		args = append(args, "--config", "yaml:"+o)
	}
	p.cmd = exec.CommandContext(ctx, binary, args...)
	p.cmd.Env = append(os.Environ(), "GODEBUG=gctrace=1", "STATE_DIRECTORY="+p.dir,
		"GPU_COLLECTOR_GATEWAY="+next, "GPU_COLLECTOR_INSECURE=true")
	if slices.Contains(configs, rootOverlay) {
		// As docs/operations.md says, for the 2 GB that it may have.
		p.cmd.Env = append(p.cmd.Env, "GOMEMLIMIT=1600MiB")
	}
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = 10 * time.Second
	stderr, err := p.cmd.StderrPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(p.dir))
	}
	ready := make(chan struct{})
	go p.read(stderr, ready)
	select {
	case <-ready:
		return p, nil
	case <-p.exited:
		return nil, errors.Join(p.failed(), os.RemoveAll(p.dir))
	}
}

// read follows the log, and ready once the process is.
func (p *process) read(log io.Reader, ready chan struct{}) {
	isReady := false
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		p.mu.Lock()
		if !p.gc.add(line) {
			p.said = append(p.said, line)
			p.said = p.said[max(0, len(p.said)-tail):]
		}
		p.mu.Unlock()
		if !isReady && strings.Contains(line, "Everything is ready") {
			isReady = true
			close(ready)
		}
	}
	_, _ = io.Copy(io.Discard, log)
	p.err = p.cmd.Wait()
	close(p.exited)
}

func (p *process) failed() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Errorf("the %s ended: %w; it said:\n%s", p.name, p.err, strings.Join(p.said, "\n"))
}

// stop ends the process. It is an error when it had ended before.
func (p *process) stop() error {
	defer func() { _ = os.RemoveAll(p.dir) }()
	select {
	case <-p.exited:
		return p.failed()
	default:
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(30 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
	return nil
}

// usage is what a process has used so far: CPU in user and kernel mode, and the
// memory that is resident now.
type usage struct {
	cpu      float64 // seconds
	resident float64 // bytes
	gc       gcTrace
}

func (p *process) usage() (usage, error) {
	select {
	case <-p.exited:
		return usage{}, p.failed()
	default:
	}
	proc, err := procfs.NewProc(p.cmd.Process.Pid)
	if err != nil {
		return usage{}, err
	}
	stat, err := proc.Stat()
	if err != nil {
		return usage{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return usage{stat.CPUTime(), float64(stat.ResidentMemory()), p.gc}, nil
}

// peak is the most that was ever resident, in bytes.
func (p *process) peak() (float64, error) {
	proc, err := procfs.NewProc(p.cmd.Process.Pid)
	if err != nil {
		return 0, err
	}
	status, err := proc.NewStatus()
	return float64(status.VmHWM), err
}

// ticks is the sum and the number of the straggler processor's ticks so far.
func (p *process) ticks(ctx context.Context) (seconds float64, ticks uint64, err error) {
	body, err := get(ctx, "http://"+p.telemetry+"/metrics")
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = body.Close() }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(body)
	if err != nil {
		return 0, 0, err
	}
	for name, f := range families {
		if strings.HasPrefix(name, "otelcol_processor_straggler_tick_duration") {
			for _, m := range f.GetMetric() {
				seconds += m.GetHistogram().GetSampleSum()
				ticks += m.GetHistogram().GetSampleCount()
			}
		}
	}
	return seconds, ticks, nil
}

// scrape reads what the process shows to Prometheus.
func (p *process) scrape(ctx context.Context) (bytes int64, err error) {
	body, err := get(ctx, "http://"+p.prometheus+"/metrics")
	if err != nil {
		return 0, err
	}
	defer func() { _ = body.Close() }()
	return io.Copy(io.Discard, body)
}

func get(ctx context.Context, url string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("GET %s: %s", url, resp.Status), resp.Body.Close())
	}
	return resp.Body, nil
}

// write makes a configuration of the process's own.
func write(dir, text string) (string, error) {
	file := filepath.Join(dir, "config.yaml")
	return file, os.WriteFile(file, []byte(text), 0o600)
}
