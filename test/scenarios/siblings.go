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
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// SiblingCase is a family of nodes of eight GPUs. In each run a few of the nodes have one
// part that loses a tenth of its speed. Its node waits for nobody: only this part tells of
// the loss.
type SiblingCase struct {
	Name string
	Runs int
	// Recall, Delay and Onsets are what is asked for. Delay is the median's limit.
	Recall float64
	Delay  time.Duration
	Onsets float64 // per node-day
	draw   func(*rand.Rand, *siblingModel)
}

// siblingModel is what a run draws.
type siblingModel struct {
	interval, begin, end time.Duration
	nodes, slow          int
	ranks                bool    // each rank pushes the time of its own work
	idle                 int     // GPUs of each node without work
	models               float64 // the second half of the GPUs is another model, so much faster
	// noise is a part's own, common the node's, each of a tick; lasts is the share of a
	// part's that is left at the next.
	noise, common, lasts float64
	bias                 float64 // standard deviation of what parts differ by
	phases               bool    // the whole job is slower for minutes
}

const (
	siblingParts = 8
	siblingLoss  = 0.10
)

// SiblingCases returns them all.
func SiblingCases() []SiblingCase {
	c := func(name string, draw func(*rand.Rand, *siblingModel)) SiblingCase {
		return SiblingCase{Name: name, Runs: 24, Recall: 0.99, Delay: time.Minute, Onsets: 0.01, draw: draw}
	}
	cases := []SiblingCase{
		c("gpu", func(*rand.Rand, *siblingModel) {}),
		c("rank", func(_ *rand.Rand, m *siblingModel) { m.ranks = true }),
		c("half", func(_ *rand.Rand, m *siblingModel) { m.idle = 4 }),
		c("models", func(r *rand.Rand, m *siblingModel) { m.models = 0.1 + 0.4*r.Float64() }),
		c("phases", func(_ *rand.Rand, m *siblingModel) { m.phases = true }),
		c("seconds", func(_ *rand.Rand, m *siblingModel) {
			m.interval, m.nodes, m.slow, m.begin, m.end = time.Second, 8, 2, 20*time.Minute, 30*time.Minute
		}),
		c("healthy", func(r *rand.Rand, m *siblingModel) {
			m.slow, m.begin, m.end, m.phases, m.ranks = 0, 24*time.Hour, 24*time.Hour, r.IntN(2) == 0, r.IntN(2) == 0
			m.idle = 4 * r.IntN(2)
		}),
	}
	cases[len(cases)-2].Delay = 10 * time.Second
	return cases
}

func logUniform(r *rand.Rand, least, most float64) float64 {
	return least * math.Exp(r.Float64()*math.Log(most/least))
}

func (c *SiblingCase) model(r *rand.Rand) siblingModel {
	m := siblingModel{
		interval: Interval, begin: time.Hour, end: 75 * time.Minute, nodes: 16, slow: 2,
		noise: logUniform(r, 0.002, 0.02), common: logUniform(r, 0.002, 0.02), lasts: 0.6 * r.Float64(), bias: 0.02 * r.Float64(),
	}
	c.draw(r, &m)
	return m
}

// SiblingOutcome is what came of a case.
type SiblingOutcome struct {
	Case SiblingCase
	// Slow nodes there were. Found is by the agent alone, Seen by the gateway, each with
	// the delay. Named counts the gateway's verdicts that name the right part.
	Slow        int
	Found, Seen []time.Duration
	Named       int
	// Agent and Gateway are verdicts on parts and on nodes that were well, in NodeDays.
	Agent, Gateway int
	NodeDays       float64
}

