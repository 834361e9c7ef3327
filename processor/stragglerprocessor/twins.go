// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

// twins are the names of nodes by their first label: without a domain, and with one. Two
// collectors of one node may name it differently.
type twins map[nodeKey][2]alias

// alias is a name of a node, and its host.id, empty where it is not told.
type alias struct{ node, machine string }

// of returns the other name that a node seems to have, if it has one, and whether both are
// of one machine. It remembers at most so many nodes.
func (t twins) of(id nodeKey, attrs pcommon.Map, most int) (other string, same bool) {
	machine := ""
	if v, ok := attrs.Get(gpusemconv.AttrHostID); ok {
		machine = metricreading.Text(v)
	}
	short, _, domain := strings.Cut(id.node, ".")
	at, is := nodeKey{id.cluster, short}, 0
	if domain {
		is = 1
	}
	pair := t[at]
	if own := (alias{id.node, machine}); pair[is] != own {
		if len(t) >= most {
			clear(t)
		}
		pair[is] = alias{strings.Clone(own.node), strings.Clone(own.machine)}
		t[nodeKey{strings.Clone(at.cluster), strings.Clone(at.node)}] = pair
	}
	other = pair[1-is].node
	return other, other != "" && machine != "" && machine == pair[1-is].machine
}

// named returns the name under which the facts of a report belong to a node that is
// compared. Of two names that seem to be one node's it tells once.
func (o *observer) named(e *straggler.Engine, id nodeKey, attrs pcommon.Map) nodeKey {
	other, same := o.twins.of(id, attrs, 2*o.maxNodes)
	if other == "" {
		return id
	}
	if o.reader.Once(id.cluster, "two names") {
		o.log.Warn("two names look like one node's: give all collectors of a node the same host.name",
			zap.String("cluster", id.cluster), zap.Strings("names", []string{id.node, other}))
	}
	if same && !e.Has(id.cluster, id.node) && e.Has(id.cluster, other) {
		return nodeKey{id.cluster, other}
	}
	return id
}
