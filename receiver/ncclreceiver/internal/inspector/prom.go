// SPDX-License-Identifier: Apache-2.0

package inspector

import (
	"bytes"
	"math"
	"regexp"
	"strconv"
	"strings"
)

var (
	promLine  = regexp.MustCompile(`^nccl_(?:p2p_|collective_)?(bus_bandwidth_gbs|exec_time_microseconds)\{([^\n]*)\} (\S+)$`)
	promLabel = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)
)

// AddText takes a line in Prometheus' text format of NCCL 2.29 or 2.30. It has a mean of
// operations without their number, and from 2.30 on neither id nor rank of a communicator:
// Rank is -1 then. prometheus/common's own parser panics at a line {} after a comment
// (v0.69.0), and strangers write these files.
func (p *Process) AddText(line []byte) error {
	found := promLine.FindSubmatch(line)
	if found == nil {
		if bytes.HasPrefix(line, []byte("#")) || bytes.HasPrefix(line, []byte("nccl_")) {
			return nil
		}
		return ErrLine
	}
	r := Record{Rank: -1}
	for _, label := range promLabel.FindAllSubmatch(found[2], -1) {
		r.set(label[1], label[2])
	}
	v, err := strconv.ParseFloat(string(found[3]), 64)
	if err != nil || !(v > 0) || !r.valid() {
		return ErrLine
	}
	t, _ := p.tally(&r)
	switch {
	case t == nil:
		return ErrRoom
	case string(found[1]) == "bus_bandwidth_gbs":
		t.Bandwidth = max(t.Bandwidth, min(v*1e9, maxBandwidth))
	default: // of two algorithms, or sizes of one class
		t.add(0, min(v, maxMicros))
	}
	return nil
}

// size reads 2.00MB, or 32-33MB; the units are binary.
func size(text []byte) int64 {
	number, _, _ := strings.Cut(strings.TrimRight(string(text), "KMGTB"), "-")
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || len(text) < 2 {
		return -1
	}
	unit := max(0, strings.IndexByte(" KMGT", text[len(text)-2]))
	return int64(min(n*math.Pow(1024, float64(unit)), 1<<60))
}
