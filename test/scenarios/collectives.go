// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"math/rand/v2"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/slowlink"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
	"github.com/gpu-collector/gpu-collector/sim/ranks"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// CollectiveCase is a family of jobs whose ranks wait for one another. Every rank's step
// time is that of the job. In most cases something becomes slow after 20 minutes.
type CollectiveCase struct {
	Name string
	Runs int
	// Loss of a GPU, or of all of a node; 0 is no fault of a node.
	Loss float64
	Host bool
	// Recall and Delay are what is asked for. Within is when it must be found.
	Recall        float64
	Delay, Within time.Duration
	Hours         float64
	job           func(*rand.Rand, *collectiveModel)
}

type collectiveModel struct {
	job         ranks.Job
	rail        float64 // the data-parallel operations of one place on each node take so many times as long
	fabric      float64
	checkpoints bool
	phases      bool
	bytes       float64 // of a data-parallel operation
}

// mostCollectiveOnsets is the limit of false onsets per node-day.
const mostCollectiveOnsets = 0.01

// CollectiveCases returns them all.
func CollectiveCases() []CollectiveCase {
	c := func(name string, loss float64, job func(*rand.Rand, *collectiveModel)) CollectiveCase {
		out := CollectiveCase{Name: name, Runs: 20, Loss: loss, Recall: 0.95, Delay: time.Minute, Within: time.Hour, Hours: 2.0 / 3, job: job}
		if loss > 0 && loss < 0.1 {
			out.Recall, out.Delay, out.Within = 0.8, 5*time.Minute, 5*time.Minute
		}
		if loss == 0 {
			out.Hours = 4
		}
		return out
	}
	same := func(*rand.Rand, *collectiveModel) {}
	host10, host5 := c("host", 0.10, same), c("host5", 0.05, same)
	host10.Host, host5.Host = true, true
	slower := func(r *rand.Rand) float64 { return 1.4 + 1.6*r.Float64() }
	links := func(name string, job func(*rand.Rand, *collectiveModel)) CollectiveCase {
		out := c(name, 0, job)
		out.Hours, out.Within = 2, time.Minute
		return out
	}
	return []CollectiveCase{
		c("gpu", 0.10, same), host10, c("gpu5", 0.05, same), host5,
		c("overlap", 0.10, func(_ *rand.Rand, m *collectiveModel) { m.job.Overlap = true }),
		c("healthy", 0, same),
		c("hidden", 0, func(_ *rand.Rand, m *collectiveModel) { m.job.Overlap = true }),
		c("imbalance", 0, func(r *rand.Rand, m *collectiveModel) { m.job.Imbalance = 0.1 + 0.2*r.Float64() }),
		c("phases", 0, func(_ *rand.Rand, m *collectiveModel) { m.phases = true }),
		c("checkpoints", 0, func(_ *rand.Rand, m *collectiveModel) { m.checkpoints = true }),
		links("rail", func(r *rand.Rand, m *collectiveModel) { m.rail = slower(r) }),
		links("fabric", func(r *rand.Rand, m *collectiveModel) { m.fabric = slower(r) }),
	}
}

// draw lays out a job of 8 or 16 nodes of eight GPUs.
func (c *CollectiveCase) draw(r *rand.Rand) collectiveModel {
	all := 64 << r.IntN(2)
	tp, pp := 1<<r.IntN(4), 1<<r.IntN(3)
	m := collectiveModel{job: ranks.Job{
		TP: tp, PP: pp, DP: all / tp / pp, GPUs: 8, MicroBatches: max(4, 2*pp), Blocks: 2 + r.IntN(3),
		Noise: logUniform(r, 0.01, 0.06), Bias: logUniform(r, 0.002, 0.012),
	}}
	j := &m.job
	step := 1 + 2*r.Float64()
	j.Compute = step / float64(j.MicroBatches*j.Blocks)
	j.TensorTime = j.Compute * (0.05 + 0.2*r.Float64())
	j.DataTime = step * (0.05 + 0.25*r.Float64())
	j.PipeTime = j.Compute * 0.02
	j.Jitter = logUniform(r, 0.01, 0.08)
	m.bytes = j.DataTime * logUniform(r, 10e9, 400e9)
	c.job(r, &m)
	return m
}

