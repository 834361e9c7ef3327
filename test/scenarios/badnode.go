// SPDX-License-Identifier: Apache-2.0

//go:build !enginebefore

package scenarios

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/scenarios/families"
)

// The fleets in which one node misbehaves.
const (
	badNodes = 64
	badTime  = 4 * time.Hour
	// badRuns are those of each family.
	badRuns = 2
	// badShare is the most by which that node may change a figure.
	badShare = 0.1
	// detectedWithin is for the loss that can be found: its limit counts, and does not
	// where there is time for any sum to fill.
	detectedWithin = 5 * time.Minute
)

// behaviour is what a node does instead of its work.
type behaviour struct {
	name string
	// value takes the place of the node's own; NaN is no push.
	value func(b *badNode, tick int, v float64) float64
	// push is done besides, before the others push; may be nil.
	push func(b *badNode, tick int, v float64) error
}

// behaviours are by what they try: to be heard where they should not, and to make
// their group's limit useless.
var behaviours = []behaviour{
	{name: "late", value: func(b *badNode, tick int, v float64) float64 {
		at := tick % len(b.past)
		v, b.past[at] = b.past[at], v
		return v
	}},
	{name: "flapping", value: func(b *badNode, _ int, v float64) float64 {
		if b.left--; b.left <= -b.long {
			b.left = 1 + b.rng.IntN(b.long)
		}
		b.obs[b.node].State = nodesignal.StateActive
		if b.left == 0 {
			b.obs[b.node].State = nodesignal.StateCalibrating
		}
		if b.left > 0 {
			return math.NaN()
		}
		return v
	}},
	{name: "no_numbers", value: func(b *badNode, tick int, v float64) float64 {
		if tick%b.long > b.long/2 {
			return v
		}
		return math.NaN()
	}, push: func(b *badNode, tick int, _ float64) error {
		v := []float64{math.NaN(), math.Inf(1), -1}[tick%3]
		if err := b.pushOne(b.node, v, b.at(tick)); err == nil {
			return fmt.Errorf("%g was taken for a value", v)
		}
		return nil
	}},
	{name: "stuck", value: func(b *badNode, _ int, v float64) float64 {
		if b.first == 0 {
			b.first = v
		}
		return b.first
	}},
	{name: "other_name", value: own, push: func(b *badNode, tick int, v float64) error {
		o := b.obs[b.victim]
		o.Values.Set(nodesignal.Throughput, v*(1-b.depth))
		return b.engine.Observe(&o, b.at(tick))
	}},
	{name: "other_groups", value: func(b *badNode, tick int, v float64) float64 {
		b.obs[b.node].Peers = []string{fmt.Sprintf("job-%d", tick%b.long)}
		return v * (1 - b.depth*b.rng.Float64())
	}},
	{name: "bursts", value: func(b *badNode, _ int, v float64) float64 {
		if b.left--; b.left <= -b.long {
			b.left = 1 + b.rng.IntN(3)
		}
		if b.left > 0 {
			v *= 1 - b.depth
		}
		return v
	}},
	{name: "alternates", value: func(b *badNode, tick int, v float64) float64 {
		if tick%2 == 0 {
			return v * (1 - b.depth)
		}
		return v * (1 + b.depth)
	}},
	{name: "ramps", value: func(b *badNode, tick int, v float64) float64 {
		half := b.run.Ticks() / 8
		return v * (1 - b.depth*math.Abs(float64(tick%(2*half)-half))/float64(half))
	}},
	// It knows its own sum, and stays just below the flag.
	{name: "just_below", value: func(b *badNode, _ int, v float64) float64 {
		if b.suspicion() < 0.6 {
			v *= 1 - b.depth
		}
		return v
	}},
	{name: "anything", value: func(b *badNode, tick int, v float64) float64 {
		if b.left--; b.left <= 0 {
			b.left, b.does = 1+b.rng.IntN(20*b.long), b.rng.IntN(4)
			b.depth = b.rng.Float64()
		}
		switch b.does {
		case 0:
			return v
		case 1:
			return v * math.Exp(b.depth*b.rng.NormFloat64()*b.rng.NormFloat64())
		case 2:
			return v * (1 - b.depth)
		}
		return v * (1 + 3*b.depth*float64(tick%2))
	}},
}

