// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"encoding/binary"
	"errors"
	"math"
	"math/bits"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
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

// eachValue calls f for each value of a record, with the index of its subject and of its column,
// until it fails.
func eachValue(record []byte, f func(subject int, gpu string, column int, v float64) error) error {
	r := reader{left: record}
	for subject := 0; len(r.left) > 0; subject++ {
		gpu := r.text()
		for known := r.number(); known != 0; known &= known - 1 {
			v := math.Float64frombits(bits.ReverseBytes64(r.number()))
			if r.bad {
				return errRecord
			}
			if err := f(subject, gpu, bits.TrailingZeros64(known), v); err != nil {
				return err
			}
		}
	}
	if r.bad {
		return errRecord
	}
	return nil
}
