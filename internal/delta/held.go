// SPDX-License-Identifier: Apache-2.0

package delta // import "github.com/gpu-collector/gpu-collector/internal/delta"

import (
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
)

// Held makes a message of about maxBytes from the table's state of nodes, for a next
// hop that has restarted since it got their reduced reports. It returns the nodes that
// it did not come to, and leaves out those that have reported since, with their whole
// state. Settle the report as any other.
func Held(r *statetable.Report, nodes []statetable.NodeKey, maxBytes int) (md pmetric.Metrics, beats int, rest []statetable.NodeKey) {
	md = pmetric.NewMetrics()
	var id identity
	var size pmetric.ProtoMarshaler
	for bytes := 0; len(nodes) > 0 && bytes < maxBytes; nodes = nodes[1:] {
		attrs, heard, ok := r.OpenHeld(nodes[0])
		if !ok {
			continue
		}
		rm := md.ResourceMetrics().AppendEmpty()
		putAttributes(rm.Resource().Attributes(), attrs)
		// Another where an attribute is of a kind that has no name in the table.
		if id.node(rm.Resource().Attributes()) == nodes[0] {
			for s, at := range r.Held {
				repeat(rm, 0, &s, pcommon.Timestamp(at))
			}
		}
		r.CloseNode()
		if rm.ScopeMetrics().Len() > 0 && isNode(rm.Resource().Attributes()) {
			heartbeat(rm, pcommon.Timestamp(heard))
			beats++
		}
		bytes += size.ResourceMetricsSize(rm)
	}
	md.ResourceMetrics().RemoveIf(func(rm pmetric.ResourceMetrics) bool { return rm.ScopeMetrics().Len() == 0 })
	return md, beats, nodes
}
