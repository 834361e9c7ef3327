// SPDX-License-Identifier: Apache-2.0

package inspector

import (
	"bytes"
	"cmp"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// MaxText bounds a file in Prometheus' text format: a kilobyte for each kind of operation.
const MaxText = 1 << 20

var (
	promLine  = regexp.MustCompile(`^nccl_(?:p2p_|collective_)?(bus_bandwidth_gbs|exec_time_microseconds)\{([^\n]*)\} (\S+)$`)
	promLabel = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)
	promSize  = regexp.MustCompile(`^([0-9.]{1,9})(?:-[0-9.]+)?([KMGT]?)B$`)
)

// AddText takes a file in Prometheus' text format of NCCL 2.29 or 2.30. It tells means of
// operations without their number, and from 2.30 on neither id nor rank of a communicator:
// Rank is -1 then. bad counts lines that are none of the format, full those without room.
// prometheus/common's own parser panics at a line {} after a comment (v0.69.0), and
// strangers write these files.
func (p *Process) AddText(text []byte) (bad, full int) {
	for line := range bytes.Lines(text) {
		line, whole := bytes.CutSuffix(line, []byte{'\n'})
		found := promLine.FindSubmatch(line)
		switch {
		case !whole: // somebody is writing
			continue
		case found == nil:
			if len(line) > 0 && line[0] != '#' && !bytes.HasPrefix(line, []byte("nccl_")) {
				bad++
			}
			continue
		}
		r := Record{Rank: -1}
		for _, label := range promLabel.FindAllSubmatch(found[2], -1) {
			r.set(label[1], label[2])
		}
		v, err := strconv.ParseFloat(string(found[3]), 64)
		if err != nil || !(v > 0) || !r.valid() {
			bad++
			continue
		}
		t, _ := p.tally(&r)
		switch {
		case t == nil:
			full++
		case string(found[1]) == "bus_bandwidth_gbs":
			t.Bandwidth = max(t.Bandwidth, min(v*1e9, maxBandwidth))
		default: // of two algorithms, or sizes of one class
			t.seen++
			t.micros += min(v, maxMicros)
		}
	}
	return bad, full
}

// size reads 2.00MB, or 32-33MB; the units are binary. 0 is for none.
func size(text []byte) int64 {
	found := promSize.FindSubmatch(text)
	if found == nil {
		return 0
	}
	n, _ := strconv.ParseFloat(string(found[1]), 64) // 0 for none
	unit := strings.Index(" KMGT", cmp.Or(string(found[2]), " "))
	return int64(min(n*math.Pow(1024, float64(unit)), 1<<60))
}
