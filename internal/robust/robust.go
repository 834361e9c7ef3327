// SPDX-License-Identifier: Apache-2.0

// Package robust has the statistics that a few wild values do not move: medians and
// median absolute deviations (MAD). Pure, without allocations.
package robust // import "github.com/gpu-collector/gpu-collector/internal/robust"

import "math"

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
