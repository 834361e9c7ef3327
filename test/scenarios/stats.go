// SPDX-License-Identifier: Apache-2.0

package scenarios

import "math"

// confidence of the bounds, one-sided.
const confidence = 0.95

// RateUpper is the upper bound of a rate after count events in an exposure: the
// exact Poisson bound (Garwood 1936). With no event it is the rule of three,
// 3.0/exposure.
func RateUpper(count int, exposure float64) float64 {
	if exposure <= 0 {
		return math.Inf(1)
	}
	mean := bisect(float64(count), 2*float64(count)+20, func(mean float64) bool {
		return poissonAtMost(count, mean) > 1-confidence
	})
	return mean / exposure
}

// ShareLower is the lower bound of a share after hits of n trials: the exact
// binomial bound (Clopper and Pearson 1934).
func ShareLower(hits, n int) float64 {
	if hits == 0 {
		return 0
	}
	return bisect(0, 1, func(p float64) bool { return binomialAtLeast(hits, n, p) <= 1-confidence })
}

// bisect returns where below, which is true at low and false at high, turns.
func bisect(low, high float64, below func(float64) bool) float64 {
	for range 60 {
		middle := low + (high-low)/2
		if below(middle) {
			low = middle
		} else {
			high = middle
		}
	}
	return high
}

// poissonAtMost is P(X <= k). The terms fall from k downwards wherever the
// bound is sought, so the sum ends where they no longer count.
func poissonAtMost(k int, mean float64) float64 {
	sum, logMean := 0.0, math.Log(mean)
	for i := k; i >= 0; i-- {
		term := math.Exp(float64(i)*logMean - mean - logFactorial(i))
		sum += term
		if term < sum*1e-12 {
			break
		}
	}
	return sum
}

// binomialAtLeast is P(X >= k) of n.
func binomialAtLeast(k, n int, p float64) float64 {
	if p <= 0 || p >= 1 {
		return p
	}
	sum := 0.0
	for i := k; i <= n; i++ {
		sum += math.Exp(logFactorial(n) - logFactorial(i) - logFactorial(n-i) +
			float64(i)*math.Log(p) + float64(n-i)*math.Log1p(-p))
	}
	return sum
}

func logFactorial(n int) float64 {
	l, _ := math.Lgamma(float64(n) + 1)
	return l
}
