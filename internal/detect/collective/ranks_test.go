// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/detect/straggler"
	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/platform/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// rig is a gateway of ranks: a tracker, and the engine of the nodes.
type rig struct {
	t       *testing.T
	tracker *Tracker
	engine  *straggler.Engine
	now     time.Time
	step    time.Duration
	events  []episode.Episode
	report  *straggler.Report
}

func newRig(t *testing.T, step time.Duration) *rig {
	cfg := straggler.DefaultConfig()
	cfg.TTL = 5 * step
	engine := straggler.New(cfg)
	cfg.Signals[nodesignal.Throughput].MinGap = 0.3 // of nodes: that of ranks is their own
	return &rig{t: t, tracker: New(cfg), engine: engine, now: noon, step: step}
}

// tick lets an interval pass.
func (r *rig) tick() {
	r.now = r.now.Add(r.step)
	events, _ := r.tracker.Tick(r.engine, r.now)
	r.report = r.engine.Tick(r.now)
	for _, e := range append(events, r.report.Events...) {
		r.events = append(r.events, *e)
	}
}

// node lets a node report.
func (r *rig) node(name string) {
	require.NoError(r.t, r.engine.Observe(&nodesignal.Observation{Cluster: "c", Node: name, Heartbeat: true}, r.now))
	r.tracker.Alive("c", name, 0, r.now)
}

// of is a rank of a job on nodes of so many GPUs.
func of(rank, gpus, size int64) *Rank {
	node := fmt.Sprintf("node-%02d", rank/gpus)
	return &Rank{
		Cluster: "c", Node: node, Job: "17", PID: 1000 + rank%gpus,
		Subject:      nodesignal.Subject{GPU: fmt.Sprintf("GPU-%d", rank), Rank: nodesignal.OrdinalOf(rank)},
		Communicator: Communicator{ID: "0xdd281344136a3a", Name: "dp:0", Index: rank, Size: size, Nodes: (size + gpus - 1) / gpus},
	}
}

// share is what a healthy rank of the real job on an H100 spends in collectives, slower is
// how much less one does that takes 10 % longer (testdata of the nccl receiver).
const share, slower = 0.172, 0.083

// play lets each of n ranks report its share for so many ticks; by is how much less than the
// others a rank waits.
func (r *rig) play(ticks int, n, gpus int64, rng *rand.Rand, by func(rank int64) float64) {
	r.shares(ticks, n, gpus, func(_ int, o *Rank) float64 { return share + 0.002*rng.NormFloat64() - by(o.Index) })
}

// shares lets each of n ranks report for so many ticks the share that shareOf returns, which may
// change the rank.
func (r *rig) shares(ticks int, n, gpus int64, shareOf func(tick int, o *Rank) float64) {
	for k := range ticks {
		for i := range n {
			o := of(i, gpus, n)
			x := shareOf(k, o)
			r.node(o.Node)
			require.NoError(r.t, r.tracker.Share(o, x, r.now))
		}
		r.tick()
	}
}

func third(i int64) float64 {
	if i == 3 {
		return slower
	}
	return 0
}

func none(int64) float64 { return 0 }

func TestSlowRankIsNamed(t *testing.T) {
	for _, tt := range []struct {
		name    string
		gpus    int64
		step    time.Duration
		within  int // ticks
		since   bool
		healthy int // ticks before
	}{
		{"from the start, each second", 8, time.Second, 6, false, 0},
		{"from the start", 8, 10 * time.Second, 6, false, 0},
		{"later", 8, 10 * time.Second, 7, true, 60},
		{"on nodes of one GPU", 1, 10 * time.Second, 7, true, 60},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			r := newRig(t, tt.step)
			r.play(tt.healthy, 8, tt.gpus, rng, none)
			require.Empty(t, r.events)
			began := r.now
			r.play(tt.within, 8, tt.gpus, rng, third)
			require.Len(t, r.events, 1, "one record, of one rank")
			ev := r.events[0]
			assert.Equal(t, episode.PhaseOnset, ev.Phase)
			assert.Equal(t, of(3, tt.gpus, 8).Node, ev.Node)
			assert.Equal(t, of(3, tt.gpus, 8).Subject, ev.Culprit)
			assert.Equal(t, nodesignal.Communication.String(), ev.Signal)
			assert.EqualValues(t, 8, ev.Ranks)
			assert.InDelta(t, slower, *ev.Gap, 0.01)
			assert.InDelta(t, share, *ev.Median, 0.005)
			if tt.since {
				assert.WithinDuration(t, began, ev.Since, 2*tt.step)
			}
			sure := *r.report.Open[0].Confidence
			for range 3 { // the ranks report less often than the gateway compares
				r.tick()
				require.Len(t, r.report.Open, 1)
				assert.False(t, r.report.Open[0].Recovering, "no report changes nothing")
				assert.Nil(t, r.report.Open[0].Median, "no peer has a value")
				assert.InDelta(t, sure, *r.report.Open[0].Confidence, 0)
			}
			r.events = nil
			r.play(int(400*time.Second/tt.step), 8, tt.gpus, rng, none)
			require.Len(t, r.events, 1)
			assert.Equal(t, episode.CauseRecovered, r.events[0].Cause)
		})
	}
}

