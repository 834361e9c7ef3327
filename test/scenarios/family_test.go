// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"flag"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write testdata/families.txt anew")

// law is what a run of a family looks like: a law that changes shows in it.
type law struct {
	n, absent, lives   int
	sum, square, clock float64
	least, most        float64
}

func (l *law) tick(r *Run) {
	for i, v := range r.Values {
		if math.IsNaN(v) {
			l.absent++
			continue
		}
		l.n++
		l.sum, l.square, l.least, l.most = l.sum+v, l.square+v*v, min(l.least, v), max(l.most, v)
		if r.Clocks != nil {
			l.clock += r.Clocks[i]
		}
	}
}

func (l *law) String() string {
	n := float64(l.n)
	mean := l.sum / n
	return fmt.Sprintf("mean %.6g, deviation %.6g, from %.6g to %.6g, absent %.6g, lives %d, clock %.6g",
		mean, math.Sqrt(l.square/n-mean*mean), l.least, l.most, float64(l.absent)/(n+float64(l.absent)), l.lives, l.clock/n)
}

// TestCleanForm: without its faults a run is the same but for the losses, and its law is the
// one that testdata/families.txt shows.
func TestCleanForm(t *testing.T) {
	var laws strings.Builder
	for _, f := range All() {
		t.Run(f.Name, func(t *testing.T) {
			slow, clean := f.run(3, 0, false), f.Play(3, 0, true)
			assert.Empty(t, clean.Faults)
			require.NotEmpty(t, slow.Faults)
			// The loss comes before the rounding.
			grid := slow.Model.Grid
			clean.Model.Grid = 0
			lost, last, is := 0, 0, law{least: math.Inf(1)}
			for i := range slow.Faults {
				last = max(last, slow.Faults[i].End)
			}
			for range min(last+10, slow.Ticks()) {
				require.True(t, slow.Next())
				require.True(t, clean.Next())
				is.tick(slow)
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
			for _, life := range slow.Life {
				is.lives += int(life)
			}
			fmt.Fprintf(&laws, "%s: %d nodes, %d with a fault, %s\n", f.Name, slow.Model.Nodes, len(slow.Faults), &is)
		})
	}
	const file = "testdata/families.txt"
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(laws.String()), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, string(want), laws.String(), "-update takes a law that is another on purpose")
}
