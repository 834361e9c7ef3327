// SPDX-License-Identifier: Apache-2.0

// Package inspector reads the files of the Inspector, a profiler plug-in of NCCL (from
// 2.28.3 on) and of RCCL, and sums up what the ranks of a process record there. Pure: files
// come in as bytes, and the time as an argument.
package inspector // import "github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/inspector"

import (
	"bytes"
	"encoding/json"
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

// Record is one finished operation of one rank.
type Record struct {
	// Communicator is the hash that all of its ranks share. Name is empty before 2.30.
	Communicator, Name string
	// Operation is AllReduce, AllGather and so on, or Send or Recv.
	Operation string
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

// line is one of the file, with the fields that count. All releases have these names.
type line struct {
	Header struct {
		ID    string `json:"id"`
		Name  string `json:"comm_name"`
		Rank  int64  `json:"rank"`
		Ranks int64  `json:"n_ranks"`
		Nodes int64  `json:"nnodes"`
	} `json:"header"`
	Metadata struct {
		Dumped int64 `json:"dump_timestamp_us"`
	} `json:"metadata"`
	Collective struct {
		Operation string  `json:"coll"`
		Bytes     int64   `json:"coll_msg_size_bytes"`
		Micros    int64   `json:"coll_exec_time_us"`
		Bandwidth float64 `json:"coll_busbw_gbs"`
	} `json:"coll_perf"`
	P2P struct {
		Operation string  `json:"p2p"`
		Bytes     int64   `json:"p2p_msg_size_bytes"`
		Micros    int64   `json:"p2p_exec_time_us"`
		Bandwidth float64 `json:"p2p_busbw_gbs"`
	} `json:"p2p_perf"`
}

// Parse reads a line of JSON. It reports false for one that has no operation.
func (r *Record) Parse(text []byte) bool {
	var l line
	l.Header.Rank = -1
	if json.Unmarshal(text, &l) != nil {
		return false
	}
	h, of := l.Header, l.Collective
	if of.Operation == "" {
		of.Operation, of.Bytes, of.Micros, of.Bandwidth = l.P2P.Operation, l.P2P.Bytes, l.P2P.Micros, l.P2P.Bandwidth
	}
	*r = Record{
		Communicator: h.ID, Rank: h.Rank, Ranks: h.Ranks, Nodes: h.Nodes, Dumped: l.Metadata.Dumped,
		Operation: of.Operation, Collective: l.Collective.Operation != "", Bytes: of.Bytes, Micros: of.Micros,
		Bandwidth: min(max(of.Bandwidth*1e9, 0), maxBandwidth),
	}
	if h.Name != "unknown" { // by a communicator without one
		r.Name = h.Name
	}
	return 0 < len(r.Communicator) && len(r.Communicator) <= maxText && len(r.Name) <= maxText && 0 < len(r.Operation) && len(r.Operation) <= maxText &&
		0 <= r.Rank && r.Rank < r.Ranks && r.Ranks <= maxRank && 0 <= r.Nodes && r.Nodes <= maxRank && r.Bytes >= 0 &&
		0 < r.Micros && r.Micros < maxMicros && 0 < r.Dumped && r.Dumped < maxDumped
}
