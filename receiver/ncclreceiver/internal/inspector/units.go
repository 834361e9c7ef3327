// SPDX-License-Identifier: Apache-2.0

package inspector

import (
	"cmp"
	"math"
	"slices"
)

// seat is a unit's place in a communicator.
type seat struct {
	*member
	of *communicator
}

// family is communicators of one name and size, and where their ranks are among the units:
// rank r of the i-th is unit firsts[i]+r*stride.
type family struct {
	all    []*communicator
	firsts []int // none where it does not fit
	stride int
	usual  int
}

func (c *family) each(do func(unit int, s seat)) {
	for i, first := range c.firsts {
		for r, m := range c.all[i].members {
			do(first+r*c.stride, seat{m, c.all[i]})
		}
	}
}

// layout joins ranks of communicators that are of one rank of the job, a unit. No file says
// which are: rank 1 of a communicator may be any rank of the job. A process whose
// communicators have one rank each has one.
func layout(all []*communicator) [][]seat {
	slices.SortFunc(all, func(a, b *communicator) int {
		return cmp.Or(-cmp.Compare(a.Size, b.Size), -cmp.Compare(a.Nodes, b.Nodes), cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	var families []*family
	single := true
	for _, c := range all {
		single = single && len(c.members) == 1
		if n := len(families); n > 0 && families[n-1].all[0].siblings(c) {
			families[n-1].all = append(families[n-1].all, c)
		} else {
			families = append(families, &family{all: []*communicator{c}})
		}
	}
	if len(all) == 0 {
		return nil
	}
	if single {
		units := make([][]seat, 1)
		for _, c := range all {
			units[0] = append(units[0], seat{c.members[0], c})
		}
		return units
	}
	at := max(0, slices.IndexFunc(families, func(c *family) bool { return c.all[0].collective }))
	base, others := families[at], slices.Delete(slices.Clone(families), at, at+1)
	n := 0
	base.stride = 1
	for _, c := range base.all {
		base.firsts = append(base.firsts, n)
		n += len(c.members)
	}
	// Who talks most is nearest: neighbours first, then every so-manieth.
	slices.SortStableFunc(others, func(a, b *family) int { return -cmp.Compare(a.operations(), b.operations()) })
	usual := 1
	if len(base.all) > 1 {
		usual = len(base.all[0].members)
	}
	for _, c := range others {
		c.usual = usual
		if len(c.all)%usual == 0 {
			usual *= len(c.all[0].members)
		}
	}
	for round := range 2 { // as usual, and then as fits best
		for _, c := range others {
			sums := make([]float64, n)
			for _, o := range families {
				if o != c {
					o.each(func(unit int, s seat) { sums[unit] += s.total })
				}
			}
			c.place(sums, round == 0)
		}
	}
	units := make([][]seat, n)
	for _, c := range append([]*family{base}, others...) {
		c.each(func(unit int, s seat) { units[unit] = append(units[unit], s) })
	}
	return units
}

func (c *communicator) siblings(o *communicator) bool {
	return c.Size == o.Size && c.Nodes == o.Nodes && c.Name == o.Name
}

func (c *family) operations() (n int64) {
	for _, c := range c.all {
		for _, m := range c.members {
			n += m.done
		}
	}
	return n
}

// place finds seats beside units that have sums of time already: the communicators lie one
// after another, or interleaved by a stride. In lockstep all units' own work is alike but for
// the slow one's, and so is the time that they wait. A family that does not fit is left out.
func (c *family) place(sums []float64, usual bool) {
	k, s := len(c.all), len(c.all[0].members)
	if k*s != len(sums) || len(sums) > maxRanks || slices.ContainsFunc(c.all, func(c *communicator) bool { return len(c.members) != s }) {
		return
	}
	// Who waits most is placed first.
	slices.SortStableFunc(c.all, func(a, b *communicator) int { return -cmp.Compare(a.total(), b.total()) })
	c.firsts = nil
	least := 0.0
	for d := 1; d <= k; d++ {
		if k%d != 0 || usual && d != c.usual && k%c.usual == 0 {
			continue
		}
		with, firsts := slices.Clone(sums), make([]int, 0, k)
		for _, o := range c.all {
			at, lowest := -1, 0.0
			for j := range k {
				first := j/d*s*d + j%d
				if slices.Contains(firsts, first) {
					continue
				}
				product := 0.0 // the squares of the sums are least where these are
				for r, m := range o.members {
					product += m.total * sums[first+r*d]
				}
				if at < 0 || product < lowest {
					at, lowest = first, product
				}
			}
			firsts = append(firsts, at)
			for r, m := range o.members {
				with[at+r*d] += m.total
			}
		}
		if differ := unlike(with); c.firsts == nil || differ < least {
			c.firsts, c.stride, least = firsts, d, differ
		}
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
	return max(0, least)
}

func (c *communicator) total() (sum float64) {
	for _, m := range c.members {
		sum += m.total
	}
	return sum
}
