// SPDX-License-Identifier: Apache-2.0

package delta // import "github.com/gpu-collector/gpu-collector/internal/delta"

import (
	"bytes"
	"encoding/binary"
	"slices"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
	nodeidentity "github.com/gpu-collector/gpu-collector/internal/reading/identity"
)

// Wire types (protobuf encoding guide, "Message Structure").
const (
	wireVarint = 0
	wireI64    = 1
	wireLen    = 2
)

// Tags of attributes: opentelemetry-proto, common/v1/common.proto.
const (
	tagKey   = 1<<3 | wireLen
	tagValue = 2<<3 | wireLen

	tagString = 1<<3 | wireLen
	tagBool   = 2<<3 | wireVarint
	tagInt    = 3<<3 | wireVarint
	tagDouble = 4<<3 | wireI64
	tagArray  = 5<<3 | wireLen
	tagBytes  = 7<<3 | wireLen

	tagArrayValues = 1<<3 | wireLen
)

// maxDepth is how deep arrays may lie within arrays.
const maxDepth = 4

// varint reads a number at b[pos:] and returns the position after it, negative
// when there is none. Of a tenth byte it takes the lowest bit, as pdata does.
func varint(b []byte, pos int) (n uint64, next int) {
	for shift := uint(0); shift < 64 && pos < len(b); shift += 7 {
		c := b[pos]
		pos++
		n |= uint64(c&0x7f) << shift
		if c < 0x80 {
			return n, pos
		}
	}
	return 0, -1
}

// chunk reads a length at b[pos:] and returns the content's limits; end is
// negative when it does not fit.
func chunk(b []byte, pos int) (body, end int) {
	if pos < len(b) && b[pos] < 0x80 {
		body, end = pos+1, pos+1+int(b[pos])
	} else {
		n, next := varint(b, pos)
		if next < 0 || n > uint64(len(b)) {
			return 0, -1
		}
		body, end = next, next+int(n)
	}
	if end > len(b) {
		return 0, -1
	}
	return body, end
}

// wireValue is an attribute's value; n is its bits, text what it has of bytes.
type wireValue struct {
	kind pcommon.ValueType
	n    uint64
	text []byte
}

// readKeyValue reads an attribute. Maps as values are not read here.
func readKeyValue(b []byte) (key []byte, v wireValue, ok bool) {
	seen := false
	for pos := 0; pos < len(b); {
		tag := b[pos]
		from, to := chunk(b, pos+1)
		if to < 0 {
			return nil, v, false
		}
		switch {
		case tag == tagKey:
			key = b[from:to]
		case tag == tagValue && !seen:
			if v, ok = readValue(b[from:to]); !ok {
				return nil, v, false
			}
			seen = true
		default:
			return nil, v, false
		}
		pos = to
	}
	return key, v, true
}

func readValue(b []byte) (v wireValue, ok bool) {
	for pos := 0; pos < len(b); {
		tag := b[pos]
		pos++
		switch tag {
		case tagString, tagBytes:
			from, to := chunk(b, pos)
			if to < 0 {
				return v, false
			}
			v = wireValue{kind: pcommon.ValueTypeStr, text: b[from:to]}
			if tag == tagBytes {
				v.kind = pcommon.ValueTypeBytes
			}
			pos = to
		case tagBool, tagInt:
			n, next := varint(b, pos)
			if next < 0 {
				return v, false
			}
			v = wireValue{kind: pcommon.ValueTypeInt, n: n}
			if tag == tagBool {
				v = wireValue{kind: pcommon.ValueTypeBool, n: boolBit(n != 0)}
			}
			pos = next
		case tagDouble:
			if len(b)-pos < 8 {
				return v, false
			}
			v = wireValue{kind: pcommon.ValueTypeDouble, n: binary.LittleEndian.Uint64(b[pos:])}
			pos += 8
		case tagArray:
			from, to := chunk(b, pos)
			// Alone, for what another value replaces would have to be checked too.
			if to != len(b) || v.kind != pcommon.ValueTypeEmpty {
				return v, false
			}
			return wireValue{kind: pcommon.ValueTypeSlice, text: b[from:to]}, true
		default:
			return v, false
		}
	}
	return v, true
}

// keyValueHash is attributeHash of an attribute's bytes.
func keyValueHash(b []byte) (uint64, bool) {
	key, v, ok := readKeyValue(b)
	if !ok {
		return 0, false
	}
	h, ok := v.hash(0)
	return attributeHash(statetable.HashBytes(key), h), ok
}

