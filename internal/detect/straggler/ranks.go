// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"time"

	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
)

// RankVerdict is what the comparison of a job's ranks found of one node, see
// internal/detect/collective. All of a job in lockstep look alike but for that.
type RankVerdict struct {
	// Judged says that ranks of the node are compared, Slow that one is a straggler.
	Judged, Slow bool
	Why          unjudged.Reason // Judged, or Noise of the rank's peers
	Signal       nodesignal.Signal
	Job          string // of the slow rank, empty where it is not known
	// Culprit is the slow rank, or empty where the whole node is slow.
	Culprit nodesignal.Subject
	Since   time.Time
	// Gap is the share of time that the others wait for it, or its loss of throughput,
	// Suspicion its deviation by the limit, in [0,2]. Behind: it was slow at its last value.
	Gap, Suspicion float64
	Behind         bool
	// Value is the rank's of the signal, Median that of its Ranks peers and itself.
	Value, Median float64
	Ranks         int
	// Levels are those of each signal of ranks, of the rank that is furthest behind in it.
	Levels [len(RankSignals)]RankLevel

	at time.Time // the tick before
}

// RankSignals are what ranks are compared by.
var RankSignals = [...]nodesignal.Signal{nodesignal.Communication, nodesignal.Throughput}

// RankLevel is a rank's value of a signal and the median of its peers, 0 where it has none.
type RankLevel struct{ Value, Median float64 }

// SetRankVerdict takes the verdict on a node by its ranks, for the next tick alone. A node that is
// not known is left out.
func (e *Engine) SetRankVerdict(cluster, node string, w *RankVerdict) {
	if n := e.kept(cluster, node); n != nil {
		n.ranks = *w
		n.ranks.at = e.ticked
	}
}

// judgesBy reports whether ranks judge the node in a signal: in shares of time always, in
// throughput where one of them is slow.
func (w *RankVerdict) judgesBy(s nodesignal.Signal) bool {
	return s == nodesignal.Communication || w.Slow && s == w.Signal
}

// applyRankVerdict adds the verdict by a member's ranks to that by its signals.
func (e *Engine) applyRankVerdict(g *group, i int) {
	m, w := &g.members[i], &g.nodes[i].ranks
	if !w.at.Equal(e.ticked) || m.state == nodesignal.StateMissing {
		*w = RankVerdict{}
	}
	if !w.Judged || m.flags&flagContested != 0 && g.nodes[i].cloned {
		return
	}
	m.flags |= flagJudged
	weight := float32(w.Gap / e.cfg.Signals[w.Signal].MinGap)
	if w.Slow {
		m.flags |= flagSlow
		weight += 1e6
	}
	if weight > m.weight {
		m.signal, m.gap, m.weight = w.Signal, float32(w.Gap), weight
	}
	m.suspicion = max(m.suspicion, float32(w.Suspicion))
}
