// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// RankWord is what the comparison of a job's ranks says of one node, see
// internal/collective. All of a job in lockstep look alike but for that.
type RankWord struct {
	// Judged says that ranks of the node are compared, Slow that one is a straggler.
	Judged, Slow bool
	Job          string // of the culprit, empty where it is not known
	// Culprit is the slow rank, or nobody where the whole node is slow.
	Culprit nodesignal.Subject
	Since   time.Time
	// Gap is the share of time that the others wait for it, Suspicion its deviation by the
	// limit, in [0,2]. Behind says that it was slow at its last value.
	Gap, Suspicion float64
	Behind         bool
	// Value is the rank's share of time in collectives, Median that of its Ranks peers and
	// itself.
	Value, Median float64
	Ranks         int

	at time.Time // the tick before
}

// TellRanks takes what the ranks of a node say, for the next tick alone. A node that is
// not known is left out.
func (e *Engine) TellRanks(cluster, node string, w *RankWord) {
	if n := e.kept(cluster, node); n != nil && e.cfg.Decision == DecisionDeviation {
		n.ranks = *w
		n.ranks.at = e.ticked
	}
}

// hearRanks adds the word of a member's ranks to what its signals say.
func (e *Engine) hearRanks(g *group, i int) {
	m, w := &g.members[i], &g.nodes[i].ranks
	if !w.at.Equal(e.ticked) || m.state == nodesignal.StateMissing {
		*w = RankWord{}
	}
	if !w.Judged {
		return
	}
	m.flags |= flagJudged
	weight := float32(w.Gap / e.cfg.Signals[nodesignal.Communication].MinGap)
	if w.Slow {
		m.flags |= flagSlow
		weight += 1e6
	}
	if weight > m.weight {
		m.signal, m.gap, m.weight = nodesignal.Communication, float32(w.Gap), weight
	}
	m.suspicion = max(m.suspicion, float32(w.Suspicion))
}
