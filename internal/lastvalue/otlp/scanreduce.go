// SPDX-License-Identifier: Apache-2.0

package otlp // import "github.com/gpu-collector/gpu-collector/internal/lastvalue/otlp"

import (
	"bytes"
	"encoding/binary"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
)

// skim says which points go, and returns how many.
func (s *scanner) skim(t *lastvalue.Table, now time.Duration) (points int64) {
	skim := t.Skim(now)
	for _, r := range s.resources {
		if !r.compared || !skim.Open(r.node) {
			continue
		}
		elements := s.elements[s.elements[r.at].first:r.at]
		for i := range elements {
			switch e := &elements[i]; e.state {
			case stays:
				skim.Pass(&e.Point)
			case compared:
				if skim.Known(&e.Point) {
					e.state = dropped
					points++
				}
			case holds, dropped:
			}
		}
		skim.Close()
	}
	return points
}

// left moves what is left of the request to its end, and returns that.
func (s *scanner) left() []byte {
	at := int32(len(s.msg))
	for _, v := range slices.Backward(s.resources) {
		at = s.write(int32(v.at), at)
	}
	return s.msg[at:]
}

// write moves what is left of an element to before a position, and returns where it then
// begins. That is never before its own place, so no byte is lost that is still to be moved.
func (s *scanner) write(i, to int32) int32 {
	e := &s.elements[i]
	if e.first == i {
		return s.move(e.from, e.end, to)
	}
	end, at, left := to, e.end, false
	for in := i - 1; in >= e.first; in = s.elements[in].first - 1 {
		inner := &s.elements[in]
		to = s.move(inner.end, at, to)
		if at = inner.from; inner.state != dropped {
			before := to
			to = s.write(in, to)
			left = left || to < before
		}
	}
	if !left {
		return end
	}
	to = s.move(e.body, at, to)
	var length [binary.MaxVarintLen32]byte
	n := int32(binary.PutUvarint(length[:], uint64(end-to)))
	to = to - n - 1
	s.msg[to] = s.msg[e.from] // the tag
	copy(s.msg[to+1:], length[:n])
	return to
}

func (s *scanner) move(from, end, to int32) int32 {
	if to -= end - from; from < end {
		copy(s.msg[to:], s.msg[from:end])
	}
	return to
}

// knownSlots is several times the attributes that the points of a node differ by.
const knownSlots = 256

// knownSlot goes by the end, where attributes of one key differ.
func knownSlot(kv []byte) uint64 {
	end := binary.LittleEndian.Uint64(kv[len(kv)-8:])
	return (end ^ uint64(len(kv))) * 0x9e3779b97f4a7c15 >> (64 - 8)
}

// attribute returns the hash of the attribute at hand, hashed now or before.
func (s *scanner) attribute(f *fields) (hash uint64, ok bool) {
	kv := f.content()
	if len(kv) < 8 {
		return keyValueHash(kv)
	}
	known := &s.known[knownSlot(kv)]
	if known.to > 0 && bytes.Equal(s.msg[known.from:known.to], kv) {
		return known.sum, true
	}
	if hash, ok = keyValueHash(kv); ok {
		*known = attributeRun{int32(f.body), int32(f.pos), hash}
	}
	return hash, ok
}

// run hashes the attributes from the one at hand on, or finds them to be those of the nth
// point of the metric before. The last of them is then at hand.
func (s *scanner) run(f *fields, nth int) (sum uint64, ok bool) {
	from := f.from
	if nth < len(s.runs) {
		r := &s.runs[nth]
		if bytes.HasPrefix(f.b[from:], s.msg[r.from:r.to]) {
			f.pos = from + int(r.to-r.from)
			return r.sum, true
		}
	}
	for {
		h, ok := s.attribute(f)
		if !ok {
			return 0, false
		}
		sum += h
		if f.pos == len(f.b) || f.b[f.pos] != tagAttribute {
			break
		}
		if !f.next() {
			return 0, false
		}
	}
	r := attributeRun{int32(from), int32(f.pos), sum}
	switch {
	case nth < len(s.runs):
		s.runs[nth] = r
	case nth == len(s.runs):
		s.runs = append(s.runs, r)
	}
	return sum, true
}
