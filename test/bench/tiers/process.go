// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/test/bench/harness"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// collector is a process of the distribution under a configuration of its own.
type collector struct {
	*harness.Collector
	prometheus, pprof string
}

// start runs the binary under the configurations and returns once it is ready.
// Its ports are free ones, and its next hop is next.
func start(ctx context.Context, binary, name, next string, configs ...string) (*collector, error) {
	addresses, err := harness.Addresses(ctx, 2)
	if err != nil {
		return nil, err
	}
	c := &collector{prometheus: addresses[0], pprof: addresses[1]}
	var overrides []string
	isGateway := strings.HasSuffix(configs[0], gatewayConfig)
	if strings.HasSuffix(configs[0], shardConfig) || isGateway {
		overrides = append(overrides, "receivers::otlp::protocols::http::endpoint: %s", "extensions::healthcheckv2::http::endpoint: %s")
	}
	if isGateway {
		endpoint, all := "extensions::exposition::http::endpoint: ", "exposition, "
		if text, err := os.ReadFile(configs[0]); err != nil || !strings.Contains(string(text), "exposition:") {
			endpoint, all = "exporters::prometheus::endpoint: ", "" // an older tree's
		} else if strings.Contains(string(text), "file_storage:") {
			all += "file_storage, "
		}
		overrides = append(overrides,
			endpoint+c.prometheus,
			"extensions::straggler_threshold::api::endpoint: %s",
			"extensions::fleet_view::http::endpoint: %s",
			// It costs nothing until it is asked.
			"extensions::pprof::endpoint: "+c.pprof,
			"service::extensions: ["+all+"admission, straggler_threshold, fleet_view, healthcheckv2, pprof]")
	}
	env := []string{"GODEBUG=gctrace=1", "GPU_COLLECTOR_GATEWAY=" + next, "GPU_COLLECTOR_INSECURE=true"}
	if slices.Contains(configs, rootOverlay) {
		// As docs/operations.md says and the chart does in a container of 2 GiB.
		env = append(env, "GOMEMLIMIT=1638MiB", "GOGC=200")
		overrides = append(overrides, "processors::memory_limiter: {limit_mib: 1843, spike_limit_mib: 205}")
	}
	if configs[0] == shardConfig { // of this tree; the other's chart gave its shards less
		env = append(env, "GOMEMLIMIT=1638MiB", "GOGC=200")
	}
	c.Collector, err = harness.Start(ctx, harness.Setup{Name: name, Binary: binary, Configs: configs, Overrides: overrides, Env: env, Metrics: true})
	return c, err
}

// stop ends the collector. It is an error when it had ended before; how long it
// takes, with a history to write, is not what is measured here.
func (c *collector) stop() error {
	err := c.Alive()
	_ = c.Close()
	return err
}

// usage is what a process has used so far: CPU in user and kernel mode, and the
// memory that is resident now.
type usage struct {
	cpu      float64 // seconds
	resident float64 // bytes
	gc       gcTrace
}

func (c *collector) usage() (usage, error) {
	cpu, resident, err := c.Usage()
	return usage{cpu, resident, readTrace(c.Log.Lines("gc "))}, err
}

// compared is what the straggler processor says of itself: how long its ticks
// took so far, in seconds, how many they were, and of how many nodes the last.
type compared struct {
	seconds, nodes float64
	ticks          uint64
}

func (c *collector) compared(ctx context.Context) (s compared, err error) {
	families, err := c.Families(ctx)
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

// ticked waits for the first comparison: ticks fall on multiples of the interval, so it
// comes up to two intervals after the start.
func (c *collector) ticked(ctx context.Context) error {
	const most = 3 * interval
	for end := time.Now().Add(most); ; {
		s, err := c.compared(ctx)
		if err != nil || s.ticks > 0 {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("the %s has compared nothing within %s", c.Name, most)
		}
		if err := harness.Wait(ctx, time.Second/2); err != nil {
			return err
		}
	}
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
