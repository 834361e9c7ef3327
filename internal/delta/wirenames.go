// SPDX-License-Identifier: Apache-2.0

package delta // import "github.com/gpu-collector/gpu-collector/internal/delta"

import (
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"

	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
)

// A new node or series gets the name that describer gives. That happens once for
// each, so it may allocate.

func (w *Wire) describeNode(r *wireResource) {
	w.readAttributes(r.resource.of(w.msg), tagResourceAttribute) // those that can be
	w.Report.DescribeNode(w.attrs)
	clear(w.attrs)
}

// describe reports whether there is room for the name.
func (w *Wire) describe(scope *scopeIdentityBytes, m *wireMetric, p *wirePoint) bool {
	of := statetable.Metric{
		ScopeName: string(scope.name.of(w.msg)), ScopeVersion: string(scope.version.of(w.msg)),
		Name: string(m.name.of(w.msg)), Unit: string(m.unit.of(w.msg)), Description: string(m.description.of(w.msg)),
		Type: statetable.TypeGauge,
	}
	if m.isSum {
		of.Type, of.Monotonic = statetable.TypeSum, m.monotonic
	}
	body, _ := chunk(w.msg, int(p.from)+1)
	fits := w.readAttributes(w.msg[body:p.end], tagAttribute) && !scope.attributed
	room := !fits || w.Report.Describe(&of, w.attrs)
	clear(w.attrs)
	return room
}

// readAttributes fills attrs from those of a message that was read before, and
// reports whether all of them fit.
func (w *Wire) readAttributes(b []byte, attribute byte) bool {
	w.attrs = w.attrs[:0]
	all := true
	for pos := 0; pos < len(b); {
		tag := b[pos]
		switch tag & 7 {
		case wireI64:
			pos += 9
			continue
		case wireVarint:
			_, pos = varint(b, pos+1)
			continue
		}
		from, to := chunk(b, pos+1)
		pos = to
		if tag != attribute {
			continue
		}
		key, v, _ := readKeyValue(b[from:to])
		a := statetable.Attr{Key: string(key), Num: v.n}
		switch v.kind {
		case pcommon.ValueTypeStr:
			a.Type, a.Text = statetable.AttrString, string(v.text)
		case pcommon.ValueTypeInt:
			a.Type = statetable.AttrInt
		case pcommon.ValueTypeDouble:
			a.Type = statetable.AttrDouble
		case pcommon.ValueTypeBool:
			a.Type = statetable.AttrBool
		default:
			all = false
			continue
		}
		w.attrs = append(w.attrs, a)
	}
	return all
}

// scopeBytes returns the scopes of a request of one resource, as fields of that.
func scopeBytes(md pmetric.Metrics) []byte {
	msg, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalProto()
	if err != nil {
		panic(err) // pdata's MarshalProto of a request has no way to fail
	}
	var out []byte
	for pos, _ := chunk(msg, 1); pos < len(msg); {
		_, to := chunk(msg, pos+1)
		if msg[pos] == tagScopeMetrics {
			out = append(out, msg[pos:to]...)
		}
		pos = to
	}
	return out
}
