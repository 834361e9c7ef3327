// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command nvml measures the idle memory and CPU of the whole lean agent on a
// node with 1, 8 and 16 GPUs, against the fake NVML library. The receiver's
// benchmarks measure a scrape. With -ranks it measures the agent of eight GPUs whose
// ranks write what NCCL's Inspector does.
package main // import "github.com/gpu-collector/gpu-collector/test/bench/nvml"

import (
	"context"
	"flag"
	"os"
	"time"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

func main() {
	lean := agent{}
	flag.StringVar(&lean.binary, "agent", "bin/gpu-collector-agent", "the lean agent's binary")
	flag.StringVar(&lean.config, "config", "configs/agent.yaml", "the agent's configuration")
	flag.DurationVar(&lean.warmup, "warmup", 12*time.Second, "how long the agent runs before it is measured")
	flag.DurationVar(&lean.span, "span", 20*time.Second, "how long the agent is measured; a multiple of its poll interval")
	flag.BoolVar(&lean.ranks, "ranks", false, "with eight ranks that tell of 4,000 operations a second, and the receiver nccl")
	flag.Parse()
	figure.Main(func(ctx context.Context) error { return lean.idle(ctx, os.Stdout) })
}