func own(_ *badNode, _ int, v float64) float64 { return v }

// badNode is a fleet in which one healthy node does as behaves says; nil is its work.
type badNode struct {
	*driver
	behaves *behaviour
	run     *families.Run
	judge   *judge
	rng     *rand.Rand
	// node misbehaves, and victim is another healthy one.
	node, victim int
	// What a behaviour draws and remembers.
	depth, first     float64
	long, left, does int
	past             []float64
	// seen are the nodes without a fault that were flagged after the first hour.
	seen []bool
	// limits are those of each tick after the first hour.
	limits []limits
	values []float64
}

// limits are what a group's nodes are held to: each sum that is full, and the smallest
// loss that is found in time, means over the nodes.
type limits struct {
	sums []float64
	loss float64
}

// published are the limits of the sums in parameters, and the smallest loss that fills
// one of them within so many ticks.
func published(p *straggler.Params, ticks float64) (sums []float64, loss float64) {
	c := straggler.DefaultCUSUM()
	for _, h := range p.Limits {
		sums = append(sums, math.Abs(h))
	}
	return sums, p.Detectable(&c, ticks)
}

func newBadNode(run *families.Run, behaves *behaviour, rng *rand.Rand, node, victim int) *badNode {
	from := familyFleet{run}
	b := &badNode{
		driver:  newDriverAt(straggler.DefaultConfig(), run.Model.Interval, run.Model.Nodes, from),
		behaves: behaves, run: run, judge: newJudge(run), rng: rng, node: node, victim: victim,
		seen: make([]bool, run.Model.Nodes), values: make([]float64, run.Model.Nodes),
	}
	b.judge.end[node] = math.MaxInt // it is neither healthy nor has it a fault
	if behaves == nil {
		return b
	}
	b.depth, b.long = 0.05+0.75*rng.Float64(), 3+rng.IntN(28)
	b.past = slices.Repeat([]float64{math.NaN()}, 1+rng.IntN(6))
	return b
}

func (b *badNode) at(tick int) time.Time {
	return epoch.Add(time.Duration(tick)*b.interval + b.interval/time.Duration(len(b.obs)+2))
}

// suspicion is the node's at the tick before.
func (b *badNode) suspicion() float64 {
	if b.report == nil {
		return 0
	}
	for i := range b.report.Nodes {
		if n := &b.report.Nodes[i]; n.Node == b.obs[b.node].Node {
			return n.Suspicion
		}
	}
	return 0
}

func (b *badNode) play() error {
	r := b.run
	b.rename(r.Life)
	copy(b.values, r.Values)
	if v := &b.values[b.node]; b.behaves != nil && !math.IsNaN(*v) {
		honest := *v
		*v = b.behaves.value(b, r.Tick, honest)
		if b.behaves.push != nil {
			if err := b.behaves.push(b, r.Tick, honest); err != nil {
				return err
			}
		}
	}
	if r.Same != nil {
		b.same = append(b.same[:0], r.Same...)
		b.same[b.node] = false
	}
	if err := b.push(r.Tick, b.values); err != nil {
		return err
	}
	b.tick(r.Tick, b.judge.flagged)
	for i, flagged := range b.judge.flagged {
		b.seen[i] = b.seen[i] || flagged && r.Tick >= b.judge.first && b.judge.end[i] == 0
	}
	b.judge.tick(b.incidents, 0)
	if r.Tick >= b.judge.first {
		b.limits = append(b.limits, limitsOf(b.report, float64(detectedWithin)/float64(b.interval)))
	}
	return nil
}

// limitsOf are the means over the nodes of all groups, by what is published of each.
// Where nobody is compared there are none.
func limitsOf(r *straggler.Report, ticks float64) (l limits) {
	peers := 0.0
	for i := range r.Groups {
		g := &r.Groups[i]
		cohorts := g.Cohorts
		if len(cohorts) == 0 {
			cohorts = []straggler.CohortReport{{Signals: g.Signals}}
		}
		for k := range cohorts {
			s := &cohorts[k].Signals[nodesignal.Throughput]
			if g.Group == "" || !s.Known {
				continue
			}
			sums, loss := published(&s.Params, ticks)
			peers += float64(s.N)
			weight := float64(s.N) / peers
			if l.sums == nil {
				l.sums = make([]float64, len(sums))
			}
			for j := range sums {
				l.sums[j] += weight * (sums[j] - l.sums[j])
			}
			l.loss += weight * (loss - l.loss)
		}
	}
	return l
}

