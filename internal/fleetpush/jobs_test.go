// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/fleetsim"
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

func TestJobsNeedTimes(t *testing.T) {
	_, err := New(Config{Runs: time.Hour, Pause: -time.Second})
	assert.ErrorContains(t, err, "runs and pause are 1h0m0s and -1s, must not be negative")
}
