// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"math/bits"
	"slices"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// A record has the subjects of a row, one after the other: the UUID with its length before it, a
// bit for each column that is known, and the values of these. The bytes of a value are reversed:
// most numbers are whole, or have few digits, and end in zeros, which a varint leaves out.
func appendRecord(b []byte, subjects []fleethistory.Subject) []byte {
	for i := range subjects {
		s := &subjects[i]
		b = binary.AppendUvarint(b, uint64(len(s.GPU)))
		b = append(b, s.GPU...)
		var known uint64
		for column, v := range s.Values {
			if !math.IsNaN(v) {
				known |= 1 << column
			}
		}
		b = binary.AppendUvarint(b, known)
		for _, v := range s.Values {
			if !math.IsNaN(v) {
				b = binary.AppendUvarint(b, bits.ReverseBytes64(math.Float64bits(v)))
			}
		}
	}
	return b
}

// errRecord is of a record that is none.
var errRecord = errors.New("a record is damaged")

// reader reads a record.
type reader struct {
	left []byte
	bad  bool
}

func (r *reader) number() uint64 {
	v, n := binary.Uvarint(r.left)
	if n <= 0 {
		r.left, r.bad = nil, true
		return 0
	}
	r.left = r.left[n:]
	return v
}

func (r *reader) text() string {
	n := r.number()
	if n > uint64(len(r.left)) {
		r.left, r.bad = nil, true
		return ""
	}
	text := string(r.left[:n])
	r.left = r.left[n:]
	return text
}

// decoder reads records as samples.
type decoder struct {
	query   *fleethistory.Query
	known   []byte // the text of the columns
	columns fleethistory.Layout
	grouped map[grouped]string // attributes with the peer group
}

type grouped struct{ attributes, group string }

// layout takes the columns of the next records.
func (d *decoder) layout(text []byte) error {
	if bytes.Equal(text, d.known) {
		return nil
	}
	*d = decoder{query: d.query, known: bytes.Clone(text), grouped: map[grouped]string{}}
	if json.Unmarshal(text, &d.columns) != nil {
		return errRecord
	}
	return nil
}

// record calls f for each selected value of a record, which is in p then, until it returns false.
func (d *decoder) record(record []byte, p *fleethistory.Sample, group string, f func() bool) error {
	q, r := d.query, reader{left: record}
	for subject := 0; len(r.left) > 0; subject++ {
		p.GPU = r.text()
		skip := len(q.GPUs) > 0 && !slices.Contains(q.GPUs, p.GPU)
		columns := d.columns.Of(p.Node, subject)
		for known := r.number(); known != 0; known &= known - 1 {
			v, column := r.number(), bits.TrailingZeros64(known)
			if r.bad || column >= len(columns) {
				return errRecord
			}
			c := &columns[column]
			if skip || len(q.Metrics) > 0 && !slices.Contains(q.Metrics, c.Metric) {
				continue
			}
			p.Metric, p.Attributes, p.Value = c.Metric, c.Attributes, math.Float64frombits(bits.ReverseBytes64(v))
			if c.Grouped && group != "" {
				p.Attributes = d.withGroup(c.Attributes, group)
			}
			if !f() {
				return errEnough
			}
		}
	}
	if r.bad {
		return errRecord
	}
	return nil
}

func (d *decoder) withGroup(attributes, group string) string {
	text, known := d.grouped[grouped{attributes, group}]
	if !known {
		all := fleethistory.SplitAttributes(attributes)
		if all == nil {
			all = map[string]string{}
		}
		all[gpusemconv.AttrPeerGroup] = group
		text = fleethistory.JoinAttributes(all)
		d.grouped[grouped{attributes, group}] = text
	}
	return text
}
