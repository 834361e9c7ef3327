// SPDX-License-Identifier: Apache-2.0

package families

import (
	"math"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// Fault is the truth of one node.
type Fault struct {
	Node int
	// Begin is the first tick of the fault, End the first without it.
	Begin, End int
	Kind       Kind
	Signal     nodesignal.Signal
	// Loss is the fraction lost while the fault is on, the most of a drift.
	Loss float64
	// Noise is the standard deviation of the node's noise in a tick, bursts aside;
	// NaN where steps make it.
	Noise float64
	// Oracle is the delay of an oracle that knows law, bias and loss.
	Oracle time.Duration

	perTick    float64 // growth of a drift
	on, period float64 // of a flicker, in ticks
	phase      float64 // of a flicker at Begin, in ticks
}

// At is the fraction lost in a tick, 0 outside the fault.
func (f *Fault) At(tick int) float64 {
	if tick < f.Begin || tick >= f.End {
		return 0
	}
	return f.lasting(tick)
}

// lasting is At as if the fault had no end.
func (f *Fault) lasting(tick int) float64 {
	since := float64(tick - f.Begin)
	switch f.Kind {
	case Drift:
		return min(f.perTick*(since+1), f.Loss)
	case Flicker:
		from := since + f.phase
		return f.Loss * (f.onUntil(from+1) - f.onUntil(from))
	}
	return f.Loss
}

// onUntil is how many ticks of x the flicker was on.
func (f *Fault) onUntil(x float64) float64 {
	whole, rest := math.Modf(x / f.period)
	return whole*f.on + min(rest*f.period, f.on)
}

// faults are those of a run, by node.
func (r *Run) faults() []Fault {
	m, law, d := &r.Model, &r.Model.Fault, r.draw
	nodes := d.Perm(m.Nodes)[:law.Nodes]
	if law.Which != nil {
		nodes = law.Which
	}
	first := 0
	switch {
	case law.Rack:
		first = RackNodes * d.IntN(m.Racks)
	case law.Neighbour:
		first = d.IntN(m.Nodes - law.Nodes + 1)
	}
	faults := make([]Fault, len(nodes))
	for k := range faults {
		node := nodes[k]
		if law.Rack || law.Neighbour {
			node = first + k
		}
		begin, loss := law.Begin, law.Loss
		if law.To > 0 {
			begin = d.time(law.Begin, law.To)
		}
		if law.LossTo > 0 {
			loss = d.uniform(law.Loss, law.LossTo)
		}
		f := Fault{Node: node, Kind: law.Kind, Signal: law.Signal, Loss: loss}
		f.Begin = r.ticks(begin)
		f.End = f.Begin + r.ticks(law.For)
		f.perTick = law.Rate * m.Interval.Hours()
		f.period = float64(law.Period) / float64(m.Interval)
		f.on = law.Duty * f.period
		f.phase = d.uniform(0, f.period)
		faults[k] = f
	}
	return faults
}
