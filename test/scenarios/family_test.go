// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRanges: what is drawn lies in its range, and fills it.
func TestRanges(t *testing.T) {
	d := newDraw(1, "test", 0)
	for name, tt := range map[string]struct {
		draw           func() float64
		from, half, to float64
	}{
		"uniform":       {func() float64 { return d.uniform(2, 4) }, 2, 3, 4},
		"log":           {func() float64 { return d.log(1, 100) }, 1, 10, 100},
		"between":       {func() float64 { return float64(d.between(3, 7)) }, 3, 5, 7},
		"time":          {func() float64 { return d.time(time.Minute, time.Hour).Minutes() }, 1, 30.5, 60},
		"log of time":   {func() float64 { return d.logTime(time.Minute, 100*time.Minute).Minutes() }, 1, 10, 100},
		"nodes of base": {func() float64 { return float64(drawBase(d).Nodes) }, 16, 45, 128},
		"nodes hit":     {func() float64 { return float64(d.share(100, d.uniform(0.01, 0.1))) }, 1, 5.5, 10},
	} {
		draws := make([]float64, 2000)
		for i := range draws {
			draws[i] = tt.draw()
		}
		slices.Sort(draws)
		assert.InDelta(t, tt.from, draws[0], 0.02*(tt.to-tt.from), name)
		assert.InEpsilon(t, tt.half, draws[len(draws)/2], 0.15, name)
		assert.InDelta(t, tt.to, draws[len(draws)-1], 0.02*tt.to, name)
	}
}

// TestSameSeedSameRun, and each seed, family and run has its own.
func TestSameSeedSameRun(t *testing.T) {
	list := All()
	first := func(seed uint64, f *Family, run int) (values []float64) {
		r := f.run(seed, run, false)
		for range 50 {
			require.True(t, r.Next())
			values = append(values, r.Values[:3]...)
		}
		return values
	}
	for i := range list {
		f := &list[i]
		same := fingerprint(first(1, f, 0))
		assert.Equal(t, same, fingerprint(first(1, f, 0)), f.Name)
		other := &list[(i+1)%len(list)]
		for _, x := range [][]float64{first(2, f, 0), first(1, f, 1), first(1, other, 0)} {
			assert.NotEqual(t, same, fingerprint(x), f.Name)
		}
	}
}

// fingerprint is the values to the bit: NaN is NaN.
func fingerprint(values []float64) []uint64 {
	bits := make([]uint64, len(values))
	for i, v := range values {
		bits[i] = math.Float64bits(v)
	}
	return bits
}

// TestCleanForm: without its faults a run is the same but for the losses.
func TestCleanForm(t *testing.T) {
	for _, f := range All() {
		t.Run(f.Name, func(t *testing.T) {
			slow, clean := f.run(3, 0, false), f.Play(3, 0, true)
			assert.Empty(t, clean.Faults)
			require.NotEmpty(t, slow.Faults)
			// The loss comes before the rounding.
			grid := slow.Model.Grid
			clean.Model.Grid = 0
			lost, last := 0, 0
			for i := range slow.Faults {
				last = max(last, slow.Faults[i].End)
			}
			for range min(last+10, slow.Ticks()) {
				require.True(t, slow.Next())
				require.True(t, clean.Next())
				if slow.Tick%7 > 0 && slow.Tick < last-10 {
					continue // each seventh tick is enough
				}
				for i, v := range slow.Values {
					loss := 0.0
					if at := slow.nodes[i].fault; at != nil {
						loss = at.At(slow.Tick)
					}
					want := clean.Values[i] * (1 - loss)
					if grid > 0 {
						want = min(math.Round(want/grid)*grid, 1)
					}
					if math.IsNaN(v) {
						assert.True(t, math.IsNaN(clean.Values[i]))
					} else if math.Abs(want-v) > 1e-12 {
						t.Fatalf("tick %d, node %d: %g is not %g less %g", slow.Tick, i, v, clean.Values[i], loss)
					}
					if loss > 0 {
						lost++
					}
				}
			}
			assert.Positive(t, lost)
		})
	}
}
