// SPDX-License-Identifier: Apache-2.0

package fleethistory

import (
	"iter"
	"math"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// Row is what the views had of a node with its GPUs, or of a peer group, at the time of a round.
type Row struct {
	// Node is empty in the row of a group.
	Cluster, Node, Group string
	// Subjects are the node and then its GPUs, or the group alone.
	Subjects []Subject
}

// Subject has the numbers of a node, a GPU or a group.
type Subject struct {
	GPU string // UUID, empty for a node or a group
	// Values are by column, NaN where nothing is known.
	Values []float64
}

// Count returns how many samples the row has.
func (r *Row) Count() (n int) {
	for i := range r.Subjects {
		for _, v := range r.Subjects[i].Values {
			if !math.IsNaN(v) {
				n++
			}
		}
	}
	return n
}

// Column is what the API calls a number of the views.
type Column struct {
	Metric     string            `json:"metric"`
	Attributes map[string]string `json:"attributes,omitempty"`
	// Grouped is that the peer group is one more attribute.
	Grouped bool `json:"grouped,omitempty"`
}

// Layout has the columns of each kind of subject.
type Layout struct {
	Node  []Column `json:"node"`
	GPU   []Column `json:"gpu"`
	Group []Column `json:"group"`
}

// Columns are those of Rows.
var Columns = Layout{
	Node: append(columns(fleetstate.NodeNumbers[:], false), signals(gpusemconv.MetricNodeSignal, false)...),
	GPU:  columns(fleetstate.GPUNumbers[:], false),
	Group: slices.Concat(columns(fleetstate.GroupNumbers[:], true), signals(gpusemconv.MetricStragglerSignalMedian, true),
		signals(gpusemconv.MetricStragglerSignalScale, true), signals(gpusemconv.MetricStragglerSignalThreshold, true)),
}

func columns(fields []reading.Field, ofGroup bool) (list []Column) {
	for _, f := range fields {
		metric, _ := reading.Of(f)
		list = append(list, Column{metric.Name, reading.Attributes(f), ofGroup || metric.Gateway})
	}
	return list
}

func signals(metric string, ofGroup bool) (list []Column) {
	for s := range nodesignal.Count {
		list = append(list, Column{metric, map[string]string{gpusemconv.AttrSignal: s.String()}, ofGroup})
	}
	return list
}

// Rows are what the views have now. Missing nodes are left out, since their numbers are of a
// time before.
func Rows(state *fleetstate.Store, now time.Time) iter.Seq[*Row] {
	return func(yield func(*Row) bool) {
		for _, g := range state.Groups() {
			values := appendNumbers(nil, fleetstate.GroupNumbers[:], g.Get)
			for _, list := range []*nodesignal.Values{&g.Medians, &g.Scales, &g.Thresholds} {
				values = appendSignals(values, list)
			}
			if !yield(&Row{Cluster: g.Cluster, Group: g.Group, Subjects: []Subject{{Values: values}}}) {
				return
			}
		}
		for v := range state.Each(&fleetstate.Filter{}, now) {
			if v.State != gpusemconv.StateMissing && !yield(rowOf(v.Node)) {
				return
			}
		}
	}
}

func rowOf(n *fleetstate.Node) *Row {
	values := appendNumbers(nil, fleetstate.NodeNumbers[:], n.Values.Get)
	subjects := []Subject{{Values: appendSignals(values, &n.Signals)}}
	for i := range n.GPUs {
		g := &n.GPUs[i]
		subjects = append(subjects, Subject{g.UUID, appendNumbers(nil, fleetstate.GPUNumbers[:], g.Live)})
	}
	return &Row{n.Cluster, n.Node, n.Group, subjects}
}

func appendNumbers(values []float64, fields []reading.Field, get func(reading.Field) *float64) []float64 {
	for _, f := range fields {
		v := math.NaN()
		if known := get(f); known != nil {
			v = *known
		}
		values = append(values, v)
	}
	return values
}

func appendSignals(values []float64, of *nodesignal.Values) []float64 {
	for s := range nodesignal.Count {
		v := math.NaN()
		if of.Known[s] {
			v = of.V[s]
		}
		values = append(values, v)
	}
	return values
}
