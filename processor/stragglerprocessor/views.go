// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"hash/maphash"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// views are what the fleet view knows of nodes.
type views struct {
	store   *fleetstate.Store // nil without a fleet view
	aliases aliases
}

// node returns the view of a node, or that under another name of the same machine where only
// the other has GPUs. It is nil for a node that is not known.
func (v *views) node(cluster, name string) *fleetstate.Node {
	if v.store == nil {
		return nil
	}
	own, _ := v.store.Node(fleetstate.Key{Cluster: cluster, Node: name}, time.Time{})
	if own.Node == nil || len(own.GPUs) == 0 {
		if other, same := v.aliases.other(fleetstate.Key{Cluster: cluster, Node: name}); same {
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
type starts map[fleetstate.Key]start

type start struct {
	metric *reading.Metric
	series uint64 // a hash of its attributes
	at     uint32 // milliseconds, of 49 days
}

var seed = maphash.MakeSeed()

// older takes a counter of a node, and reports whether it started before it did last. At one
// agent a counter only starts anew, so there are two. It remembers at most so many nodes.
func (s starts) older(id fleetstate.Key, known *reading.Metric, m pmetric.Metric, most int) bool {
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
			s[fleetstate.Key{Cluster: strings.Clone(id.Cluster), Node: strings.Clone(id.Node)}] = now
			return false
		case series == last.series:
			s[id] = now // the map keeps its own key
			return int32(now.at-last.at) < 0
		}
	}
	return false
}

// aliases are the names of nodes by their first label: without a domain, and with one. Two
// collectors of one node may name it differently.
type aliases map[fleetstate.Key][2]alias

// alias is a name of a node, and its host.id, empty where it is not known.
type alias struct{ node, machine string }

// slot is the key of a node's names, and the index of this one.
func (aliases) slot(id fleetstate.Key) (at fleetstate.Key, is int) {
	short, _, domain := strings.Cut(id.Node, ".")
	if domain {
		is = 1
	}
	return fleetstate.Key{Cluster: id.Cluster, Node: short}, is
}

// note remembers the name, of at most so many nodes.
func (t aliases) note(id fleetstate.Key, attrs pcommon.Map, most int) {
	machine := ""
	if v, ok := attrs.Get(gpusemconv.AttrHostID); ok {
		machine = metricreading.Text(v)
	}
	at, is := t.slot(id)
	pair := t[at]
	if own := (alias{id.Node, machine}); pair[is] != own {
		if len(t) >= most {
			clear(t)
		}
		pair[is] = alias{strings.Clone(own.node), strings.Clone(own.machine)}
		t[fleetstate.Key{Cluster: strings.Clone(at.Cluster), Node: strings.Clone(at.Node)}] = pair
	}
}

// other returns the other name that a node seems to have, if it has one, and whether both are
// of one machine.
func (t aliases) other(id fleetstate.Key) (name string, same bool) {
	at, is := t.slot(id)
	own, other := t[at][is], t[at][1-is]
	return other.node, other.node != "" && own.machine != "" && own.machine == other.machine
}

// name remembers the name of a node. It logs two names that seem to be one node's, once.
func (o *observer) name(id fleetstate.Key, attrs pcommon.Map) {
	o.views.aliases.note(id, attrs, 2*o.maxNodes)
	if other, _ := o.views.aliases.other(id); other != "" && o.reader.Once(id.Cluster, "two names") {
		o.log.Warn("two names look like one node's: give all collectors of a node the same host.name",
			zap.String("cluster", id.Cluster), zap.Strings("names", []string{id.Node, other}))
	}
}
