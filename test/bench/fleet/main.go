// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command fleet measures what a fleet costs a gateway as it is shipped, with its
// history, a Prometheus that scrapes and a client of the API. With -base, a
// checkout of another commit, that commit's gateway runs at the same time under the same
// fleet. -shard puts a shard in front of each. `-for 30m -nodes 10000 -shard -root` is a
// soak, which looks for what grows. It prints a table, and fails if a node is called slow:
// none has a fault.
package main // import "github.com/gpu-collector/gpu-collector/test/bench/fleet"

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/bench/harness"
)

type options struct {
	base        string
	nodes       int
	span        time.Duration
	shard, root bool
}

const (
	interval = 10 * time.Second       // between two pushes of a node
	warm     = 40 * time.Second       // until it is measured: a round of the history is among it
	scrape   = 15 * time.Second       // between two scrapes
	ask      = 200 * time.Millisecond // between two questions to the API
)

func main() {
	var o options
	flag.StringVar(&o.base, "base", "", "`directory` of another commit with its bin, see scripts/basetree.sh")
	flag.IntVar(&o.nodes, "nodes", 1000, "nodes of the fleet")
	flag.DurationVar(&o.span, "for", time.Minute, "how long it is measured")
	flag.BoolVar(&o.shard, "shard", false, "put a shard in front of the gateway")
	flag.BoolVar(&o.root, "root", false, "give the gateway overlays/root.yaml, which is for large fleets")
	flag.Parse()
	figure.Main(o.run)
}

// side is a gateway, and the shard in front of it if there is one, with a fleet.
type side struct {
	tree    harness.Tree
	index   int // among so many sides
	sides   int
	gateway *harness.Collector
	shard   *harness.Collector // or nil
	fleet   *fleetpush.Fleet
	seen    seen
}

func (o *options) run(ctx context.Context) (err error) {
	var sides []*side
	defer func() {
		for _, s := range sides {
			err = errors.Join(err, s.close())
		}
	}()
	trees := harness.Trees(o.base)
	for i, tree := range trees {
		harness.Progress("starting the collectors of %s", tree.Name)
		s := &side{tree: tree, index: i, sides: len(trees)}
		sides = append(sides, s)
		if err := o.start(ctx, s); err != nil {
			return err
		}
	}
	harness.Progress("%d nodes push for %s before anything counts", o.nodes, warm)
	if err := together(sides, func(s *side) error { _, err := o.push(ctx, s, warm); return err }); err != nil {
		return err
	}
	harness.Progress("measuring for %s", o.span)
	if err := together(sides, func(s *side) error { return o.measure(ctx, s) }); err != nil {
		return err
	}
	for _, s := range sides {
		var err error
		if s.seen.episodes, err = s.episodes(ctx); err != nil {
			return err
		}
	}
	if err := o.print(os.Stdout, sides); err != nil {
		return err
	}
	if s := &sides[0].seen; s.pushed.FalseVerdicts > 0 || s.episodes > 0 {
		return fmt.Errorf("%d false verdicts and %d false episodes", s.pushed.FalseVerdicts, s.episodes)
	}
	return ctx.Err()
}

func (o *options) start(ctx context.Context, s *side) (err error) {
	setup := &harness.Setup{Tree: s.tree, Tier: harness.Gateway}
	if o.root { // as docs/operations.md and the chart do in a container of 2 GiB
		setup.Overlays, setup.Env = []string{"overlays/root.yaml"}, []string{"GOMEMLIMIT=1638MiB", "GOGC=200"}
		setup.Overrides = []string{"processors::memory_limiter: {limit_mib: 1843, spike_limit_mib: 205}"}
	}
	if s.gateway, err = harness.Start(ctx, setup); err != nil {
		return err
	}
	if o.shard {
		if s.shard, err = harness.Start(ctx, &harness.Setup{Tree: s.tree, Tier: harness.Shard, Next: s.gateway.GRPC}); err != nil {
			return err
		}
	}
	s.fleet, err = fleetpush.New(fleetpush.Config{
		Nodes: o.nodes, Cluster: "bench", Seed: 1, Step: interval, Start: time.Now().Add(-24 * time.Hour),
		Runs: 20 * time.Minute, Pause: 2 * time.Minute,
	})
	return err
}

func (s *side) close() error {
	var errs []error
	for _, c := range []*harness.Collector{s.shard, s.gateway} {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

// together runs f for all at once: what else the machine does, all meet.
func together(sides []*side, f func(*side) error) error {
	var all errgroup.Group
	for _, s := range sides {
		all.Go(func() error { return f(s) })
	}
	return all.Wait()
}

// push has each node push once in an interval for so long.
func (o *options) push(ctx context.Context, s *side, d time.Duration) (fleetpush.Report, error) {
	cfg, door := fleetpush.DefaultPushConfig(), cmp.Or(s.shard, s.gateway)
	cfg.Endpoint, cfg.Interval, cfg.Connections = door.GRPC, interval, 64
	cfg.Compression = "snappy" // as configs/agent.yaml
	p, err := fleetpush.NewPusher(cfg, s.fleet)
	if err != nil {
		return fleetpush.Report{}, err
	}
	pushing, end := context.WithTimeout(ctx, d)
	defer end()
	err = p.Run(pushing)
	r := p.Report()
	if err == nil && r.Accepted == 0 {
		err = fmt.Errorf("%s: of %d pushes none was accepted: %s", door.Name, r.Pushes, r.LastError)
	}
	return r, err
}
