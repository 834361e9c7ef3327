// SPDX-License-Identifier: Apache-2.0

// Package inspector reads the files of the Inspector, a profiler plug-in of NCCL (from
// 2.28.3 on) and of RCCL, and sums up what the ranks of a process tell there. Pure: files
// come in as bytes, and the time as an argument.
package inspector // import "github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/inspector"

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// MaxLine is how long a line may be. One with events has a few hundred bytes per channel,
// and NCCL has 64 channels at most.
const MaxLine = 64 << 10

// Lines cuts what is read of a growing file into lines, and keeps half a line for the next
// part. A NUL ends a line too: the writer keeps its place when others cut the file, and
// NULs fill what is before it. The zero value is at the begin of a line.
type Lines struct {
	half []byte
	skip bool // what is left of the line does not count
	// Long counts lines that were longer than MaxLine.
	Long int64
}

// Reset begins anew, in the middle of a line or not.
func (l *Lines) Reset(middle bool) { l.half, l.skip = l.half[:0], middle }

// Add calls each with every line that part ends. The line is valid until each returns.
func (l *Lines) Add(part []byte, each func(line []byte)) {
	for len(part) > 0 {
		line, rest, whole := bytes.Cut(part, []byte{'\n'})
		part = rest
		if i := bytes.LastIndexByte(line, 0); i >= 0 {
			line = line[i+1:]
			l.Reset(false)
		}
		if !l.skip && len(l.half)+len(line) > MaxLine {
			l.Long++
			l.Reset(true)
		}
		switch {
		case !whole && !l.skip:
			l.half = append(l.half, line...)
		case whole && l.skip:
			l.Reset(false)
		case whole:
			if len(l.half) > 0 {
				line = append(l.half, line...)
				l.half = line[:0]
			}
			if line = bytes.TrimSpace(line); len(line) > 0 {
				each(line)
			}
		}
	}
}

// Record is one finished operation of one rank. Its text belongs to the line.
type Record struct {
	// Communicator is the hash that all of its ranks share. Name is empty before 2.30.
	Communicator, Name []byte
	// Operation is AllReduce, AllGather and so on, or Send or Recv.
	Operation []byte
	// Collective is false for Send and Recv.
	Collective bool
	// Rank in the communicator, of so many Ranks on so many Nodes, 0 for unknown.
	Rank, Ranks, Nodes int64
	// Bytes of the message, and Micros from the start to the end of the kernel: it holds
	// the waiting for other ranks.
	Bytes, Micros int64
	// Bandwidth of the bus in bytes a second, by the factors of nccl-tests.
	Bandwidth float64
	// Dumped is when the line was written, in microseconds since 1970.
	Dumped int64
}

// What no record has more of.
const (
	maxText      = 128
	maxRank      = 1 << 24
	maxMicros    = 1e12
	maxDumped    = 2e16 // year 2603
	maxBandwidth = 1e15
)

// Parse reads a line. It takes the fields by name, wherever they are: the plug-in's own
// version is the same in all releases that differ. It reports false for a line that tells
// of no operation.
func (r *Record) Parse(line []byte) bool {
	*r = Record{Rank: -1, Micros: -1}
	s := scanner{rest: line}
	s.open()
	for s.next() {
		switch section := string(s.key); section {
		case "header", "metadata", "coll_perf", "p2p_perf":
			s.open()
			for s.next() {
				r.set(section[0], s.key, s.value())
			}
		default:
			s.value()
		}
	}
	s.space()
	return !s.bad && len(s.rest) == 0 &&
		text(r.Communicator) && text(r.Operation) && len(r.Name) <= maxText &&
		r.Ranks > 0 && r.Ranks <= maxRank && r.Rank >= 0 && r.Rank < r.Ranks && r.Nodes >= 0 && r.Nodes <= maxRank &&
		r.Bytes >= 0 && r.Micros >= 0 && r.Micros < maxMicros && r.Dumped > 0 && r.Dumped < maxDumped
}

