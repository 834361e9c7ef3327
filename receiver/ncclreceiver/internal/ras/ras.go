// SPDX-License-Identifier: Apache-2.0

// Package ras asks the RAS service of NCCL and RCCL which ranks of a job the others wait
// for. It uses the line protocol of that service's clients (NCCL user guide, "RAS").
package ras // import "github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/ras"

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Bounds: any process of the node may be the one that listens there.
const (
	wait      = 5 * time.Second // for the whole conversation
	maxAnswer = 32 << 20        // bytes: 620 for each rank and communicator
	maxPieces = 1 << 20         // commas: 17 for each of these
	maxNamed  = 256             // laggards
)

// Ask returns what the service knows of its job. It asks for MONITOR first, on a
// connection of its own: NCCL before 2.29.2 does not know it, and a status may crash it.
func Ask(ctx context.Context, endpoint string) (r *Report, err error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	answer, err := exchange(ctx, endpoint, "MONITOR\n", 3) // with its end: what is left unread resets the connection
	if err == nil && strings.TrimSpace(answer) != "OK" {
		err = fmt.Errorf("it answers MONITOR with %q..., and not with OK as NCCL 2.29.2 or later: a status may crash an older one", answer)
	}
	if err == nil {
		answer, err = exchange(ctx, endpoint, "CLIENT PROTOCOL 2\nTIMEOUT 3\nSET FORMAT json\nVERBOSE STATUS\n", maxAnswer)
	}
	if err == nil {
		r, err = parse(answer)
	}
	if err != nil {
		return nil, fmt.Errorf("RAS at %s gives no report: %w", endpoint, cmp.Or(ctx.Err(), err))
	}
	return r, nil
}

// exchange sends lines on a connection of its own, and returns the answer's first bytes.
func exchange(ctx context.Context, endpoint, lines string, most int64) (string, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", endpoint)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	context.AfterFunc(ctx, func() { _ = c.Close() })
	_, _ = io.WriteString(c, lines) // without them there is no answer
	answer, err := io.ReadAll(io.LimitReader(c, most))
	return strings.ToValidUTF8(string(answer), "?"), err
}

// Report is what the ranks of one job reported.
type Report struct{ Communicators []communicator }

type communicator struct {
	Hash        string
	Size        int64
	Ranks, late []rank
	Missing     []rank `json:"missing_ranks"`
}

type rank struct {
	process
	number, begun    int64
	missing, leaving bool
}

// process identifies a rank in all of its communicators.
type process struct {
	host     string
	pid, gpu int64
}

// UnmarshalJSON adds up the counts of all functions. A rank that answers without counts has left.
func (k *rank) UnmarshalJSON(text []byte) error {
	var wire struct {
		Rank, PID int64
		Host      string
		GPU       int64            `json:"cuda_dev"`
		Begun     map[string]int64 `json:"collective_counts"`
		Status    map[string]any
	}
	err := json.Unmarshal(text, &wire)
	is := func(flag string) bool { return wire.Status[flag] == true }
	*k = rank{process: process{wire.Host, wire.PID, wire.GPU}, number: wire.Rank, missing: is("unresponsive") || is("considered_dead")}
	k.leaving = is("finalize_called") || is("destroy_flag") || is("abort_flag") || wire.Begun == nil && !k.missing
	for _, n := range wire.Begun {
		k.begun += n
	}
	return err
}

// greeting is the answers before the report. JSON came with NCCL 2.28.7, before MONITOR.
var greeting = regexp.MustCompile(`^(?:SERVER PROTOCOL|ERROR).*\n(?:OK|ERROR).*\nOK.*\n`)

func parse(answer string) (*Report, error) {
	r, before := &Report{}, greeting.FindString(answer)
	if before == "" || len(answer) == maxAnswer || strings.Count(answer, ",") > maxPieces {
		return nil, fmt.Errorf("it answers otherwise than NCCL, or tells of more ranks than a job has: %.80q", answer)
	}
	err := json.Unmarshal([]byte(answer[len(before):]), r)
	for i, c := range r.Communicators {
		r.Communicators[i].Ranks = slices.Concat(c.Ranks, c.Missing)
	}
	return r, err
}