// CollectiveOutcome is what came of a case.
type CollectiveOutcome struct {
	Case CollectiveCase
	// Faults there were. Found has the delays of those that the gateway or the agent
	// found, Named counts those whose GPU was named besides. ByThroughput counts verdicts on the
	// faulty node by its throughput.
	Faults       int
	Found        []time.Duration
	Named        int
	ByThroughput int
	// Onsets of nodes that were well, by the gateway, and verdicts on Parts that were, by
	// agents, in NodeDays.
	Onsets, Parts int
	NodeDays      float64
	// Links are the communicators that became slow, LinksFound has the delays of those
	// that were named. LinksWrong counts episodes of others.
	Links, LinksWrong int
	LinksFound        []time.Duration
}

// EvaluateCollectives plays all cases.
func EvaluateCollectives(ctx context.Context, cases []CollectiveCase, seed uint64, progress func(done, runs int, name string)) ([]CollectiveOutcome, error) {
	var out []CollectiveOutcome
	runs, done := 0, 0
	for i := range cases {
		runs += cases[i].Runs
	}
	for _, c := range cases {
		o := CollectiveOutcome{Case: c}
		for run := range c.Runs {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			h := fnv.New64a()
			_, _ = fmt.Fprintf(h, "lockstep %s %d", c.Name, run) // never fails
			p, err := newCollectivePlay(&c, rand.New(rand.NewPCG(seed, h.Sum64())))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.Name, err)
			}
			if err := p.play(&o); err != nil {
				return nil, fmt.Errorf("%s: %w", c.Name, err)
			}
			done++
			progress(done, runs, c.Name)
		}
		out = append(out, o)
	}
	return out, nil
}

// CollectiveFigures prints them.
func CollectiveFigures(w io.Writer, results []CollectiveOutcome) {
	for i := range results {
		o := &results[i]
		name, c := "eval_collectives_"+o.Case.Name+"_", &o.Case
		if o.Faults > 0 {
			found := 0
			for _, d := range o.Found {
				if d <= c.Within {
					found++
				}
			}
			figure.Fprint(w, name+"recall", float64(found)/float64(o.Faults), "share", c.Recall, false)
			figure.Fprint(w, name+"p50", figure.Quantile(o.Found, 0.5).Seconds(), "s", c.Delay.Seconds(), true)
			if !c.Host {
				figure.Fprint(w, name+"named", float64(o.Named)/float64(o.Faults), "share", c.Recall, false)
			}
			figure.FprintOnly(w, name+"by_throughput", float64(o.ByThroughput), "verdicts")
		}
		if o.Links > 0 {
			found := 0
			for _, d := range o.LinksFound {
				if d <= c.Within {
					found++
				}
			}
			figure.Fprint(w, name+"communicators", float64(found)/float64(o.Links), "share", c.Recall, false)
			figure.Fprint(w, name+"communicators_p50", figure.Quantile(o.LinksFound, 0.5).Seconds(), "s", c.Delay.Seconds(), true)
			figure.FprintOnly(w, name+"communicators_ever", float64(len(o.LinksFound))/float64(o.Links), "share")
		}
		figure.Fprint(w, name+"links", float64(o.LinksWrong)/o.NodeDays, "/node-day", mostCollectiveOnsets, true)
		figure.Fprint(w, name+"onsets", float64(o.Onsets)/o.NodeDays, "/node-day", mostCollectiveOnsets, true)
		figure.Fprint(w, name+"parts", float64(o.Parts)/o.NodeDays, "/node-day", mostCollectiveOnsets, true)
		figure.FprintOnly(w, name+"onsets_upper", RateUpper(o.Onsets, o.NodeDays), "/node-day")
	}
}

// collectivePlay is one run.
type collectivePlay struct {
	c       *CollectiveCase
	m       collectiveModel
	rng     *rand.Rand
	job     *ranks.Play
	faults  ranks.Faults
	cfg     nodescore.Config
	plan    *nodescore.Plan
	gateway *straggler.Engine
	links   *slowlink.Book
	nodes   []*nodescore.Node
	sick    int // node, -1 for none
	rank    int
	found   bool
	named   bool
	shares  []float64
	left    int
	// slow communicators, by id, and whether each was named.
	slow map[string]bool
}

