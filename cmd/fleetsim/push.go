// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
)

// lineEvery is how often a line tells of the progress.
const lineEvery = 10 * time.Second

// push runs the fleet until ctx ends and writes the report.
func push(ctx context.Context, o *options, out, diagnostics io.Writer) error {
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
	begin, ended := time.Now(), make(chan error)
	go func() { ended <- pusher.Run(ctx) }()
	ticker := time.NewTicker(lineEvery)
	defer ticker.Stop()
	for running := true; running; {
		select {
		case err = <-ended:
			running = false
		case <-ticker.C:
			r := pusher.Report()
			_, _ = fmt.Fprintf(diagnostics, "%s: %d pushes, %d refused, %d skipped, p99 %.1f ms, %d of %d nodes know a threshold\n",
				time.Since(begin).Round(time.Second), r.Pushes, r.Pushes-r.Accepted,
				r.Skipped["late"]+r.Skipped["busy"]+r.Skipped["told"], 1000*r.Latency.P99, r.NodesWithThreshold, r.Nodes)
		}
	}
	report := pusher.Report()
	err = errors.Join(err, report.Write(out), writeJSON(o.json, &report, out))
	if err == nil && report.Accepted == 0 {
		err = fmt.Errorf("none of %d pushes to %s was accepted", report.Pushes, o.push.Endpoint)
	}
	return err
}

func writeJSON(file string, report *fleetpush.Report, out io.Writer) error {
	if file == "" {
		return nil
	}
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
