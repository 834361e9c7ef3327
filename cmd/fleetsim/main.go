// SPDX-License-Identifier: Apache-2.0

// Command fleetsim pushes the reports of simulated GPU nodes to an agent, a
// shard or a gateway, as the nodes' agents would, and reports how that went.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // nothing was accepted, or the report could not be written
	exitUsage  = 2
)

func run(args []string, out, diagnostics io.Writer) int {
	o, err := parse(args, diagnostics)
	switch {
	case err != nil:
		_, _ = fmt.Fprintf(diagnostics, "fleetsim: %v\n", err)
		return exitUsage
	case o == nil:
		return exitOK
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.duration)
		defer cancel()
	}
	if err := play(ctx, o, out, diagnostics); err != nil {
		_, _ = fmt.Fprintf(diagnostics, "fleetsim: %v\n", err)
		return exitFailed
	}
	return exitOK
}

const progressEvery = 10 * time.Second

// play runs the fleet until ctx ends, and writes the report.
func play(ctx context.Context, o *options, out, diagnostics io.Writer) error {
	fleet, err := fleetpush.New(o.fleet)
	if err != nil {
		return err
	}
	if o.nccl != "" {
		return writeNCCL(ctx, fleet, o.nccl)
	}
	pusher, err := fleetpush.NewPusher(o.push, fleet)
	if err != nil {
		return err
	}
	ended, ticker := make(chan error), time.NewTicker(progressEvery)
	go func() { ended <- pusher.Run(ctx) }()
	defer ticker.Stop()
	for running := true; running; {
		select {
		case err = <-ended:
			running = false
		case <-ticker.C:
			r := pusher.Report()
			_, _ = fmt.Fprintf(diagnostics, "%.0f s: %d pushes, %d refused, %d skipped, p99 %.1f ms, %d of %d nodes know a threshold\n",
				r.Seconds, r.Pushes, r.Pushes-r.Accepted, r.Skipped["late"]+r.Skipped["busy"]+r.Skipped["told"], 1000*r.Latency.P99, r.NodesWithThreshold, r.Nodes)
		}
	}
	report := pusher.Report()
	err = errors.Join(err, report.Write(out))
	if o.json != "" {
		err = errors.Join(err, writeJSON(o.json, &report, out))
	}
	if err == nil && report.Accepted == 0 {
		err = fmt.Errorf("none of %d pushes to %s was accepted", report.Pushes, o.push.Endpoint)
	}
	return err
}

func writeJSON(file string, report *fleetpush.Report, out io.Writer) error {
	text, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if file == "-" {
		_, err = out.Write(text)
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

// writeNCCL runs a job in real time until ctx ends. A process for each GPU writes what NCCL's
// Inspector would. Files stay open, as those of processes that run.
func writeNCCL(ctx context.Context, fleet *fleetpush.Fleet, folder string) error {
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return err
	}
	files, at := map[string]*os.File{}, time.Now()
	root, err := os.OpenRoot(folder)
	for err == nil && ctx.Err() == nil {
		time.Sleep(time.Second)
		by := time.Since(at)
		at = at.Add(by)
		for name, text := range fleet.Advance(0, by).Dump(at) {
			if files[name] == nil && err == nil {
				files[name], err = root.Create(name)
			}
			if err == nil {
				_, err = files[name].Write(text)
			}
		}
	}
	return err
}
