// SPDX-License-Identifier: Apache-2.0

package fleetviewexporter

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
)

// batches are used again: a report has hundreds of points.
var batches = sync.Pool{New: func() any { return new([]fleethistory.Sample) }}

// record hands all points to the history, those of metrics that the views do
// not know too. It counts the points that the catalogue refuses, of the views too.
func (e *fleetExporter) record(ctx context.Context, md pmetric.Metrics, caller string, now time.Time) {
	batch := batches.Get().(*[]fleethistory.Sample)
	list := (*batch)[:0]
	var from metricreading.Resource
	for _, rm := range md.ResourceMetrics().All() {
		id := readSender(rm.Resource().Attributes(), caller, e.cfg.DefaultCluster)
		from.Begin(e.reader, rm.Resource().Attributes(), caller, e.cfg.DefaultCluster)
		gpus := func() (list []fleetstate.GPU) {
			if v, ok := e.state.Node(id.Key, now); ok {
				list = v.GPUs
			}
			return list
		}
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				for p := range from.All(m) {
					at := now.UnixMilli()
					if t := p.Timestamp(); t != 0 {
						// A clock that is ahead would hide all later values.
						at = min(at, t.AsTime().UnixMilli())
					}
					gpu, rest := describe(p, gpus)
					list = append(list, fleethistory.Sample{
						Cluster: id.Cluster, Node: id.Node, GPU: gpu, Metric: m.Name(), Attributes: rest, At: at, Value: p.Value,
					})
				}
			}
		}
		from.End(ctx)
	}
	if len(list) > 0 {
		e.history.Write(list)
	}
	clear(list)
	*batch = list
	batches.Put(batch)
}

// describe splits a point's attributes into the GPU and the rest. That a
// report says the GPU's type with each point is no news. A vague point is of a GPU where
// the view has that one.
func describe(p *metricreading.Point, gpus func() []fleetstate.GPU) (gpu, rest string) {
	other := p.Subject == reading.Other || p.Subject == reading.Network ||
		p.Vague && !slices.ContainsFunc(gpus(), func(g fleetstate.GPU) bool { return g.UUID == p.ID })
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
