// SPDX-License-Identifier: Apache-2.0

package nodescore

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// Attribute selects points.
type Attribute struct{ Key, Value string }

// Input is one kind of reading. Its points are of a field of the catalogue, or of a metric
// with these attributes or without them.
type Input struct {
	// Field is None where the catalogue has none for the metric's attributes.
	Field      reading.Field
	Attributes []Attribute
	// Ranked points are of a rank, where they name one.
	Ranked  bool
	worst   func(a, b float64) float64 // of ranks without a name, nil for the mean
	index   int
	counter bool
	last    bool // of values between two evaluations the last counts, else their mean
}

// Plan is how all signals are measured, compiled. It is read only and shared by
// the nodes of an agent.
type Plan struct {
	inputs map[string][]Input
	count  int
	// counters are, by input, the index of its count, -1 for what is none.
	counters []int
	counts   int
	rates    []float64 // by count, the most per second that counts
	measures [nodesignal.Count]measure
	// By utilization a GPU is idle or under load, and by its power as a share of the limit.
	utilization, power, powerLimit int
	// application are the inputs that only a running job reports.
	application []int
}

type measure struct {
	worst   bool // of all sources; else the first that has data
	sources []source
}

type source struct {
	factors []factor
	across  string
	when    string
}

// factor is a Ratio; limit is -1 where there is none.
type factor struct {
	input, limit int
	best         bool
	use          string
	allowed      float64
}

// NewPlan compiles measures, which must be valid.
func NewPlan(measures *[nodesignal.Count]Measure) *Plan {
	p := &Plan{inputs: make(map[string][]Input)}
	// First: a rank has no cells for the inputs behind those that it reports.
	p.application = []int{p.field(reading.StepDuration), p.field(reading.StepRate)}
	p.utilization, p.power, p.powerLimit = p.field(reading.Utilization), p.field(reading.Power), p.field(reading.PowerLimit)
	for s := range measures {
		m := &measures[s]
		p.measures[s].worst = m.Combine == CombineMin
		for i := range m.Sources {
			p.measures[s].sources = append(p.measures[s].sources, p.source(&m.Sources[i]))
		}
	}
	// An application's own measure of throughput counts as its steps do.
	for _, src := range p.measures[nodesignal.Throughput].sources {
		if in := src.factors[0].input; src.when == WhenAlways && !slices.Contains(p.application, in) {
			p.application = append(p.application, in)
		}
	}
	for metric, inputs := range p.inputs {
		m := reading.ByName(metric)
		for i := range inputs {
			in := &inputs[i]
			in.Ranked = slices.Contains(p.application, in.index)
			if in.Ranked && m != nil && m.Fold.Subjects == reading.FoldWorst {
				in.worst = math.Max
				if m.Low {
					in.worst = math.Min
				}
			}
		}
	}
	return p
}

func (p *Plan) source(s *Source) source {
	out := source{
		across: cmp.Or(s.Across, folding(&s.Ratio)), when: cmp.Or(s.When, WhenAlways), factors: []factor{p.factor(&s.Ratio)},
	}
	for i := range s.Times {
		out.factors = append(out.factors, p.factor(&s.Times[i]))
	}
	return out
}

// folding is how the catalogue folds what a source reads, the mean of what the
// catalogue does not know.
func folding(r *Ratio) string {
	m := reading.ByName(r.Metric)
	if m == nil {
		return AcrossMean
	}
	switch lower := r.Use == "" || r.Use == UseValue; {
	case m.Fold.Subjects == reading.FoldSum && r.Limit == "":
		return AcrossSum
	case m.Fold.Subjects == reading.FoldWorst && lower == m.Low:
		return AcrossMin // of what is used, the least is the worst
	}
	return AcrossMean
}

func (p *Plan) factor(r *Ratio) factor {
	f := factor{
		input: p.input(r.Metric, r.Attributes, r.Use == UseRate),
		limit: -1, best: r.BestLimit, use: r.Use, allowed: r.Allowed,
	}
	if at := p.counters[f.input]; at >= 0 {
		p.rates[at] = max(p.rates[at], maxRate*r.Allowed)
	}
	if r.Limit != "" {
		attrs := r.LimitAttributes
		if attrs == nil {
			attrs = r.Attributes
		}
		f.limit = p.input(r.Limit, attrs, false)
	}
	return f
}

func (p *Plan) field(f reading.Field) int {
	m, _ := reading.Of(f)
	return p.input(m.Name, reading.Attributes(f), false)
}

// input returns the index of an input, the same for the same.
func (p *Plan) input(metric string, attrs map[string]string, counter bool) int {
	in := Input{Field: reading.Find(metric, attrs), index: p.count, counter: counter}
	for _, k := range slices.Sorted(maps.Keys(attrs)) {
		in.Attributes = append(in.Attributes, Attribute{k, attrs[k]})
	}
	for _, known := range p.inputs[metric] {
		if known.counter == counter && (in.Field != reading.None && in.Field == known.Field || slices.Equal(known.Attributes, in.Attributes)) {
			return known.index
		}
	}
	m := reading.ByName(metric)
	in.last = counter || m != nil && m.Fold.Points == reading.FoldLast
	p.inputs[metric] = append(p.inputs[metric], in)
	at := -1
	if counter {
		at = p.counts
		p.counts++
		p.rates = append(p.rates, 0)
	}
	p.counters = append(p.counters, at)
	p.count++
	return in.index
}

// Inputs returns what the points of a metric may be; nil for a metric that is
// not read.
func (p *Plan) Inputs(metric string) []Input { return p.inputs[metric] }

// Known is Inputs for a metric of the catalogue.
func (p *Plan) Known(m *reading.Metric) []Input { return p.inputs[m.Name] }

// standsIn reports whether a source of throughput, plus one as in Node.used, is of the GPUs,
// not of the application.
func (p *Plan) standsIn(used int) bool {
	return used > 0 && p.measures[nodesignal.Throughput].sources[used-1].when != WhenAlways
}