// faultAfter is when something becomes slow.
const faultAfter = 20 * time.Minute

func newCollectivePlay(c *CollectiveCase, rng *rand.Rand) (*collectivePlay, error) {
	p := &collectivePlay{c: c, m: c.draw(rng), rng: rng, gateway: straggler.New(straggler.DefaultConfig()), links: slowlink.New(Interval, 1<<20), cfg: nodescore.DefaultConfig(), sick: -1}
	if err := p.m.job.Validate(); err != nil {
		return nil, err
	}
	p.job = ranks.New(p.m.job, rng)
	p.plan = nodescore.NewPlan(&p.cfg.Measures)
	for range p.m.job.Ranks() / p.m.job.GPUs {
		p.nodes = append(p.nodes, nodescore.NewNode(&p.cfg, p.plan))
	}
	return p, nil
}

func (p *collectivePlay) play(o *CollectiveOutcome) error {
	end := time.Duration(p.c.Hours * float64(time.Hour))
	for at := Interval; at <= end; at += Interval {
		if at > faultAfter && p.sick < 0 {
			p.begin(o)
		}
		p.change(at)
		for p.job.Now() < at.Seconds() {
			p.job.Step(&p.faults)
		}
		if err := p.tick(o, at); err != nil {
			return err
		}
	}
	return nil
}

// begin makes something slow.
func (p *collectivePlay) begin(o *CollectiveOutcome) {
	if p.slow == nil {
		p.slow = map[string]bool{}
		p.beginLinks(o)
	}
	if p.c.Loss == 0 {
		return
	}
	o.Faults++
	p.rank = p.rng.IntN(p.m.job.Ranks())
	p.sick = p.rank / p.m.job.GPUs
	p.faults.Slower = make([]float64, p.m.job.Ranks())
	p.faults.Slower[p.rank] = p.c.Loss
	if p.c.Host {
		for g := range p.m.job.GPUs {
			p.faults.Slower[p.sick*p.m.job.GPUs+g] = p.c.Loss
		}
	}
}

// beginLinks makes a rail slow that the job uses, or all of them.
func (p *collectivePlay) beginLinks(o *CollectiveOutcome) {
	j := &p.m.job
	p.faults.Rail, p.faults.RailOf, p.faults.Fabric = p.m.rail, p.rng.IntN(min(j.TP, j.GPUs)), p.m.fabric
	for r := range j.Ranks() {
		if first := p.job.DataGroup(r); first == r && (p.m.fabric > 0 || p.m.rail > 0 && first%j.GPUs == p.faults.RailOf) {
			p.slow[groupID(first)] = false
			o.Links++
		}
	}
}

func groupID(first int) string { return fmt.Sprintf("0x%016x", first) }

// tellLinks is what the ranks tell of their communicators.
func (p *collectivePlay) tellLinks(o *CollectiveOutcome, at time.Duration) error {
	j, now := &p.m.job, epoch.Add(at)
	kind := slowlink.Kind{Operation: "AllReduce", Size: 1 << int(math.Log2(p.m.bytes)), Ranks: int64(j.DP), Nodes: int64(min(j.DP, j.DP*j.TP/j.GPUs))}
	for r := range j.Ranks() {
		least, total := p.job.Data(r)
		if least == 0 {
			continue
		}
		first := p.job.DataGroup(r)
		if err := p.links.Add(&slowlink.Point{
			Cluster: cluster, Job: "job", Node: nodeName(r/j.GPUs, 0), ID: groupID(first), Kind: kind, Rank: int64((r - first) / j.TP),
			Bandwidth: p.m.bytes / least,
		}, now); err != nil {
			return err
		}
		p.links.Spend(cluster, groupID(first), int64((r-first)/j.TP), total/Interval.Seconds())
	}
	for _, e := range p.links.Tick(now) {
		if e.Kind != straggler.EventOnset && e.Kind != straggler.EventUpdate {
			continue
		}
		wrong := false
		for _, id := range e.Communicators {
			named, slow := p.slow[id]
			wrong = wrong || !slow
			if slow && !named {
				p.slow[id] = true
				o.LinksFound = append(o.LinksFound, at-faultAfter)
			}
		}
		if wrong {
			o.LinksWrong++
		}
	}
	return nil
}

