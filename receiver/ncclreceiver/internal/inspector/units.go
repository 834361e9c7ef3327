// SPDX-License-Identifier: Apache-2.0

package inspector

import (
	"cmp"
	"math"
	"slices"
)

// layout joins ranks of communicators that are of one rank of the job, a unit. No file has
// which are: rank 1 of a communicator may be any rank of the job. A process whose
// communicators have one rank each has one. In others the ranks of the widest communicator
// are the units, beside which those of a mesh's groups are placed. It reports false for
// groups of several kinds: the slow rank and its partner look alike in them.
func layout(all []*communicator) (units [][]*member, joined bool) {
	slices.SortFunc(all, func(a, b *communicator) int { return cmp.Or(family(a, b), cmp.Compare(a.ID, b.ID)) })
	var single []*member
	var families [][]*communicator
	for i, c := range all {
		if i == 0 || family(all[i-1], c) != 0 {
			families = append(families, nil)
		}
		last := &families[len(families)-1]
		*last = append(*last, c)
		single = append(single, c.members...)
	}
	switch len(single) {
	case 0:
		return nil, false
	case len(all):
		return [][]*member{single}, true
	}
	for _, c := range families[0] {
		for _, m := range c.members {
			units = append(units, []*member{m})
		}
	}
	groups := 0
	for _, f := range families[1:] {
		if len(f) > 1 {
			groups++
		}
		assignUnits(units, f)
	}
	return units, len(families[0]) == 1 && groups <= 1
}

// family orders communicators by kind, the widest with collectives first.
func family(a, b *communicator) int {
	return cmp.Or(cmp.Compare(b.width(), a.width()), cmp.Compare(b.Nodes, a.Nodes), cmp.Compare(a.Name, b.Name))
}

// width is negative without collectives.
func (c *communicator) width() int64 {
	if c.collective {
		return c.Size
	}
	return c.Size - 2*maxRank
}

// assignUnits finds units for a family: its communicators lie one after another, or interleaved
// by a stride. In lockstep all units' own work is alike but for the slow one's, and so is
// the time that they wait. A family that does not fit is left out.
func assignUnits(units [][]*member, all []*communicator) {
	k, s := len(all), len(all[0].members)
	if k*s != len(units) || slices.ContainsFunc(all, func(c *communicator) bool { return len(c.members) != s }) {
		return
	}
	// The communicator that waits most comes first.
	slices.SortStableFunc(all, func(a, b *communicator) int { return cmp.Compare(b.total(), a.total()) })
	var best []*member
	least := math.Inf(1)
	for d := 1; d <= k; d++ {
		if k%d != 0 {
			continue
		}
		seats, sums := make([]*member, len(units)), make([]float64, len(units))
		for _, c := range all {
			at, lowest := 0, math.Inf(1)
			for j := range k {
				first, product := j/d*s*d+j%d, 0.0 // the squares of the sums are least where these are
				for r, m := range c.members {
					product += m.total * units[first+r*d][0].total
				}
				if seats[first] == nil && product < lowest {
					at, lowest = first, product
				}
			}
			for r, m := range c.members {
				seats[at+r*d] = m
				sums[at+r*d] = m.total + units[at+r*d][0].total
			}
		}
		if differ := unlike(sums); differ < least {
			best, least = seats, differ
		}
	}
	for i, m := range best {
		units[i] = append(units[i], m)
	}
}

// unlike is the sum of squares of what all but one differ by from their mean. With all of
// them the slow one's time would best be hidden in those of others.
func unlike(sums []float64) float64 {
	total, squares := 0.0, 0.0
	for _, v := range sums {
		total, squares = total+v, squares+v*v
	}
	least := math.Inf(1)
	for _, v := range sums {
		rest := total - v
		least = min(least, squares-v*v-rest*rest/float64(max(1, len(sums)-1)))
	}
	return least
}

func (c *communicator) total() (sum float64) {
	for _, m := range c.members {
		sum += m.total
	}
	return sum
}
