// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command week plays days of a fleet in hours: jobs, failures at published rates, upgrades
// and crashes of the tiers. fleetsim, the shard and the gateway are those of
// scripts/fastclock.sh, whose clocks run several times as fast as the machine's. It prints
// its figures on the standard output and its progress on the other, and writes a page
// that tells of every fault and every alert.
package main // import "github.com/gpu-collector/gpu-collector/test/bench/week"

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

type week struct {
	setup

	speed                    int64
	binary, before, fleetsim string
	page, dir                string
}

func main() {
	w := week{}
	flag.Float64Var(&w.Days, "days", 7, "how long the fleet runs, by its own clock")
	flag.IntVar(&w.Nodes, "nodes", 1000, "nodes of the fleet")
	flag.IntVar(&w.GPUs, "gpus", 8, "GPUs of a node")
	flag.Int64Var(&w.speed, "speed", 20, "how many times as fast as the machine's the clocks run")
	flag.Float64Var(&w.Rate, "rate", 1, "failures per GPU-hour, in those that are published")
	flag.DurationVar(&w.Runs, "runs", 6*time.Hour, "how long a training job runs on average")
	flag.Uint64Var(&w.Seed, "seed", 2026, "of the fleet and of what is drawn")
	flag.StringVar(&w.binary, "binary", ".cache/week/gpu-collector", "the collector, of scripts/fastclock.sh")
	flag.StringVar(&w.before, "before", "", "the collector before the upgrade, likewise; the same without")
	flag.StringVar(&w.fleetsim, "fleetsim", ".cache/week/fleetsim", "likewise")
	flag.StringVar(&w.page, "doc", "", "the page to write; none without")
	flag.Parse()
	figure.Main(func(ctx context.Context) (err error) {
		if err := w.validate(); err != nil {
			return err
		}
		if w.dir, err = os.MkdirTemp("", "week-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(w.dir)) }()
		r, err := w.run(ctx)
		if err != nil {
			return err
		}
		r.print(os.Stdout)
		if w.page == "" {
			return nil
		}
		return os.WriteFile(w.page, r.document(), 0o644)
	})
}

func (w *week) validate() error {
	var errs []error
	add := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	add(w.length() < 2*(settle+tail), "-days is %g, must be at least %g: nobody is judged in the first hour", w.Days, 2*(settle+tail).Hours()/24)
	add(w.Nodes < 2 || w.Nodes > 100_000, "-nodes is %d, must be between 2 and 100000", w.Nodes)
	add(w.GPUs < 1 || w.GPUs > 64, "-gpus is %d, must be between 1 and 64", w.GPUs)
	add(w.speed < 1 || w.speed > 1000, "-speed is %d, must be between 1 and 1000", w.speed)
	add(!(w.Rate >= 0 && w.Rate <= 1e6), "-rate is %g, must be between 0 and 1000000", w.Rate)
	add(w.Runs < time.Minute, "-runs is %s, must be at least 1m", w.Runs)
	return errors.Join(errs...)
}
