// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command nvml measures what the nvml receiver costs a node with 1, 8 and 16
// GPUs, against the fake NVML library: the CPU time and the allocations of a
// scrape, and the idle memory and CPU of the whole lean agent. It prints its figures
// on the standard output and its progress on the other.
package main // import "github.com/gpu-collector/gpu-collector/test/bench/nvml"

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	lean := agent{}
	flag.StringVar(&lean.binary, "agent", "bin/gpu-collector-agent", "the lean agent's binary")
	flag.StringVar(&lean.config, "config", "configs/agent.yaml", "the agent's configuration")
	flag.DurationVar(&lean.warmup, "warmup", 12*time.Second, "how long the agent runs before it is measured")
	flag.DurationVar(&lean.span, "span", 20*time.Second, "how long the agent is measured; a multiple of its poll interval")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var errs []error
	for _, part := range []struct {
		what string
		run  func(context.Context, io.Writer) error
	}{
		{"scraping 1, 8 and 16 GPUs", scrape},
		{"hanging one of the GPUs", hang},
		{"the whole lean agent", lean.idle},
	} {
		fmt.Fprintln(os.Stderr, part.what)
		errs = append(errs, part.run(ctx, os.Stdout))
	}
	stop()
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
