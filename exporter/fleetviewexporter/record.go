// SPDX-License-Identifier: Apache-2.0

package fleetviewexporter

import (
	"sync"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
)

// batches are used again: a report has hundreds of points.
var batches = sync.Pool{New: func() any { return new([]fleethistory.Sample) }}

// record hands all points to the history, those of metrics that the views do
// not know too. Points that the catalogue refuses are none.
func (e *fleetExporter) record(md pmetric.Metrics, caller string, now time.Time) {
	batch := batches.Get().(*[]fleethistory.Sample)
	list := (*batch)[:0]
	var from metricreading.Resource
	for _, rm := range md.ResourceMetrics().All() {
		id := readSender(rm.Resource().Attributes(), caller, e.cfg.DefaultCluster)
		from.Begin(e.reader, rm.Resource().Attributes())
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				for p := range from.All(m) {
					at := now.UnixMilli()
					if t := p.Timestamp(); t != 0 {
						// A clock that is ahead would hide all later values.
						at = min(at, t.AsTime().UnixMilli())
					}
					gpu, rest := describe(p)
					list = append(list, fleethistory.Sample{
						Cluster: id.Cluster, Node: id.Node, GPU: gpu, Metric: m.Name(), Attributes: rest, At: at, Value: p.Value,
					})
				}
			}
		}
	}
	if len(list) > 0 {
		e.history.Write(list)
	}
	clear(list)
	*batch = list
	batches.Put(batch)
}

// describe splits a point's attributes into the GPU and the rest. That a
// report says the GPU's type with each point is no news.
func describe(p *metricreading.Point) (gpu, rest string) {
	other := p.Subject == reading.Other || p.Subject == reading.Network
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
