// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command push measures the CPU time of whole collectors for a push of one node's
// report: a shard and a gateway by their shipped configurations beside a plain
// Collector, and an agent for its own. With -base, a checkout of another commit, that
// commit's collectors take the same turns. It prints a table.
package main // import "github.com/gpu-collector/gpu-collector/test/bench/push"

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/bench/harness"
)

// fleetNodes are the nodes of each fleet, of eight GPUs each.
const fleetNodes = 256

type options struct {
	base   string
	rounds int
	turn   time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.base, "base", "", "`directory` of another commit with its bin, see scripts/basetree.sh")
	flag.IntVar(&o.rounds, "rounds", 3, "how often the collectors take turns")
	flag.DurationVar(&o.turn, "turn", 2*time.Second, "how long a turn lasts")
	flag.Parse()
	figure.Main(o.run)
}

func (o *options) run(ctx context.Context) error {
	servers, err := o.servers(ctx)
	if err != nil {
		return err
	}
	agents, err := o.agents(ctx)
	if err != nil {
		return err
	}
	return harness.Table(os.Stdout, slices.Concat([][]string{
		{"tier", "report", "way", "this us", "base us", "this/base", "of plain", "passed on"},
	}, servers, agents))
}

// cell is what is measured of a server: a kind of report on a way.
type cell struct {
	realistic bool
	way       int
}

type server struct {
	*harness.Collector
	tree, tier string
	load       *load
	settles    time.Duration      // until all is forwarded
	cpu        map[cell][]float64 // microseconds a report, of each round
	passed     map[cell][]float64 // to the next hop, of the bytes that came
}

// overrides are of the tiers. A shard flushes each second what 2,000 nodes sent, 200 reports.
// Here so many come in this time, and later ones would replace the earlier. A
// gateway's history writes once in 30 s, which some turns would have and others not.
var overrides = map[string][]string{
	harness.Shard:   {"processors::diff::flush_interval: 50ms"},
	harness.Gateway: {"extensions::fleet_view::history::storage: none"},
}

// servers lets the collectors take turns and compares each turn with the one beside
// it: what else the machine does, both meet.
func (o *options) servers(ctx context.Context) (_ [][]string, err error) {
	var all []*server
	defer func() {
		for _, s := range all {
			err = errors.Join(err, s.load.close(), s.Close())
		}
	}()
	for _, tier := range []string{harness.Plain, harness.Shard, harness.Gateway} {
		for _, tree := range harness.Trees(o.base) {
			if tier == harness.Plain && tree.Name != "this" {
				continue
			}
			harness.Progress("starting the %s of %s", tier, tree.Name)
			s := &server{tree: tree.Name, tier: tier, cpu: map[cell][]float64{}, passed: map[cell][]float64{}}
			if tier == harness.Shard {
				s.settles = 300 * time.Millisecond
			}
			if s.Collector, err = harness.Start(ctx, &harness.Setup{Tree: tree, Tier: tier, Overrides: overrides[tier]}); err != nil {
				return nil, err
			}
			if s.load, err = newLoad(fleetNodes, s.Collector); err != nil {
				return nil, errors.Join(err, s.Close())
			}
			all = append(all, s)
		}
	}
	for round := range o.rounds + 1 { // the first is to warm up
		for _, realistic := range []bool{false, true} {
			for w := range ways {
				harness.Progress("round %d of %d: %s, %s", round, o.rounds, kind[realistic], ways[w].name)
				for _, s := range all {
					if err := s.turn(ctx, cell{realistic, w}, round > 0, o.turn); err != nil {
						return nil, fmt.Errorf("%s: %w", s.Name, err)
					}
				}
			}
		}
	}
	return rows(all), nil
}

// kind names a report by whether it is realistic.
var kind = map[bool]string{false: "unchanged", true: "realistic"}

