// SPDX-License-Identifier: Apache-2.0

package ras

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Report is what the ranks of one job told.
type Report struct {
	communicators []*communicator
	kept          int
}

// communicator as RAS knows it. In the text form ranks has only those that differ.
type communicator struct {
	hash           hash
	size           int64
	ranks, missing []rank
	// ending: ranks have left it or are leaving, so counts differ for good reason.
	ending bool
	// told is how many ranks have a count, 0 where ranks has them all; unlisted is how many
	// of them are neither in ranks nor at the usual count.
	told, unlisted int64
}

type rank struct {
	number int64
	place
	begun int64 // operations, of all functions
}

// place is who a rank is in all of its communicators.
type place struct {
	host string
	pid  int64
	gpu  string
}

// Laggard is a rank that the others of its communicator wait for.
type Laggard struct {
	// Communicator is the Inspector's id where one was given, else RAS's own hash.
	Communicator    string
	Rank, PID, Size int64
	Host            string
	// Missing says that the process does not answer. Else it has begun fewer operations.
	Missing bool
}

func (r *Report) add() (*communicator, error) {
	c := &communicator{}
	r.communicators = append(r.communicators, c)
	r.kept++
	return c, r.bounded()
}

func (r *Report) keep(c *communicator, k rank, missing bool) error {
	if missing {
		c.missing = append(c.missing, k)
	} else {
		c.ranks = append(c.ranks, k)
	}
	r.kept++
	return r.bounded()
}

func (r *Report) bounded() error {
	if r.kept > maxRanks {
		return fmt.Errorf("the answer has more than %d ranks", maxRanks)
	}
	return nil
}

// short is what the Inspector keeps of a hash: it has room for 14 digits.
func short(digits string) string { return digits[:min(len(digits), 14)] }

// idIn finds the communicator's id among ids by their short form. The Inspector writes no
// leading zeros; RAS does in the text form only.
func (c *communicator) idIn(ids map[string]string) (id string, found bool) {
	if id, found = ids[short(strconv.FormatUint(uint64(c.hash), 16))]; !found {
		id, found = ids[short(fmt.Sprintf("%016x", uint64(c.hash)))]
	}
	return id, found
}

func byShort(ids ...string) map[string]string {
	all := make(map[string]string, len(ids))
	for _, id := range ids {
		all[short(strings.TrimPrefix(strings.ToLower(id), "0x"))] = id
	}
	return all
}

// Has tells whether the job has the communicator with that id of the Inspector.
func (r *Report) Has(inspectorID string) bool {
	ids := byShort(inspectorID)
	return slices.ContainsFunc(r.communicators, func(c *communicator) bool {
		_, found := c.idIn(ids)
		return found
	})
}

// split parts the ranks into those behind, where they are fewer than half, and those that
// wait. Nobody waits where all counts are equal and no rank is missing.
func (c *communicator) split() (behind, waiting []rank) {
	if c.ending || c.unlisted != 0 {
		return nil, nil
	}
	others := max(c.told-int64(len(c.ranks)), 0) // at 0, the usual count
	greatest, late := int64(0), int64(0)
	for i, k := range c.ranks {
		if i == 0 && others == 0 || k.begun > greatest {
			greatest = k.begun
		}
	}
	for _, k := range c.ranks {
		if k.begun < greatest {
			behind = append(behind, k)
		} else {
			waiting = append(waiting, k)
		}
	}
	if late = int64(len(behind)); greatest > 0 {
		late += others
	}
	if late == 0 && len(c.missing) == 0 {
		return nil, nil
	}
	if 2*late >= int64(len(c.ranks))+others {
		behind = nil
	}
	return behind, waiting
}

// suspects are the ranks of a communicator that its others wait for.
type suspects struct {
	of      *communicator
	ranks   []rank
	missing bool
}

// Laggards names the ranks that the others wait for, among the communicators of these
// Inspector ids and those that share a process with them.
//
// Ranks that wait for one in an inner group are late in their outer groups. So who waits
// in any group is no laggard, and of the others those count that are late in the most:
// the culprit is late wherever its victims are, and in the inner group too. A rank with
// the same process and GPU as another of its group cannot be told apart across groups.
func (r *Report) Laggards(ids []string) (all []Laggard) {
	wanted, names, own := byShort(ids...), map[*communicator]string{}, map[place]bool{}
	for _, c := range r.communicators {
		id, found := c.idIn(wanted)
		if !found {
			continue
		}
		names[c] = id
		for _, k := range slices.Concat(c.ranks, c.missing) {
			own[place{k.host, k.pid, ""}] = k.pid > 0
		}
	}
	var found []suspects
	waits, twice, times := map[place]bool{}, map[place]bool{}, map[place]int{}
	for _, c := range r.communicators {
		members := slices.Concat(c.ranks, c.missing)
		if names[c] == "" && !slices.ContainsFunc(members, func(k rank) bool { return own[place{k.host, k.pid, ""}] }) {
			continue
		}
		behind, waiting := c.split()
		found = append(found, suspects{c, c.missing, true}, suspects{c, behind, false})
		for _, k := range waiting {
			waits[k.place] = true
		}
		here := map[place]bool{}
		for _, k := range members {
			twice[k.place] = twice[k.place] || here[k.place] || k.pid == 0
			here[k.place] = true
		}
	}
	most := 0
	for _, s := range found {
		for _, k := range s.ranks {
			if k.pid > 0 && (s.missing || twice[k.place] || !waits[k.place]) {
				times[k.place]++
				most = max(most, times[k.place])
			}
		}
	}
	// A process is named once: where the fewest are late with it, in the widest of these.
	slices.SortStableFunc(found, func(a, b suspects) int {
		return cmp.Or(cmp.Compare(len(a.ranks), len(b.ranks)), cmp.Compare(b.of.size, a.of.size), cmp.Compare(a.of.hash, b.of.hash))
	})
	named := map[place]*communicator{}
	for _, s := range found {
		for _, k := range s.ranks {
			if !s.missing && (times[k.place] < most || waits[k.place] && !twice[k.place]) {
				continue
			}
			if named[k.place] == nil {
				named[k.place] = s.of
			}
			if named[k.place] == s.of {
				all = append(all, Laggard{cmp.Or(names[s.of], fmt.Sprintf("%#x", uint64(s.of.hash))), k.number, k.pid, s.of.size, k.host, s.missing})
			}
		}
	}
	slices.SortFunc(all, func(a, b Laggard) int {
		return cmp.Or(strings.Compare(a.Communicator, b.Communicator), cmp.Compare(a.Rank, b.Rank))
	})
	return all[:min(len(all), maxNamed)]
}