// Laggard is a rank that the others of its communicator wait for.
type Laggard struct {
	Communicator    string // The Inspector's id where one was given, else RAS's own hash.
	Rank, PID, Size int64
	Host            string
	Missing         bool // The process does not answer. Else it has begun fewer operations.
}

// Has reports whether the job has the communicator with that id of the Inspector.
func (r *Report) Has(inspectorID string) bool {
	return slices.ContainsFunc(r.Communicators, func(c communicator) bool { return c.id(inspectorID) != "" })
}

// id returns the Inspector's: 14 of RAS's 16 digits. Both come with and without leading zeros.
func (c *communicator) id(inspectorIDs ...string) string {
	hash := digits(c.Hash)
	for _, id := range inspectorIDs {
		if d := digits(id); d == hash || len(d) > 7 && strings.HasPrefix(hash, d) {
			return id
		}
	}
	return ""
}

func digits(hash string) string { return strings.TrimLeft(strings.ToLower(hash), "0x") }

// Laggards names the ranks that the others wait for, among the communicators of these
// Inspector ids and those that share a process with them.
//
// A rank that waits in an inner group is late in the outer ones. So one that waits in any group is no
// laggard, and of the others those are that are late in the most groups. Ranks of a group
// with the same process and GPU cannot be found in another group: they are lost.
func (r *Report) Laggards(inspectorIDs []string) (all []Laggard) {
	own, lost, times := map[process]bool{}, map[process]bool{}, map[process]int{}
	for _, c := range r.Communicators {
		here, given := map[process]bool{}, c.id(inspectorIDs...) != ""
		for _, k := range c.Ranks {
			own[k.process] = own[k.process] || given && k.pid > 0
			lost[k.process] = lost[k.process] || here[k.process] || k.pid <= 0
			here[k.process] = true
		}
	}
	var groups []communicator
	for _, c := range r.Communicators {
		if c.id(inspectorIDs...) != "" || slices.ContainsFunc(c.Ranks, func(k rank) bool { return own[k.process] }) {
			c.compare(times)
			groups = append(groups, c)
		}
	}
	maps.DeleteFunc(times, func(p process, _ int) bool { return lost[p] })
	most := slices.Max(append(slices.Collect(maps.Values(times)), 0))
	// A process is named once: where the fewest are late with it, in the widest of these.
	slices.SortStableFunc(groups, func(a, b communicator) int {
		return cmp.Or(cmp.Compare(len(a.late), len(b.late)), cmp.Compare(b.Size, a.Size), cmp.Compare(a.Hash, b.Hash))
	})
	named := map[process]int{}
	for i, c := range groups {
		id := cmp.Or(c.id(inspectorIDs...), fmt.Sprintf("0x%.16s", digits(c.Hash)))
		for _, k := range c.late {
			p := k.process
			if lost[p] {
				p = process{}
			}
			if cmp.Or(named[p], i+1) == i+1 && (k.missing || times[p] >= most) && len(all) < maxNamed {
				named[p] = i + 1
				all = append(all, Laggard{id, k.number, max(k.pid, 0), c.Size, fmt.Sprintf("%.255s", k.host), k.missing})
			}
		}
	}
	return all
}

// compare finds the ranks that are missing, or behind where these are fewer than half. It
// counts them in times, and takes the ranks that wait for them out of it.
func (c *communicator) compare(times map[process]int) {
	leaving, greatest, counts := false, int64(0), map[int64]int{}
	for _, k := range c.Ranks {
		leaving, greatest = leaving || k.leaving, max(greatest, k.begun)
		counts[k.begun]++
	}
	behind := len(c.Ranks) - counts[greatest]
	for _, k := range c.Ranks {
		switch late := k.begun < greatest; {
		case k.missing, late && !leaving && 2*behind < len(c.Ranks):
			c.late = append(c.late, k)
			times[k.process]++
		case !late && !leaving && behind > 0:
			times[k.process] -= maxPieces
		}
	}
}
