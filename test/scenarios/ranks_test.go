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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/detect/collective"
	"github.com/gpu-collector/gpu-collector/internal/detect/straggler"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
	"github.com/gpu-collector/gpu-collector/sim/ranks"
)

// The gate judges so many jobs, and knows how many are found.
const gateJobs, gateSeed = 12, 7

var (
	drawn     = flag.Int("jobs", gateJobs, "drawn jobs of each family of TestLockstepJobs")
	drawnSeed = flag.Uint64("jobs-seed", gateSeed, "seed of TestLockstepJobs")
)

// lockstep is one drawn job with its gateway.
type lockstep struct {
	job     ranks.Job
	play    *ranks.Play
	tracker *collective.Tracker
	engine  *straggler.Engine
	now     time.Time
	events  []episode.Episode
	// own: ranks report the own time of their steps, and no operations.
	own bool
}

const rankTick = 10 * time.Second

func newLockstep(job ranks.Job, seed uint64) *lockstep {
	cfg := straggler.DefaultConfig()
	return &lockstep{job: job, play: ranks.New(&job, seed), tracker: collective.New(cfg), engine: straggler.New(cfg), now: time.Unix(1.8e9, 0)}
}

func nodeName(i int) string { return fmt.Sprintf("node-%02d", i) }

// tick plays ten seconds. A rank's agent reports what the receiver would.
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
			if tr.Count > 0 && !l.own {
				require.NoError(t, l.tracker.Bandwidth(&of, collective.Class{Operation: tr.Function, Size: tr.Bytes}, tr.Bandwidth, l.now))
			}
		}
		if l.own {
			// The stages of a pipeline differ by design, so the job names the stage of a rank.
			of.Communicator, of.Role = collective.Communicator{}, fmt.Sprint("stage-", r/(l.job.TP*l.job.DP))
		} else {
			of.Communicator = communicator(group)
		}
		require.NoError(t, l.engine.Observe(&nodesignal.Observation{Cluster: "c", Node: of.Node, Heartbeat: true}, l.now))
		switch {
		case l.own && k.Steps > 0:
			require.NoError(t, l.tracker.OwnTime(&of, k.Own/float64(k.Steps), l.now))
		case !l.own && any > 0:
			require.NoError(t, l.tracker.Share(&of, k.Seconds/rankTick.Seconds(), l.now))
		}
	}
	l.now = l.now.Add(rankTick)
	events, _ := l.tracker.Tick(l.engine, l.now)
	for _, e := range append(events, l.engine.Tick(l.now).Events...) {
		l.events = append(l.events, *e)
	}
}

func communicator(t *ranks.Traffic) collective.Communicator {
	return collective.Communicator{ID: t.ID, Name: t.Name, Index: int64(t.CommRank), Size: int64(t.Size), Nodes: int64(t.Nodes)}
}

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

// rankFamily draws the fault of a job, or none.
type rankFamily struct {
	name  string
	fault func(rng *rand.Rand, j *ranks.Job) ranks.Fault
	// found is how many of the gate's jobs are found within ten minutes, at least.
	found int
	own   bool // by the own time of steps, not by time shares
}

var rankFamilies = []rankFamily{
	{name: "healthy"},
	{"a GPU 10 to 20 % slower", gpu(0.1, 0.2), 11, false},
	{"a GPU 10 % slower", gpu(0.1, 0.1), 11, false},
	{"a GPU 5 % slower", gpu(0.05, 0.05), 9, false},
	{"a host 10 % slower", func(rng *rand.Rand, j *ranks.Job) ranks.Fault {
		return ranks.Fault{Kind: ranks.Host, At: rng.IntN(j.Ranks() / j.GPUs), By: 0.1}
	}, 6, false},
	{"data late by 10 % of the work", lateData, 11, false},
	{"a rail at half its rate", func(rng *rand.Rand, j *ranks.Job) ranks.Fault {
		return ranks.Fault{Kind: ranks.Rail, At: rng.IntN(j.GPUs), By: 0.5}
	}, 11, false},
	{name: "healthy, by own time", own: true},
	{"a GPU 10 % slower, by own time", gpu(0.1, 0.1), 11, true},
	{"data late by 10 % of the work, by own time", lateData, 11, true},
}