// What all ranks of a node have in common is the node.
func TestSlowHostIsTheNode(t *testing.T) {
	r := newRig(t, 10*time.Second)
	r.play(20, 32, 4, rand.New(rand.NewPCG(1, 2)), func(i int64) float64 {
		if i/4 == 5 {
			return slower
		}
		return 0
	})
	require.Len(t, r.events, 1)
	assert.Equal(t, "node-05", r.events[0].Node)
	assert.Equal(t, nodesignal.Subject{}, r.events[0].Culprit)
}

// TestAllRanksOfAJobCount: nodes push at times of their own, and all wait for the slow one.
func TestAllRanksOfAJobCount(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	r := newRig(t, 10*time.Second)
	r.play(60, 8, 8, rng, none)
	for tick := range int64(30) {
		for i := range int64(8) {
			if o := of(i, 8, 8); i == 3 || (i+tick)%2 == 0 {
				r.node(o.Node)
				require.NoError(t, r.tracker.Share(o, share+0.002*rng.NormFloat64()-third(i), r.now))
			}
		}
		r.tick()
	}
	require.NotEmpty(t, r.events)
	assert.EqualValues(t, 8, r.events[0].Ranks)
}

// Nodes whose clocks and wall times are alike are judged by their ranks.
func TestRanksDecideInLockstep(t *testing.T) {
	r := newRig(t, 10*time.Second)
	rng := rand.New(rand.NewPCG(1, 2))
	for k := range 90 {
		for i := range int64(8) {
			o := nodesignal.Observation{Cluster: "c", Node: of(i, 1, 8).Node, State: nodesignal.StateActive, HasState: true}
			o.Values.Set(nodesignal.Throughput, 10+0.1*float64(k%7)) // all move together
			require.NoError(t, r.engine.Observe(&o, r.now))
		}
		if k == 80 {
			assert.Equal(t, unjudged.Lockstep, r.report.Nodes[0].Unjudged)
		}
		if k < 80 {
			r.tick()
			continue
		}
		r.play(1, 8, 1, rng, third)
	}
	require.Len(t, r.events, 1)
	assert.Equal(t, "node-03", r.events[0].Node)
	for _, n := range r.report.Nodes {
		assert.Equal(t, unjudged.Judged, n.Unjudged)
		assert.Equal(t, n.Node == "node-03", n.Straggler)
	}
}

// A rank that is behind by as much as its peers differ is not slow, and its node has the reason.
func TestARankBehindItsPeersNoise(t *testing.T) {
	r := newRig(t, 10*time.Second)
	calls := 0
	r.play(170, 16, 1, rand.New(rand.NewPCG(1, 2)), func(i int64) float64 {
		tick := calls / 16
		if calls++; i == 3 && tick >= 60 {
			return 0.05
		}
		return 0.04 * math.Sin(float64(tick)/10+2*math.Pi*float64(i)/16)
	})
	require.Empty(t, r.events)
	assert.Equal(t, unjudged.Noise, r.report.Nodes[3].Unjudged)
	assert.Equal(t, unjudged.Judged, r.report.Nodes[0].Unjudged)
}

// A restart forgets nothing, and an ended process is not compared.
func TestRanksOverARestart(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	r := newRig(t, 10*time.Second)
	r.play(30, 8, 8, rng, third)
	var saved bytes.Buffer
	require.NoError(t, r.tracker.Save().Write(&saved))
	again := newRig(t, r.step)
	again.now = r.now
	require.NoError(t, again.tracker.Restore(&saved, r.now))
	again.play(1, 8, 8, rng, third)
	require.Len(t, again.events, 1, "it goes on at once")
	for i := range int64(8) {
		again.tracker.Gone(of(i, 8, 8))
	}
	again.events = nil
	again.tick()
	require.Len(t, again.events, 1)
	assert.Equal(t, episode.PhaseEnd, again.events[0].Phase)
	assert.Empty(t, again.tracker.reported)
}