// BadResult is what one node's behaviour changed in a family.
type BadResult struct {
	Family, Behaviour string
	// Changed are the healthy nodes that were flagged with the bad node or without, but
	// not both.
	Changed int
	// Found faults, and how long it took to find those of them that were found among
	// honest nodes too.
	Found, HonestFound int
	Took, HonestTook   time.Duration
	// The means of the limits and of the smallest loss that can be found, as factors of
	// those among honest nodes. Of several sums and runs the worst counts. MaxLimit is of
	// the worst tick.
	Limit, Loss, MaxLimit float64
}

// Recall and Delay are factors of those among honest nodes.
func (r *BadResult) Recall() float64 { return factor(float64(r.Found), float64(r.HonestFound)) }

// Delay is the mean over the faults.
func (r *BadResult) Delay() float64 { return factor(float64(r.Took), float64(r.HonestTook)) }

// add takes another run of the same behaviour.
func (r *BadResult) add(o *BadResult) {
	r.Changed += o.Changed
	r.Found, r.HonestFound = r.Found+o.Found, r.HonestFound+o.HonestFound
	r.Took, r.HonestTook = r.Took+o.Took, r.HonestTook+o.HonestTook
	r.Limit, r.Loss, r.MaxLimit = max(r.Limit, o.Limit), max(r.Loss, o.Loss), max(r.MaxLimit, o.MaxLimit)
}

// EvaluateBadNodes plays short runs of each family once for each behaviour.
func EvaluateBadNodes(ctx context.Context, list []families.Family, o FamilyOptions) ([]BadResult, error) {
	results := make([][]BadResult, badRuns*len(list))
	done := 0
	err := inParallel(ctx, len(results), o.Workers, func(k int) (func(), error) {
		f, run := list[k/badRuns].Short(badNodes, badTime), k%badRuns
		played, err := playBadNodes(f.Play(o.Seed, run, false), behaviours, random(o.Seed, "bad "+f.Name, run))
		return func() {
			results[k] = played
			if done++; o.Progress != nil {
				o.Progress(done, len(results), f.Name)
			}
		}, err
	})
	if err != nil {
		return nil, err
	}
	var sums []BadResult
	for k, played := range results {
		if k%badRuns == 0 {
			sums = append(sums, played...)
			continue
		}
		for i := range played {
			sums[len(sums)-len(played)+i].add(&played[i])
		}
	}
	return sums, nil
}

// playBadNodes gives the samples of a run to a fleet whose nodes are all honest, and to
// one for each behaviour of the same node.
func playBadNodes(r *families.Run, does []behaviour, rng *rand.Rand) ([]BadResult, error) {
	var healthy []int
	for _, i := range rng.Perm(r.Model.Nodes) {
		if !slices.ContainsFunc(r.Faults, func(f families.Fault) bool { return f.Node == i }) {
			healthy = append(healthy, i)
		}
	}
	if len(healthy) < 2 {
		return nil, errors.New(r.Family.Name + ": fewer than two nodes are healthy")
	}
	base := newBadNode(r, nil, nil, healthy[0], healthy[1])
	fleets := []*badNode{base}
	for i := range does {
		seed := rand.NewPCG(rng.Uint64(), rng.Uint64())
		fleets = append(fleets, newBadNode(r, &does[i], rand.New(seed), healthy[0], healthy[1]))
	}
	for r.Next() {
		for _, b := range fleets {
			if err := b.play(); err != nil {
				return nil, fmt.Errorf("%s, %s: %w", r.Family.Name, b.name(), err)
			}
		}
	}
	var results []BadResult
	for _, b := range fleets[1:] {
		results = append(results, b.against(base))
	}
	return results, nil
}

func (b *badNode) name() string {
	if b.behaves == nil {
		return "all honest"
	}
	return b.behaves.name
}

