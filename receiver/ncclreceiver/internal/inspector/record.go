// SPDX-License-Identifier: Apache-2.0

// Package inspector reads the files of the Inspector, a profiler plug-in of NCCL (from
// 2.28.3 on) and of RCCL, and sums up what the ranks of a process record there. Pure: files
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

// Lines calls each with every line of a part of a file, and with nil for one longer than
// MaxLine. It returns how many bytes it is done with: half a line is to come again, with
// what is behind it. A NUL ends a line too: the writer keeps its offset when others cut the
// file, and NULs fill what is before it.
func Lines(part []byte, each func(line []byte)) (used int) {
	for {
		line, _, whole := bytes.Cut(part[used:], []byte{'\n'})
		begin := bytes.LastIndexByte(line, 0) + 1
		if used += begin; !whole && len(line)-begin <= MaxLine {
			return used
		}
		line = line[begin:]
		if used += len(line); whole {
			used++
		}
		if len(line) > MaxLine {
			each(nil)
		} else if line = bytes.TrimSpace(line); len(line) > 0 {
			each(line)
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

	headed  bool  // the line has a header
	dropped int64 // operations that are not in the dump
}

// Kind is what a line is.
type Kind uint8

// The kinds: a line may be broken, begin a dump, or have an operation.
const (
	Broken Kind = iota
	Head
	Operation
)

// What no record has more of.
const (
	maxText      = 128
	maxRank      = 1 << 24
	maxMicros    = 1e12
	maxDumped    = 2e16 // year 2603
	maxBandwidth = 1e15
)

// Parse reads a line. It takes the fields by name, wherever they are: the plug-in's own
// version is the same in all releases that differ. A line may leave its header and the time of
// the dump to a line before, which has no operation. Then they are those of head.
func (r *Record) Parse(line []byte, head *Record) Kind {
	*r = Record{Rank: -1, Micros: -1}
	var section, key []byte
	for depth, value := 0, false; ; {
		kind, text, rest := token(line)
		switch line = rest; kind {
		case 0:
			return Broken
		case ':':
			value = true
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth <= 0 {
				r.complete(head)
				switch named := len(bytes.TrimSpace(line)) == 0 && len(r.Communicator) > 0 && r.Rank >= 0; {
				case named && r.headed && len(r.Operation) == 0:
					return Head
				case named && r.valid() && r.Micros > 0 && r.Micros < maxMicros && r.Dumped > 0 && r.Dumped < maxDumped:
					return Operation
				}
				return Broken
			}
		case 't':
			switch {
			case depth == 1 && !value:
				section = text
			case depth == 2 && !value:
				key = text
				r.headed = r.headed || string(section) == "header"
			case depth == 2 && string(section) == "dump_stats":
				if string(key) == "dropped" {
					r.dropped = max(number(text), 0)
				}
			case depth == 2 && (string(section) == "header" || string(key) != "id" && string(key) != "rank"):
				r.set(key, text)
			}
		}
		value = false
	}
}

// complete takes from head what the line leaves to it.
func (r *Record) complete(head *Record) {
	if !r.headed {
		r.Communicator, r.Name, r.Rank, r.Ranks, r.Nodes = head.Communicator, head.Name, head.Rank, head.Ranks, head.Nodes
	}
	if r.Dumped == 0 {
		r.Dumped = head.Dumped
	}
}

// valid is what the formats have in common.
func (r *Record) valid() bool {
	return len(r.Communicator) <= maxText && len(r.Name) <= maxText && len(r.Operation) > 0 && len(r.Operation) <= maxText &&
		r.Ranks > 0 && r.Ranks <= maxRank && r.Rank < r.Ranks && r.Nodes >= 0 && r.Nodes <= maxRank && r.Bytes >= 0
}

// set takes a field by its name, of JSON or of the text format.
func (r *Record) set(key, value []byte) {
	switch string(key) {
	case "id", "comm_id":
		r.Communicator = value
	case "comm_name":
		if string(value) != "unknown" {
			r.Name = value
		}
	case "rank":
		r.Rank = number(value)
	case "n_ranks", "nranks":
		r.Ranks = number(value)
	case "nnodes", "n_nodes":
		r.Nodes = number(value)
	case "dump_timestamp_us":
		r.Dumped = number(value)
	case "coll", "collective":
		r.Operation, r.Collective = value, true
	case "p2p", "p2p_operation":
		r.Operation = value
	case "coll_msg_size_bytes", "p2p_msg_size_bytes":
		r.Bytes = number(value)
	case "message_size":
		r.Bytes = size(value)
	case "coll_exec_time_us", "p2p_exec_time_us":
		r.Micros = number(value)
	case "coll_busbw_gbs", "p2p_busbw_gbs":
		r.Bandwidth = bandwidth(value)
	}
}

// number reads a whole number, -1 for what is none.
func number(text []byte) int64 {
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		return -1
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

// token cuts off a mark of JSON, or t for the text of a string, a number or a word. 0 is
// the end, also in the middle of a string.
func token(line []byte) (kind byte, text, rest []byte) {
	for i, c := range line {
		switch c {
		case ' ', '\t', '\r':
			continue
		case '{', '}', '[', ']', ':', ',':
			return c, nil, line[i+1:]
		case '"':
			return quoted(line[i:])
		}
		end := bytes.IndexAny(line[i:], "{}[]:,\" \t\r")
		if end < 0 {
			return 0, nil, nil
		}
		return 't', line[i : i+end], line[i+end:]
	}
	return 0, nil, nil
}

func quoted(line []byte) (kind byte, text, rest []byte) {
	escapes := false
	for i := 1; i < len(line); i++ {
		switch line[i] {
		case '\\':
			escapes = true
			i++
		case '"':
			if text = line[1:i]; escapes { // rare: no plug-in needs them for what it writes itself
				var plain string
				if json.Unmarshal(line[:i+1], &plain) != nil {
					return 0, nil, nil
				}
				text = []byte(plain)
			}
			return 't', text, line[i+1:]
		}
	}
	return 0, nil, nil
}
