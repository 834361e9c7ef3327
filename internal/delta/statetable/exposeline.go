// SPDX-License-Identifier: Apache-2.0

package statetable // import "github.com/gpu-collector/gpu-collector/internal/delta/statetable"

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/promtext"
)

// each yields the node's series of a family. The node's lock is held. Where a sweep
// has moved them, they are looked for among all; of a node that a sweep forgot, the
// numbers may be other names by now.
func (s *scrape) each(f int32, v *shown, runs []run16, yield func(*entry)) {
	if v.evicted {
		return
	}
	src := &s.sources[v.source]
	src.refresh()
	moved := v.node.layout != v.layout
	for _, r := range runs {
		from, to := int(r.from), int(r.to)
		if moved {
			from, to = 0, len(v.entries)
		}
		for i := from; i < to; i++ {
			if e := &v.entries[i]; !e.is(gone) && src.family(e) == f {
				yield(e)
			}
		}
		if moved {
			return
		}
	}
}

// render renders a node's series of a family.
func (s *scrape) render(f int32, v *shown, runs []run16) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.evicted {
		return
	}
	name := s.families[f].name
	if runs[0].from == runs[0].to {
		runs = runs[1:]
		if f == s.info {
			all := *v
			s.resource(&all, nil)
			s.series(&all, name, "", KindInt, 1, 0, 0)
			s.text, s.labels = s.text[:all.from], s.labels[:all.first]
		} else {
			s.series(v, name, "", KindInt, v.beat/1e9, 0, 0)
		}
	}
	src := &s.sources[v.source]
	s.each(f, v, runs, func(e *entry) {
		refs := src.refs(v.node, e.attrs)[1:]
		if f == s.beat && v.beat != 0 && len(refs) == 0 {
			return // from the tier before, and not newer
		}
		age := (src.tick - e.heard()) & heardMask
		if age > heardMask/2 { // heard since the scrape began
			age = 0
		}
		s.series(v, name, refs, e.kind(), e.value, time.Duration(age)*src.set.TTL/ticksPerTTL, e.time)
	})
}

// series renders a line. Of labels with the same name the first counts: those of the
// node's names, then the point's, then the rest of the resource's.
func (s *scrape) series(v *shown, name, refs string, kind Kind, value uint64, age time.Duration, at uint32) {
	from := len(s.buf)
	s.buf = append(s.buf, name...)
	open := len(s.buf)
	s.buf = append(s.buf, s.text[v.from:v.named]...)
	hash, bits := v.hash, v.bits|s.cluster.bit
	s.own = append(s.own[:0], s.cluster.name)
	for i := v.first; i < v.rest; i++ {
		s.own = append(s.own, s.labels[i].name)
	}
	for ; len(refs) > 0; refs = refs[2:] {
		before := len(s.buf)
		l, sum := s.append(v, refAt(refs), bits)
		if len(s.buf) > before {
			hash, bits = hash+sum, bits|l.bit
			s.own = append(s.own, l.name)
		}
	}
	if bits&v.more == 0 {
		s.buf = append(s.buf, s.text[v.named:v.to]...)
		hash += v.sum
	} else {
		start := v.named
		for i := v.rest; i < v.last; i++ {
			l := &s.labels[i]
			if !s.has(l.labelName, bits) {
				s.buf = append(s.buf, s.text[start:l.end]...)
				hash += l.hash
			}
			start = l.end
		}
	}
	if len(s.buf)-from > maxLine || len(s.buf)-s.group > maxGroupText {
		s.buf = s.buf[:from]
		s.hide(v.cluster, HiddenLong, 1)
		return
	}
	if len(s.buf) > open {
		s.buf[open] = '{'
		s.buf = append(s.buf, '}')
	}
	s.buf = append(s.buf, ' ')
	if kind == KindInt {
		s.buf = strconv.AppendInt(s.buf, int64(value), 10)
	} else {
		s.buf = promtext.AppendFloat(s.buf, math.Float64frombits(value))
	}
	s.buf = append(s.buf, '\n')
	s.enter(v, line{hash: hash, from: from, to: len(s.buf), age: age, time: at})
}

