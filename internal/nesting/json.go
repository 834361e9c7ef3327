// SPDX-License-Identifier: Apache-2.0

package nesting

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// element is what an object of a list becomes, by the list's name. There are
// objects of several sizes under one name, and old names: pdata reads both forms.
func element(name []byte) int64 {
	switch string(name) {
	case "attributes", "filteredAttributes", "metadata", "values":
		return sizeKeyValue * spare
	case "scopeMetrics", "scopeLogs", "scopeSpans":
		return 112
	case "metrics":
		return 96
	case "logRecords", "resourceMetrics", "resourceLogs", "resourceSpans":
		return 128
	case "events":
		return 64
	case "links":
		return 80
	case "quantileValues":
		return 16
	}
	return sizeSpan
}

// CheckJSON is Check for a message in JSON. It goes by the names of lists, of
// which it knows those that honest senders write, and takes the others for lists
// of what is largest.
func CheckJSON(message []byte, limits *Limits) (int64, error) {
	c := limits.count(limits.Bytes)
	c.left = c.json(message, c.left)
	return c.result(limits.Bytes)
}

// open is a list or an object that is being read.
type open struct {
	each int64 // an object in it
	// of is whose attributes there are in it. Those of an object that is no member of a
	// list are its parent's: at is the place of the object that has them all.
	at         int
	from       int
	has        Attributes
	of         owner
	list       bool
	attributes bool // it is a list of them
}

// ownerOf says by the name of a list or an object whose attributes there are in it.
func ownerOf(name []byte) owner {
	switch string(name) {
	case "resource", "scope", "logRecords", "log_records", "spans", "events", "links":
		return records
	case "dataPoints", "data_points", "exemplars", "metrics":
		return points
	}
	return anybody
}

// holdsAttributes also takes a name for one of theirs that hides behind backslashes.
func holdsAttributes(name []byte) bool {
	switch string(name) {
	case "attributes", "filteredAttributes", "filtered_attributes", "metadata":
		return true
	}
	return bytes.IndexByte(name, '\\') >= 0
}

// json returns what is left of left behind the message.
func (c *count) json(m []byte, left int64) int64 {
	var in [MaxDepth + 1]open // in[0] holds the message
	var last []byte           // the last text, which names what follows
	depth, before := 0, byte(',')
	// A decoder that takes a comma for the beginning of a list would go deeper than the
	// brackets say. So each sign must be where JSON has it; before is the one before it,
	// and 'v' for the end of a value.
	for at := 0; at < len(m) && left >= 0; at++ {
		switch m[at] {
		case '"':
			end := at + 1 + quote(m[at+1:])
			last = m[at+1 : end]
			left -= int64(len(last))
			at = end
			if before == 'v' {
				c.broken = true
				return left
			}
			before = 'v'
			if at+1 < len(m) && depth > 0 && !in[depth].list { // as a rule
				if sign := m[at+1]; sign == ':' || sign == ',' {
					before = sign
					at++
				}
			}
		case '{', '[':
			if depth == MaxDepth {
				c.deep = true
				return left
			}
			parent := &in[depth]
			if parent.attributes && depth+2 <= MaxDepth && (before == '[' || before == ',') {
				if text, end, size := textAttribute(m[at:]); end > 0 {
					last, before = text, 'v'
					left -= parent.each + valueEach + int64(size)
					at += end - 1
					continue
				}
			}
			if before == 'v' || before == '{' || (before == ',' && depth > 0 && !parent.list) {
				c.broken = true
				return left
			}
			before = m[at]
			depth++
			next := &in[depth]
			*next = open{each: valueEach, list: before == '[', of: parent.of, at: parent.at}
			switch {
			case next.list:
				next.each = element(last)
				if next.attributes = !parent.list && holdsAttributes(last); next.attributes {
					next.from = at
					if !c.attributes(&in[next.at], next, 1, 0) {
						return left
					}
				} else {
					next.of = ownerOf(last)
				}
			case parent.list:
				left -= parent.each
				next.at = depth
			default:
				left -= parent.each
				next.of = ownerOf(last)
			}
		case ' ', '\t', '\n', '\r':
		case ':':
			if before != 'v' || depth == 0 || in[depth].list {
				c.broken = true
				return left
			}
			before = ':'
		case '}', ']':
			if depth == 0 || in[depth].list != (m[at] == ']') || before == ',' || before == ':' {
				c.broken = true
				return left
			}
			before = 'v'
			if l := &in[depth]; l.attributes && !c.attributes(&in[l.at], l, 0, at-l.from-1) {
				return left
			}
			depth = max(depth-1, 0)
		case ',':
			if before != 'v' || depth == 0 {
				c.broken = true
				return left
			}
			before = ','
			if l := &in[depth]; l.list {
				left -= slot
				if l.attributes && !c.attributes(&in[l.at], l, 1, 0) {
					return left
				}
			}
		default: // of a number, true, false or null
			before = 'v'
			for at+1 < len(m) && plain[m[at+1]] {
				at++
			}
		}
	}
	return left
}

