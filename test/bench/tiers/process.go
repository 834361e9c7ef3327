// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/procfs"

	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// collector is a process of the distribution under a configuration of its own.
type collector struct {
	*process.Process
	name, dir                              string
	endpoint, telemetry, prometheus, pprof string
}

// start runs the binary under the configurations and returns once it is ready.
// Its ports are free ones, and its next hop is next.
func start(ctx context.Context, binary, name, next string, configs ...string) (*collector, error) {
	c := &collector{name: name}
	var rest [4]string
	for _, addr := range []*string{&c.endpoint, &c.telemetry, &c.prometheus, &c.pprof, &rest[0], &rest[1], &rest[2], &rest[3]} {
		var err error
		if *addr, err = loopback.Addr(ctx); err != nil {
			return nil, err
		}
	}
	var err error
	if c.dir, err = os.MkdirTemp("", "bench-tiers-"); err != nil {
		return nil, err
	}
	host, port, _ := strings.Cut(c.telemetry, ":")
	overrides := []string{
		"receivers::otlp::protocols::grpc::endpoint: " + c.endpoint,
		fmt.Sprintf("service::telemetry::metrics::readers: [{pull: {exporter: {prometheus: {host: %s, port: %s}}}}]", host, port),
	}
	if strings.HasSuffix(configs[0], shardConfig) || configs[0] == gatewayConfig {
		overrides = append(overrides,
			"receivers::otlp::protocols::http::endpoint: "+rest[0],
			"extensions::healthcheckv2::http::endpoint: "+rest[1])
	}
	if configs[0] == gatewayConfig {
		overrides = append(overrides,
			"exporters::prometheus::endpoint: "+c.prometheus,
			"extensions::straggler_threshold::api::endpoint: "+rest[2],
			"extensions::fleet_view::http::endpoint: "+rest[3],
			// It costs nothing until it is asked.
			"extensions::pprof::endpoint: "+c.pprof,
			"service::extensions: [admission, straggler_threshold, fleet_view, healthcheckv2, pprof]")
	}
	env := append(os.Environ(), "GODEBUG=gctrace=1", "STATE_DIRECTORY="+c.dir,
		"GPU_COLLECTOR_GATEWAY="+next, "GPU_COLLECTOR_INSECURE=true")
	if slices.Contains(configs, rootOverlay) {
		// As docs/operations.md says and the chart does in a container of 2 GiB.
		env = append(env, "GOMEMLIMIT=1638MiB", "GOGC=200")
		overrides = append(overrides, "processors::memory_limiter: {limit_mib: 1843, spike_limit_mib: 205}")
	}
	var args []string
	for _, file := range configs {
		args = append(args, "--config", file)
	}
	for _, o := range overrides {
		args = append(args, "--config", "yaml:"+o)
	}
	c.Process = process.New(process.Command{Path: binary, Args: args, Env: env})
	if err := c.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), os.RemoveAll(c.dir))
	}
	return c, nil
}

// stop ends the collector. It is an error when it had ended before; how long it
// takes, with a history to write, is not what is measured here.
func (c *collector) stop() error {
	var err error
	if c.Ended() {
		err = fmt.Errorf("the %s ended; it said:\n%s", c.name, c.Log.Tail(20))
	}
	_ = c.Stop()
	return errors.Join(err, os.RemoveAll(c.dir))
}

// usage is what a process has used so far: CPU in user and kernel mode, and the
// memory that is resident now.
type usage struct {
	cpu      float64 // seconds
	resident float64 // bytes
	gc       gcTrace
}

func (c *collector) usage() (usage, error) {
	if c.Ended() {
		return usage{}, fmt.Errorf("the %s ended; it said:\n%s", c.name, c.Log.Tail(20))
	}
	proc, err := procfs.NewProc(c.PID())
	if err != nil {
		return usage{}, err
	}
	stat, err := proc.Stat()
	if err != nil {
		return usage{}, err
	}
	return usage{stat.CPUTime(), float64(stat.ResidentMemory()), readTrace(c.Log.Lines("gc "))}, nil
}

// peak is the most that was ever resident, in bytes.
func (c *collector) peak() (float64, error) {
	proc, err := procfs.NewProc(c.PID())
	if err != nil {
		return 0, err
	}
	status, err := proc.NewStatus()
	return float64(status.VmHWM), err
}

// compared is what the straggler processor says of itself: how long its ticks
// took so far, in seconds, how many they were, and of how many nodes the last.
type compared struct {
	seconds, nodes float64
	ticks          uint64
}

func (c *collector) compared(ctx context.Context) (s compared, err error) {
	body, err := process.Get(ctx, "http://"+c.telemetry+"/metrics")
	if err != nil {
		return s, err
	}
	defer func() { _ = body.Close() }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(body)
	if err != nil {
		return s, err
	}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			switch {
			case strings.HasPrefix(name, "otelcol_processor_straggler_tick_duration"):
				s.seconds += m.GetHistogram().GetSampleSum()
				s.ticks += m.GetHistogram().GetSampleCount()
			case strings.HasPrefix(name, "otelcol_processor_straggler_nodes"):
				s.nodes += m.GetGauge().GetValue()
			}
		}
	}
	return s, nil
}

// scrape reads what the process shows to Prometheus.
func (c *collector) scrape(ctx context.Context) (bytes int64, err error) {
	body, err := process.Get(ctx, "http://"+c.prometheus+"/metrics")
	if err != nil {
		return 0, err
	}
	defer func() { _ = body.Close() }()
	return io.Copy(io.Discard, body)
}
