// SPDX-License-Identifier: Apache-2.0

package otlp // import "github.com/gpu-collector/gpu-collector/internal/lastvalue/otlp"

import (
	"go.opentelemetry.io/collector/pdata/pcommon"
	"google.golang.org/protobuf/encoding/protowire"

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

	tagScopeName    = 1<<3 | wireLen
	tagScopeVersion = 2<<3 | wireLen

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
	tagInt    = 3<<3 | wireVarint

	// tagNone is of a field that no message has.
	tagNone = 15<<3 | wireLen
)

// fields goes through the fields of a message. A caller looks at tags of its own, and refuses
// any other. What was read of a message is of no use without ok.
type fields struct {
	b         []byte // the request up to the end of the message
	from, pos int    // where the field begins, and where the next one does; pos is negative after refuse
	tag       byte   // number and wire type
	n         uint64 // its number
	body      int    // its content is b[body:pos]
}

func (f *fields) next() bool {
	if uint(f.pos) >= uint(len(f.b)) {
		return false
	}
	f.from, f.tag = f.pos, f.b[f.pos]
	rest, size := f.b[f.pos+1:], -1
	switch f.tag & 7 {
	case wireLen:
		if length, n := protowire.ConsumeVarint(rest); n > 0 && length <= uint64(len(rest)-n) {
			f.body, size = f.pos+1+n, n+int(length)
		}
	case wireI64:
		f.n, size = protowire.ConsumeFixed64(rest)
	case wireVarint:
		f.n, size = protowire.ConsumeVarint(rest)
	}
	if size < 0 {
		f.refuse()
		return false
	}
	f.pos += 1 + size
	return true
}

// refuse ends a message that is not regular.
func (f *fields) refuse() { f.pos = -1 }

// ok reports whether the whole message was regular.
func (f *fields) ok() bool { return f.pos >= 0 }

// content is that of the field.
func (f *fields) content() []byte { return f.b[f.body:f.pos] }

// inner goes through the field's own fields.
func (f *fields) inner() fields { return fields{b: f.b[:f.pos], pos: f.body} }

// keyValueHash is what attributesHash adds for an attribute. Its value is a text or an integer,
// others are left to pdata.
func keyValueHash(f fields) (hash uint64, ok bool) {
	var key []byte
	var value fields
	for f.next() {
		switch {
		case f.tag == tagKey:
			key = f.content()
		case f.tag == tagValue && value.b == nil:
			value = f.inner()
		default:
			f.refuse()
		}
	}
	kind, bits := pcommon.ValueTypeEmpty, uint64(0)
	for value.next() {
		switch value.tag {
		case tagString:
			kind, bits = pcommon.ValueTypeStr, lastvalue.HashBytes(value.content())
		case tagInt:
			kind, bits = pcommon.ValueTypeInt, value.n
		default:
			value.refuse()
		}
	}
	return lastvalue.Mix(lastvalue.HashBytes(key), typedHash(kind, bits)), f.ok() && value.ok()
}

// scopeBytesHash is scopeHash of the fields of a scope without attributes.
func scopeBytesHash(f fields) (hash uint64, ok bool) {
	var name, version []byte
	for f.next() {
		switch f.tag {
		case tagScopeName:
			name = f.content()
		case tagScopeVersion:
			version = f.content()
		default:
			f.refuse()
		}
	}
	return scopeIdentity(lastvalue.HashBytes(name), lastvalue.HashBytes(version), 0), f.ok()
}
