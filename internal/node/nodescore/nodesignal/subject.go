// SPDX-License-Identifier: Apache-2.0

package nodesignal

import (
	"cmp"
	"hash/fnv"
	"math"
	"strconv"
)

// Subject is the part of a node that a reading is of: a rank of its job, a GPU,
// or, as the zero value, the node itself.
type Subject struct {
	GPU       string  `json:"gpu,omitempty"` // hw.id
	Rank      Ordinal `json:"rank,omitzero" doc:"Place of the process in its job, from 0"`
	LocalRank Ordinal `json:"local_rank,omitzero" doc:"Place of the process on the node, from 0"`
}

// Ordinal is a number from 0 on, or unknown, as the zero value is. A negative one
// is of a rank without a number, see Unnamed.
type Ordinal int32

// OrdinalOf returns the ordinal of n, unknown where n cannot be one.
func OrdinalOf(n int64) Ordinal {
	if n < 0 || n >= math.MaxInt32 {
		return 0
	}
	return Ordinal(n + 1)
}

// ParseOrdinal reads a decimal number, unknown where s is none.
func ParseOrdinal(s string) Ordinal {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0
	}
	return OrdinalOf(n)
}

// Unnamed returns the ordinal of a rank that is known by its program's instance alone.
// It has no number. Two of 256 such ranks of a node are taken for one by a chance of
// 1 : 65,000.
func Unnamed(instance string) Ordinal {
	h := fnv.New32a()
	_, _ = h.Write([]byte(instance))
	return Ordinal(h.Sum32() | 1<<31)
}

// Get returns the number, false where it is unknown.
func (o Ordinal) Get() (int64, bool) { return int64(o) - 1, o > 0 }

// IsZero reports whether the number is unknown, which JSON leaves out.
func (o Ordinal) IsZero() bool { return o <= 0 }

// MarshalJSON writes the number.
func (o Ordinal) MarshalJSON() ([]byte, error) { return strconv.AppendInt(nil, int64(o)-1, 10), nil }

// UnmarshalJSON reads the number.
func (o *Ordinal) UnmarshalJSON(text []byte) error {
	*o = ParseOrdinal(string(text))
	return nil
}

// IsRank reports whether the subject is a rank and not a whole GPU or node.
func (s Subject) IsRank() bool { return s.Rank != 0 || s.LocalRank > 0 }

// Named reports whether the subject has a name to report. The node itself has none here.
func (s Subject) Named() bool { return s.GPU != "" || s.Rank > 0 || s.LocalRank > 0 }

// Compare orders subjects by rank, local rank and GPU.
func (s Subject) Compare(o Subject) int {
	return cmp.Or(cmp.Compare(s.Rank, o.Rank), cmp.Compare(s.LocalRank, o.LocalRank), cmp.Compare(s.GPU, o.GPU))
}
