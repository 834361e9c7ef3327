// SPDX-License-Identifier: Apache-2.0

package ras

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Report is what the ranks of one job told. The text form has a communicator several times:
// for its missing ranks, and for each function of unequal counts.
type Report struct {
	communicators []*communicator
}

type communicator struct {
	hash           hash
	size           int64
	ranks, missing []rank
	// ending: ranks have left or are leaving, so counts differ for good reason.
	ending bool
	// told is how many ranks have a count: those that are not in ranks have the usual one.
	told, usual int64
}

type rank struct {
	number int64
	place
	begun int64 // operations
}

// place is who a rank is in all of its communicators.
type place struct {
	host string
	pid  int64
	gpu  string
}

// nowhere is of ranks whose process RAS does not know.
var nowhere place

// Laggard is a rank that the others of its communicator wait for.
type Laggard struct {
	// Communicator is the Inspector's id where one was given, else RAS's own hash.
	Communicator    string
	Rank, PID, Size int64
	Host            string
	// Missing says that the process does not answer. Else it has begun fewer operations.
	Missing bool
}

// hash is a number that NCCL writes in hexadecimal.
type hash uint64

// UnmarshalJSON takes "0x1f" and 31.
func (h *hash) UnmarshalJSON(text []byte) error {
	n, err := strconv.ParseUint(strings.Trim(string(text), `"`), 0, 64)
	*h = hash(n)
	return err
}

// ids holds ids of the Inspector by the 14 digits for which it has room.
type ids map[string]string

func short(digits string) string { return digits[:min(len(digits), 14)] }

func newIDs(all ...string) ids {
	m := make(ids, len(all))
	for _, id := range all {
		m[short(strings.TrimPrefix(strings.ToLower(id), "0x"))] = id
	}
	return m
}

// of returns the id of h. The Inspector writes no leading zeros; RAS's text form does.
func (m ids) of(h hash) string {
	return cmp.Or(m[short(strconv.FormatUint(uint64(h), 16))], m[short(fmt.Sprintf("%016x", uint64(h)))])
}

// Has tells whether the job has the communicator with that id of the Inspector.
func (r *Report) Has(inspectorID string) bool {
	m := newIDs(inspectorID)
	return slices.ContainsFunc(r.communicators, func(c *communicator) bool { return m.of(c.hash) != "" })
}

// split parts the ranks into those behind, where they are fewer than half, and those that
// wait. Nobody waits where all counts are equal and no rank is missing.
func (c *communicator) split() (behind, waiting []rank) {
	others := max(c.told-int64(len(c.ranks)), 0)
	greatest, late := c.usual, int64(0)
	for _, k := range c.ranks {
		greatest = max(greatest, k.begun)
	}
	for _, k := range c.ranks {
		if k.begun < greatest {
			behind = append(behind, k)
		} else {
			waiting = append(waiting, k)
		}
	}
	if late = int64(len(behind)); c.usual < greatest {
		late += others
	}
	if c.ending || late == 0 && len(c.missing) == 0 {
		return nil, nil
	}
	if 2*late >= int64(len(c.ranks))+others {
		behind = nil
	}
	return behind, waiting
}

// Laggards names the ranks that the others wait for, among the communicators of these
// Inspector ids and those that share a process with them.
//
// Ranks that wait for one in an inner group are late in their outer groups. So who waits
// in any group is no laggard, and of the others those count that are late in the most
// groups: the culprit is late wherever its victims are, and in the inner one too. Ranks of
// one group that share process and GPU cannot be found in another: they are nowhere.
func (r *Report) Laggards(inspectorIDs []string) (all []Laggard) {
	given, own := newIDs(inspectorIDs...), map[place]bool{}
	for _, c := range r.communicators {
		if given.of(c.hash) == "" {
			continue
		}
		for _, k := range slices.Concat(c.ranks, c.missing) {
			own[place{k.host, k.pid, ""}] = k.pid > 0
		}
	}
	type group struct {
		*communicator
		late    []rank
		missing bool
	}
	var groups []group
	waits, twice, times, most := map[place]bool{}, map[place]bool{}, map[place]int{}, 0
	for _, c := range r.communicators {
		here, related := map[place]bool{}, given.of(c.hash) != ""
		members := slices.Concat(c.ranks, c.missing)
		for _, k := range members {
			related = related || own[place{k.host, k.pid, ""}]
		}
		if !related {
			continue
		}
		for _, k := range members {
			twice[k.place] = twice[k.place] || here[k.place]
			here[k.place] = true
		}
		behind, waiting := c.split()
		for _, k := range waiting {
			waits[k.place] = true
		}
		groups = append(groups, group{c, c.missing, true}, group{c, behind, false})
	}
	delete(waits, nowhere)
	at := func(k rank) place {
		if twice[k.place] {
			return nowhere
		}
		return k.place
	}
	for _, g := range groups {
		for _, k := range g.late {
			if p := at(k); p != nowhere && (g.missing || !waits[p]) {
				times[p]++
				most = max(most, times[p])
			}
		}
	}
	// A place is named once: where the fewest are late with it, in the widest of these.
	slices.SortStableFunc(groups, func(a, b group) int {
		return cmp.Or(cmp.Compare(len(a.late), len(b.late)), cmp.Compare(b.size, a.size), cmp.Compare(a.hash, b.hash))
	})
	named := map[place]hash{}
	for _, g := range groups {
		for _, k := range g.late {
			p := at(k)
			if !g.missing && (waits[p] || times[p] < most) {
				continue
			}
			if _, known := named[p]; !known {
				named[p] = g.hash
			}
			if named[p] == g.hash {
				all = append(all, Laggard{cmp.Or(given.of(g.hash), fmt.Sprintf("%#x", uint64(g.hash))), k.number, k.pid, g.size, k.host, g.missing})
			}
		}
	}
	slices.SortFunc(all, func(a, b Laggard) int {
		return cmp.Or(strings.Compare(a.Communicator, b.Communicator), cmp.Compare(a.Rank, b.Rank))
	})
	all = slices.Compact(all)
	return all[:min(len(all), maxNamed)]
}
