// SPDX-License-Identifier: Apache-2.0

package straggler

import "math"

// Numbers that are not negative are in the same order as their bits, and bits
// can be compared without a branch: selecting among 50 values is twice as fast.

// bitsOf appends the bits of x to b; every x must be >= 0 and not -0.
func bitsOf(b []uint64, x []float64) []uint64 {
	for _, v := range x {
		b = append(b, math.Float64bits(v))
	}
	return b
}

// median returns the middle value, the mean of the two middle ones for an even
// count; it reorders b, which must not be empty.
func median(b []uint64) float64 {
	n := len(b)
	hi := math.Float64frombits(nth(b, n/2))
	if n%2 == 1 {
		return hi
	}
	low := uint64(0)
	for _, v := range b[:n/2] {
		low = max(low, v)
	}
	lo := math.Float64frombits(low)
	return lo + (hi-lo)/2
}

// nth returns the value at k of the sorted b, and puts no greater value before it
// (Hoare's selection, with the median of three as the pivot).
func nth(b []uint64, k int) uint64 {
	lo, hi := 0, len(b)-1
	for hi-lo >= few {
		mid := lo + (hi-lo)/2
		x, y, z := b[lo], b[mid], b[hi]
		p := max(min(x, y), min(max(x, y), z))
		// The lesser values come first. Without any, the equal values do: many of a
		// fleet's values are the very same.
		less := partition(b[lo:hi+1], p) + lo
		if k < less {
			hi = less - 1
			continue
		}
		if less > lo {
			lo = less
			continue
		}
		if lo += partition(b[lo:hi+1], p+1); k < lo {
			return p
		}
	}
	for i := lo + 1; i <= hi; i++ {
		v, j := b[i], i
		for ; j > lo && b[j-1] > v; j-- {
			b[j] = b[j-1]
		}
		b[j] = v
	}
	return b[k]
}

// few values are sorted sooner than selected among.
const few = 10

// partition moves what is less than p to the front and returns how many are.
func partition(b []uint64, p uint64) int {
	j := 0
	for i, v := range b {
		b[i] = b[j]
		b[j] = v
		j += int((v - p) >> 63) // both are below 1<<63
	}
	return j
}

// deviations appends the bits of |x-m| to b.
func deviations(b []uint64, x []float64, m float64) []uint64 {
	const sign = 1 << 63
	for _, v := range x {
		b = append(b, math.Float64bits(v-m)&^sign)
	}
	return b
}