func text(b []byte) bool { return len(b) > 0 && len(b) <= maxText }

func (r *Record) set(section byte, key, value []byte) {
	switch section {
	case 'h':
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
		}
	case 'm':
		if string(key) == "dump_timestamp_us" {
			r.Dumped = number(value)
		}
	default:
		switch string(key) {
		case "coll", "p2p":
			r.Operation, r.Collective = value, section == 'c'
		case "coll_msg_size_bytes", "p2p_msg_size_bytes":
			r.Bytes = number(value)
		case "coll_exec_time_us", "p2p_exec_time_us":
			r.Micros = number(value)
		case "coll_busbw_gbs", "p2p_busbw_gbs":
			r.Bandwidth = bandwidth(value)
		}
	}
}

// number reads a whole number, -1 for what is none.
func number(text []byte) (n int64) {
	if len(text) == 0 || len(text) > 18 {
		return -1
	}
	for _, c := range text {
		if c < '0' || c > '9' {
			return -1
		}
		n = 10*n + int64(c-'0')
	}
	return n
}

// bandwidth reads one in GB/s, of 10^9 bytes, 0 for what is none.
func bandwidth(text []byte) float64 {
	v, err := strconv.ParseFloat(string(text), 64)
	if v *= 1e9; err != nil || !(v > 0 && v <= maxBandwidth) {
		return 0
	}
	return v
}

// scanner goes through the members of objects.
type scanner struct {
	rest []byte
	key  []byte
	bad  bool
}

// open begins an object.
func (s *scanner) open() {
	if !s.take('{') {
		s.bad = true
	}
}

// next goes to the value of the next member. It reports false at the end of the object.
func (s *scanner) next() bool {
	if s.bad || s.take('}') {
		return false
	}
	s.take(',')
	s.space()
	s.key = s.string()
	if !s.take(':') {
		s.bad = true
	}
	return !s.bad
}

func (s *scanner) space() {
	for len(s.rest) > 0 && (s.rest[0] == ' ' || s.rest[0] == '\t' || s.rest[0] == '\r') {
		s.rest = s.rest[1:]
	}
}

func (s *scanner) take(c byte) bool {
	s.space()
	if len(s.rest) == 0 || s.rest[0] != c {
		return false
	}
	s.rest = s.rest[1:]
	return true
}

// value returns a number, a word or the text of a string. It passes lists and objects
// over.
func (s *scanner) value() []byte {
	s.space()
	start := s.rest
	for depth := 0; len(s.rest) > 0 && !s.bad; {
		switch c := s.rest[0]; c {
		case '"':
			if text := s.string(); depth == 0 {
				return text
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				s.rest = s.rest[1:]
				return nil
			}
		}
		if c := s.rest[0]; depth < 0 || depth == 0 && (c == ',' || c == ' ' || c == '\t') {
			value := start[:len(start)-len(s.rest)]
			s.bad = s.bad || len(value) == 0
			return value
		}
		s.rest = s.rest[1:]
	}
	s.bad = true
	return nil
}

// string returns the text of a string.
func (s *scanner) string() []byte {
	for i := 1; len(s.rest) > 0 && s.rest[0] == '"'; {
		end := bytes.IndexByte(s.rest[i:], '"')
		if end < 0 {
			break
		}
		i += end + 1
		raw := s.rest[:i]
		escapes := bytes.TrimRight(raw[:i-1], `\`)
		if (i-1-len(escapes))%2 == 1 {
			continue // the quote is escaped
		}
		s.rest = s.rest[i:]
		if bytes.IndexByte(raw, '\\') < 0 {
			return raw[1 : i-1]
		}
		var text string // rare: no plug-in needs escapes for what it writes itself
		if json.Unmarshal(raw, &text) != nil {
			break
		}
		return []byte(text)
	}
	s.bad = true
	return nil
}
