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
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/bench/harness"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
)

// The product's promises for an agent that has eight GPUs and no job.
const (
	maxIdleMegabytes  = 45
	maxIdleCPUPercent = 0.5
	// With both receivers, and 4,000 operations a second of eight ranks.
	maxRanksMegabytes, maxRanksCPUPercent = 60, 3
)

// agent is the lean distribution, and how long it is looked at.
type agent struct {
	binary, config string
	warmup, span   time.Duration
	ranks          bool // that write what NCCL's Inspector does
	prom           bool // in the Prometheus form
}

// idle measures the agent under its own configuration, on ports of its own, on
// nodes of several sizes.
func (a *agent) idle(ctx context.Context, w io.Writer) error {
	if a.ranks {
		for _, a.prom = range []bool{false, true} {
			fmt.Fprintf(os.Stderr, "running the lean agent beside %d ranks for %s\n", rankCount, a.warmup+a.span)
			if err := a.node(ctx, w, rankCount); err != nil {
				return err
			}
		}
		return nil
	}
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
	configs, env := []string{a.config}, []string{fakenvml.StateEnv + "=" + state, "GPU_COLLECTOR_GATEWAY=" + next, "GPU_COLLECTOR_INSECURE=true"}
	if a.ranks {
		files, err := startRanks(ctx, dir, a.prom)
		if err != nil {
			return err
		}
		defer func() { _ = files.close() }()
		configs, env = append(configs, "configs/overlays/nccl.yaml"), append(env, "GPU_COLLECTOR_NCCL="+dir)
	}
	c, err := harness.Start(ctx, harness.Setup{
		Name: "agent", Binary: a.binary, Configs: configs, Metrics: true,
		Overrides: []string{
			"receivers::nvml::library_path: " + library,
			"receivers::otlp::protocols::http::endpoint: 127.0.0.1:0",
			"extensions::healthcheckv2::http::endpoint: 127.0.0.1:0",
		},
		Env: env,
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
	linesBefore, err := linesRead(ctx, c)
	if err != nil {
		return err
	}
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
	lines, err := linesRead(ctx, c)
	if err != nil {
		return err
	}
	percent := 100 * (after - before) / time.Since(began).Seconds()
	if a.ranks {
		if lines == linesBefore {
			return fmt.Errorf("the %s read nothing of the ranks", c.Name)
		}
		name := "nccl_agent_"
		if a.prom {
			name += "prometheus_"
		}
		figure.Fprint(w, name+"rss", resident/1e6, "MB", maxRanksMegabytes, true)
		figure.Fprint(w, name+"cpu", percent, "%", maxRanksCPUPercent, true)
		figure.FprintOnly(w, name+"lines", (lines-linesBefore)/a.span.Seconds(), "/s")
		return nil
	}
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

// linesRead is how many lines of the ranks the agent has read, 0 without the receiver.
func linesRead(ctx context.Context, c *harness.Collector) (sum float64, err error) {
	families, err := c.Families(ctx)
	if err != nil {
		return 0, err
	}
	for name, f := range families {
		if !strings.HasPrefix(name, "otelcol_receiver_nccl_lines") {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue()
		}
	}
	return sum, nil
}
