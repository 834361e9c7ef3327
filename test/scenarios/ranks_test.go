// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/collective"
	"github.com/gpu-collector/gpu-collector/internal/episode"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/sim/ranks"
)

var (
	drawn     = flag.Int("jobs", 3, "drawn jobs of each family of TestLockstepJobs")
	drawnSeed = flag.Uint64("jobs-seed", 7, "seed of TestLockstepJobs")
	only      = flag.String("only", "", "family")
)

// lockstep is one drawn job with its gateway.
type lockstep struct {
	job    ranks.Job
	play   *ranks.Play
	book   *collective.Book
	engine *straggler.Engine
	now    time.Time
	events []episode.Event
}

// drawJob draws a healthy job of 8 to 256 ranks.
func drawJob(rng *rand.Rand) ranks.Job {
	between := func(a, b float64) float64 { return a * math.Exp(rng.Float64()*math.Log(b/a)) }
	odds := func(p float64) bool { return rng.Float64() < p }
	j := ranks.Typical(1<<rng.IntN(6), 8)
	j.Micro, j.Blocks, j.World = 2+rng.IntN(3), 1+rng.IntN(3), odds(0.5)
	j.Noise, j.Bias, j.Jitter = between(0.01, 0.06), between(0.003, 0.015), between(0.03, 0.3)
	// A step, and the parts of it that blocks and gradients communicate.
	step, blocks, gradients := between(0.3, 4), between(0.03, 0.2), between(0.05, 0.3)
	passes := 2 * float64(j.Micro*j.Blocks)
	j.Work, j.TPTime, j.DPTime = step*(1-blocks-gradients)/passes/1.5, step*blocks/passes, step*gradients
	j.PPTime = j.TPTime / 4
	switch layout := rng.IntN(4); {
	case layout == 0:
		j.TP, j.DP, j.Sharded, j.DPTime = 1, j.DP*j.TP, true, step*(blocks+gradients)/passes
	case layout == 1:
		j.TP, j.DP = j.TP/2, 2*j.DP
	case layout == 2 && j.DP >= 4:
		j.PP = 2 << rng.IntN(2)
		j.DP /= j.PP
	}
	if odds(0.25) {
		j.Imbalance, j.ImbalanceEvery = between(0.05, 0.3), between(1, 60)
	}
	if odds(0.5) {
		j.LastStage = 0.05
	}
	if odds(0.3) {
		j.Phase, j.PhaseEvery = between(0.1, 0.5), between(120, 900)
	}
	if odds(0.6) {
		j.Checkpoint, j.CheckpointEvery, j.FirstWrites = between(3, 40), between(180, 1800), odds(0.4)
	}
	if odds(0.6) {
		j.StartUp = between(3, 60)
	}
	return j
}

const rankTick = 10 * time.Second

func newLockstep(job ranks.Job, seed uint64) *lockstep {
	cfg := straggler.DefaultConfig()
	return &lockstep{job: job, play: ranks.New(&job, seed), book: collective.New(cfg), engine: straggler.New(cfg), now: time.Unix(1.8e9, 0)}
}

func nodeName(i int) string { return fmt.Sprintf("node-%02d", i) }

// tick plays ten seconds. What a rank's agent tells is what the receiver would.
func (l *lockstep) tick(t *testing.T) {
	l.play.Advance(rankTick.Seconds())
	for r := range l.play.Ranks {
		k := &l.play.Ranks[r]
		of := collective.Rank{Cluster: "c", Node: nodeName(k.Node), Job: "17", PID: int64(r), Subject: nodesignal.Subject{Rank: nodesignal.OrdinalOf(int64(r))}}
		group, any := (*ranks.Traffic)(nil), 0
		for i := range k.Traffic {
			tr := &k.Traffic[i]
			any += tr.Count
			if tr.Function != "Send" && tr.Function != "Recv" && (group == nil || tr.Size > group.Size) {
				group = tr
			}
			of.Communicator = communicator(tr)
			if tr.Count > 0 {
				require.NoError(t, l.book.Bandwidth(&of, collective.Class{Operation: tr.Function, Size: tr.Bytes}, tr.Bandwidth, l.now))
			}
		}
		of.Communicator = communicator(group)
		require.NoError(t, l.engine.Observe(&straggler.Observation{Cluster: "c", Node: of.Node, Heartbeat: true}, l.now))
		if any > 0 {
			require.NoError(t, l.book.Share(&of, k.Seconds/rankTick.Seconds(), l.now))
		}
	}
	l.now = l.now.Add(rankTick)
	l.events = append(l.events, l.book.Tick(l.engine, l.now)...)
	l.events = append(l.events, l.engine.Tick(l.now).Events...)
}

func communicator(t *ranks.Traffic) collective.Communicator {
	return collective.Communicator{ID: t.ID, Name: t.Name, Place: int64(t.Place), Size: int64(t.Size), Nodes: int64(t.Nodes)}
}

