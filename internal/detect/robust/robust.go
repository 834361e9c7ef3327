// SPDX-License-Identifier: Apache-2.0

// Package robust has the statistics that a few wild values do not move: medians and
// median absolute deviations (MAD). Pure, without allocations.
package robust // import "github.com/gpu-collector/gpu-collector/internal/detect/robust"

import (
	"math"
	"slices"
)

// MADToSigma turns a median absolute deviation into a standard deviation for normal
// data: 1/Φ⁻¹(3/4) (Rousseeuw and Croux 1993).
const MADToSigma = 1.4826

// Sample takes values, and gives their middle. Its values are kept as bits: numbers that
// are not negative are in the same order, and bits can be compared without a branch, so
// that selecting among 50 values is twice as fast. The zero value is empty.
type Sample []uint64

// levelShift makes levels positive. Levels are logarithms of rates, or fractions.
const levelShift = 1024

// Median returns the middle of values that are not negative, the mean of the two middle
// ones for an even count. It must not be empty.
func (b *Sample) Median(values []float64) float64 {
	s := (*b)[:0]
	for _, v := range values {
		s = append(s, math.Float64bits(v))
	}
	*b = s
	return median(s)
}

// Level returns the middle of values above -1,000.
func (b *Sample) Level(values []float64) float64 {
	s := (*b)[:0]
	for _, v := range values {
		s = append(s, math.Float64bits(v+levelShift))
	}
	*b = s
	return median(s) - levelShift
}

// MAD returns the median absolute deviation of values from middle.
func (b *Sample) MAD(values []float64, middle float64) float64 {
	s := (*b)[:0]
	for _, v := range values {
		s = append(s, math.Float64bits(v-middle)&^(1<<63))
	}
	*b = s
	return median(s)
}

// Spread is the robust standard deviation of sorted values: 1.4826 times their MAD, with
// the factor for small samples.
func (b *Sample) Spread(sorted []float64) float64 {
	return MADToSigma * SmallSample(len(sorted)) * b.MAD(sorted, sorted[len(sorted)/2])
}

// Halves cuts sorted values in two where the variance between the sides is greatest
// (Fisher 1958), and returns the first index of the upper side, 0 where all are equal.
func Halves(sorted []float64) (cut int) {
	n, sum, left, best := len(sorted), 0.0, 0.0, 0.0
	for _, x := range sorted {
		sum += x
	}
	for i := 1; i < n; i++ {
		left += sorted[i-1]
		apart := (sum-left)/float64(n-i) - left/float64(i)
		if between := float64(i) * float64(n-i) * apart * apart; between > best {
			best, cut = between, i
		}
	}
	return cut
}

// Gaps returns where sorted values have gaps, by the first index of the upper side: gaps
// of more than least, and than spreads times that of either side, with side values on
// both. It drops the least clear gap until all are clear, and before those the narrowest
// that has too few values on a side: a value alone belongs to the nearer side.
func (b *Sample) Gaps(sorted []float64, least, spreads float64, side int) (cuts []int) {
	for i := side; i+side <= len(sorted); i++ {
		if sorted[i]-sorted[i-1] > least {
			cuts = append(cuts, i)
		}
	}
	for len(cuts) > 0 {
		worst, at := 1.0, -1
		for j, c := range cuts {
			low, high, gap := 0, len(sorted), sorted[c]-sorted[c-1]
			clear := -1 / gap // too few on a side: the narrowest first
			if j > 0 {
				low = cuts[j-1]
			}
			if j+1 < len(cuts) {
				high = cuts[j+1]
			}
			if c-low >= side && high-c >= side {
				wider := max(b.Spread(sorted[low:c]), b.Spread(sorted[c:high]))
				clear = gap / (spreads*wider + 1e-9)
			}
			if clear < worst {
				worst, at = clear, j
			}
		}
		if at < 0 {
			break
		}
		cuts = slices.Delete(cuts, at, at+1)
	}
	return cuts
}

// SmallSample undoes that the MAD of few is biased low: the factors of Croux and
// Rousseeuw (1992), n/(n-0.8) from ten on.
func SmallSample(n int) float64 {
	factors := [...]float64{1.363, 1.363, 1.363, 1.495, 1.363, 1.206, 1.200, 1.140, 1.129, 1.107}
	if n < len(factors) {
		return factors[n]
	}
	return float64(n) / (float64(n) - 0.8)
}

// median reorders b.
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
