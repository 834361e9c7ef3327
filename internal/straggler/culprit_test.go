// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// TestALateCulpritIsToldOnce: an agent names a rank before or after the gateway's onset,
// takes the name back, or names another. The first name is told, and none twice.
func TestALateCulpritIsToldOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := newPlay(t, []string{"j"}, 8, nil)
		p.ticks(30)
		p.slow(0.15, 3)
		names := rapid.SliceOfN(rapid.SampledFrom([]nodesignal.Subject{{}, {}, {GPU: "GPU-1"}, {GPU: "GPU-2"}}), 1, 30).Draw(rt, "names")
		var told []Event
		for _, of := range names {
			o := Observation{Cluster: "c", Node: "j-03", Peers: []string{"j"}, HasState: true, State: StateActive}
			o.Culprit, o.HasCulprit = of, true
			require.NoError(rt, p.e.Observe(&o, p.now))
			told = append(told, p.ticks(1)...)
		}
		told = append(told, p.ticks(30)...)
		require.NotEmpty(rt, told)
		onset := told[0]
		require.Equal(rt, EventOnset, onset.Kind)
		require.Equal(rt, "j-03", onset.Node)
		named := onset.Culprit
		for _, ev := range told[1:] {
			assert.Equal(rt, onset.ID, ev.ID)
			if ev.Kind == EventUpdate {
				assert.Zero(rt, named, "it was named before")
				assert.NotZero(rt, ev.Culprit)
				named = ev.Culprit
			}
		}
		last := p.e.clusters["c"].nodes["j-03"].culprit
		if last != nil {
			assert.NotZero(rt, named, "a name that is known is told")
		}
	})
}
