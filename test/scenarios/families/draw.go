// SPDX-License-Identifier: Apache-2.0

package families

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// draw is the one random stream of a run.
type draw struct {
	*rand.Rand
	run int
}

func newDraw(seed uint64, family string, run int) *draw {
	h := sha256.Sum256(fmt.Appendf(nil, "%d %s %d", seed, family, run))
	return &draw{rand.New(rand.NewPCG(binary.LittleEndian.Uint64(h[:8]), binary.LittleEndian.Uint64(h[8:16]))), run}
}

func (d *draw) uniform(a, b float64) float64 { return a + (b-a)*d.Float64() }

// log is uniform in the logarithm.
func (d *draw) log(a, b float64) float64 { return a * math.Pow(b/a, d.Float64()) }

// between is a whole number from a to b, both included.
func (d *draw) between(a, b int) int { return a + d.IntN(b-a+1) }

func (d *draw) time(a, b time.Duration) time.Duration {
	return time.Duration(d.uniform(float64(a), float64(b)))
}

func (d *draw) logTime(a, b time.Duration) time.Duration {
	return time.Duration(d.log(float64(a), float64(b)))
}

const (
	// studentCut bounds Student's innovations, in their standard deviation.
	studentCut = 12
	// studentScale is the standard deviation of Student's t with three degrees of
	// freedom, cut at studentCut times that.
	studentScale = 1.6674
)

// student is Student's t with three degrees of freedom, cut, with a standard
// deviation of 1.
func (d *draw) student() float64 {
	a, b, c := d.NormFloat64(), d.NormFloat64(), d.NormFloat64()
	t := d.NormFloat64() / math.Sqrt((a*a+b*b+c*c)/3) / studentScale
	return min(max(t, -studentCut), studentCut)
}