func TestLockstepJobs(t *testing.T) {
	families := []struct {
		name  string
		fault func(rng *rand.Rand, j *ranks.Job) ranks.Fault
	}{
		{"healthy", nil},
		{"gpu 10-20", func(rng *rand.Rand, j *ranks.Job) ranks.Fault {
			return ranks.Fault{Kind: ranks.GPU, At: rng.IntN(j.Ranks()), By: 0.1 + 0.1*rng.Float64()}
		}},
		{"gpu 10", func(rng *rand.Rand, j *ranks.Job) ranks.Fault {
			return ranks.Fault{Kind: ranks.GPU, At: rng.IntN(j.Ranks()), By: 0.1}
		}},
		{"gpu 5", func(rng *rand.Rand, j *ranks.Job) ranks.Fault {
			return ranks.Fault{Kind: ranks.GPU, At: rng.IntN(j.Ranks()), By: 0.05}
		}},
		{"host 10", func(rng *rand.Rand, j *ranks.Job) ranks.Fault {
			return ranks.Fault{Kind: ranks.Host, At: rng.IntN(j.Ranks() / j.GPUs), By: 0.1}
		}},
		{"input 10", func(rng *rand.Rand, j *ranks.Job) ranks.Fault {
			return ranks.Fault{Kind: ranks.Input, At: rng.IntN(j.Ranks()), By: 0.1 * 3 * j.Work * float64(j.Micro*j.Blocks)}
		}},
		{"rail", func(rng *rand.Rand, j *ranks.Job) ranks.Fault {
			return ranks.Fault{Kind: ranks.Rail, At: rng.IntN(j.GPUs), By: 0.5}
		}},
	}
	for _, f := range families {
		if *only != "" && *only != f.name {
			continue
		}
		var delays []time.Duration
		found, false_, links, wrongLinks, days := 0, 0, 0, 0, 0.0
		for n := range *drawn {
			rng := rand.New(rand.NewPCG(*drawnSeed, uint64(n)))
			job := drawJob(rng)
			from, length := 400+600*rng.Float64(), 3600.0
			if f.fault != nil {
				length = from + 600
				x := f.fault(rng, &job)
				x.From = from
				job.Faults = []ranks.Fault{x}
			}
			l := newLockstep(job, uint64(n))
			start := l.now
			for at := 0.0; at < length; at += rankTick.Seconds() {
				l.tick(t)
			}
			nodes := float64(job.Ranks() / job.GPUs)
			days += nodes * length / 86400
			hit := time.Duration(0)
			said := ""
			for _, ev := range l.events {
				if ev.Kind != episode.EventOnset {
					continue
				}
				at := ev.At.Sub(start).Seconds()
				if ev.Subject == episode.SubjectLink {
					links++
					if f.name != "rail" || at < from {
						wrongLinks++
						said += fmt.Sprintf(" LINK %s %.0f gap %.2f", ev.Detail, at, ev.Gap)
					}
					continue
				}
				right := false
				if f.fault != nil && at >= from {
					x := job.Faults[0]
					switch x.Kind {
					case ranks.GPU, ranks.Input:
						r, _ := ev.Culprit.Rank.Get()
						right = int(r) == x.At && ev.Culprit.Rank != 0
						if !right && ev.Node == nodeName(x.At/job.GPUs) {
							said += fmt.Sprintf(" node right, culprit %v of %d", ev.Culprit, x.At)
						}
					case ranks.Host:
						right = ev.Node == nodeName(x.At)
					}
				}
				if right && hit == 0 {
					hit = time.Duration((at - from) * float64(time.Second))
				} else if !right {
					false_++
					said += fmt.Sprintf(" FALSE %s %s at %.0f (from %.0f) gap %.3f median %.2f %v", ev.Node, ev.Culprit, at, from, ev.Gap, ev.Median, ev.Subject)
				}
			}
			if hit > 0 {
				found++
				delays = append(delays, hit)
			}
			if said != "" || hit == 0 && f.fault != nil && f.name != "rail" {
				t.Logf("%s %d: hit %v ranks %d tp %d dp %d pp %d sharded %v world %v noise %.3f bias %.3f imb %.2f/%.0f last %.2f phase %.2f/%.0f ckpt %.0f/%.0f first %v start %.0f:%s", f.name, n, hit, job.Ranks(), job.TP, job.DP, job.PP, job.Sharded, job.World, job.Noise, job.Bias, job.Imbalance, job.ImbalanceEvery, job.LastStage, job.Phase, job.PhaseEvery, job.Checkpoint, job.CheckpointEvery, job.FirstWrites, job.StartUp, said)
			}
		}
		slices.Sort(delays)
		p50 := time.Duration(0)
		if len(delays) > 0 {
			p50 = delays[len(delays)/2]
		}
		t.Logf("== %s: found %d of %d, p50 %v, max %v, false %d in %.2f node-days (%.3f), links %d wrong %d", f.name, found, *drawn, p50, func() time.Duration {
			if len(delays) == 0 {
				return 0
			}
			return delays[len(delays)-1]
		}(), false_, days, float64(false_)/days, links, wrongLinks)
	}
}

func TestOne(t *testing.T) {
	rng := rand.New(rand.NewPCG(*drawnSeed, uint64(*drawn)))
	job := drawJob(rng)
	from := 400 + 600*rng.Float64()
	x := ranks.Fault{Kind: ranks.GPU, At: rng.IntN(job.Ranks()), By: 0.05, From: from}
	if *only == "ten" {
		x.By = 0.1
	}
	if *only == "big" {
		x.By = 0.1 + 0.1*rng.Float64()
	}
	job.Faults = []ranks.Fault{x}
	fmt.Printf("at %d by %v from %v\n%+v\n", x.At, x.By, from, job)
	l := newLockstep(job, uint64(*drawn))
	for at := 0.0; at < from+600; at += 10 {
		l.tick(t)
	}
}
