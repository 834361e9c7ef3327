// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command tiers measures what each tier costs a fleet: real processes, real
// pushes of simulated nodes. It prints figures: all, or those of the parts that
// its arguments name.
package main // import "github.com/gpu-collector/gpu-collector/test/bench/tiers"

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// bench is how much is measured.
type bench struct {
	binary string
	base   string // the tree of another commit, or ""
	limits bool   // somebody chose that commit
	began  time.Time

	// Of the comparison: numbers of nodes, pushes on their way, and the turns.
	few, many, inFlight int
	turns               int
	turn                time.Duration

	// Of the gateway.
	fleets []int
	span   time.Duration

	// Of the root: clusters, and of each the nodes and shards.
	clusters, nodes, shards int
	record                  time.Duration
	profile                 string
}

func main() {
	b := &bench{
		binary: "bin/gpu-collector", began: time.Now(),
		few: 500, many: 2000, inFlight: 16, turns: 3, turn: 4 * time.Second,
		fleets: []int{1000, 10_000, 50_000}, span: 30 * time.Second,
		clusters: 10, nodes: 5000, shards: 2, record: 40 * time.Second,
	}
	small := flag.Bool("small", false, "with few nodes, to see that it runs")
	flag.StringVar(&b.profile, "profile", "", "`directory` for profiles of the root")
	flag.StringVar(&b.base, "base", "", "`directory` of another commit with its bin/gpu-collector, to compare with, see scripts/basetree.sh")
	flag.BoolVar(&b.limits, "limits", false, "the base was chosen: hold the shard and the shipped gateway to what was promised beside it")
	most := flag.Int("most", b.fleets[len(b.fleets)-1], "`nodes` of the largest fleet that pushes to a gateway")
	flag.IntVar(&b.clusters, "clusters", b.clusters, "of the root, of 5,000 nodes each")
	flag.Parse()
	if *small {
		b.few, b.many, b.turns, b.turn = 50, 200, 2, time.Second
		b.fleets, b.span = []int{100, 500}, 12*time.Second
		b.clusters, b.nodes, b.shards, b.record = 2, 250, 2, 12*time.Second
	}
	b.fleets = slices.DeleteFunc(b.fleets, func(nodes int) bool { return nodes > *most })
	figure.Main(func(ctx context.Context) error { return b.run(ctx, flag.Args()) })
}

func (b *bench) run(ctx context.Context, parts []string) error {
	for _, part := range []struct {
		name    string
		measure func(context.Context, *bench, io.Writer) error
	}{{"compare", compare}, {"agents", compareAgents}, {"gateway", grow}, {"root", root}, {"shipped", shipped}} {
		if len(parts) > 0 && !slices.Contains(parts, part.name) || len(parts) == 0 && part.name == "shipped" {
			continue // it has a target of its own
		}
		if err := part.measure(ctx, b, os.Stdout); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// besideBase prints a figure that is a share of the other commit's. Its limit is a
// promise beside one commit, and means nothing beside the commit before the last.
func (b *bench) besideBase(w io.Writer, name string, value, limit float64) {
	if b.limits {
		figure.Fprint(w, name, value, "x", limit, true)
	} else {
		figure.FprintOnly(w, name, value, "x")
	}
}

// say tells how far it is.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%4.0f s  "+format+"\n", append([]any{time.Since(b.began).Seconds()}, args...)...)
}
