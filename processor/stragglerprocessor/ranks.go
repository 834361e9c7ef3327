// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"math"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpu-collector/gpu-collector/internal/detect/collective"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/rankattr"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
)

// rankPoint is one point of a rank. Its text is the push's.
type rankPoint struct {
	of    collective.Rank
	class collective.Class
	field reading.Field
	value float64 // NaN where the series has ended
}

// rankPointOf reads the rank that a point names. The resource may have the rest.
func rankPointOf(p *metricreading.Point, resource pcommon.Map) rankPoint {
	get := func(name string) (v pcommon.Value, ok bool) {
		if v, ok = p.Attributes().Get(name); !ok {
			v, ok = resource.Get(name)
		}
		return v, ok
	}
	text := func(name string) string {
		if v, ok := get(name); ok {
			return metricreading.Text(v)
		}
		return ""
	}
	number := func(name string) int64 {
		if v, ok := get(name); ok && v.Type() == pcommon.ValueTypeInt {
			return v.Int()
		}
		return 0
	}
	r := rankPoint{field: p.Field, value: p.Value, of: collective.Rank{
		Node: text(gpusemconv.AttrServerAddress),
		Job:  text(gpusemconv.AttrJobID), Role: text(gpusemconv.AttrJobRole), PID: number(gpusemconv.AttrProcessPID),
		Subject: rankattr.Within(resource, p.Attributes()),
		Communicator: collective.Communicator{
			ID: text(gpusemconv.AttrCommunicatorID), Name: text(gpusemconv.AttrCommunicatorName),
			Index: number(gpusemconv.AttrCommunicatorRank), Size: number(gpusemconv.AttrCommunicatorSize), Nodes: number(gpusemconv.AttrCommunicatorNodes),
		},
	}}
	r.class = collective.Class{Operation: text(gpusemconv.AttrCollectiveOperation), Size: number(gpusemconv.AttrCollectiveSize)}
	return r
}

// report gives the point to the tracker, as of that node.
func (r *rankPoint) report(b *collective.Tracker, id fleetstate.Key, now time.Time) error {
	of := &r.of
	of.Cluster = id.Cluster
	if r.field != reading.CollectiveLaggard { // which another node reports
		of.Node = id.Node
	}
	if math.IsNaN(r.value) { // the series has ended
		if r.field == reading.CollectiveTimeShare || r.field == reading.CollectiveStalled {
			b.Gone(of)
		}
		return nil
	}
	switch r.field {
	case reading.CollectiveTimeShare:
		return b.Share(of, r.value, now)
	case reading.StepOwnDuration:
		return b.OwnTime(of, r.value, now)
	case reading.StepDuration, reading.StepRate:
		return b.Steps(of, now)
	case reading.CollectiveStalled:
		var since time.Time
		if r.value > 0 {
			since = time.Unix(int64(r.value), 0)
		}
		return b.Stalled(of, since, now)
	case reading.CollectiveLaggard:
		if r.value == 1 {
			return b.Laggard(of, id.Node, now)
		}
	case reading.CommunicatorBandwidth:
		return b.Bandwidth(of, r.class, r.value, now)
	}
	return nil
}