// turn measures a turn. Its first reports do not count: after a pause a node's whole
// state is forwarded.
func (s *server) turn(ctx context.Context, c cell, counts bool, d time.Duration) error {
	_, err := s.load.turn(ctx, &ways[c.way], c.realistic, 0)
	if err = errors.Join(err, harness.Wait(ctx, s.settles)); err != nil || !counts {
		return err
	}
	before, err := s.Look()
	if err != nil {
		return err
	}
	came, left := s.load.bytes.Load(), s.Hop.Bytes.Load()
	pushes, err := s.load.turn(ctx, &ways[c.way], c.realistic, d)
	if err = errors.Join(err, harness.Wait(ctx, s.settles)); err != nil {
		return err
	}
	after, err := s.Look()
	s.cpu[c] = append(s.cpu[c], 1e6*(after.CPU-before.CPU)/float64(pushes))
	s.passed[c] = append(s.passed[c], float64(s.Hop.Bytes.Load()-left)/float64(s.load.bytes.Load()-came))
	return err
}

// rows are the table of servers: each of this tree, with the base's of its tier.
func rows(all []*server) (table [][]string) {
	for i, s := range all {
		if s.tree != "this" {
			continue
		}
		base := &server{}
		if i+1 < len(all) && all[i+1].tier == s.tier {
			base = all[i+1]
		}
		for _, realistic := range []bool{false, true} {
			for w := range ways {
				c := cell{realistic, w}
				passed := "-"
				if s.tier == harness.Shard {
					passed = figure.Digits(100*figure.Median(s.passed[c])) + " %"
				}
				table = append(table, []string{
					s.tier, kind[realistic], ways[w].name, figure.Digits(figure.Median(s.cpu[c])), figure.Digits(figure.Median(base.cpu[c])),
					figure.Digits(ratio(s.cpu[c], base.cpu[c])), figure.Digits(ratio(s.cpu[c], all[0].cpu[c])), passed,
				})
			}
		}
	}
	return table
}

// ratio is the median over the rounds, each against the other's same round.
func ratio(v, base []float64) float64 {
	r := make([]float64, min(len(v), len(base)))
	for i := range r {
		r[i] = v[i] / base[i]
	}
	return figure.Median(r)
}

// agents have nodes of their own with eight GPUs, and push at many times their pace: the
// kernel counts CPU in hundredths of a second.
func (o *options) agents(ctx context.Context) (_ [][]string, err error) {
	const pace = "receivers::nvml: {collection_interval: 100ms, deadline: 100ms}"
	trees := harness.Trees(o.base)
	procs, cpu := make([]*harness.Collector, len(trees)), make([][]float64, 2)
	for i, tree := range trees {
		setup := &harness.Setup{Tree: tree, Tier: harness.Agent, GPUs: 8, Overrides: []string{pace}}
		if procs[i], err = harness.Start(ctx, setup); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, procs[i].Close()) }()
	}
	for round := range o.rounds + 1 {
		harness.Progress("round %d of %d: the agents' own reports", round, o.rounds)
		before, sent := make([]harness.Look, len(trees)), make([]int64, len(trees))
		for i := range trees {
			sent[i] = procs[i].Hop.Messages.Load()
			if before[i], err = procs[i].Look(); err != nil {
				return nil, err
			}
		}
		if err := harness.Wait(ctx, 8*o.turn); err != nil {
			return nil, err
		}
		for i := range trees {
			after, err := procs[i].Look()
			if err != nil {
				return nil, err
			}
			if round > 0 {
				cpu[i] = append(cpu[i], 1e6*(after.CPU-before[i].CPU)/float64(procs[i].Hop.Messages.Load()-sent[i]))
			}
		}
	}
	return [][]string{{
		harness.Agent, "own, 8 GPUs", "gRPC snappy", figure.Digits(figure.Median(cpu[0])), figure.Digits(figure.Median(cpu[1])),
		figure.Digits(ratio(cpu[0], cpu[1])), "-", "-",
	}}, nil
}
