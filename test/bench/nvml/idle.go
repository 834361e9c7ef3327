// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/bench/harness"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
)

// The product's promises for an agent that has eight GPUs and no job.
const (
	maxIdleMegabytes  = 45
	maxIdleCPUPercent = 0.5
)

// agent is the lean distribution, and how long it is looked at.
type agent struct {
	binary, config string
	warmup, span   time.Duration
}

// idle measures the agent under its own configuration, on ports of its own, on
// nodes of several sizes.
func (a *agent) idle(ctx context.Context, w io.Writer) error {
	for _, gpus := range []int{1, 8, 16} {
		fmt.Fprintf(os.Stderr, "running the lean agent with %d GPUs for %s\n", gpus, a.warmup+a.span)
		if err := a.node(ctx, w, gpus); err != nil {
			return err
		}
	}
	return nil
}

func (a *agent) node(ctx context.Context, w io.Writer, gpus int) error {
	dir, err := os.MkdirTemp("", "bench-nvml-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	library, err := fakenvml.Build(dir)
	if err != nil {
		return err
	}
	state := filepath.Join(dir, "state")
	if err = fakenvml.NewH100(gpus).Write(state); err != nil {
		return err
	}
	next, stop, err := harness.NextHop(ctx, 0)
	if err != nil {
		return err
	}
	defer stop()
	c, err := harness.Start(ctx, harness.Setup{
		Name: "agent", Binary: a.binary, Configs: []string{a.config}, Metrics: true,
		Overrides: []string{
			"receivers::nvml::library_path: " + library,
			"receivers::otlp::protocols::http::endpoint: 127.0.0.1:0",
			"extensions::healthcheckv2::http::endpoint: 127.0.0.1:0",
		},
		Env: []string{fakenvml.StateEnv + "=" + state, "GPU_COLLECTOR_GATEWAY=" + next, "GPU_COLLECTOR_INSECURE=true"},
	})
	if err != nil {
		return err
	}
	return errors.Join(a.measure(ctx, w, gpus, c), c.Close())
}

func (a *agent) measure(ctx context.Context, w io.Writer, gpus int, c *harness.Collector) error {
	if err := harness.Wait(ctx, a.warmup); err != nil {
		return err
	}
	before, _, err := c.Usage()
	if err != nil {
		return err
	}
	began := time.Now()
	if err = harness.Wait(ctx, a.span); err != nil {
		return err
	}
	after, resident, err := c.Usage()
	if err != nil {
		return err
	}
	if err = c.Pushed(ctx); err != nil {
		return err
	}
	percent := 100 * (after - before) / time.Since(began).Seconds()
	if gpus != 8 { // which the promise is of
		suffix := fmt.Sprintf("_%dgpu", gpus)
		figure.FprintOnly(w, "agent_idle_rss"+suffix, resident/1e6, "MB")
		figure.FprintOnly(w, "agent_idle_cpu"+suffix, percent, "%")
		return nil
	}
	figure.Fprint(w, "agent_idle_rss", resident/1e6, "MB", maxIdleMegabytes, true)
	anonymous, err := c.Anonymous()
	if err != nil {
		return err
	}
	figure.FprintOnly(w, "agent_idle_rss_anon", anonymous/1e6, "MB")
	figure.Fprint(w, "agent_idle_cpu", percent, "%", maxIdleCPUPercent, true)
	return nil
}
