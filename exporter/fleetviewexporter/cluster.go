// SPDX-License-Identifier: Apache-2.0

package fleetviewexporter

import (
	"math"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
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
		v := p.Value
		if attribute(p, gpusemconv.AttrCohort) != "" {
			// The group is split, and which part a node belongs to, the views do not
			// know. The end of a part tells nothing of the whole.
			if math.IsNaN(v) {
				return
			}
			v = math.NaN()
		}
		set(u, s, v)
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
func (e *fleetExporter) cluster(rm pmetric.ResourceMetrics, s *scratch, cluster string, now time.Time) {
	p := &s.point
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			known := reading.ByName(m.Name())
			if known == nil || known.For&reading.View == 0 || known.Subject() != reading.Group {
				continue
			}
			points, ok := s.from.Open(known, m)
			if !ok {
				continue
			}
			for _, dp := range points.All() {
				s.from.Read(dp, p)
				if p.Field == reading.NodeRank || p.Field == reading.NodeCondition {
					e.ofNode(p, cluster, now)
				} else if read := groupReaders[p.Field]; read != nil {
					key := fleetstate.GroupKey{Cluster: cluster, Group: attribute(p, gpusemconv.AttrPeerGroup)}
					e.state.UpdateGroup(key, now, func(u *fleetstate.GroupUpdate) { read(u, p) })
				}
			}
		}
	}
}

// ofNode takes what is said of a node by its cluster: its place among the most suspect
// ones, and its conditions in Kubernetes. Neither is a sign of life of it.
func (e *fleetExporter) ofNode(p *metricreading.Point, cluster string, now time.Time) {
	u, ok := e.state.BeginKnown(fleetstate.Key{Cluster: cluster, Node: p.Texts[0]}, now)
	if !ok {
		return
	}
	if p.Field == reading.NodeCondition {
		u.SetCondition(p.Texts[1], p.Value)
		u.Commit(time.Time{})
		return
	}
	// The end of a rank in the group that the node has left ends no other.
	if !math.IsNaN(p.Value) || attribute(p, gpusemconv.AttrPeerGroup) == u.Group() {
		u.Set(reading.NodeRank, p.Value)
	}
	u.Commit(time.Time{})
}
