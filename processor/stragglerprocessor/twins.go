// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
)

// twins are the names of nodes by their first label: without a domain, and with one. Two
// collectors of one node may name it differently.
type twins map[nodeKey][2]alias

// alias is a name of a node, and its host.id, empty where it is not told.
type alias struct{ node, machine string }

// place is where the names of a node are, and which of the two this one is.
func (twins) place(id nodeKey) (at nodeKey, is int) {
	short, _, domain := strings.Cut(id.node, ".")
	if domain {
		is = 1
	}
	return nodeKey{id.cluster, short}, is
}

// note remembers the name, of at most so many nodes.
func (t twins) note(id nodeKey, attrs pcommon.Map, most int) {
	machine := ""
	if v, ok := attrs.Get(gpusemconv.AttrHostID); ok {
		machine = metricreading.Text(v)
	}
	at, is := t.place(id)
	pair := t[at]
	if own := (alias{id.node, machine}); pair[is] != own {
		if len(t) >= most {
			clear(t)
		}
		pair[is] = alias{strings.Clone(own.node), strings.Clone(own.machine)}
		t[nodeKey{strings.Clone(at.cluster), strings.Clone(at.node)}] = pair
	}
}

// other returns the other name that a node seems to have, if it has one, and whether both are
// of one machine.
func (t twins) other(id nodeKey) (name string, same bool) {
	at, is := t.place(id)
	own, other := t[at][is], t[at][1-is]
	return other.node, other.node != "" && own.machine != "" && own.machine == other.machine
}

// name remembers the name of a node. Of two names that seem to be one node's it tells once.
func (o *observer) name(id nodeKey, attrs pcommon.Map) {
	o.views.twins.note(id, attrs, 2*o.maxNodes)
	if other, _ := o.views.twins.other(id); other != "" && o.reader.Once(id.cluster, "two names") {
		o.log.Warn("two names look like one node's: give all collectors of a node the same host.name",
			zap.String("cluster", id.cluster), zap.Strings("names", []string{id.node, other}))
	}
}
