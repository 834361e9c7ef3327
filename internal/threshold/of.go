// SPDX-License-Identifier: Apache-2.0

package threshold

import (
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

// Of is what a gateway publishes of a group after a tick. A group that nobody can be judged
// by says so: its nodes would go on with what they heard last.
func Of(g *straggler.GroupReport, at time.Time, k float64, ttl time.Duration) Value {
	v := Value{
		Group: g.Group, Version: at.UnixMilli(), QuorumMet: g.Quorum && g.Valid,
		Median: g.Median, Scale: straggler.MADToSigma * g.MAD, K: k,
		Nodes: g.Counts[straggler.StateActive], Ref: g.Ref,
		Hold: g.Held, Turns: g.Turns, Settled: g.Settled, TTL: ttl, Signals: signalsOf(g),
	}
	if g.Valid {
		v.Threshold = g.Threshold
	}
	return v
}

// signalsOf is what the nodes of a group, or of its cohorts, judge their signals by: by
// signal, and the lower cohort first.
func signalsOf(g *straggler.GroupReport) (params []SignalParams) {
	told := func(r *straggler.SignalReport) bool { return r.Known && r.Params.Valid() }
	for s := range nodesignal.Count {
		if r := &g.Signals[s]; len(g.Cohorts) == 0 && told(r) {
			params = append(params, SignalParams{Signal: s, By: g.SplitBy, Params: r.Params})
		}
		for i := range g.Cohorts {
			c := &g.Cohorts[i]
			if !told(&c.Signals[s]) {
				continue
			}
			p := SignalParams{Signal: s, From: c.From, By: g.SplitBy, HasFrom: c.HasFrom, Params: c.Signals[s].Params}
			if i+1 < len(g.Cohorts) && !told(&g.Cohorts[i+1].Signals[s]) {
				p.To, p.HasTo = g.Cohorts[i+1].From, true
			}
			params = append(params, p)
		}
	}
	return params
}
