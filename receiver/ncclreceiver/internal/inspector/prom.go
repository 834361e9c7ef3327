// SPDX-License-Identifier: Apache-2.0

package inspector

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// MaxDump bounds a file of the Prometheus form: a kilobyte for each kind of operation.
const MaxDump = 4 << 20

// Kind is what a file of the Prometheus form tells of the operations of one kind since
// the dump before.
type Kind struct {
	// Communicator is the hash that all of its ranks share. NCCL 2.30 does not tell it,
	// and no Rank: then several communicators of one Name, which may be empty, are one.
	Communicator, Name string
	// Operation is AllReduce, AllGather and so on, or Send or Recv.
	Operation          string
	Rank, Ranks, Nodes int64
	// Bytes is the lower bound of the messages' size, and Each the mean of their time.
	Bytes int64
	Each  time.Duration
	// BusBandwidth in GB/s, 10^9 bytes: the last operation's up to NCCL 2.29, then the
	// geometric mean.
	BusBandwidth float64
	// Operations and Time are of all of them, 0 where the file has means alone.
	Operations int64
	Time       time.Duration
}

// series are the labels by which the lines of one kind belong together. Their text is the
// file's.
type series struct {
	communicator, name, operation, algorithm, peer, sequence string
	rank, ranks, nodes, bytes                                int64
}

// The families of a file, after nccl, nccl_p2p or nccl_collective.
const (
	busBandwidth = "_bus_bandwidth_gbs"
	execTime     = "_exec_time_microseconds"
	execTimeSum  = "_exec_time_sum_microseconds"
	operations   = "_count"
)

// More than a dump has: microseconds, operations, bytes, and GB/s.
const (
	maxMicros     = 1e12
	maxOperations = 1e12
	maxBytes      = 1 << 50
	maxBandwidth  = 1e6
)

// ParseDump reads a whole file of the Prometheus form, of any release: it takes labels and
// families by name. A line that a writer has not ended yet does not count. bad counts
// lines that are none of the form.
//
// The parser of Prometheus' libraries is not for files of strangers: version 0.69 of
// prometheus/common panics at a line {} after a comment.
func ParseDump(text []byte) (all []Kind, bad int) {
	kinds := map[series]*Kind{}
	for {
		end := bytes.IndexByte(text, '\n')
		if end < 0 {
			break
		}
		line := bytes.Trim(text[:end], "\x00 \r\t")
		text = text[end+1:]
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		var of series
		family, v, ok := of.read(line)
		if !ok {
			bad++
			continue
		}
		if family == "" || of.operation == "" || of.ranks < 1 || !(v > 0) {
			continue
		}
		k := kinds[of]
		if k == nil {
			k = &Kind{}
			kinds[of] = k
		}
		switch family {
		case busBandwidth:
			k.BusBandwidth = min(v, maxBandwidth)
		case execTime:
			k.Each = micros(v)
		case execTimeSum:
			k.Time = micros(v)
		case operations:
			k.Operations = int64(min(v, maxOperations))
		}
	}
	for of, k := range kinds {
		if k.Operations > 0 && k.Time > 0 {
			k.Each = k.Time / time.Duration(k.Operations)
		} else {
			k.Operations, k.Time = 0, 0
		}
		if k.Each > 0 {
			of.describe(k)
			all = append(all, *k)
		}
	}
	return all, bad
}

func (of *series) describe(k *Kind) {
	k.Communicator, k.Name, k.Operation = of.communicator, of.name, of.operation
	k.Rank, k.Ranks, k.Nodes, k.Bytes = of.rank, of.ranks, of.nodes, of.bytes
}

