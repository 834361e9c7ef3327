// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReportsThatKnowAPartEach move their node once, and it is judged.
func TestReportsThatKnowAPartEach(t *testing.T) {
	p := newPlain(t, nil)
	moves := int64(0)
	var r *Report
	for range 5 {
		for i, score := range []float64{1, 1, 0.3, 1, 1} {
			p.push("c", nodeName("n", i), []string{"J", "stage-0", ""}, StateActive, score)
			gpus := Observation{Cluster: "c", Node: nodeName("n", i), Peers: []string{"", "", "H100"}, Heartbeat: true}
			require.NoError(t, p.e.Observe(&gpus, p.now))
		}
		r = p.tick()
		moves += r.Counters.GroupChanges
	}
	assert.EqualValues(t, 5, moves)
	assert.Equal(t, 5, groupOf(t, r, "c", "J/stage-0/H100").Counts[StateActive])
	assert.Equal(t, []string{nodeName("n", 2)}, stragglers(r))
}
