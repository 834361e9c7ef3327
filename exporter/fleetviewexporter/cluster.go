// SPDX-License-Identifier: Apache-2.0

package fleetviewexporter

import (
	"math"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
)

// groupReader takes a point into a group's view.
type groupReader func(u *fleetstate.GroupUpdate, p *metricreading.Point)

// groupSignal takes a number of one of a group's signals: what its nodes are
// compared with.
func groupSignal(set func(*fleetstate.GroupUpdate, nodesignal.Signal, float64)) groupReader {
	return func(u *fleetstate.GroupUpdate, p *metricreading.Point) {
		s, err := nodesignal.Parse(p.Texts[0])
		if err != nil {
			return
		}
		set(u, s, p.Value)
	}
}

var groupReaders = func() (list [reading.NumFields]groupReader) {
	for _, f := range fleetstate.GroupNumbers {
		list[f] = func(u *fleetstate.GroupUpdate, p *metricreading.Point) { u.Set(f, p.Value) }
	}
	for f, read := range ownGroupReaders {
		list[f] = read
	}
	return list
}()

var ownGroupReaders = map[reading.Field]groupReader{
	reading.GroupNodes:      func(u *fleetstate.GroupUpdate, p *metricreading.Point) { u.SetNodes(p.Texts[0], p.Value) },
	reading.GroupUnjudged:   func(u *fleetstate.GroupUpdate, p *metricreading.Point) { u.SetUnjudged(p.Texts[0], p.Value) },
	reading.SignalMedian:    groupSignal((*fleetstate.GroupUpdate).SetMedian),
	reading.SignalScale:     groupSignal((*fleetstate.GroupUpdate).SetScale),
	reading.SignalThreshold: groupSignal((*fleetstate.GroupUpdate).SetThreshold),
}

// cluster takes a resource without a node: what the gateway says of a
// cluster's groups. Thus it says that they are still there.
func (e *fleetExporter) cluster(rm pmetric.ResourceMetrics, s *scratch) {
	s.hasGPU = func(string) bool { return false }
	take := func(p *metricreading.Point) {
		if p.Field == reading.NodeRank {
			e.rank(p, s.of.Cluster, s.now)
		} else if read := groupReaders[p.Field]; read != nil {
			key := fleetstate.GroupKey{Cluster: s.of.Cluster, Group: attribute(p, gpusemconv.AttrPeerGroup)}
			e.state.UpdateGroup(key, s.now, func(u *fleetstate.GroupUpdate) { read(u, p) })
		}
	}
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			if known := reading.ByName(m.Name()); known != nil && known.For&reading.View != 0 && known.Subject() == reading.Group {
				s.each(known, m, take)
			} else {
				s.each(known, m, nil)
			}
		}
	}
}

// rank takes a node's place among the most suspect ones of its cluster.
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
