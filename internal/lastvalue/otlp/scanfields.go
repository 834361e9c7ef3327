// SPDX-License-Identifier: Apache-2.0

package otlp // import "github.com/gpu-collector/gpu-collector/internal/lastvalue/otlp"

import (
	"encoding/binary"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
)

// Wire types (protobuf encoding guide, "Message Structure").
const (
	wireVarint = 0
	wireI64    = 1
	wireLen    = 2
)

// Tags of the fields that a regular request consists of, all of them in one byte:
// opentelemetry-proto, metrics/v1/metrics.proto and common/v1/common.proto.
const (
	tagResourceMetrics = 1<<3 | wireLen

	tagResource     = 1<<3 | wireLen
	tagScopeMetrics = 2<<3 | wireLen
	tagSchemaURL    = 3<<3 | wireLen // of resource and scope metrics

	tagScope   = 1<<3 | wireLen
	tagMetrics = 2<<3 | wireLen

	tagScopeName      = 1<<3 | wireLen
	tagScopeVersion   = 2<<3 | wireLen
	tagScopeAttribute = 3<<3 | wireLen
	tagScopeDropped   = 4<<3 | wireVarint

	tagName        = 1<<3 | wireLen
	tagDescription = 2<<3 | wireLen
	tagUnit        = 3<<3 | wireLen
	tagGauge       = 5<<3 | wireLen
	tagSum         = 7<<3 | wireLen
	tagMetadata    = 12<<3 | wireLen

	tagDataPoints  = 1<<3 | wireLen
	tagTemporality = 2<<3 | wireVarint
	tagMonotonic   = 3<<3 | wireVarint

	tagStartTime = 2<<3 | wireI64
	tagTime      = 3<<3 | wireI64
	tagAsDouble  = 4<<3 | wireI64
	tagAsInt     = 6<<3 | wireI64
	tagAttribute = 7<<3 | wireLen
	tagFlags     = 8<<3 | wireVarint

	tagKey   = 1<<3 | wireLen
	tagValue = 2<<3 | wireLen

	tagString = 1<<3 | wireLen
	tagBool   = 2<<3 | wireVarint
	tagInt    = 3<<3 | wireVarint
	tagDouble = 4<<3 | wireI64
	tagBytes  = 7<<3 | wireLen
)

// fields goes through the fields of a message. A caller looks at tags of its own: any other
// is not for it, and neither is a field that ends the loop before ok.
type fields struct {
	b         []byte // the request up to the end of the message
	from, pos int    // where the field begins, and where the next one does; pos is negative after a malformed one
	tag       byte   // number and wire type
	n         uint64 // its number
	body      int    // its content is b[body:pos]
}

func (f *fields) next() bool {
	if f.pos >= len(f.b) {
		return false
	}
	f.from, f.tag = f.pos, f.b[f.pos]
	switch f.tag & 7 {
	case wireLen:
		f.body, f.pos = chunk(f.b, f.pos+1)
	case wireI64:
		if len(f.b)-f.pos < 9 {
			f.pos = -1
			break
		}
		f.n = binary.LittleEndian.Uint64(f.b[f.pos+1:])
		f.pos += 9
	case wireVarint:
		f.n, f.pos = varint(f.b, f.pos+1)
	default:
		f.pos = -1
	}
	return f.pos >= 0
}

// ok reports whether the last field was whole.
func (f *fields) ok() bool { return f.pos >= 0 }

// content is that of the field.
func (f *fields) content() []byte { return f.b[f.body:f.pos] }

// inner goes through the field's own fields.
func (f *fields) inner() fields { return fields{b: f.b[:f.pos], pos: f.body} }

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

// keyValueHash is attributeHash of an attribute's bytes. Lists and maps are not read here.
func keyValueHash(b []byte) (hash uint64, ok bool) {
	var key []byte
	value, valued := typedHash(pcommon.ValueTypeEmpty, 0), false
	f := fields{b: b}
	for f.next() {
		switch {
		case f.tag == tagKey:
			key = f.content()
		case f.tag == tagValue && !valued:
			if value, valued = valueBytesHash(f.inner()); !valued {
				return 0, false
			}
		default:
			return 0, false
		}
	}
	return attributeHash(lastvalue.HashBytes(key), value), f.ok()
}

// valueBytesHash is valueHash of a value's fields.
func valueBytesHash(f fields) (hash uint64, ok bool) {
	kind := pcommon.ValueTypeEmpty
	for f.next() {
		switch f.tag {
		case tagString:
			kind, hash = pcommon.ValueTypeStr, lastvalue.HashBytes(f.content())
		case tagBool:
			kind, hash = pcommon.ValueTypeBool, boolBit(f.n != 0)
		case tagInt:
			kind, hash = pcommon.ValueTypeInt, f.n
		case tagDouble:
			kind, hash = pcommon.ValueTypeDouble, f.n
		case tagBytes:
			kind, hash = pcommon.ValueTypeBytes, lastvalue.HashLength(len(f.content()))
			for _, c := range f.content() {
				hash = lastvalue.Mix(hash, uint64(c))
			}
		default:
			return 0, false
		}
	}
	return typedHash(kind, hash), f.ok()
}

// scopeBytesHash is scopeHash of a scope's fields.
func scopeBytesHash(f fields) (hash uint64, ok bool) {
	var name, version []byte
	var attrs uint64
	for f.next() {
		switch f.tag {
		case tagScopeName:
			name = f.content()
		case tagScopeVersion:
			version = f.content()
		case tagScopeAttribute:
			h, ok := keyValueHash(f.content())
			if !ok {
				return 0, false
			}
			attrs += h
		case tagScopeDropped:
		default:
			return 0, false
		}
	}
	return scopeIdentity(lastvalue.HashBytes(name), lastvalue.HashBytes(version), attrs), f.ok()
}
