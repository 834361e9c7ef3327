// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
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

// Decoded is the most memory that pdata takes to decode an OTLP Export request in protobuf.
// It reads what pdata v1.61.0 reads, and goes on where that has given up.
func Decoded(s Signal, msg []byte) (int, error) {
	type frame struct {
		end int
		in  *[maxField + 1]field
	}
	var (
		around [maxDepth - 1]frame // the messages that this one is in
		depth  int
		in     = &fields[s]
		end    = len(msg)
		pos    int
		groups int
		total  = request
	)
	for {
		if pos >= end {
			if pos > end || groups > 0 {
				return 0, ErrMalformed
			}
			if depth == 0 {
				return total, nil
			}
			depth--
			end, in = around[depth].end, around[depth].in //nolint:gosec // depth was more than 0
			continue
		}
		tag := uint64(msg[pos])
		pos++
		number := tag >> 3
		if tag >= 0x80 {
			if tag, pos = varint(msg[:end], pos-1); pos < 0 {
				return 0, ErrMalformed
			}
			if number = tag >> 3 & math.MaxUint32; number == deprecated { // pdata cuts it as well
				number = maxField
			} else if number >= maxField {
				number = 0
			}
		}
		if groups > 0 && tag&7 != 3 && tag&7 != 4 {
			number, groups = 0, 0 // pdata passes over the first field in a group, whichever it is
		}
		f := &in[number]
		total += int(f.cost)
		switch tag & 7 {
		case 1:
			pos += 8
		case 2:
			if pos == end {
				return 0, ErrMalformed
			}
			n := int(msg[pos])
			pos++
			if n >= 0x80 {
				var long uint64
				if long, pos = varint(msg[:end], pos-1); pos < 0 || long > uint64(end-pos) {
					return 0, ErrMalformed
				}
				n = int(long)
			}
			next := pos + n
			if next > end {
				return 0, ErrMalformed
			}
			switch {
			case f.of == 0 && f.each == text:
				total += textBytes(n)
			case f.of == 0:
				total += int(f.each) * n
			default:
				if f.of == keyValue && depth < maxDepth-2 {
					if took := textPair(msg[pos:next]); took > 0 {
						total += took
						break
					}
				}
				if depth == len(around) {
					return 0, ErrTooDeep
				}
				around[depth] = frame{end, in}
				depth++
				end, in = next, &fields[f.of]
				continue
			}
			pos = next
		case 0:
			if _, pos = varint(msg[:end], pos); pos < 0 {
				return 0, ErrMalformed
			}
		case 5:
			pos += 4
		case 3:
			groups++
		case 4:
			if groups--; groups < 0 {
				return 0, ErrMalformed
			}
		default:
			return 0, ErrMalformed
		}
	}
}

// varint reads a number as pdata does, which lets bits beyond the 64th go. The position
// after it is negative where there is none.
func varint(b []byte, pos int) (num uint64, after int) {
	for shift := 0; shift < 64 && pos < len(b); shift += 7 {
		c := b[pos]
		pos++
		if num |= uint64(c&0x7f) << shift; c < 0x80 {
			return num, pos
		}
	}
	return 0, -1
}

// textPair is what a KeyValue of a text and its key takes beside its place, in the order in
// which Collectors write them: most of a report are such. It is 0 for another.
func textPair(b []byte) int {
	if len(b) < 6 || b[0] != 2<<3|2 || b[2] != 1<<3|2 {
		return 0
	}
	text := int(b[3])
	key := len(b) - text - 6
	if text+2 != int(b[1]) || key < 0 || text+2 >= 0x80 || b[text+4] != 1<<3|2 || int(b[text+5]) != key || key >= 0x80 {
		return 0
	}
	return textBytes(text) + int(fields[anyValue][1].cost) + textBytes(key)
}

// textBytes is at least what Go allocates for a text: its size classes waste up to a
// quarter (runtime/sizeclasses.go), and a short one may have 16 bytes for itself.
func textBytes(n int) int { return (n + n>>2 + 15) &^ 15 }

// DecodedJSON is the most memory that pdata takes to decode an OTLP Export request of any
// signal in JSON.
//
// pdata's parser (jsoniter) goes on after an error, and then takes for structure what is
// text. But each element of a list takes it a comma or a bracket, and each other field that
// holds anything a comma or a brace, so they are counted wherever they are.
func DecodedJSON(msg []byte) (int, error) {
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
	return request + elements*jsonElement + bytes.Count(msg, []byte{'{'})*jsonObject + len(msg)*jsonByte, nil
}
