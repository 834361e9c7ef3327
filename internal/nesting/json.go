// SPDX-License-Identifier: Apache-2.0

package nesting

import "bytes"

// elements are what an object of a list becomes, by the list's name. There are
// objects of several sizes under one name, and old names: pdata reads both forms.
var elements = map[string]uint16{
	"attributes": sizeKeyValue * spare, "filteredAttributes": sizeKeyValue * spare, "metadata": sizeKeyValue * spare,
	"values": sizeKeyValue * spare, "scopeMetrics": 112, "scopeLogs": 112, "scopeSpans": 112, "metrics": 96, "logRecords": 128,
	"resourceMetrics": 128, "resourceLogs": 128, "resourceSpans": 128, "events": 64, "links": 80, "quantileValues": 16,
}

// CheckJSON is Check for a message in JSON. It goes by the names of lists, of
// which it knows those that honest senders write, and takes the others for lists
// of what is largest.
func CheckJSON(message []byte, limits *Limits) (int64, error) {
	c := limits.count(limits.Bytes)
	c.json(message)
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

func (c *count) json(m []byte) {
	var in [MaxDepth + 1]open // in[0] holds the message
	var last []byte           // the last text, which names what follows
	depth, before := 0, byte(',')
	// A decoder that takes a comma for the beginning of a list would go deeper than the
	// brackets say. So each sign must be where JSON has it; before is the one before it,
	// and 'v' for the end of a value.
	bad := func(is bool) bool {
		c.broken = c.broken || is
		return is
	}
	for at := 0; at < len(m) && c.left >= 0; at++ {
		switch m[at] {
		case '"':
			at++
			end := bytes.IndexByte(m[at:], '"') + at
			if end <= at || m[end-1] == '\\' {
				end = at + endOfText(m[at:])
			}
			last = m[at:end]
			c.left -= int64(len(last))
			at = end
			if bad(before == 'v') {
				return
			}
			before = 'v'
		case '{', '[':
			if depth == MaxDepth {
				c.deep = true
				return
			}
			parent := &in[depth]
			if bad(before == 'v' || before == '{' || (before == ',' && depth > 0 && !parent.list)) {
				return
			}
			before = m[at]
			depth++
			next := &in[depth]
			*next = open{each: sizeBox + 32, list: before == '[', of: parent.of, at: parent.at} // a value, or the list in it
			switch {
			case next.list:
				each, ok := elements[string(last)]
				if !ok {
					each = sizeSpan
				}
				next.each = int64(each)
				if next.attributes = !parent.list && holdsAttributes(last); next.attributes {
					next.from = at
					if !c.attributes(&in[next.at], next, 1, 0) {
						return
					}
				} else {
					next.of = ownerOf(last)
				}
			case parent.list:
				c.left -= parent.each
				next.at = depth
			default:
				c.left -= parent.each
				next.of = ownerOf(last)
			}
		case ' ', '\t', '\n', '\r':
		case ':':
			if bad(before != 'v' || depth == 0 || in[depth].list) {
				return
			}
			before = ':'
		case '}', ']':
			if bad(depth == 0 || in[depth].list != (m[at] == ']') || before == ',' || before == ':') {
				return
			}
			before = 'v'
			if l := &in[depth]; l.attributes && !c.attributes(&in[l.at], l, 0, at-l.from-1) {
				return
			}
			depth = max(depth-1, 0)
		case ',':
			if bad(before != 'v' || depth == 0) {
				return
			}
			before = ','
			if l := &in[depth]; l.list {
				c.left -= slot
				if l.attributes && !c.attributes(&in[l.at], l, 1, 0) {
					return
				}
			}
		default:
			before = 'v'
		}
	}
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
