// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command reshard has a shard come, go and die under the load of a fleet. It measures what
// the nodes that move make the shards send to the gateway, and what the gateway sees of it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/bench/harness"
)

const (
	cluster  = "prod"
	patience = 5 * time.Minute
	// rounds of pushes after a move, and twice as many before. A shard knows a node's pace
	// from its third report on; a second full report would be among those.
	rounds = 4
)

func main() { figure.Main(run) }

func run(ctx context.Context) (err error) {
	nodes := flag.Int("nodes", 300, "nodes of one cluster")
	gpus := flag.Int("gpus", 8, "GPUs of each")
	shards := flag.Int("shards", 4, "shards before one comes")
	interval := flag.Duration("interval", 2*time.Second, "between two pushes of a node")
	begin := flag.Duration("begin", time.Minute, "within which nodes begin to push")
	check := flag.Bool("check", false, "an episode that is lost, doubled or false, and a node that is missing or moves without need, is an error")
	binary := flag.String("binary", "bin/gpu-collector", "gateway and shards")
	flag.Parse()
	faults := slowNodes(*nodes, *begin)
	f, err := fleetpush.New(fleetpush.Config{
		Nodes: *nodes, GPUs: *gpus, Cluster: cluster, Load: fleetsim.Training, Faults: faults, Seed: 2026, Step: *interval, Start: time.Now().Add(-24 * time.Hour),
	})
	if err != nil {
		return err
	}
	t, err := newTiers(ctx, *binary, *interval, *shards)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	a, err := newAgents(ctx, f, *interval, t.names())
	if err != nil {
		return err
	}
	pushing, stop := context.WithCancel(ctx)
	pushed := make(chan error, 1)
	go func() { pushed <- a.run(pushing, *begin) }()
	defer func() {
		stop()
		err = errors.Join(err, <-pushed)
	}()

	w := newWatch(t.view, f, faults)
	harness.Progress("waiting until all nodes are there, and a slow one is found")
	var failed error
	if err := harness.Within(ctx, patience, func() bool { failed = w.look(ctx); return failed == nil && w.ready() }); err != nil {
		_, refused := a.state()
		return fmt.Errorf("the gateway has %d of %d nodes, and episodes of %q: %w", w.there, *nodes, w.found(), errors.Join(err, failed, fmt.Errorf("%d pushes failed, the last with %q", refused, a.last)))
	}
	looking, end := context.WithCancel(ctx)
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		w.follow(looking)
	}()
	needless, err := moves(ctx, t, a)
	end()
	<-looked
	if err != nil {
		return err
	}
	if err := w.look(ctx); err != nil { // a last time
		return err
	}
	broken := w.report() + needless
	if *check && broken > 0 {
		return fmt.Errorf("%d promises are broken, see the figures", broken)
	}
	return nil
}

// moves has a shard come and end by SIGTERM, and another one be killed.
func moves(ctx context.Context, t *tiers, a *agents) (needless int, err error) {
	s, err := t.join(ctx)
	if err != nil {
		return 0, err
	}
	for _, x := range []struct {
		name string
		act  func() (string, error)
	}{
		{"join", func() (string, error) { return s.Endpoint, nil }}, // it gets its place in the name
		// Its nodes go back to shards that knew them.
		{"leave", func() (string, error) { return t.leave(s, false) }},
		// Its nodes go to shards that never saw them.
		{"kill", func() (string, error) { return t.leave(t.shards[0], true) }},
	} {
		m := move{name: x.name, t: t, a: a}
		if err := m.make(ctx, x.act); err != nil {
			return 0, fmt.Errorf("%s: %w", x.name, err)
		}
		needless += m.report()
	}
	return needless, nil
}

// move is a change of the shards, and what it cost.
type move struct {
	name string
	t    *tiers
	a    *agents

	moved, needless, pauses, failed int
	full                            int     // bytes of one report of each node that moved
	steady                          float64 // bytes of a push before
	extra                           float64 // bytes beside the steady ones
	peak                            float64 // bytes per second, over an interval
}

