// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// maxDepth is protobuf's default. OTLP needs some 14 levels for a point's attribute, and 3
// more for each list or map in it. pdata's decoder calls itself for each level, and Go ends
// a process whose stack wants more than 1 GB.
const maxDepth = 100

// Why a message is not to be decoded.
var (
	ErrTooDeep   = fmt.Errorf("the message is nested deeper than %d levels", maxDepth)
	ErrMalformed = errors.New("the message is malformed")
)

// Decoded is the most memory that pdata v1.61.0 takes to decode an OTLP Export request. What
// pdata would pass over in protobuf, and OTLP does not have, is malformed: groups, and numbers
// of more than 64 bits.
func Decoded(request *Message, msg []byte, inJSON bool) (n int, err error) {
	if inJSON {
		n, err = decodedJSON(msg)
	} else {
		n, err = decoded(request, msg, maxDepth)
	}
	return requestCost + n, err
}

// decoded is what the fields of a message take, with so many levels left.
func decoded(of *Message, msg []byte, levels int) (total int, err error) {
	if levels == 0 {
		return 0, ErrTooDeep
	}
	for len(msg) > 0 {
		tag, n := protowire.ConsumeVarint(msg)
		id, kind := protowire.DecodeTag(tag)
		if n < 0 || id < protowire.MinValidNumber {
			return 0, ErrMalformed
		}
		msg = msg[n:]
		f := of.field(id)
		total += f.cost
		var content uint64 // bytes of it
		switch kind {
		case protowire.VarintType:
			_, n = protowire.ConsumeVarint(msg)
		case protowire.Fixed32Type:
			n = 4
		case protowire.Fixed64Type:
			n = 8
		case protowire.BytesType:
			content, n = protowire.ConsumeVarint(msg)
		default:
			n = -1
		}
		if n < 0 || n > len(msg) || content > uint64(len(msg)-n) {
			return 0, ErrMalformed
		}
		held := int(content)
		msg = msg[n:]
		switch {
		case f.each != 0:
			total += f.each * held
		case f.of == nil:
			total += textBytes(held)
		case f.of == attribute && isTextPair(msg[:held], levels-1):
			text := int(msg[3])
			total += textBytes(text) + number + textBytes(held-text-6)
		default:
			took, err := decoded(f.of, msg[:held], levels-1)
			if err != nil {
				return 0, err
			}
			total += took
		}
		msg = msg[held:]
	}
	return total, nil
}

// field is the one of a number. Pdata knows none beyond the table, but for the deprecated one.
func (m *Message) field(id protowire.Number) *field {
	switch {
	case id == deprecated:
		id = maxField
	case id >= maxField:
		id = 0
	}
	return &m[id]
}

// isTextPair finds a KeyValue of a short text and a short key, in the order in which Collectors
// write them. Most of a report are such, and to read each as two messages takes twice as long.
func isTextPair(b []byte, levels int) bool {
	if levels < 2 || len(b) < 6 || b[0] != 2<<3|2 || b[2] != 1<<3|2 {
		return false
	}
	text := int(b[3])
	key := len(b) - text - 6
	return text+2 < 0x80 && int(b[1]) == text+2 && 0 <= key && key < 0x80 && b[text+4] == 1<<3|2 && int(b[text+5]) == key
}

// textBytes is at least what Go allocates for a text: its size classes waste up to a
// quarter (runtime/sizeclasses.go), and a short one may have 16 bytes for itself.
func textBytes(n int) int { return (n + n>>2 + 15) &^ 15 }

// decodedJSON is what a request of any signal takes in JSON.
//
// pdata's parser (jsoniter) goes on after an error, and then takes for structure what is
// text. But each element of a list takes it a comma or a bracket, and each other field that
// holds anything a comma or a brace, so they are counted wherever they are.
func decodedJSON(msg []byte) (int, error) {
	depth := 0
	for i := 0; i < len(msg); i++ {
		switch msg[i] {
		case '{', '[':
			if depth++; depth > maxDepth {
				return 0, ErrTooDeep
			}
		case '}', ']':
			depth--
		case '"':
			for i++; i < len(msg) && msg[i] != '"'; i++ {
				if msg[i] == '\\' {
					i++
				}
			}
		}
	}
	if !json.Valid(msg) {
		return 0, ErrMalformed
	}
	elements := bytes.Count(msg, []byte{','}) + bytes.Count(msg, []byte{'['})
	return elements*jsonElement + bytes.Count(msg, []byte{'{'})*jsonObject + len(msg)*jsonByte, nil
}
