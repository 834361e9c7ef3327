// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"hash/maphash"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// views are what the fleet view knows of nodes.
type views struct {
	store *fleetstate.Store // nil without a fleet view
	twins twins
}

// node returns the view of a node, or that under another name of the same machine where only
// the other has GPUs. It is nil for a node that is not known.
func (v *views) node(cluster, name string) *fleetstate.Node {
	if v.store == nil {
		return nil
	}
	own, _ := v.store.Node(fleetstate.Key{Cluster: cluster, Node: name}, time.Time{})
	if own.Node == nil || len(own.GPUs) == 0 {
		if other, same := v.twins.other(nodeKey{cluster, name}); same {
			if view, known := v.store.Node(fleetstate.Key{Cluster: cluster, Node: other}, time.Time{}); known {
				return view.Node
			}
		}
	}
	return own.Node
}

// show has the view show episodes as they are now.
func (v *views) show(lists ...[]episode.Episode) {
	if v.store == nil {
		return
	}
	for _, list := range lists {
		for i := range list {
			v.store.PutEpisode(&list[i])
		}
	}
}

// gpus returns how many GPUs a node should have, else how many it finds, and whether either is known.
func (v *views) gpus(cluster, name string) (int, bool) {
	n := v.node(cluster, name)
	if n == nil {
		return 0, false
	}
	return n.Size(), n.Size() > 0
}

// starts are when a counter of each node began: the first of its GPUs' that had a start.
type starts map[nodeKey]start

type start struct {
	metric *reading.Metric
	series uint64 // a hash of its attributes
	at     uint32 // milliseconds, of 49 days
}

var seed = maphash.MakeSeed()

// older takes a counter of a node, and reports whether it started before it did last. At one
// agent a counter only starts anew, so there are two. It remembers at most so many nodes.
func (s starts) older(id nodeKey, known *reading.Metric, m pmetric.Metric, most int) bool {
	last, found := s[id]
	if found && last.metric != known {
		return false
	}
	for _, p := range metricreading.Points(m).All() {
		if p.StartTimestamp() == 0 || p.Flags().NoRecordedValue() {
			continue
		}
		var series uint64
		for name, v := range p.Attributes().All() {
			series += maphash.Comparable(seed, [2]string{name, v.Str()})
		}
		now := start{known, series, uint32(p.StartTimestamp().AsTime().UnixMilli())}
		switch {
		case !found:
			if len(s) >= most {
				clear(s)
			}
			s[nodeKey{strings.Clone(id.cluster), strings.Clone(id.node)}] = now
			return false
		case series == last.series:
			s[id] = now // the map keeps its own key
			return int32(now.at-last.at) < 0
		}
	}
	return false
}