// Of two slow ranks of a node the slower one is named, by the GPU of its last report.
func TestTheWorstOfANode(t *testing.T) {
	r, rng := newRig(t, 10*time.Second), rand.New(rand.NewPCG(1, 2))
	play := func(ticks int, gpu string) {
		r.shares(ticks, 16, 4, func(_ int, o *Rank) float64 {
			o.GPU = gpu
			return share + 0.002*rng.NormFloat64() - map[int64]float64{4: 0.06, 5: slower}[o.Index]
		})
	}
	play(4, "")
	require.Empty(t, r.events)
	play(2, "GPU-five")
	require.Len(t, r.events, 1)
	assert.Equal(t, nodesignal.Subject{GPU: "GPU-five", Rank: nodesignal.OrdinalOf(5)}, r.events[0].Culprit)
}

// Where a rank is slow, its communicators may look slow: there is one record.
func TestASlowRankSaysMoreThanItsLinks(t *testing.T) {
	r, rng := newRig(t, 10*time.Second), rand.New(rand.NewPCG(3, 4))
	r.links(60, rng, func(int) float64 { return 1 })
	for range 12 {
		for i := range int64(4) {
			require.NoError(t, r.tracker.Share(of(i, 1, 4), share+0.002*rng.NormFloat64()-third(i), r.now))
		}
		r.links(1, rng, func(k int) float64 { return 1 - 0.5*float64(k/3) })
	}
	require.Len(t, r.events, 1)
	assert.Equal(t, episode.SubjectNode, r.events[0].Subject)
}

func TestBounds(t *testing.T) {
	r := newRig(t, 10*time.Second)
	r.tracker.engine = straggler.New(func() straggler.Config { c := straggler.DefaultConfig(); c.MaxNodes = 4; return c }())
	for i := range int64(maxReported) {
		require.NoError(t, r.tracker.Share(of(i, maxReported, maxReported), share, r.now))
	}
	another := of(0, maxReported, maxReported)
	another.PID = 1
	require.ErrorIs(t, r.tracker.Share(another, share, r.now), ErrTooMany)
	require.ErrorIs(t, r.tracker.Bandwidth(of(0, maxReported, maxReported), Class{"AllReduce", 1}, 1, r.now), ErrTooMany)
	require.ErrorIs(t, r.tracker.Laggard(of(0, 1, 4), "node-00", r.now), ErrTooMany)
	require.NoError(t, r.tracker.Laggard(of(0, 1, 4), "node-01", r.now))
	r.node("node-00")
	r.tick()
	assert.Equal(t, map[error]int64{fairshare.ErrFull: maxGPUs - 1, ErrTooManyRanks: maxReported - maxGPUs}, r.tracker.Refused)

	// A rank without a report for the retention is forgotten, however alive its node is.
	for range 400 {
		r.node("node-00")
		r.tick()
	}
	assert.Empty(t, r.tracker.reported)
}

// All wait for one another and differ by next to nothing: their shares still show the slow
// one. Its index in the communicator names it where its rank is not known.
func TestRanksInPerfectLockstep(t *testing.T) {
	r := newRig(t, 10*time.Second)
	r.shares(90, 8, 8, func(k int, o *Rank) float64 {
		o.Subject = nodesignal.Subject{}
		return share + 0.02*float64(k%5) - third(o.Index)*float64(k/80)
	})
	require.Len(t, r.events, 1)
	assert.Equal(t, nodesignal.Subject{Rank: nodesignal.OrdinalOf(3)}, r.events[0].Culprit)
}

// While a checkpoint is written shares accuse no rank, and spoil no limit.
func TestCheckpoints(t *testing.T) {
	r, rng := newRig(t, 10*time.Second), rand.New(rand.NewPCG(1, 2))
	for k := range 200 {
		r.play(1, 8, 8, rng, func(i int64) float64 {
			less := 0.0
			if k%20 < 3 {
				less = 0.15 * rng.Float64()
			}
			if k >= 190 {
				less += third(i)
			}
			return less
		})
	}
	require.Len(t, r.events, 1)
	assert.Equal(t, of(3, 8, 8).Subject, r.events[0].Culprit)
}