// read reads name{label="value",...} number. The family is empty where it is none that
// counts.
func (of *series) read(line []byte) (family string, v float64, ok bool) {
	at := bytes.IndexByte(line, '{')
	if at < 0 {
		at = bytes.IndexAny(line, " \t")
	}
	if at <= 0 || !isName(line[:at]) {
		return "", 0, false
	}
	name, s := line[:at], scanner{rest: line[at:]}
	if s.rest[0] == '{' {
		s.rest = s.rest[1:]
		for s.skip() && s.rest[0] != '}' {
			end := bytes.IndexByte(s.rest, '=')
			if end <= 0 || end+1 >= len(s.rest) || s.rest[end+1] != '"' || !isName(s.rest[:end]) {
				return "", 0, false
			}
			label := s.rest[:end]
			s.rest = s.rest[end+1:]
			text, ok := s.text()
			if !ok {
				return "", 0, false
			}
			of.set(label, text)
			if s.skip() && s.rest[0] == ',' {
				s.rest = s.rest[1:]
			}
		}
		if len(s.rest) == 0 {
			return "", 0, false
		}
		s.rest = s.rest[1:]
	}
	v, err := strconv.ParseFloat(string(bytes.TrimSpace(s.rest)), 64)
	if err != nil {
		return "", 0, false
	}
	return familyOf(name), v, true
}

func isName(text []byte) bool {
	for _, c := range text {
		if c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

func familyOf(name []byte) string {
	for _, set := range []string{"nccl_p2p", "nccl_collective", "nccl"} {
		rest, found := bytes.CutPrefix(name, []byte(set))
		if !found {
			continue
		}
		for _, family := range []string{busBandwidth, execTime, execTimeSum, operations} {
			if string(rest) == family {
				return family
			}
		}
	}
	return ""
}

func (of *series) set(label, v []byte) {
	switch string(label) {
	case "comm_id":
		of.communicator = string(v)
	case "comm_name":
		if string(v) != "unknown" {
			of.name = string(v)
		}
	case "collective", "p2p_operation":
		of.operation = string(v)
	case "algo_proto":
		of.algorithm = string(v)
	case "peer":
		of.peer = string(v)
	case "coll_sn":
		of.sequence = string(v)
	case "rank", "comm_rank":
		of.rank = number(v)
	case "nranks", "n_ranks":
		of.ranks = number(v)
	case "n_nodes":
		of.nodes = number(v)
	case "message_size":
		if of.bytes == 0 {
			of.bytes = size(string(v))
		}
	case "message_size_bytes":
		of.bytes = number(v)
	}
}

func micros(v float64) time.Duration {
	return time.Duration(min(v, maxMicros) * float64(time.Microsecond))
}

// size reads 2.00MB, or the lower bound of 32-33MB; the units are binary.
func size(text string) int64 {
	end := strings.IndexFunc(text, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if end <= 0 {
		return 0
	}
	n, err := strconv.ParseFloat(text[:end], 64)
	unit := slices.Index([]string{"B", "KB", "MB", "GB", "TB"}, strings.TrimLeft(text[end:], "-.0123456789"))
	if err != nil || unit < 0 || n > 1<<20 {
		return 0
	}
	return int64(n * math.Pow(1024, float64(unit)))
}

// Dump takes what a file of the Prometheus form told at a time.
func (p *Process) Dump(kinds []Kind, at time.Time) {
	if len(kinds) == 0 {
		return
	}
	p.uncounted = false
	for i := range kinds {
		k := &kinds[i]
		id := k.Communicator
		if id == "" {
			id = unidentified(k)
		}
		c := p.communicator([]byte(id), []byte(k.Name))
		if c == nil {
			p.Dropped++
			continue
		}
		c.Unidentified = k.Communicator == ""
		p.dumped(c, at.UnixMicro(), k.Time)
		c.Rank, c.Ranks, c.Nodes = k.Rank, k.Ranks, k.Nodes
		p.uncounted = p.uncounted || k.Time == 0
		s := p.sumsOf([]byte(k.Operation), k.Bytes)
		if s == nil {
			p.Dropped++
			continue
		}
		s.Operations += k.Operations
		s.Time += k.Time
		s.Bytes += int64(min(float64(k.Operations)*float64(k.Bytes), maxBytes))
		s.measure(max(k.Operations, 1), k.BusBandwidth, k.Each)
	}
}

// unidentified names communicators that only their layout tells apart.
func unidentified(k *Kind) string {
	return k.Name + " " + strconv.FormatInt(k.Ranks, 10) + "/" + strconv.FormatInt(k.Nodes, 10)
}
