// SPDX-License-Identifier: Apache-2.0

package fleetviewexporter

import (
	"math"
	"slices"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
)

// showGroup takes a point into a group's view: its numbers, and those of its signals.
func showGroup(u *fleetstate.GroupUpdate, p *metricreading.Point) {
	var set func(nodesignal.Signal, float64)
	switch p.Field {
	case reading.GroupNodes:
		u.SetNodes(p.Texts[0], p.Value)
	case reading.GroupUnjudged:
		u.SetUnjudged(p.Texts[0], p.Value)
	case reading.SignalMedian:
		set = u.SetMedian
	case reading.SignalScale:
		set = u.SetScale
	case reading.SignalThreshold:
		set = u.SetThreshold
	default:
		if slices.Contains(fleetstate.GroupNumbers[:], p.Field) {
			u.Set(p.Field, p.Value)
		}
	}
	if set != nil {
		if s, err := nodesignal.Parse(p.Texts[0]); err == nil {
			set(s, p.Value)
		}
	}
}

// cluster takes a resource without a node: the gateway's report of a cluster's groups, which
// keeps their views from expiring.
func (e *fleetExporter) cluster(rm pmetric.ResourceMetrics, s *scratch) {
	take := func(p *metricreading.Point) {
		if p.Field == reading.NodeRank {
			e.rank(p, s.of.Cluster, s.now)
		} else {
			key := fleetstate.GroupKey{Cluster: s.of.Cluster, Group: attribute(p, gpusemconv.AttrPeerGroup)}
			e.state.UpdateGroup(key, s.now, func(u *fleetstate.GroupUpdate) { showGroup(u, p) })
		}
	}
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			if known := reading.ByName(m.Name()); known != nil && known.For&reading.View != 0 && known.Subject() == reading.Group {
				s.each(known, m, take)
			}
		}
	}
}

// rank takes a node's rank among the most suspect ones of its cluster.
func (e *fleetExporter) rank(p *metricreading.Point, cluster string, now time.Time) {
	u, ok := e.state.BeginKnown(fleetstate.Key{Cluster: cluster, Node: p.Texts[0]}, now)
	if !ok {
		return
	}
	// The end of a rank in the group that the node has left ends no other.
	if !math.IsNaN(p.Value) || attribute(p, gpusemconv.AttrPeerGroup) == u.Group() {
		u.Set(reading.NodeRank, p.Value)
	}
	u.Commit(time.Time{})
}
