// SPDX-License-Identifier: Apache-2.0

package inspector

import (
	"cmp"
	"slices"
)

// seat is a unit's place in a communicator.
type seat struct {
	*member
	of *communicator
}

// layout joins ranks of communicators that are of one rank of the job. No file says which
// are: rank 1 of a communicator may be any rank of the job. A process whose communicators
// have one rank each has one.
func layout(all []*communicator) (units [][]seat) {
	slices.SortFunc(all, func(a, b *communicator) int {
		return cmp.Or(-cmp.Compare(a.Size, b.Size), -cmp.Compare(a.Nodes, b.Nodes), cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	if !slices.ContainsFunc(all, func(c *communicator) bool { return len(c.members) > 1 }) {
		var seats []seat
		for _, c := range all {
			seats = append(seats, seat{c.members[0], c})
		}
		return [][]seat{seats}[:min(1, len(seats))]
	}
	var classes [][]*communicator
	for _, c := range all {
		if n := len(classes); n > 0 && classes[n-1][0].siblings(c) {
			classes[n-1] = append(classes[n-1], c)
		} else {
			classes = append(classes, []*communicator{c})
		}
	}
	base := max(0, slices.IndexFunc(classes, func(class []*communicator) bool { return class[0].collective }))
	for _, c := range classes[base] {
		for _, m := range c.members {
			units = append(units, []seat{{m, c}})
		}
	}
	for i, class := range classes {
		if i != base {
			place(units, class)
		}
	}
	return units
}

func (c *communicator) siblings(o *communicator) bool {
	return c.Size == o.Size && c.Nodes == o.Nodes && c.Name == o.Name
}

// place seats the members of communicators beside one another, or interleaved by a stride:
// rank r of the communicator at (a,b) is unit (a*s+r)*d+b. In lockstep all units' own work
// is alike, and so is the time that they wait, so that which makes the sums of time differ
// least is right. A class that does not fit is left out.
func place(units [][]seat, class []*communicator) {
	k, s := len(class), len(class[0].members)
	if k*s != len(units) || slices.ContainsFunc(class, func(c *communicator) bool { return len(c.members) != s }) {
		return
	}
	sums := make([]float64, len(units))
	for i, seats := range units {
		for _, seat := range seats {
			sums[i] += seat.total
		}
	}
	// Who waits most is placed first.
	slices.SortStableFunc(class, func(a, b *communicator) int { return -cmp.Compare(a.total(), b.total()) })
	var best []int // of the first unit of each communicator
	least, stride := 0.0, 0
	for d := 1; d <= k; d++ {
		if k%d != 0 {
			continue
		}
		cost, firsts := 0.0, make([]int, 0, k)
		for _, c := range class {
			at, lowest := -1, 0.0
			for j := range k {
				first := j/d*s*d + j%d
				if slices.Contains(firsts, first) {
					continue
				}
				// The squares of the sums are least where these products are.
				product := 0.0
				for r, m := range c.members {
					product += m.total * sums[first+r*d]
				}
				if at < 0 || product < lowest {
					at, lowest = first, product
				}
			}
			firsts, cost = append(firsts, at), cost+lowest
		}
		if best == nil || cost < least {
			best, least, stride = firsts, cost, d
		}
	}
	for i, c := range class {
		for r, m := range c.members {
			units[best[i]+r*stride] = append(units[best[i]+r*stride], seat{m, c})
		}
	}
}

func (c *communicator) total() (sum float64) {
	for _, m := range c.members {
		sum += m.total
	}
	return sum
}
