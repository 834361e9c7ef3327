// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/straggler/unjudged"
)

// TestLockstepIsTold: nodes that all wait for the slowest have no verdict, and the reason
// says why. A noise of their own is none, whatever they do together, nor is standing still.
func TestLockstepIsTold(t *testing.T) {
	for name, tc := range map[string]struct {
		common, own float64
		want        unjudged.Reason
	}{
		"in lockstep":    {0.02, 0.0002, unjudged.Lockstep},
		"a common swing": {0.2, 0.015, unjudged.Judged},
		"standing still": {0, 0, unjudged.Judged},
		"small noise":    {0.0002, 0.0005, unjudged.Judged},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlay(t, []string{"j"}, 16, nil)
			draw, at, all := rand.New(rand.NewPCG(1, 2)), -1, 0.0
			p.loss = func(_ string, i int) float64 {
				if at != p.k {
					at, all = p.k, tc.common*draw.NormFloat64()
				}
				return 1 - 10*math.Exp(all+tc.own*draw.NormFloat64())/p.work(i)
			}
			p.ticks(50)
			assert.Equal(t, unjudged.Judged, p.node("j-03").Unjudged, "not known yet")
			p.ticks(250)
			g := groupOf(t, p.last, "c", "j")
			assert.Equal(t, 16, g.Unjudged[tc.want])
			assert.Equal(t, tc.want == unjudged.Lockstep, g.Detectable == 0)
			require.Equal(t, tc.want, p.node("j-03").Unjudged)
		})
	}
}