// change begins and ends phases, and writes checkpoints.
func (p *collectivePlay) change(at time.Duration) {
	if p.m.phases {
		if p.left--; p.left < 0 {
			p.left, p.faults.Load = 12+p.rng.IntN(120), 1
			if p.rng.IntN(2) == 0 {
				p.faults.Load = 0.6 + p.rng.Float64()
			}
		}
	}
	if p.m.checkpoints && at%(10*time.Minute) == 0 {
		p.job.Pause(20 + 20*p.rng.Float64())
	}
}

func (p *collectivePlay) tick(o *CollectiveOutcome, at time.Duration) error {
	now, j := epoch.Add(at), &p.m.job
	p.shares = p.job.Shares(Interval.Seconds(), p.shares)
	for i, n := range p.nodes {
		var r nodescore.Reading
		put := func(metric, attr string, of nodesignal.Subject, v float64) {
			for k, in := range p.plan.Inputs(metric) {
				if attr == "" || in.Attributes[0].Value == attr {
					r.Add(&p.plan.Inputs(metric)[k], of, v)
				}
			}
		}
		for g := range j.GPUs {
			rank := i*j.GPUs + g
			of := nodesignal.Subject{GPU: fmt.Sprintf("GPU-%d-%d", i, g), Rank: nodesignal.OrdinalOf(int64(rank))}
			put(gpusemconv.MetricAppStepDuration, "", of, p.job.Took())
			put(gpusemconv.MetricCollectiveShare, "", of, p.shares[rank])
			put(gpusemconv.MetricGPUUtilization, "general", nodesignal.Subject{GPU: of.GPU}, 0.99)
		}
		n.Observe(&r, now)
		res := n.Evaluate(now, threshold.Received{}, false)
		o.NodeDays += Interval.Hours() / 24
		role := ""
		if perStage := j.TP * j.DP / j.GPUs; perStage >= leastNodes { // else a group has too few nodes, as the docs say
			role = fmt.Sprint("stage-", i/perStage)
		}
		for k := range res.Siblings {
			if s := &res.Siblings[k]; s.Slow {
				p.accuse(o, i, s.Subject, at)
			}
		}
		seen := straggler.Observation{
			Cluster: cluster, Node: nodeName(i, 0), Peers: []string{"job", role}, State: straggler.StateActive, HasState: true,
			Score: res.Score, HasScore: res.HasScore, NoScore: !res.HasScore, Values: res.Signals.Values,
			Culprit: res.Culprit.Subject, HasCulprit: res.Culprit.Known,
		}
		if err := p.gateway.Observe(&seen, now); err != nil {
			return err
		}
	}
	if err := p.tellLinks(o, at); err != nil {
		return err
	}
	report := p.gateway.Tick(now)
	for i := range report.Events {
		p.judge(o, &report.Events[i], at)
	}
	return nil
}

// leastNodes of a stage make its nodes a peer group.
const leastNodes = 4

// accuse takes an agent's verdict on a GPU of its own node.
func (p *collectivePlay) accuse(o *CollectiveOutcome, node int, of nodesignal.Subject, at time.Duration) {
	switch {
	case node == p.sick && (p.c.Host || of.Rank == nodesignal.OrdinalOf(int64(p.rank))):
		p.find(o, at)
		if !p.named {
			p.named = true
			o.Named++
		}
	default:
		o.Parts++
	}
}

func (p *collectivePlay) find(o *CollectiveOutcome, at time.Duration) {
	if !p.found {
		p.found = true
		o.Found = append(o.Found, at-faultAfter)
	}
}

func (p *collectivePlay) judge(o *CollectiveOutcome, e *straggler.Event, at time.Duration) {
	if p.sick >= 0 && e.Node == nodeName(p.sick, 0) {
		if e.Kind == straggler.EventOnset && e.Signal == nodesignal.Throughput {
			o.ByThroughput++
		}
		if e.Kind == straggler.EventOnset {
			p.find(o, at)
		}
		if !p.named && e.Culprit.Rank == nodesignal.OrdinalOf(int64(p.rank)) {
			p.named = true
			o.Named++
		}
		return
	}
	if e.Kind == straggler.EventOnset {
		o.Onsets++
	}
}
