// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command frontdoor measures what a push costs a shard: the CPU time of the real
// binary, with the configuration that comes with it and wire_diff in front, for
// each push of many nodes, gRPC, decompression, batches for the next hop and the
// collection of garbage included. It prints one figure to a line:
//
//	figure NAME VALUE UNIT [limit LIMIT pass|short]
package main // import "github.com/gpu-collector/gpu-collector/test/bench/frontdoor"

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// The promises: https://github.com/gpu-collector/gpu-collector, proof at scale.
const (
	minPerCore = 10_000
	maxCores   = 1
	// fleet pushes each interval, in seconds.
	fleet, interval = 50_000, 10
)

type settings struct {
	binary, before string
	cpuProfile     string
	nodes, senders int
	rounds, pushes int
	overlay        string
}

func main() {
	var s settings
	flag.StringVar(&s.binary, "collector", "bin/gpu-collector", "the full distribution's binary")
	flag.StringVar(&s.before, "before", "", "another binary, to take turns with")
	flag.StringVar(&s.cpuProfile, "cpuprofile", "", "file for a CPU profile of the shard with zstd")
	flag.IntVar(&s.nodes, "nodes", 10_000, "nodes that push in turn")
	flag.IntVar(&s.senders, "senders", 32, "pushes at once, each on a connection of its own")
	flag.IntVar(&s.rounds, "rounds", 7, "how often the kinds of push take turns")
	flag.IntVar(&s.pushes, "pushes", 10_000, "pushes in a turn")
	flag.StringVar(&s.overlay, "overlay", "configs/overlays/wire-diff.yaml", "what goes over configs/shard.yaml")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := measure(ctx, os.Stdout, &s)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// kind is a kind of push that is measured, on a shard of its own.
type kind struct {
	name        string
	binary      string
	overlay     bool
	compression string
	report      *template
	shard       *shard
	micros      []float64
}

func measure(ctx context.Context, w io.Writer, s *settings) (err error) {
	real, err := newTemplate()
	if err != nil {
		return err
	}
	random, err := newRandom()
	if err != nil {
		return err
	}
	kinds := []*kind{
		{name: "zstd", overlay: true, compression: "zstd", report: real},
		{name: "snappy", overlay: true, compression: "snappy", report: real},
		{name: "gzip", overlay: true, compression: "gzip", report: real},
		{name: "uncompressed", overlay: true, compression: "identity", report: real},
		{name: "random", overlay: true, compression: "zstd", report: random},
		{name: "diff_only", compression: "zstd", report: real},
	}
	if s.before != "" {
		kinds = append(kinds, &kind{name: "zstd_before", binary: s.before, overlay: true, compression: "zstd", report: real})
	}
	defer func() {
		for _, k := range kinds {
			if k.shard != nil {
				err = errors.Join(err, k.shard.stop())
			}
		}
	}()
	if o := strings.Split(os.Getenv("KINDS"), ","); o[0] != "" {
		kinds = slices.DeleteFunc(kinds, func(k *kind) bool { return !slices.Contains(o, k.name) })
	}
	for _, k := range kinds {
		overlay := ""
		if k.overlay {
			overlay = s.overlay
		}
		if k.shard, err = startShard(ctx, s, cmp.Or(k.binary, s.binary), overlay); err != nil {
			return err
		}
		// Each node once, to be known, and once more.
		if _, err := k.shard.turn(ctx, k, s, 2*s.nodes); err != nil {
			return err
		}
	}
	if s.cpuProfile != "" {
		profiled := make(chan error, 1)
		go func() { profiled <- kinds[0].shard.profile(ctx, s.cpuProfile) }()
		defer func() { err = errors.Join(err, <-profiled) }()
	}
	for range s.rounds {
		for _, k := range kinds {
			micros, err := k.shard.turn(ctx, k, s, s.pushes)
			if err != nil {
				return err
			}
			k.micros = append(k.micros, micros)
		}
	}
	for _, k := range kinds {
		slices.Sort(k.micros)
		best := k.micros[len(k.micros)/4]
		fmt.Fprintln(os.Stderr, k.name, k.micros)
		figure.FprintOnly(w, "wire_front_door_"+k.name, best, "us")
		figure.FprintOnly(w, "wire_front_door_"+k.name+"_bytes", float64(k.shard.bytesPerPush()), "bytes")
		if k.name == "zstd" {
			perCore := 1e6 / best
			figure.Fprint(w, "wire_front_door_reports_per_second_core", perCore, "reports/s", minPerCore, false)
			figure.Fprint(w, "shard_cores_for_50000_nodes", fleet/interval/perCore, "cores", maxCores, true)
		}
	}
	figure.FprintOnly(w, "wire_front_door_points", float64(real.points), "points")
	return nil
}
