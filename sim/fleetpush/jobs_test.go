// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
)

// A job that ends leaves its nodes at rest for a while, without step times.
func TestJobsEnd(t *testing.T) {
	f := newFleet(t, Config{
		Nodes: 2, GPUs: 1, Load: fleetsim.Training, Seed: 1, Raw: true, Runs: 20 * time.Minute, Pause: 5 * time.Minute,
	})
	reports := map[int]int{} // by how many resources they are of
	for tick := range 6 * 60 {
		for i := range 2 {
			b, err := f.Next(i, 1, start.Add(time.Duration(tick)*10*time.Second), nil)
			require.NoError(t, err)
			reports[decode(t, b).ResourceMetrics().Len()]++
		}
	}
	assert.Greater(t, reports[1], 40, "the receiver's alone")
	assert.Greater(t, reports[2], 400, "with the step time")
	assert.Len(t, reports, 2)
}

// A verdict finds each fault that its node has when the verdict begins. A verdict
// on a node without a fault is false.
func TestVerdictsAreOfTheirFault(t *testing.T) {
	const step = 10 * time.Second
	n := &node{troubles: []trouble{
		{fault: 3, from: time.Minute, until: 5 * time.Minute},
		{fault: 7, from: 20 * time.Minute},
	}}
	for _, tc := range []struct {
		at    time.Duration
		wrong int
		found [2]time.Duration
	}{
		{30 * time.Second, 1, [2]time.Duration{}},
		{2 * time.Minute, 1, [2]time.Duration{2 * time.Minute, 0}},
		{6 * time.Minute, 1, [2]time.Duration{2 * time.Minute, 0}}, // as it ends
		{10 * time.Minute, 2, [2]time.Duration{2 * time.Minute, 0}},
		{21 * time.Minute, 2, [2]time.Duration{2 * time.Minute, 21 * time.Minute}},
		{3 * time.Hour, 2, [2]time.Duration{2 * time.Minute, 21 * time.Minute}},
	} {
		n.began(tc.at, step)
		assert.Equal(t, tc.wrong, n.wrong, "at %s", tc.at)
		for i, found := range tc.found {
			assert.Equal(t, found, n.troubles[i].found, "at %s", tc.at)
		}
	}
}
