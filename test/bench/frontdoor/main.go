// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command frontdoor measures what a push costs a shard: the CPU time of the real
// binary, with the configuration that comes with it, for
// each push of many nodes, gRPC, decompression, batches for the next hop and the
// collection of garbage included. It prints one figure to a line:
//
//	figure NAME VALUE UNIT [limit LIMIT pass|short]
package main // import "github.com/gpu-collector/gpu-collector/test/bench/frontdoor"

import (
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

	"google.golang.org/grpc/encoding"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// The limits are the product's promises.
const (
	minPerCore = 10_000
	minPoints  = 3_200_000 // of those, with 8 GPUs and 40 metrics each
	maxCores   = 1
	// fleet pushes each interval, in seconds.
	fleet, interval = 50_000, 10
)

// agents is how they compress, see configs/agent.yaml.
const agents = "snappy"

type settings struct {
	binary, drop      string
	kinds, cpuProfile string
	nodes, senders    int
	rounds            int
}

func main() {
	var s settings
	flag.StringVar(&s.binary, "collector", "bin/gpu-collector", "the full distribution's binary")
	flag.StringVar(&s.cpuProfile, "cpuprofile", "", "file for a CPU profile of the first kind's shard")
	flag.IntVar(&s.nodes, "nodes", 5_000, "nodes that push in turn")
	flag.IntVar(&s.senders, "senders", 32, "pushes at once, each on a connection of its own")
	flag.IntVar(&s.rounds, "rounds", 4, "how often the kinds of push take turns, in each of which each node pushes once")
	flag.StringVar(&s.kinds, "kinds", "", "which kinds of push, by comma; all by default")
	flag.StringVar(&s.drop, "drop", "", "be a server on this `address` that drops what it receives; for itself")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	if s.drop != "" {
		err = serveDropping(ctx, s.drop)
	} else {
		err = measure(ctx, os.Stdout, &s)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// parts is in how many parts the nodes report for the first time.
const parts = 5

// pauses is how many of the same length it takes until they are known as a node's pace.
const pauses = 2

// kind is a kind of push that is measured, on a shard of its own.
type kind struct {
	name, compression string
	dropped           bool // by a server that only receives
	alone             bool // diff, without wire_diff before it

	reports reports
	shard   *shard
	micros  []float64
}

// kinds has what is measured: a fleet's pushes as agents send them, then in other
// ways, and what the shard needs for them without wire_diff.
func kinds(s *settings) ([]*kind, error) {
	all := []*kind{
		{name: agents, compression: agents},
		{name: "zstd", compression: "zstd"},
		{name: "gzip", compression: "gzip"},
		{name: "uncompressed", compression: encoding.Identity},
		{name: "random", compression: "zstd"},
		{name: "diff_alone", compression: agents, alone: true},
		{name: "dropped", compression: agents, dropped: true},
	}
	if s.kinds != "" {
		wanted := strings.Split(s.kinds, ",")
		all = slices.DeleteFunc(all, func(k *kind) bool { return !slices.Contains(wanted, k.name) })
	}
	for _, k := range all {
		var err error
		if k.name == "random" {
			k.reports, err = newRandom()
		} else {
			k.reports, err = newSimulated(s.nodes)
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

func measure(ctx context.Context, w io.Writer, s *settings) (err error) {
	all, err := kinds(s)
	if err != nil {
		return err
	}
	defer func() {
		for _, k := range all {
			if k.shard != nil {
				err = errors.Join(err, k.shard.stop())
			}
		}
	}()
	for i, k := range all {
		fmt.Fprintf(os.Stderr, "first reports of %s, %d of %d\n", k.name, i+1, len(all))
		if k.shard, err = startShard(ctx, s, k); err != nil {
			return err
		}
		// Each node once, to be known, and once more after that has been forwarded. A
		// part at a time, for all at once are more than may be pending.
		for range 2 * parts {
			if _, err := k.shard.turn(ctx, k, s, s.nodes/parts); err != nil {
				return err
			}
		}
	}
	// The turns of the others are a pause until a node's pace is known, and after a
	// pause a node's whole state is forwarded.
	for range pauses {
		for _, k := range all {
			if _, err := k.shard.turn(ctx, k, s, s.nodes); err != nil {
				return err
			}
		}
	}
	if s.cpuProfile != "" {
		profiled := make(chan error, 1)
		go func() { profiled <- all[0].shard.profile(ctx, s.cpuProfile) }()
		defer func() { err = errors.Join(err, <-profiled) }()
	}
	for round := range s.rounds {
		for _, k := range all {
			micros, err := k.shard.turn(ctx, k, s, s.nodes)
			if err != nil {
				return err
			}
			k.micros = append(k.micros, micros)
		}
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, s.rounds)
	}
	for _, k := range all {
		print(w, k)
	}
	return nil
}

// print takes the lower quartile of the turns: on a shared machine the others pay
// for what is not theirs.
func print(w io.Writer, k *kind) {
	slices.Sort(k.micros)
	micros := k.micros[len(k.micros)/4]
	if k.name == agents {
		perCore := 1e6 / micros
		figure.Fprint(w, "wire_front_door_reports_per_second_core", perCore, "reports/s", minPerCore, false)
		figure.Fprint(w, "shard_cores_for_50000_nodes", fleet/interval/perCore, "cores", maxCores, true)
	}
	if k.name == agents {
		points := float64(k.shard.pointsPerPush())
		figure.FprintOnly(w, "wire_front_door_points", points, "points")
		figure.Fprint(w, "wire_front_door_points_per_second_core", points*1e6/micros, "points/s", minPoints, false)
	}
	figure.FprintOnly(w, "wire_front_door_push_"+k.name, micros, "us")
	figure.FprintOnly(w, "wire_front_door_bytes_"+k.name, float64(k.shard.bytesPerPush()), "bytes")
}
