// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"errors"
	"math"

	"go.opentelemetry.io/collector/pdata/pmetric"
	"google.golang.org/protobuf/encoding/protowire"
)

// resource is a resource with gauges of the node as the bytes of OTLP, all of
// which are there in each report.
type resource struct {
	bytes  []byte // with tag and length
	names  []place
	points []slot
}

// slot is where a point has its time and its value.
type slot struct {
	time, value int
	integer     bool
}

// compile makes r the one resource of md.
func (r *resource) compile(md pmetric.Metrics) error {
	msg, err := encode(md)
	if err != nil {
		return err
	}
	r.bytes = append(appendHead(nil, fieldResourceMetrics, len(msg)), msg...)
	if r.names, err = names(msg); err != nil {
		return err
	}
	from := len(r.bytes) - len(msg)
	for i := range r.names {
		r.names[i].at += from
	}
	return r.find(from, len(r.bytes), fieldScopeMetrics, fieldMetrics, fieldGauge, fieldDataPoints)
}

// find finds the points, down a path of fields, in the order in which they are
// in the metrics: pdata turns around the fields of a message, not what a field has
// several of.
func (r *resource) find(from, to int, path ...protowire.Number) error {
	if len(path) == 0 {
		var s slot
		err := fields(r.bytes[from:to], func(f field) {
			switch f.number {
			case fieldTime:
				s.time = from + f.content
			case fieldDouble, fieldInt:
				s.value, s.integer = from+f.content, f.number == fieldInt
			}
		})
		r.points = append(r.points, s)
		return err
	}
	var errs []error
	err := fields(r.bytes[from:to], func(f field) {
		if f.number == path[0] {
			errs = append(errs, r.find(from+f.content, from+f.end, path[1:]...))
		}
	})
	return errors.Join(append(errs, err)...)
}

// fill writes over a copy of the bytes what is a report's own.
func (r *resource) fill(b []byte, id *identity, now uint64, value func(point int) float64) {
	id.write(b, r.names)
	for i := range r.points {
		p := &r.points[i]
		put64(b[p.time:], now)
		if x := value(i); p.integer {
			put64(b[p.value:], uint64(int64(x)))
		} else {
			put64(b[p.value:], math.Float64bits(x))
		}
	}
}
