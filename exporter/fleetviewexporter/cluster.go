// SPDX-License-Identifier: Apache-2.0

package fleetviewexporter

import (
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodesignal"
)

var groupFields = map[string]fleetstate.GroupField{
	gpusemconv.MetricStragglerThreshold:   fleetstate.GroupThreshold,
	gpusemconv.MetricStragglerMedian:      fleetstate.GroupMedian,
	gpusemconv.MetricStragglerMAD:         fleetstate.GroupMAD,
	gpusemconv.MetricStragglerQuorumMet:   fleetstate.GroupQuorum,
	gpusemconv.MetricStragglerCoverageLow: fleetstate.GroupCoverageLow,
	gpusemconv.MetricStragglerPanicMode:   fleetstate.GroupPanic,
	gpusemconv.MetricStragglerCount:       fleetstate.GroupStragglers,
	metricIncident:                        fleetstate.GroupIncident,
}

// cluster takes a resource without a node: what the gateway says of a
// cluster's groups. Thus it says that they are still there.
func (e *fleetExporter) cluster(rm pmetric.ResourceMetrics, cluster string, now time.Time) {
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			name := m.Name()
			field, known := groupFields[name]
			if !known && name != gpusemconv.MetricStragglerNodes && name != metricSignalMedian && name != metricStragglerRank {
				continue
			}
			for _, dp := range numberPoints(m).All() {
				p := point{dp, number(dp)}
				if name == metricStragglerRank {
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
					case p.attr(attrCohort) != "":
						// The median of a part of a split group; which part a node
						// belongs to, the views do not know.
					default:
						if s, err := nodesignal.Parse(p.attr(gpusemconv.AttrSignal)); err == nil {
							u.SetMedian(s, p.v)
						}
					}
				})
			}
		}
	}
}

// rank takes a node's place among the most suspect ones of its cluster.
func (e *fleetExporter) rank(p point, cluster string, now time.Time) {
	u, ok := e.state.BeginKnown(fleetstate.Key{Cluster: cluster, Node: p.attr(gpusemconv.AttrHostName)}, now)
	if !ok {
		return
	}
	u.Set(fleetstate.NodeRank, p.v)
	u.Commit(time.Time{})
}
