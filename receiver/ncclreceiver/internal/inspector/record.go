// SPDX-License-Identifier: Apache-2.0

// Package inspector reads the files of the Inspector, a profiler plug-in of NCCL (from
// 2.28.3 on) and of RCCL. A process writes one file, one JSON object per line and finished
// operation. Pure: files come in as bytes, and the time as an argument.
package inspector // import "github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/inspector"

import (
	"bytes"
	"strconv"
)

// Record is one finished operation of one rank. Its text belongs to the line.
type Record struct {
	// Communicator is the hash that all of its ranks share. Name is empty before 2.30.
	Communicator, Name []byte
	// Operation is AllReduce, AllGather and so on, or Send or Recv.
	Operation []byte
	// Rank in the communicator, of so many Ranks on so many Nodes.
	Rank, Ranks, Nodes int64
	// Bytes of the message, and Micros from the start to the end of the kernel: it holds
	// the waiting for other ranks.
	Bytes, Micros int64
	// BusBandwidth in GB/s, 10^9 bytes, by the factors of nccl-tests.
	BusBandwidth float64
	// Dumped is when the line was written, in microseconds since 1970.
	Dumped int64
}

// Parse reads a line. It takes the fields by name, wherever they are: the plug-in's own
// version is the same in all releases that differ. It reports false for a line that tells
// of no operation.
func (r *Record) Parse(line []byte) bool {
	*r = Record{}
	s := scanner{rest: line}
	for {
		key, value, ok := s.next()
		if !ok {
			break
		}
		r.set(key, value)
	}
	return s.whole && r.Named() && r.Micros > 0 && r.Ranks > 0 && r.Dumped > 0
}

// Named reports whether the line names an operation. One without a time may have been too
// short to measure.
func (r *Record) Named() bool { return len(r.Communicator) > 0 && len(r.Operation) > 0 }

func (r *Record) set(key, value []byte) {
	switch string(key) {
	case "id":
		r.Communicator = value
	case "comm_name":
		if string(value) != "unknown" {
			r.Name = value
		}
	case "rank":
		r.Rank = number(value)
	case "n_ranks":
		r.Ranks = number(value)
	case "nnodes":
		r.Nodes = number(value)
	case "dump_timestamp_us":
		r.Dumped = number(value)
	case "coll", "p2p":
		r.Operation = value
	case "coll_msg_size_bytes", "p2p_msg_size_bytes":
		r.Bytes = number(value)
	case "coll_exec_time_us", "p2p_exec_time_us":
		r.Micros = number(value)
	case "coll_busbw_gbs", "p2p_busbw_gbs":
		r.BusBandwidth, _ = strconv.ParseFloat(string(value), 64) // nobody writes another
	}
}

// number reads a whole number, 0 for what is none.
func number(text []byte) (n int64) {
	if len(text) > 18 {
		return 0
	}
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0
		}
		n = 10*n + int64(c-'0')
	}
	return n
}

// scanner finds the keys of an object and of those within, with the text of their values.
// Lists are passed over.
type scanner struct {
	rest  []byte
	depth int
	whole bool // the object is closed
}

// next returns the next key whose value is no object.
func (s *scanner) next() (key, value []byte, ok bool) {
	for {
		if !s.skip() {
			return nil, nil, false
		}
		switch s.rest[0] {
		case '{':
			s.depth++
			s.rest = s.rest[1:]
			continue
		case '}':
			s.depth--
			s.rest = s.rest[1:]
			s.whole = s.depth == 0
			if s.depth <= 0 {
				return nil, nil, false
			}
			continue
		case ',':
			s.rest = s.rest[1:]
			continue
		case '"':
		default:
			return nil, nil, false
		}
		if key, ok = s.text(); !ok || !s.skip() || s.rest[0] != ':' {
			return nil, nil, false
		}
		s.rest = s.rest[1:]
		if !s.skip() {
			return nil, nil, false
		}
		switch s.rest[0] {
		case '{':
			continue
		case '[':
			if !s.list() {
				return nil, nil, false
			}
			continue
		case '"':
			value, ok = s.text()
			return key, value, ok
		}
		end := 0
		for end < len(s.rest) && !ends(s.rest[end]) {
			end++
		}
		if end == 0 || end == len(s.rest) {
			return nil, nil, false
		}
		value, s.rest = s.rest[:end], s.rest[end:]
		return key, value, true
	}
}

// ends reports whether a number has ended.
func ends(c byte) bool { return c == ',' || c == '}' || c == ' ' || c == '\t' }

// skip passes white space over and reports whether anything is left.
func (s *scanner) skip() bool {
	for len(s.rest) > 0 && (s.rest[0] == ' ' || s.rest[0] == '\t' || s.rest[0] == '\r') {
		s.rest = s.rest[1:]
	}
	return len(s.rest) > 0
}

// text returns what is between quotes, as it is written.
func (s *scanner) text() ([]byte, bool) {
	if end := bytes.IndexByte(s.rest[1:], '"'); end >= 0 {
		if text := s.rest[1 : 1+end]; bytes.IndexByte(text, '\\') < 0 {
			s.rest = s.rest[end+2:]
			return text, true
		}
	}
	for i := 1; i < len(s.rest); i++ {
		switch s.rest[i] {
		case '\\':
			i++
		case '"':
			text := s.rest[1:i]
			s.rest = s.rest[i+1:]
			return text, true
		}
	}
	return nil, false
}

// list passes a list over.
func (s *scanner) list() bool {
	depth := 0
	for len(s.rest) > 0 {
		switch s.rest[0] {
		case '"':
			if _, ok := s.text(); !ok {
				return false
			}
			continue
		case '[':
			depth++
		case ']':
			depth--
		}
		s.rest = s.rest[1:]
		if depth == 0 {
			return true
		}
	}
	return false
}