// EvaluateSiblings plays all cases.
func EvaluateSiblings(ctx context.Context, cases []SiblingCase, seed uint64, progress func(done, runs int, name string)) ([]SiblingOutcome, error) {
	var out []SiblingOutcome
	runs, done := 0, 0
	for i := range cases {
		runs += cases[i].Runs
	}
	for _, c := range cases {
		o := SiblingOutcome{Case: c}
		for run := range c.Runs {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			h := fnv.New64a()
			_, _ = fmt.Fprintf(h, "%s %d", c.Name, run) // never fails
			p := newSiblingPlay(&c, rand.New(rand.NewPCG(seed, h.Sum64())))
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

// SiblingFigures prints them.
func SiblingFigures(w io.Writer, results []SiblingOutcome) {
	for i := range results {
		o := &results[i]
		name, c := "eval_siblings_"+o.Case.Name+"_", &o.Case
		part := func(prefix string, delays []time.Duration, onsets int) {
			if o.Slow > 0 {
				figure.Fprint(w, prefix+"recall", float64(len(delays))/float64(o.Slow), "share", c.Recall, false)
				figure.Fprint(w, prefix+"p50", figure.Quantile(delays, 0.5).Seconds(), "s", c.Delay.Seconds(), true)
			}
			figure.Fprint(w, prefix+"onsets", float64(onsets)/o.NodeDays, "/node-day", c.Onsets, true)
			figure.FprintOnly(w, prefix+"onsets_upper", RateUpper(onsets, o.NodeDays), "/node-day")
		}
		part(name+"agent_", o.Found, o.Agent)
		part(name+"gateway_", o.Seen, o.Gateway)
		if o.Slow == 0 {
			continue
		}
		figure.Fprint(w, name+"named", float64(o.Named)/float64(max(len(o.Seen), 1)), "share", 1, false)
	}
}

// siblingPlay is one run.
type siblingPlay struct {
	m       siblingModel
	rng     *rand.Rand
	cfg     nodescore.Config
	plan    *nodescore.Plan
	gateway *straggler.Engine
	nodes   []siblingNode
	phase   float64
	left    int // ticks of the phase
}

type siblingNode struct {
	name        string
	score       *nodescore.Node
	inbox       threshold.Inbox
	bias, drift [siblingParts]float64
	sick        int // the part that loses speed, -1 for none
	found, seen bool
}

func newSiblingPlay(c *SiblingCase, rng *rand.Rand) *siblingPlay {
	p := &siblingPlay{m: c.model(rng), rng: rng, cfg: nodescore.DefaultConfig()}
	gateway := straggler.DefaultConfig()
	gateway.TTL = gateway.TTL / Interval * p.m.interval
	p.gateway = straggler.New(gateway)
	p.cfg.Interval, p.cfg.ReadingTTL = p.m.interval, gateway.TTL
	p.plan = nodescore.NewPlan(&p.cfg.Measures)
	p.nodes = make([]siblingNode, p.m.nodes)
	for i := range p.nodes {
		n := &p.nodes[i]
		n.name, n.score, n.sick = fmt.Sprintf("n%02d", i), nodescore.NewNode(&p.cfg, p.plan), -1
		for g := range n.bias {
			n.bias[g] = p.m.bias * rng.NormFloat64()
		}
		if i < p.m.slow {
			n.sick = rng.IntN(siblingParts - p.m.idle)
		}
	}
	return p
}

func (p *siblingPlay) play(o *SiblingOutcome) error {
	o.Slow += p.m.slow
	for at := p.m.interval; at <= p.m.end; at += p.m.interval {
		p.turn()
		now := epoch.Add(at)
		for i := range p.nodes {
			if err := p.push(o, &p.nodes[i], at); err != nil {
				return err
			}
		}
		p.judge(o, p.gateway.Tick(now), at)
	}
	return nil
}

// turn begins and ends phases of the whole job.
func (p *siblingPlay) turn() {
	if !p.m.phases {
		return
	}
	if p.left--; p.left < 0 {
		p.left = 6 + p.rng.IntN(60)
		p.phase = -0.4 * p.rng.Float64() * float64(p.rng.IntN(2))
	}
}

func (p *siblingPlay) push(o *SiblingOutcome, n *siblingNode, at time.Duration) error {
	now := epoch.Add(at)
	var r nodescore.Reading
	put := func(metric, attr string, of nodesignal.Subject, v float64) {
		for k, in := range p.plan.Inputs(metric) {
			if attr == "" || in.Attributes[0].Value == attr {
				r.Add(&p.plan.Inputs(metric)[k], of, v)
			}
		}
	}
	all := p.m.common * p.rng.NormFloat64()
	for g := range siblingParts {
		n.drift[g] = p.m.lasts*n.drift[g] + math.Sqrt(1-p.m.lasts*p.m.lasts)*p.m.noise*p.rng.NormFloat64()
		speed := (1 + n.bias[g] + all + n.drift[g]) * (1 + p.phase)
		if g == n.sick && at > p.m.begin {
			speed *= 1 - siblingLoss
		}
		gpu, model := partOf(g).GPU, "A"
		if p.m.models > 0 && g >= siblingParts/2 {
			model, speed = "B", speed*(1+p.m.models)
		}
		r.Works(gpu, model)
		work := g < siblingParts-p.m.idle
		put(gpusemconv.MetricGPUUtilization, "general", nodesignal.Subject{GPU: gpu}, 0.99*float64(b2i(work)))
		put(gpusemconv.MetricGPUClock, "sm", nodesignal.Subject{GPU: gpu}, 1.755e9)
		put(gpusemconv.MetricGPUClockLimit, "sm", nodesignal.Subject{GPU: gpu}, 1.98e9)
		switch {
		case !work:
			put(gpusemconv.MetricGPUActivity, "sm", nodesignal.Subject{GPU: gpu}, 0)
		case p.m.ranks:
			put(gpusemconv.MetricAppStepDuration, "", partOf(g), 0.8/speed)
		default:
			put(gpusemconv.MetricGPUActivity, "sm", nodesignal.Subject{GPU: gpu}, max(0, 0.5*speed))
		}
	}
	n.score.Observe(&r, now)
	received, known := n.inbox.Get(cluster, siblingGroup)
	res := n.score.Evaluate(now, received, known)
	o.NodeDays += p.m.interval.Hours() / 24
	for i := range res.Siblings {
		switch s := &res.Siblings[i]; {
		case !s.Slow:
		case at > p.m.begin && n.sick >= 0 && s.GPU == partOf(n.sick).GPU:
			if !n.found {
				n.found = true
				o.Found = append(o.Found, at-p.m.begin)
			}
		default:
			o.Agent++
		}
	}
	seen := straggler.Observation{
		Cluster: cluster, Node: n.name, Peers: []string{siblingGroup}, State: res.State, HasState: true,
		Score: res.Score, HasScore: res.HasScore, NoScore: !res.HasScore, Values: res.Signals.Values,
		Culprit: res.Culprit.Subject, HasCulprit: res.Culprit.Known,
	}
	return p.gateway.Observe(&seen, now)
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

const siblingGroup = "job"

// partOf is a GPU with its rank.
func partOf(g int) nodesignal.Subject {
	return nodesignal.Subject{GPU: fmt.Sprintf("GPU-%d", g), Rank: nodesignal.OrdinalOf(int64(g))}
}

// index of a node, -1 for none.
func (p *siblingPlay) index(name string) int {
	for i := range p.nodes {
		if p.nodes[i].name == name {
			return i
		}
	}
	return -1
}

func (p *siblingPlay) judge(o *SiblingOutcome, report *straggler.Report, at time.Duration) {
	for i := range report.Changes {
		c := &report.Changes[i]
		k := p.index(c.Node)
		switch n := &p.nodes[k]; {
		case !c.Straggler:
		case n.sick >= 0 && at > p.m.begin:
			if !n.seen {
				n.seen = true
				o.Seen = append(o.Seen, at-p.m.begin)
			}
		default:
			o.Gateway++
		}
	}
	for i := range report.Events {
		e := &report.Events[i]
		k := p.index(e.Node)
		if e.Kind == straggler.EventOnset && k >= 0 && p.nodes[k].sick >= 0 && at > p.m.begin && e.Culprit.GPU == partOf(p.nodes[k].sick).GPU {
			o.Named++
		}
	}
}