func lateData(rng *rand.Rand, j *ranks.Job) ranks.Fault {
	return ranks.Fault{Kind: ranks.Input, At: rng.IntN(j.Ranks()), By: 0.1 * 3 * j.Work * float64(j.Micro*j.Blocks)}
}

func gpu(least, most float64) func(*rand.Rand, *ranks.Job) ranks.Fault {
	return func(rng *rand.Rand, j *ranks.Job) ranks.Fault {
		return ranks.Fault{Kind: ranks.GPU, At: rng.IntN(j.Ranks()), By: least + (most-least)*rng.Float64()}
	}
}

type outcome struct {
	jobs, found, wrong int
	nodeDays           float64
	delays             []time.Duration
}

// run plays one drawn job: an hour if it is healthy, else ten minutes of a fault that
// begins after seven to sixteen.
func (f *rankFamily) run(t *testing.T, rng *rand.Rand, o *outcome) {
	job := drawJob(rng)
	nodes := job.Ranks() / job.GPUs
	from, length := 400+600*rng.Float64(), 3600.0
	var fault ranks.Fault
	if f.fault != nil {
		length, fault = from+600, f.fault(rng, &job)
		if fault.Kind == ranks.Host && nodes < 3 || fault.Kind == ranks.Rail && nodes < 2 {
			return // of one or two nodes none can be called slow, and one has no rail
		}
		fault.From = from
		job.Faults = []ranks.Fault{fault}
	}
	l := newLockstep(job, rng.Uint64())
	l.own = f.own
	start := l.now
	for at := 0.0; at < length; at += rankTick.Seconds() {
		l.tick(t)
	}
	o.jobs++
	o.nodeDays += float64(nodes) * length / 86400
	delay := time.Duration(0)
	for i := range l.events {
		ev := &l.events[i]
		at := ev.Updated.Sub(start)
		rank, known := ev.Culprit.Rank.Get()
		switch {
		case ev.Phase != episode.PhaseOnset:
		case f.fault != nil && at.Seconds() >= from && accused(&job, &fault, ev, rank, known):
			if delay == 0 {
				delay = at - time.Duration(from*float64(time.Second))
			}
		default:
			o.wrong++
			t.Logf("%s: wrong at %v of %v: %v %s %v %s, by %.3f of %.3f, in %+v", f.name, at, from, ev.Subject, ev.Node, ev.Culprit, ev.Communicator, *ev.Gap, *ev.Median, job)
		}
	}
	if delay > 0 {
		o.found++
		o.delays = append(o.delays, delay)
	}
}

func accused(job *ranks.Job, fault *ranks.Fault, ev *episode.Episode, rank int64, known bool) bool {
	switch fault.Kind {
	case ranks.Rail:
		return ev.Subject == episode.SubjectLink
	case ranks.Host:
		return ev.Subject == episode.SubjectNode && ev.Node == nodeName(fault.At)
	}
	return ev.Subject == episode.SubjectNode && known && int(rank) == fault.At && ev.Node == nodeName(fault.At/job.GPUs)
}

// TestLockstepJobs judges the comparison of ranks by drawn jobs. -jobs is how many.
func TestLockstepJobs(t *testing.T) {
	for i := range rankFamilies {
		f := &rankFamilies[i]
		t.Run(f.name, func(t *testing.T) {
			var o outcome
			for n := range *drawn {
				f.run(t, rand.New(rand.NewPCG(*drawnSeed, uint64(n))), &o)
			}
			slices.Sort(o.delays)
			line := fmt.Sprintf("%s: %d of %d found, %d wrong in %.1f node-days", f.name, o.found, o.jobs, o.wrong, o.nodeDays)
			if n := len(o.delays); n > 0 {
				line += fmt.Sprintf(", median %v, 90 %% %v", o.delays[n/2].Round(time.Second), o.delays[n*9/10].Round(time.Second))
			}
			t.Log(line)
			assert.Zero(t, o.wrong)
			if *drawn == gateJobs && *drawnSeed == gateSeed {
				assert.GreaterOrEqual(t, o.found, f.found)
			}
		})
	}
}