// has reports whether the line at hand has the label.
func (s *scrape) has(l labelName, bits uint64) bool {
	return l.bit&bits != 0 && slices.Contains(s.own, l.name)
}

// append appends the label of an attribute, unless the line has it or it is empty.
func (s *scrape) append(v *shown, ref uint16, bits uint64) (labelName, uint64) {
	if ref&local == 0 {
		p := s.sources[v.source].pair(s, ref)
		if !s.has(p.labelName, bits) {
			s.buf = append(s.buf, p.text...)
		}
		return p.labelName, p.hash
	}
	b := pairBytes(v.names.bytes[v.names.pairs[ref&^local]:])
	size, t := int(binary.LittleEndian.Uint16(b)), AttrType(b[2])
	if t == AttrString {
		b = b[5:]
	} else {
		b = b[3:]
	}
	l, value := s.labelName(b[:size]), b[size:]
	if len(value) == 0 || s.has(l, bits) {
		return l, 0
	}
	from := len(s.buf)
	if t == AttrString {
		s.buf = promtext.AppendLabel(s.buf, l.name, value)
	} else {
		var digits [32]byte
		s.buf = promtext.AppendLabel(s.buf, l.name, appendNumber(digits[:0], t, binary.LittleEndian.Uint64(value)))
	}
	return l, HashBytes(s.buf[from:])
}

// refs is a set of a node, see dictionary.refs.
func (src *source) refs(n *node, set uint16) string {
	if set&local != 0 {
		return string(setBytes(n.names.bytes[n.names.sets[set&^local]:]))
	}
	if int(set) > len(src.sets) {
		src.sets = append(src.sets, make([]string, int(set)-len(src.sets))...)
	}
	refs := &src.sets[set-1]
	if *refs == "" {
		src.dict.mu.RLock()
		*refs = src.dict.sets.slots[set-1].name
		src.dict.mu.RUnlock()
	}
	return *refs
}

// pair is the text of a shared attribute.
func (src *source) pair(s *scrape, id uint16) *pairText {
	if int(id) > len(src.pairs) {
		src.pairs = append(src.pairs, make([]pairText, int(id)-len(src.pairs))...)
	}
	p := &src.pairs[id-1]
	if p.bit == 0 {
		src.dict.mu.RLock()
		a := src.dict.pairs.slots[id-1].name
		src.dict.mu.RUnlock()
		p.labelName = s.labelName([]byte(a.Key))
		if value := a.text(); value != "" {
			p.text = string(promtext.AppendLabel(nil, p.name, value))
			p.hash = HashString(p.text)
		}
	}
	return p
}

// keepLines is how many lines of a group leave their room in the map for the next.
const keepLines = 1 << 8

// begin starts a group of nodes with the same labels, mostly one.
func (s *scrape) begin() {
	if len(s.lines) > keepLines || s.seen == nil {
		s.seen = map[uint64]int{}
	} else {
		clear(s.seen)
	}
	s.group, s.lines, s.dead = len(s.buf), s.lines[:0], 0
}

// enter takes note of a line. Of two with the same labels the one stays that was
// heard last. Hashes of labels add up, so that their order does not matter.
func (s *scrape) enter(v *shown, l line) {
	if i, twice := s.seen[l.hash]; twice {
		s.hide(v.cluster, HiddenDuplicate, 1)
		old := &s.lines[i]
		if l.age > old.age || (l.age == old.age && int32(l.time-old.time) <= 0) {
			s.buf = s.buf[:l.from]
			return
		}
		old.dead = true
		s.dead++
	}
	s.seen[l.hash] = len(s.lines)
	s.lines = append(s.lines, l)
}

// end ends the group, without the lines that others took the place of.
func (s *scrape) end() {
	s.exposed.Series += len(s.lines) - s.dead
	if s.dead == 0 {
		return
	}
	to := s.group
	for i := range s.lines {
		if l := &s.lines[i]; !l.dead {
			to += copy(s.buf[to:], s.buf[l.from:l.to])
		}
	}
	s.buf = s.buf[:to]
}
