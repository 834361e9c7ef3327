// SPDX-License-Identifier: Apache-2.0

package fleetviewexporter

import (
	"math"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

var groupFields = map[string]fleetstate.GroupField{
	gpusemconv.MetricStragglerThreshold:   fleetstate.GroupThreshold,
	gpusemconv.MetricStragglerMedian:      fleetstate.GroupMedian,
	gpusemconv.MetricStragglerMAD:         fleetstate.GroupMAD,
	gpusemconv.MetricStragglerQuorumMet:   fleetstate.GroupQuorum,
	gpusemconv.MetricStragglerCoverageLow: fleetstate.GroupCoverageLow,
	gpusemconv.MetricStragglerPanicMode:   fleetstate.GroupPanic,
	gpusemconv.MetricStragglerCount:       fleetstate.GroupStragglers,
	gpusemconv.MetricStragglerIncident:    fleetstate.GroupIncident,
}

// groupSignal takes a number of one of a group's signals.
type groupSignal func(*fleetstate.GroupUpdate, nodesignal.Signal, float64)

var groupSignals = map[string]groupSignal{
	gpusemconv.MetricStragglerSignalMedian:    (*fleetstate.GroupUpdate).SetMedian,
	gpusemconv.MetricStragglerSignalScale:     (*fleetstate.GroupUpdate).SetScale,
	gpusemconv.MetricStragglerSignalThreshold: (*fleetstate.GroupUpdate).SetThreshold,
}

// cluster takes a resource without a node: what the gateway says of a
// cluster's groups. Thus it says that they are still there.
func (e *fleetExporter) cluster(rm pmetric.ResourceMetrics, cluster string, now time.Time) {
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			name := m.Name()
			field, known := groupFields[name]
			set, signal := groupSignals[name]
			if !known && !signal && name != gpusemconv.MetricStragglerNodes && name != gpusemconv.MetricStragglerRank {
				continue
			}
			for _, dp := range numberPoints(m).All() {
				p := point{dp, number(dp)}
				if name == gpusemconv.MetricStragglerRank {
					e.rank(p, cluster, now)
					continue
				}
				key := fleetstate.GroupKey{Cluster: cluster, Group: p.attr(gpusemconv.AttrPeerGroup)}
				e.state.UpdateGroup(key, now, func(u *fleetstate.GroupUpdate) {
					switch {
					case known:
						u.Set(field, p.v)
					case name == gpusemconv.MetricStragglerNodes:
						u.SetNodes(p.attr(gpusemconv.AttrNodeState), p.v)
					default:
						readGroupSignal(u, set, p)
					}
				})
			}
		}
	}
}

// readGroupSignal takes what nodes are compared with.
func readGroupSignal(u *fleetstate.GroupUpdate, set groupSignal, p point) {
	s, err := nodesignal.Parse(p.attr(gpusemconv.AttrSignal))
	if err != nil {
		return
	}
	v := p.v
	if p.attr(gpusemconv.AttrCohort) != "" {
		// The group is split, and which part a node belongs to, the views do not
		// know. The end of a part tells nothing of the whole.
		if math.IsNaN(v) {
			return
		}
		v = math.NaN()
	}
	set(u, s, v)
}

// rank takes a node's place among the most suspect ones of its cluster.
func (e *fleetExporter) rank(p point, cluster string, now time.Time) {
	u, ok := e.state.BeginKnown(fleetstate.Key{Cluster: cluster, Node: p.attr(gpusemconv.AttrHostName)}, now)
	if !ok {
		return
	}
	// The end of a rank in the group that the node has left ends no other.
	if !math.IsNaN(p.v) || p.attr(gpusemconv.AttrPeerGroup) == u.Group() {
		u.Set(fleetstate.NodeRank, p.v)
	}
	u.Commit(time.Time{})
}
