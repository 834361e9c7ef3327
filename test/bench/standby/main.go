// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command standby kills the active or the standby of two gateways at random moments, under
// the load of many nodes, and counts the episodes that are lost, doubled or false.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/bench/harness"
)

const (
	cluster = "prod"
	// interval is a tenth of the shipped one, as in the other faults.
	interval = time.Second
	// A fail-over lasts from the kill to the first answer with a threshold.
	maxFailOver = 10.0 // seconds
	patience    = 2 * time.Minute
	// settle bounds the draw of the time between two kills.
	settle = 4 * time.Second
)

func main() { figure.Main(run) }

func run(ctx context.Context) (err error) {
	nodes := flag.Int("nodes", 1000, "nodes of the cluster")
	kills := flag.Int("kills", 200, "kills of one of the two gateways")
	seed := flag.Uint64("seed", 0, "when and whom the kills strike, and which nodes are slow; 0 for another each time")
	check := flag.Bool("check", false, "an episode that is lost, doubled or false, or a threshold of 0, is an error")
	binary := flag.String("binary", "bin/gpu-collector", "the gateways")
	flag.Parse()
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano()) % 1e9 // as a figure it is a float64
	}
	figure.FprintOnly(os.Stdout, "chaos_standby_seed", float64(*seed), "seed")
	draw := rand.New(rand.NewPCG(*seed, 0))
	t := newTruth(draw, *nodes, *kills)
	f, err := fleetpush.New(fleetpush.Config{
		Nodes: *nodes, GPUs: 1, Cluster: cluster, Load: fleetsim.Training, Faults: t.faults, Seed: *seed, Step: interval, Start: time.Now().Add(-24 * time.Hour),
	})
	if err != nil {
		return err
	}
	t.name(f)
	p, err := newPair(ctx, *binary)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()

	run, cancel := context.WithCancel(ctx)
	pushed := make(chan error, 1)
	pusher, err := newPusher(f, p.front.Addr().String())
	if err != nil {
		cancel()
		return err
	}
	began := time.Now()
	go func() { pushed <- pusher.Run(run) }()
	defer func() {
		cancel()
		err = errors.Join(err, <-pushed)
	}()

	harness.Progress("waiting until the nodes that are slow from the start are found")
	if err := harness.Within(ctx, patience, func() bool { return t.open(ctx, p, 0) == nil && t.foundFirst() }); err != nil {
		return fmt.Errorf("the slow nodes are not found: %w", err)
	}
	for i := range *kills {
		if err := p.bothReady(ctx); err != nil {
			return err
		}
		if err := harness.Wait(ctx, time.Duration(draw.Int64N(int64(settle)))); err != nil {
			return err
		}
		if err := t.strike(ctx, p, draw.IntN(3) < 2, draw.IntN(4) == 0); err != nil {
			return fmt.Errorf("kill %d of %d: %w", i+1, *kills, err)
		}
		if i%5 == 4 || i == *kills-1 {
			harness.Progress("%d of %d kills; lost %d, zero %d, slowest fail-over %s", i+1, *kills, len(t.lost), t.zeros, figure.Quantile(t.took, 1).Round(time.Millisecond))
		}
	}
	harness.Progress("waiting until the last slow nodes are found")
	_ = harness.Within(ctx, max(time.Until(began.Add(t.lastBegins())), 0)+patience, func() bool { return t.open(ctx, p, p.activeOne(ctx)) == nil && len(t.missing()) == 0 })
	if err := ctx.Err(); err != nil {
		return err
	}
	broken := t.report(p, pusher.Report(), *nodes)
	if *check && broken > 0 {
		return fmt.Errorf("%d promises are broken, see the figures", broken)
	}
	return nil
}

func newPusher(f *fleetpush.Fleet, endpoint string) (*fleetpush.Pusher, error) {
	cfg := fleetpush.DefaultPushConfig()
	cfg.Endpoint, cfg.Interval, cfg.Timeout = endpoint, interval, 5*time.Second
	cfg.Compression = fleetpush.CompressionSnappy
	return fleetpush.NewPusher(cfg, f)
}