// hash is valueHash of a value's bytes.
func (v *wireValue) hash(depth int) (uint64, bool) {
	h := v.n
	switch v.kind {
	case pcommon.ValueTypeStr:
		h = statetable.HashBytes(v.text)
	case pcommon.ValueTypeBytes:
		h = statetable.HashLength(len(v.text))
		for _, c := range v.text {
			h = statetable.Mix(h, uint64(c))
		}
	case pcommon.ValueTypeSlice:
		n, ok := v.length(depth)
		if !ok {
			return 0, false
		}
		h = statetable.HashLength(n)
		for pos := 0; pos < len(v.text); {
			from, to := chunk(v.text, pos+1)
			member, ok := readValue(v.text[from:to])
			if !ok {
				return 0, false
			}
			of, ok := member.hash(depth + 1)
			if !ok {
				return 0, false
			}
			h = statetable.Mix(h, of)
			pos = to
		}
	default:
	}
	return typedHash(v.kind, h), true
}

// length counts an array's members.
func (v *wireValue) length(depth int) (n int, ok bool) {
	for pos := 0; pos < len(v.text); n++ {
		_, to := chunk(v.text, pos+1)
		if v.text[pos] != tagArrayValues || to < 0 {
			return 0, false
		}
		pos = to
	}
	return n, depth < maxDepth
}

// wireIdentity writes what identity writes, from a resource's bytes.
type wireIdentity struct {
	out    identity
	attrs  []wireAttribute
	isNode bool
}

type wireAttribute struct {
	key   []byte
	value wireValue
}

func (id *wireIdentity) open() { id.attrs, id.isNode = id.attrs[:0], false }

// resource reads the resource at b[pos:].
func (id *wireIdentity) resource(b []byte, pos int) bool {
	for pos < len(b) {
		switch b[pos] {
		case tagResourceDropped:
			if _, pos = varint(b, pos+1); pos < 0 {
				return false
			}
		case tagResourceAttribute:
			from, to := chunk(b, pos+1)
			if to < 0 {
				return false
			}
			key, v, ok := readKeyValue(b[from:to])
			if !ok {
				return false
			}
			if v.kind == pcommon.ValueTypeSlice {
				if _, ok = v.hash(0); !ok { // for its check of the members
					return false
				}
			}
			id.isNode = id.isNode || nodeidentity.IsNode(key)
			id.attrs = append(id.attrs, wireAttribute{key, v})
			pos = to
		default:
			return false
		}
	}
	return true
}

// count is how often the resource has an attribute, and how often as this text.
func (id *wireIdentity) count(key, text string) (all, same int) {
	for i := range id.attrs {
		if a := &id.attrs[i]; string(a.key) == key {
			all++
			if a.value.kind == pcommon.ValueTypeStr && string(a.value.text) == text {
				same++
			}
		}
	}
	return all, same
}

// close returns the node's key.
func (id *wireIdentity) close() (node statetable.NodeKey, isNode bool) {
	slices.SortStableFunc(id.attrs, func(a, b wireAttribute) int { return bytes.Compare(a.key, b.key) })
	id.out.buf = id.out.buf[:0]
	id.out.number(uint64(len(id.attrs)))
	for i := range id.attrs {
		id.bytes(id.attrs[i].key)
		id.value(&id.attrs[i].value)
	}
	return statetable.KeyOf(id.out.buf), id.isNode
}

func (id *wireIdentity) reset() {
	clear(id.attrs[:cap(id.attrs)])
	if cap(id.attrs) > keepAttributes {
		id.attrs, id.out.buf = nil, nil
	}
}

func (id *wireIdentity) bytes(b []byte) {
	id.out.number(uint64(len(b)))
	id.out.buf = append(id.out.buf, b...)
}

func (id *wireIdentity) value(v *wireValue) {
	id.out.buf = append(id.out.buf, byte(v.kind))
	switch v.kind {
	case pcommon.ValueTypeStr, pcommon.ValueTypeBytes:
		id.bytes(v.text)
	case pcommon.ValueTypeSlice:
		n, _ := v.length(0)
		id.out.number(uint64(n))
		for pos := 0; pos < len(v.text); {
			from, to := chunk(v.text, pos+1)
			member, _ := readValue(v.text[from:to])
			id.value(&member)
			pos = to
		}
	case pcommon.ValueTypeEmpty:
	default:
		id.out.number(v.n)
	}
}