// make measures the steady bytes of a push, makes the move, and measures until each node
// has pushed several times.
func (m *move) make(ctx context.Context, act func() (string, error)) error {
	before, sent, _, err := m.span(ctx, 2*rounds, nil)
	if err != nil {
		return err
	}
	m.steady = float64(sent) / float64(pushes(before[0], before[1]))
	var who string
	after, sent, peak, err := m.span(ctx, rounds, func() (err error) {
		if who, err = act(); err == nil {
			m.a.name.UpdateState(named(m.t.names()))
		}
		return err
	})
	if err != nil {
		return err
	}
	m.extra, m.peak = float64(sent)-m.steady*float64(pushes(after[0], after[1])), peak
	for i := range after[0] {
		was, is := &after[0][i], &after[1][i]
		m.pauses += is.pauses - was.pauses
		if was.shard == is.shard {
			continue
		}
		m.moved++
		m.full += is.full
		if was.shard != who && is.shard != who {
			m.needless++
		}
	}
	if m.moved == 0 {
		return errors.New("no node moved")
	}
	return nil
}

// span measures from an act on until each node has pushed several times: the nodes before
// and after, and what the shards sent meanwhile, in all and in the worst interval.
func (m *move) span(ctx context.Context, rounds int, act func() error) (nodes [2][]agent, sent int64, peak float64, err error) {
	was, failed := m.a.state()
	from := m.t.bytes()
	samples, stop := context.WithCancel(ctx)
	worst := make(chan float64, 1)
	go func() { worst <- m.worst(samples) }()
	if act != nil {
		err = act()
	}
	if err == nil {
		err = m.a.pushed(ctx, rounds)
	}
	stop()
	peak = <-worst
	now, failures := m.a.state()
	m.failed = failures - failed
	return [2][]agent{was, now}, m.t.bytes() - from, peak, err
}

// worst is the highest rate over an interval until ctx ends.
func (m *move) worst(ctx context.Context) (peak float64) {
	const each = 100 * time.Millisecond
	keep := int(m.a.interval / each)
	type sample struct {
		at    time.Time
		bytes int64
	}
	var samples []sample
	for {
		samples = append(samples, sample{time.Now(), m.t.bytes()})
		if last, first := samples[len(samples)-1], samples[0]; len(samples) > keep {
			peak = max(peak, float64(last.bytes-first.bytes)/last.at.Sub(first.at).Seconds())
			samples = samples[1:]
		}
		if harness.Wait(ctx, each) != nil {
			return peak
		}
	}
}

// pushes are those that were accepted between two states.
func pushes(before, after []agent) (n int) {
	for i := range before {
		n += after[i].accepted - before[i].accepted
	}
	return n
}

// report prints the figures, and counts the nodes that moved without need.
func (m *move) report() (needless int) {
	name := "reshard_" + m.name + "_"
	nodes := len(m.a.nodes)
	full := float64(m.full) / float64(m.moved)
	figure.FprintOnly(os.Stdout, name+"moved", float64(m.moved)/float64(nodes), "ratio")
	figure.Print(name+"moved_needlessly", float64(m.needless), "nodes", 0, true)
	// A node whose pushes paused is sent whole as well: it may have been elsewhere.
	figure.FprintOnly(os.Stdout, name+"pauses", float64(m.pauses), "pushes")
	figure.FprintOnly(os.Stdout, name+"failed_pushes", float64(m.failed), "pushes")
	figure.FprintOnly(os.Stdout, name+"steady_bytes_per_push", m.steady, "B")
	// At most one report, encoded: it says what the changes of that push would have said.
	figure.Print(name+"bytes_per_moved_node", m.extra/float64(m.moved+m.pauses), "B", full, true)
	// At most what the gateway would get each second without shards.
	figure.Print(name+"peak_bytes_per_second", m.peak, "B/s", full*float64(nodes)/m.a.interval.Seconds(), true)
	return m.needless
}
