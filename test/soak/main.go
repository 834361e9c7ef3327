// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command soak runs a fleet through a shard and a gateway for a while and looks
// for what grows: memory, goroutines, open files. It prints its figures on the
// standard output and its progress on the other.
package main // import "github.com/gpu-collector/gpu-collector/test/soak"

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// soak is what is run, and for how long.
type soak struct {
	binary              string
	nodes, gpus         int
	interval            time.Duration
	runs, pause         time.Duration
	duration, every     time.Duration
	connections, flight int
	seed                uint64
}

func main() {
	s := soak{}
	flag.StringVar(&s.binary, "binary", "bin/gpu-collector", "the full distribution's binary")
	flag.IntVar(&s.nodes, "nodes", 10_000, "nodes of the fleet")
	flag.IntVar(&s.gpus, "gpus", 8, "GPUs of a node")
	flag.DurationVar(&s.interval, "interval", 10*time.Second, "between two pushes of a node")
	flag.DurationVar(&s.runs, "runs", 20*time.Minute, "how long a training job runs on average until the next one begins")
	flag.DurationVar(&s.pause, "pause", 2*time.Minute, "how long a node rests between two jobs on average")
	flag.DurationVar(&s.duration, "duration", 30*time.Minute, "how long the fleet pushes")
	flag.DurationVar(&s.every, "every", 10*time.Second, "between two looks at the processes")
	flag.IntVar(&s.connections, "connections", 64, "connections that the nodes share")
	flag.IntVar(&s.flight, "in-flight", 256, "pushes on their way at once")
	flag.Uint64Var(&s.seed, "seed", 1, "of the fleet")
	flag.Parse()
	figure.Main(func(ctx context.Context) error { return s.run(ctx, os.Stdout) })
}

// A soak is half an hour of 10,000 nodes, but for the moment between its end and the
// last push. Nothing may be lost, and a fleet without faults has no stragglers. A
// shard of 50,000 nodes is to need a core.
const (
	minNodes, minMinutes = 10_000, 29.9

	maxLost, maxFalse = 0, 0
	fleet, maxCores   = 50_000, 1
)

func (s *soak) run(ctx context.Context, w io.Writer) (err error) {
	if s.duration < 9*s.every {
		return fmt.Errorf("-duration %s: must be at least nine times -every %s, or there is nothing to compare", s.duration, s.every)
	}
	gateway, err := startGateway(ctx, s.binary)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, gateway.Close()) }()
	shard, err := startShard(ctx, s.binary, gateway.Endpoint)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shard.Close()) }()

	fleet, err := fleetpush.New(fleetpush.Config{
		Nodes: s.nodes, GPUs: s.gpus, Cluster: "soak", Load: fleetsim.Training, Seed: s.seed, Step: s.interval, Start: time.Now(),
		Runs: s.runs, Pause: s.pause,
	})
	if err != nil {
		return err
	}
	cfg := fleetpush.DefaultPushConfig()
	cfg.Endpoint, cfg.Interval, cfg.Connections, cfg.InFlight = shard.Endpoint, s.interval, s.connections, s.flight
	cfg.Compression = fleetpush.CompressionSnappy // as configs/agent.yaml
	pusher, err := fleetpush.NewPusher(cfg, fleet)
	if err != nil {
		return err
	}
	pushing, end := context.WithTimeout(ctx, s.duration)
	defer end()
	pushed := make(chan error, 1)
	go func() { pushed <- pusher.Run(pushing) }()

	watched := []*watched{{collector: shard}, {collector: gateway}}
	if err := s.watch(pushing, watched, pusher); err != nil {
		return err
	}
	if err := <-pushed; err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	episodes, silent, err := gateway.episodes(ctx)
	if err != nil {
		return err
	}
	whole, err := gateway.whole(ctx)
	if err != nil {
		return err
	}
	return s.print(w, pusher.Report(), episodes, silent, whole, watched)
}

// watch looks at the collectors until the fleet has done.
func (s *soak) watch(ctx context.Context, all []*watched, pusher *fleetpush.Pusher) error {
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	began, told := time.Now(), time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for _, c := range all {
			if err := c.look(ctx); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
			c.reports = pusher.Report().Accepted
		}
		if time.Since(told) < time.Minute {
			continue
		}
		told = time.Now()
		r := pusher.Report()
		fmt.Fprintf(os.Stderr, "%s of %s: %d reports", time.Since(began).Round(time.Second), s.duration, r.Accepted)
		for _, c := range all {
			fmt.Fprintf(os.Stderr, "; %s %s", c.Name, c.last())
		}
		fmt.Fprintln(os.Stderr)
	}
}

// print writes the figures. Who is accused of nothing is an error, and so is what a
// gateway lacks that took every push; a machine that is too slow for the fleet is none.
func (s *soak) print(w io.Writer, r fleetpush.Report, episodes, silent float64, whole int, all []*watched) error {
	lost := 0.0
	for _, n := range r.Refusals {
		lost += float64(n)
	}
	skipped := 0.0
	for _, n := range r.Skipped {
		skipped += float64(n)
	}
	figure.Fprint(w, "soak_nodes", float64(s.nodes), "nodes", minNodes, false)
	figure.Fprint(w, "soak_minutes", r.Seconds/60, "min", minMinutes, false)
	figure.FprintOnly(w, "soak_reports", float64(r.Accepted), "reports")
	figure.Fprint(w, "soak_refused", lost, "reports", maxLost, true)
	figure.Fprint(w, "soak_skipped", skipped, "reports", maxLost, true)
	figure.Fprint(w, "soak_false_verdicts", float64(r.FalseVerdicts), "verdicts", maxFalse, true)
	figure.Fprint(w, "soak_false_episodes", episodes, "episodes", maxFalse, true)
	figure.FprintOnly(w, "soak_silent_episodes", silent, "episodes")
	figure.Fprint(w, "soak_gpus_whole", float64(whole), "GPUs", float64(s.nodes*s.gpus), false)
	figure.FprintOnly(w, "soak_push_p50", r.Latency.P50*1e3, "ms")
	figure.FprintOnly(w, "soak_push_p99", r.Latency.P99*1e3, "ms")
	figure.Fprint(w, "soak_nodes_with_threshold", float64(r.NodesWithThreshold), "nodes", float64(s.nodes), false)
	perReport := all[0].cpu / float64(all[0].reports)
	figure.FprintOnly(w, "soak_shard_cpu_per_report", perReport*1e6, "us")
	figure.Fprint(w, "soak_shard_cores_for_50000_nodes", fleet/s.interval.Seconds()*perReport, "cores", maxCores, true)
	for _, c := range all {
		c.print(w)
	}
	if r.FalseVerdicts > maxFalse || episodes > maxFalse {
		return fmt.Errorf("%d false verdicts and %.0f false episodes", r.FalseVerdicts, episodes)
	}
	if lost+skipped+silent == 0 && (whole < s.nodes*s.gpus || r.NodesWithThreshold < s.nodes) {
		return fmt.Errorf("every push was taken, but %d GPUs of %d are whole, and %d nodes of %d have a threshold", whole, s.nodes*s.gpus, r.NodesWithThreshold, s.nodes)
	}
	return nil
}
