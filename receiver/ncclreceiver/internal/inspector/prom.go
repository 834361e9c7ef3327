// SPDX-License-Identifier: Apache-2.0

package inspector

import (
	"bytes"
	"cmp"
	"math"
	"regexp"
	"slices"
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

// ParseText reads a file in Prometheus' text format of NCCL 2.29 or 2.30. It tells means of
// operations without their number, and from 2.30 on neither id nor rank of a communicator:
// Rank is -1 then. bad counts lines that are none of the format. prometheus/common's own
// parser panics at a line {} after a comment (v0.69.0), and strangers write these files.
func ParseText(text []byte) (parts []Part, bad int64) {
	kinds := map[Part]*Part{}
	means := map[Part]int{}
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
		key := Part{Membership: Membership{Rank: -1}}
		for _, label := range promLabel.FindAllSubmatch(found[2], -1) {
			key.label(string(label[1]), label[2])
		}
		v, err := strconv.ParseFloat(string(found[3]), 64)
		if err != nil || !(v > 0) || key.Operation == "" || key.Size <= 0 || key.Size > maxRank || key.Nodes < 0 || key.Rank >= key.Size {
			bad++
			continue
		}
		part := kinds[key]
		if part == nil {
			part = &Part{Membership: key.Membership, Operation: key.Operation, Floor: key.Floor}
			kinds[key] = part
		}
		if string(found[1]) == "bus_bandwidth_gbs" {
			part.Bandwidth = max(part.Bandwidth, min(v*1e9, maxBandwidth))
		} else { // of two algorithms, or sizes of one class
			means[key]++
			part.Latency += (min(v, maxMicros)/1e6 - part.Latency) / float64(means[key])
		}
	}
	for _, part := range kinds {
		parts = append(parts, *part)
	}
	return parts, bad
}

func (p *Part) label(name string, value []byte) {
	if len(value) > maxText || bytes.IndexByte(value, '\\') >= 0 {
		return
	}
	switch name {
	case "comm_id":
		p.ID = clean(value)
	case "comm_name":
		if string(value) != "unknown" {
			p.Name = clean(value)
		}
	case "collective", "p2p_operation":
		p.Operation = clean(value)
	case "rank":
		p.Rank = number(value)
	case "nranks":
		p.Size = number(value)
	case "n_nodes":
		p.Nodes = number(value)
	case "message_size": // 2.00MB, or 32-33MB; the units are binary
		if found := promSize.FindSubmatch(value); found != nil {
			n, _ := strconv.ParseFloat(string(found[1]), 64) // 0 for none
			unit := strings.Index(" KMGT", cmp.Or(string(found[2]), " "))
			at, _ := slices.BinarySearch(floors[1:], int64(n*math.Pow(1024, float64(unit)))+1)
			p.Floor = floors[at]
		}
	}
}
