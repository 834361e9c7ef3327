// SPDX-License-Identifier: Apache-2.0

package fleetviewexporter

import (
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
)

// scratch is the memory for reading a push; it is used again.
type scratch struct {
	from  metricreading.Resource
	point metricreading.Point
	vague []pmetric.Metric // of the resource that is being read

	// Of the history, where there is one.
	records bool
	samples []fleethistory.Sample
	now     time.Time
	of      fleetstate.Key
	hasGPU  func(uuid string) bool // whether the view has that GPU of the node
}

// each reads the points of a metric once. take has them, NaN where a value was refused;
// it is nil for a metric that the view does not show. The history has all that are true,
// of metrics that the catalogue does not know too.
func (s *scratch) each(known *reading.Metric, m pmetric.Metric, take func(*metricreading.Point)) {
	p := &s.point
	switch {
	case !s.records && take == nil:
	case known == nil:
		for _, dp := range metricreading.Points(m).All() {
			if metricreading.ReadForeign(dp, p) {
				s.record(m.Name())
			}
		}
	default:
		points, ok := s.from.Open(known, m)
		if !ok {
			return
		}
		for _, dp := range points.All() {
			why := s.from.Read(dp, p)
			if why == reading.BadSubject {
				continue
			}
			if take != nil {
				take(p)
			}
			if s.records && why == reading.Accepted && !p.Ended {
				s.record(m.Name())
			}
		}
	}
}

// record keeps the point for the history.
func (s *scratch) record(metric string) {
	at := s.now.UnixMilli()
	if t := s.point.Timestamp(); t != 0 {
		// A clock that is ahead would hide all later values.
		at = min(at, t.AsTime().UnixMilli())
	}
	gpu, rest := s.describe(&s.point)
	s.samples = append(s.samples, fleethistory.Sample{
		Cluster: s.of.Cluster, Node: s.of.Node, GPU: gpu, Metric: metric, Attributes: rest, At: at, Value: s.point.Value,
	})
}

// describe splits a point's attributes into the GPU and the rest, without the GPU's type. A
// vague point is of a GPU where the view has that one.
func (s *scratch) describe(p *metricreading.Point) (gpu, rest string) {
	other := p.Subject == reading.Other || p.Subject == reading.Network || p.Vague && !s.hasGPU(p.ID)
	var pairs []string
	for name, v := range p.Attributes().All() {
		switch name {
		case gpusemconv.AttrHWID, gpusemconv.AttrHWParent, gpusemconv.AttrHWType:
			if !other {
				continue
			}
		}
		pairs = append(pairs, fleethistory.Pair(name, metricreading.Text(v)))
	}
	if !other {
		gpu = p.ID
	}
	return gpu, fleethistory.JoinAttributes(pairs)
}