// valueEach is what an object becomes that is no element of a list: a value, or the list
// in it.
const valueEach = sizeBox + 32

// textAttribute reads an attribute with a text, in the form that encoders write: most of a
// push is attributes. It returns the text, where the attribute ends, 0 for another form, and
// the size of all its texts.
func textAttribute(m []byte) (text []byte, end, size int) {
	const key, value, isText, isInt = `{"key":"`, `","value":{"`, `stringValue":"`, `intValue":"`
	if len(m) < len(key) || string(m[:len(key)]) != key {
		return nil, 0, 0
	}
	at := len(key) + quote(m[len(key):])
	if len(m)-at < len(value)+len(isText) || string(m[at:at+len(value)]) != value {
		return nil, 0, 0
	}
	size = len("key") + at - len(key) + len("value")
	at += len(value)
	switch {
	case string(m[at:at+len(isText)]) == isText:
		at += len(isText)
		size += len(isText) - len(`":"`)
	case string(m[at:at+len(isInt)]) == isInt:
		at += len(isInt)
		size += len(isInt) - len(`":"`)
	default:
		return nil, 0, 0
	}
	n := quote(m[at:])
	text, at = m[at:at+n], at+n
	if len(m)-at < 3 || m[at+1] != '}' || m[at+2] != '}' {
		return nil, 0, 0
	}
	return text, at + 3, size + n
}

// plain are the bytes of values that are no text, list or object.
var plain = func() (is [256]bool) {
	for b := range is {
		is[b] = !bytes.ContainsRune([]byte("\"{}[]:, \t\n\r"), rune(b)) || b >= 0x80
	}
	return is
}()

// quote is where the text ends that m begins with.
func quote(m []byte) int {
	const ones, tops, quotes = 0x0101010101010101, 0x8080808080808080, 0x2222222222222222
	end := -1
	if len(m) >= 24 { // most texts are short; each byte of a word that is a quote becomes zero
		for from := 0; from < 24; from += 8 {
			w := binary.LittleEndian.Uint64(m[from:]) ^ quotes
			if zero := (w - ones) &^ w & tops; zero != 0 {
				end = from + bits.TrailingZeros64(zero)/8
				break
			}
		}
	}
	if end < 0 {
		end = bytes.IndexByte(m, '"')
	}
	if end < 0 || end > 0 && m[end-1] == '\\' {
		return endOfText(m)
	}
	return end
}

// attributes counts some of a list that are those of an object.
func (c *count) attributes(of, list *open, n, size int) bool {
	of.has.Count += n
	of.has.Bytes += size
	return c.within(of.has, list.of)
}

// endOfText is where the quote is that ends a text.
func endOfText(m []byte) int {
	for at := 0; ; {
		next := bytes.IndexByte(m[at:], '"')
		if next < 0 {
			return len(m)
		}
		end := at + next
		before := end
		for before > at && m[before-1] == '\\' {
			before--
		}
		if (end-before)%2 == 0 { // each of two is the other's
			return end
		}
		at = end + 1
	}
}
