// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of OTLP (opentelemetry/proto/metrics/v1/metrics.proto).
const (
	fieldResourceMetrics protowire.Number = 1 // of the request
	fieldResource        protowire.Number = 1 // of ResourceMetrics
	fieldScopeMetrics    protowire.Number = 2 // of ResourceMetrics
	fieldMetrics         protowire.Number = 2 // of ScopeMetrics
	fieldGauge           protowire.Number = 5 // of Metric
	fieldSum             protowire.Number = 7
	fieldDataPoints      protowire.Number = 1 // of Gauge and Sum
	fieldAttributes      protowire.Number = 1 // of Resource
	fieldStart           protowire.Number = 2 // of NumberDataPoint
	fieldTime            protowire.Number = 3
	fieldDouble          protowire.Number = 4
	fieldInt             protowire.Number = 6
	fieldLabels          protowire.Number = 7
	fieldKey             protowire.Number = 1 // of KeyValue
	fieldValue           protowire.Number = 2
	fieldString          protowire.Number = 1 // of AnyValue
)

// field is a place in a message: begin..content is its tag and length,
// content..end what it holds.
type field struct {
	number              protowire.Number
	wire                protowire.Type
	begin, content, end int
}

// fields calls f for each field of a message.
func fields(msg []byte, f func(field)) error {
	for at := 0; at < len(msg); {
		number, wire, n := protowire.ConsumeTag(msg[at:])
		if n < 0 {
			return protowire.ParseError(n)
		}
		size := protowire.ConsumeFieldValue(number, wire, msg[at+n:])
		if size < 0 {
			return protowire.ParseError(size)
		}
		content := at + n
		if wire == protowire.BytesType {
			_, head := protowire.ConsumeVarint(msg[content:])
			content += head
			size -= head
		}
		f(field{number, wire, at, content, content + size})
		at = content + size
	}
	return nil
}

// cut divides a message around its one field of that number.
func cut(msg []byte, number protowire.Number) (before, content, after []byte, err error) {
	found := 0
	err = fields(msg, func(f field) {
		if f.number == number {
			before, content, after = msg[:f.begin], msg[f.content:f.end], msg[f.end:]
			found++
		}
	})
	if err == nil && found != 1 {
		err = fmt.Errorf("field %d occurs %d times, once is expected", number, found)
	}
	return before, content, after, err
}

// texts calls f for each attribute of a message that is a string, with the place
// of its value.
func texts(msg []byte, attributes protowire.Number, f func(key string, at int)) error {
	var errs []error
	check := func(err error) { errs = append(errs, err) }
	check(fields(msg, func(a field) {
		if a.number != attributes || a.wire != protowire.BytesType {
			return
		}
		key, at := "", 0
		check(fields(msg[a.content:a.end], func(kv field) {
			switch kv.number {
			case fieldKey:
				key = string(msg[a.content+kv.content : a.content+kv.end])
			case fieldValue:
				value := a.content + kv.content
				check(fields(msg[value:a.content+kv.end], func(v field) {
					if v.number == fieldString {
						at = value + v.content
					}
				}))
			}
		}))
		if at > 0 {
			f(key, at)
		}
	}))
	return errors.Join(errs...)
}

// head is the size of a field's tag and length for so much content. All field
// numbers here take a tag of one byte.
func head(content int) int { return 1 + protowire.SizeVarint(uint64(content)) }

func appendHead(dst []byte, number protowire.Number, content int) []byte {
	dst = append(dst, byte(protowire.EncodeTag(number, protowire.BytesType)))
	return binary.AppendUvarint(dst, uint64(content))
}

func put64(at []byte, v uint64) { binary.LittleEndian.PutUint64(at, v) }