// A rank with a number is the same one in whatever communicator it is compared.
func TestARankChangesItsCommunicator(t *testing.T) {
	r, rng := newRig(t, 10*time.Second), rand.New(rand.NewPCG(1, 2))
	r.play(30, 8, 8, rng, third)
	require.Len(t, r.events, 1)
	o := of(3, 8, 8)
	o.Index = 1
	require.NoError(t, r.tracker.Share(o, share-slower, r.now))
	before := o.ID
	o.ID = "0xb"
	require.NoError(t, r.tracker.Share(o, share-slower, r.now))
	o.ID = before
	r.tracker.Gone(o)
	assert.Len(t, r.tracker.nodes[key{"c", "node-00"}].ranks, 8)
}

// All ranks of a job without a pipeline wait for the slow one, not those of its pair alone.
// The stages of a pipeline are different by design.
func TestWaitingRanks(t *testing.T) {
	for _, pipeline := range []bool{false, true} {
		r := newRig(t, 10*time.Second)
		r.shares(12, 8, 8, func(_ int, whole *Rank) float64 {
			i := whole.Index
			pair, pipe := of(i, 8, 2), of(i, 8, 4)
			pair.ID, pair.Index, pair.Nodes = fmt.Sprint("tp", i/2), i%2, 1
			pipe.ID, pipe.Index = fmt.Sprint("pp", i%2), i/2
			require.NoError(t, r.tracker.Bandwidth(whole, Class{"AllReduce", 0}, 1e9, r.now))
			require.NoError(t, r.tracker.Bandwidth(pair, Class{"AllReduce", 0}, 1e9, r.now))
			if pipeline {
				require.NoError(t, r.tracker.Bandwidth(pipe, Class{"Send", 0}, 1e9, r.now))
			}
			return share - third(i)
		})
		if pipeline {
			assert.Empty(t, r.events, "of two ranks of a stage either may be slow")
			continue
		}
		require.Len(t, r.events, 1)
		assert.EqualValues(t, 8, r.events[0].Ranks)
		assert.Equal(t, of(3, 8, 8).Subject, r.events[0].Culprit)
	}
}

// own lets ranks report the own time of their steps, as their job's code does: no communicator.
func (r *rig) own(ticks int, rng *rand.Rand, of func(rank int64) (*Rank, float64)) {
	for range ticks {
		for i := range int64(4) {
			o, seconds := of(i)
			o.Communicator = Communicator{}
			r.node(o.Node)
			require.NoError(r.t, r.tracker.OwnTime(o, seconds*(1+0.004*rng.NormFloat64()), r.now))
		}
		r.tick()
	}
}

// A job may have one node. Its ranks are compared with one another.
func TestOwnTimeNamesTheRankOfALoneNode(t *testing.T) {
	for name, peculiar := range map[string]func(o *Rank){
		"a job":                func(*Rank) {},
		"without a name":       func(o *Rank) { o.Job = "" },
		"without process ids":  func(o *Rank) { o.PID = 0 },
		"by GPUs, not numbers": func(o *Rank) { o.Rank = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			rng, r := rand.New(rand.NewPCG(1, 2)), newRig(t, 10*time.Second)
			slow := 1.0
			step := func(i int64) (*Rank, float64) {
				o := of(i, 4, 4)
				peculiar(o)
				if i == 2 {
					return o, 0.5 * slow
				}
				return o, 0.5
			}
			r.own(60, rng, step)
			require.Empty(t, r.events)
			slow = 1.1
			r.own(6, rng, step)
			require.Len(t, r.events, 1)
			ev := r.events[0]
			culprit, _ := step(2)
			assert.Equal(t, culprit.Subject, ev.Culprit)
			assert.Equal(t, nodesignal.Throughput.String(), ev.Signal)
			assert.EqualValues(t, 4, ev.Ranks)
			assert.InDelta(t, 0.09, *ev.Gap, 0.02)
			assert.InDelta(t, 2, *ev.Median, 0.05, "steps a second")
			assert.WithinDuration(t, r.now.Add(-time.Minute), ev.Since, 20*time.Second)
			slow = 1
			r.own(60, rng, step)
			require.Len(t, r.events, 2)
			assert.Equal(t, episode.CauseRecovered, r.events[1].Cause)
		})
	}
}

// Jobs without a name are strangers, and so are those whose ranks have other roles.
func TestOwnTimesOfStrangersAreNotCompared(t *testing.T) {
	for name, apart := range map[string]func(o *Rank, i int64){
		"of nodes": func(o *Rank, i int64) { o.Job, o.Node = "", fmt.Sprint("n", i) },
		"of jobs":  func(o *Rank, i int64) { o.Job = fmt.Sprint("job-", i) },
		"of roles": func(o *Rank, i int64) { o.Role = fmt.Sprint("stage-", i) },
		"nameless": func(o *Rank, _ int64) { o.Subject = nodesignal.Subject{} },
	} {
		r, rng := newRig(t, 10*time.Second), rand.New(rand.NewPCG(1, 2))
		for _, slow := range []float64{1, 1.1} {
			r.own(60, rng, func(i int64) (*Rank, float64) {
				o := of(i, 4, 4)
				apart(o, i)
				if i == 2 {
					return o, 0.5 * slow
				}
				return o, 0.5
			})
		}
		assert.Empty(t, r.events, name)
	}
}

