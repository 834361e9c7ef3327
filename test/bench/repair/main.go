// SPDX-License-Identifier: Apache-2.0

// Command repair plays a week of 1,000 healthy nodes to the state machine of repair, and
// counts those that would be kept off. The onsets are false, at the rates that the
// evaluation of the straggler detection has measured, and last as long as it has measured
// in the mean.
package main

import (
	"bufio"
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/repair"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

const nodes, week, gpus = 1000, 7 * 24 * time.Hour, 8

// scenario is what was measured of one fleet.
type scenario struct {
	name   string
	onsets float64 // per node-day
	share  float64 // of the healthy time that was flagged
}

// mean is the length of a false episode.
func (s *scenario) mean() time.Duration {
	return time.Duration(s.share / s.onsets * float64(24*time.Hour))
}

var line = regexp.MustCompile(`^figure eval_cusum_(s[0-9A-Za-z]+)_(false_onsets|flagged) (\S+) `)

// measured reads the figures of `make eval`, those of the default rule alone.
func measured(file string) ([]scenario, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var list []scenario
	for lines := bufio.NewScanner(f); lines.Scan(); {
		m := line.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		v, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(list, func(s scenario) bool { return s.name == m[1] })
		if i < 0 {
			list, i = append(list, scenario{name: m[1]}), len(list)
		}
		if m[2] == "flagged" {
			list[i].share = v / 100
		} else {
			list[i].onsets = v
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s has no figure of eval_cusum", file)
	}
	return list, nil
}

type change struct {
	at    time.Duration
	ended bool
	node  int
	gpu   int
	id    int
}

// play returns how many nodes are taken on within the week.
func play(cfg repair.Config, s *scenario, r *rand.Rand) int {
	var changes []change
	for n := range nodes {
		id := 0
		for at := time.Duration(0); s.onsets > 0; id++ {
			at += time.Duration(r.ExpFloat64() / s.onsets * float64(24*time.Hour))
			if at >= week {
				break
			}
			gpu := r.IntN(gpus)
			changes = append(changes, change{at, false, n, gpu, id})
			at += time.Duration(r.ExpFloat64() * float64(s.mean()))
			changes = append(changes, change{at, true, n, gpu, id})
		}
	}
	slices.SortStableFunc(changes, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	m, start, taken := repair.New(cfg), time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), map[string]bool{}
	next := 0
	for now := time.Duration(0); now < week; now += time.Minute {
		for ; next < len(changes) && changes[next].at <= now; next++ {
			c := &changes[next]
			node := strconv.Itoa(c.node)
			m.Episode(&repair.Episode{
				ID: fmt.Sprintf("%d-%d", c.node, c.id), Node: node, Subject: "node", Ended: c.ended, Signal: "throughput", Severity: "major",
				Reason: "one_rank", Action: "burn_in", GPU: fmt.Sprintf("GPU-%d-%d", c.node, c.gpu), Group: "g", Peers: nodes - 1,
			}, start.Add(now))
		}
		m.Tick(start.Add(now))
		for p, ok := m.Next(start.Add(now)); ok; p, ok = m.Next(start.Add(now)) {
			taken[p.Case.Node] = taken[p.Case.Node] || p.Step == repair.StepTaint && !p.Undo
			m.Done(p.ID, &repair.Result{Outcome: repair.Taken}, start.Add(now))
		}
		m.Take()
	}
	n := 0
	for _, yes := range taken {
		if yes {
			n++
		}
	}
	return n
}

func main() {
	seed := flag.Uint64("seed", 2026, "of what is drawn")
	runs := flag.Int("runs", 20, "weeks of each scenario")
	file := flag.String("figures", "docs/benchmarks/eval.txt", "the figures of make eval")
	flag.Parse()
	figure.Main(func(context.Context) error {
		scenarios, err := measured(*file)
		if err != nil {
			return err
		}
		cfg := repair.DefaultConfig()
		cfg.Rungs = []repair.Step{repair.StepTaint}
		// The breaker would hide what confirmation does.
		cfg.Breaker = repair.BreakerConfig{MaxNodes: nodes, MaxFraction: 1, MaxPerHour: nodes}
		without := cfg
		without.Lasting = time.Nanosecond
		with, bare, worst, worstOf := 0., 0., 0., ""
		for i := range scenarios {
			s := &scenarios[i]
			sumWith, sumBare := 0, 0
			for run := range *runs {
				draw := func() *rand.Rand { return rand.New(rand.NewPCG(*seed, uint64(i)<<32|uint64(run))) }
				sumWith += play(cfg, s, draw())
				sumBare += play(without, s, draw())
			}
			mean := float64(sumWith) / float64(*runs)
			with += mean / float64(len(scenarios))
			bare += float64(sumBare) / float64(*runs) / float64(len(scenarios))
			if mean > worst {
				worst, worstOf = mean, s.name
			}
		}
		fmt.Printf("figure repair_healthy_kept_off_unconfirmed %.4g nodes/week\n", bare)
		figure.Print("repair_healthy_kept_off", with, "nodes/week", 1, true)
		figure.Print("repair_healthy_kept_off_worst_scenario", worst, "nodes/week", 1, true)
		fmt.Fprintf(os.Stderr, "the worst scenario is %s of %d\n", worstOf, len(scenarios))
		return nil
	})
}
