// SPDX-License-Identifier: Apache-2.0

package nodescore

import (
	"math"
	"slices"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// Culprit is the part of a node that holds one of the node's signals down. It is empty
// while none stands out. It is not Known where a node has no two parts to compare.
type Culprit struct {
	nodesignal.Subject
	Signal nodesignal.Signal
	Known  bool
}

// lagAlpha is the weight of one evaluation in a rank's lag. Noise of 2 % becomes 1
// %, a fifth of the gap. A rank that takes 8 % longer stands out after three
// evaluations. The gateway needs as many.
const lagAlpha = 0.4

// blame compares the parts of the node with one another. A part is named when its
// lag exceeds the gap. It keeps the name until half of the gap is left, or until
// another lags by a whole gap more. Each change ends a series.
func (n *Node) blame(l load) Culprit {
	at, gap := n.used[nodesignal.Throughput]-1, n.cfg.Signals[nodesignal.Throughput].MinGap
	if at < 0 || n.cfg.Signals[nodesignal.Throughput].Direction != nodesignal.Low {
		return Culprit{}
	}
	src := &n.plan.measures[nodesignal.Throughput].sources[at]
	if src.across != AcrossMin {
		return Culprit{}
	}
	usual, compared := n.table.usual(n.plan, src, l)
	if !compared {
		return Culprit{}
	}
	worst, named := (*row)(nil), (*row)(nil)
	for i := range n.table.rows {
		r := &n.table.rows[i]
		x, known := n.table.counted(n.plan, src, l, r)
		if !known {
			continue
		}
		if usual > 0 {
			r.lag += lagAlpha * (min(x/usual, 2) - r.lag)
		}
		if worst == nil || r.lag < worst.lag || r.lag == worst.lag && r.of.Compare(worst.of) < 0 {
			worst = r
		}
		if r.of == n.culprit.Subject {
			named = r
		}
	}
	switch {
	case named != nil && named.lag < 1-gap/2 && worst.lag >= named.lag-gap && n.culprit.Subject != (nodesignal.Subject{}):
		return n.culprit
	case worst.lag < 1-gap && worst.of.Named():
		return Culprit{worst.of, nodesignal.Throughput, true}
	}
	return Culprit{Known: true}
}

// usual is the lower median of a source over the rows, but never the least of
// them; false for fewer than two. Where half of the ranks are slow, which wait
// for one another, nobody stands out.
func (t *table) usual(p *Plan, src *source, l load) (float64, bool) {
	var room [64]float64
	all := room[:0]
	for i := range t.rows {
		if x, known := t.counted(p, src, l, &t.rows[i]); known {
			all = append(all, x)
		}
	}
	if len(all) < 2 {
		return math.NaN(), false
	}
	slices.Sort(all)
	return all[max(1, (len(all)-1)/2)], true
}