// A job may end its series of own times: the last value does not count again with each share.
func TestOwnTimesEnd(t *testing.T) {
	rng, r := rand.New(rand.NewPCG(1, 2)), newRig(t, 10*time.Second)
	for k := range 90 {
		if k < 62 {
			for i := range int64(4) {
				o, seconds := of(i, 4, 4), 0.5
				if i == 3 && k >= 60 {
					seconds = 0.6
				}
				o.Communicator = Communicator{}
				require.NoError(t, r.tracker.OwnTime(o, seconds*(1+0.004*rng.NormFloat64()), r.now))
			}
		}
		r.play(1, 4, 4, rng, none)
	}
	assert.Empty(t, r.events)
}

// NCCL and the job's code may both report a rank: it is one rank with one episode, and
// stands still when its operations do.
func TestOwnTimesBesideTimeShares(t *testing.T) {
	rng, r := rand.New(rand.NewPCG(1, 2)), newRig(t, 10*time.Second)
	for k := range 70 {
		by := func(i int64) float64 { return third(i) * float64(k/60) }
		r.play(1, 4, 4, rng, by)
		for i := range int64(4) {
			o := of(i, 4, 4)
			o.Communicator = Communicator{}
			require.NoError(t, r.tracker.OwnTime(o, 0.5*(1+by(i)*1.2)*(1+0.01*rng.NormFloat64()), r.now))
		}
	}
	require.Len(t, r.events, 1)
	assert.Equal(t, of(3, 4, 4).Subject, r.events[0].Culprit)
	require.Len(t, r.tracker.nodes[key{"c", "node-00"}].ranks, 4)
	r.events = nil
	for i := range int64(4) {
		require.NoError(t, r.tracker.Stalled(of(i, 4, 4), r.now, r.now))
		lone := of(4+i, 4, 4) // has step times alone, so that what it waits for is not known
		lone.Communicator, lone.Node, lone.PID = Communicator{}, "node-00", 2000+i
		require.NoError(t, r.tracker.OwnTime(lone, 0.5, r.now))
	}
	r.tick()
	require.Len(t, r.events, 1)
	assert.Equal(t, episode.SubjectJob, r.events[0].Subject)
}

// A node that makes up ranks, and GPUs, convicts no rank of another node.
func TestMadeUpRanksConvictNoOtherNode(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 2))
	for range 60 {
		honest, per, made := 2+rng.Int64N(31), int64(1)<<rng.IntN(4), 1+rng.Int64N(200)
		gpus, faster := []int{0, 8, 1000}[rng.IntN(3)], math.Exp(rng.Float64()*2+0.04)
		r := newRig(t, 10*time.Second)
		for range 60 {
			for i := range honest * per {
				o := of(i, per, honest*per)
				o.Communicator = Communicator{}
				r.node(o.Node)
				baseline := 0.5
				if i < per {
					baseline *= 1.02
				}
				require.NoError(t, r.tracker.OwnTime(o, baseline*(1+0.004*rng.NormFloat64()), r.now))
				require.NoError(t, r.tracker.Steps(o, r.now)) // counts as no rank
			}
			r.node("liar")
			r.tracker.Alive("c", "liar", gpus, r.now)
			for i := range made {
				o := of(i, 1000, made)
				o.Node, o.Communicator = "liar", Communicator{}
				require.NoError(t, r.tracker.OwnTime(o, 0.5/faster*(1+0.004*rng.NormFloat64()), r.now))
			}
			r.tick()
			for i := range r.report.Nodes {
				n := &r.report.Nodes[i]
				require.False(t, n.Straggler && n.Node != "liar", "%s of %d by %d ranks, %d made up ones %.2f times as fast, %d GPUs", n.Node, honest, per, made, faster, gpus)
			}
		}
		counted := min(map[int]int64{0: 64, 8: 8, 1000: 64}[gpus], max(honest*per/2, per))
		assert.Equal(t, max(0, made-counted), r.tracker.Refused[ErrTooManyRanks], "what does not count is counted")
	}
}
