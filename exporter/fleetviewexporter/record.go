// SPDX-License-Identifier: Apache-2.0

package fleetviewexporter

import (
	"math"
	"sync"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// batches are used again: a report has hundreds of points.
var batches = sync.Pool{New: func() any { return new([]fleethistory.Sample) }}

// record hands all points to the history, those of metrics that the views do
// not know too.
func (e *fleetExporter) record(md pmetric.Metrics, cluster string, now time.Time) {
	batch := batches.Get().(*[]fleethistory.Sample)
	list := (*batch)[:0]
	for _, rm := range md.ResourceMetrics().All() {
		id := readIdentity(rm.Resource().Attributes(), cluster)
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				for _, p := range numberPoints(m).All() {
					v := number(p)
					if math.IsNaN(v) || math.IsInf(v, 0) {
						continue
					}
					at := now.UnixMilli()
					if t := p.Timestamp(); t != 0 {
						// A clock that is ahead would hide all later values.
						at = min(at, t.AsTime().UnixMilli())
					}
					gpu, rest := describe(p.Attributes())
					list = append(list, fleethistory.Sample{
						Cluster: id.Cluster, Node: id.Node, GPU: gpu, Metric: m.Name(), Attributes: rest, At: at, Value: v,
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
func describe(attrs pcommon.Map) (gpu, rest string) {
	var pairs []string
	for name, v := range attrs.All() {
		switch name {
		case gpusemconv.AttrHWID:
			gpu = text(v)
		case gpusemconv.AttrHWParent, gpusemconv.AttrHWType:
		default:
			pairs = append(pairs, fleethistory.Pair(name, text(v)))
		}
	}
	return gpu, fleethistory.JoinAttributes(pairs)
}