// against compares a fleet with the one whose nodes are all honest.
func (b *badNode) against(base *badNode) BadResult {
	r := BadResult{Family: b.run.Family.Name, Behaviour: b.name()}
	for i := range b.seen {
		if b.seen[i] != base.seen[i] {
			r.Changed++
		}
	}
	for k := range b.judge.result.Found {
		f, h := &b.judge.result.Found[k], &base.judge.result.Found[k]
		if !f.Never {
			r.Found++
		}
		if !h.Never {
			r.HonestFound++
		}
		if !f.Never && !h.Never {
			r.Took, r.HonestTook = r.Took+f.Delay, r.HonestTook+h.Delay
		}
	}
	var of, was limits // sums over the ticks
	for k, l := range b.limits {
		h := base.limits[k]
		if l.sums == nil || h.sums == nil {
			continue // nobody is compared in a pause
		}
		if of.sums == nil {
			of.sums, was.sums = make([]float64, len(l.sums)), make([]float64, len(l.sums))
		}
		for j := range l.sums {
			of.sums[j], was.sums[j] = of.sums[j]+l.sums[j], was.sums[j]+h.sums[j]
			r.MaxLimit = max(r.MaxLimit, factor(l.sums[j], h.sums[j]))
		}
		of.loss, was.loss = of.loss+l.loss, was.loss+h.loss
	}
	for j := range of.sums {
		r.Limit = max(r.Limit, factor(of.sums[j], was.sums[j]))
	}
	r.Loss = factor(of.loss, was.loss)
	return r
}

// factor is 1 where there was nothing before and is nothing now.
func factor(x, before float64) float64 {
	if x == before {
		return 1
	}
	return x / before
}

// BadText is a line per family with its worst behaviours.
func BadText(results []BadResult) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "a bad node in\tverdicts changed\tby\tfound x\tby\tdelay x\tby\tlimit x\tby\tdetectable loss x\tby\tlimit of a tick x\tby")
	for _, f := range byFamily(results) {
		_, _ = fmt.Fprintf(w, "%s\t%d\t%s\t%.2f\t%s\t%.2f\t%s\t%.2f\t%s\t%.2f\t%s\t%.2f\t%s\n", f.family,
			int(f.changed.x), f.changed.by, f.recall.x, f.recall.by, f.delay.x, f.delay.by, f.limit.x, f.limit.by, f.loss.x, f.loss.by, f.tick.x, f.tick.by)
	}
	_ = w.Flush() // a builder takes everything
	return b.String()
}

// BadFigures prints the worst that a bad node did in each family.
func BadFigures(w io.Writer, results []BadResult) {
	for _, f := range byFamily(results) {
		prefix := "eval_" + f.family + "_bad_"
		figure.Fprint(w, prefix+"verdicts", f.changed.x, "nodes", 0, true)
		figure.Fprint(w, prefix+"recall", f.recall.x, "x", 1-badShare, false)
		figure.Fprint(w, prefix+"delay", f.delay.x, "x", 1+badShare, true)
		figure.Fprint(w, prefix+"limit", f.limit.x, "x", 1+badShare, true)
		figure.Fprint(w, prefix+"detectable", f.loss.x, "x", 1+badShare, true)
		figure.Fprint(w, prefix+"limit_most", f.tick.x, "x", 1+badShare, true)
	}
}

// worst is a number and the behaviour that it is of.
type worst struct {
	x  float64
	by string
}

type worsts struct {
	family                                    string
	changed, recall, delay, limit, loss, tick worst
}

func byFamily(results []BadResult) (list []worsts) {
	for i := range results {
		r := &results[i]
		if len(list) == 0 || list[len(list)-1].family != r.Family {
			list = append(list, worsts{family: r.Family, recall: worst{x: math.Inf(1)}})
		}
		f := &list[len(list)-1]
		for w, x := range map[*worst]float64{&f.changed: float64(r.Changed), &f.delay: r.Delay(), &f.limit: r.Limit, &f.loss: r.Loss, &f.tick: r.MaxLimit} {
			if x > w.x {
				*w = worst{x, r.Behaviour}
			}
		}
		if x := r.Recall(); x < f.recall.x {
			f.recall = worst{x, r.Behaviour}
		}
	}
	return list
}
