// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newFleet(t testing.TB, cfg Config) *Fleet {
	t.Helper()
	cfg.Start = start
	f, err := New(cfg)
	require.NoError(t, err)
	return f
}

func TestTheSameSeedGivesTheSameBytes(t *testing.T) {
	cfg := Config{Nodes: 2, GPUs: 2, Seed: 7}
	a, b := newFleet(t, cfg), newFleet(t, cfg)
	cfg.Seed = 8
	other := newFleet(t, cfg)
	next := func(f *Fleet, i, tick int) []byte {
		out, err := f.Next(i, 1, start.Add(time.Duration(tick)*10*time.Second), nil)
		require.NoError(t, err)
		return out
	}
	for tick := range 30 {
		// The order of the nodes does not matter.
		a0, a1 := next(a, 0, tick), next(a, 1, tick)
		b1, b0 := next(b, 1, tick), next(b, 0, tick)
		assert.Equal(t, a0, b0)
		assert.Equal(t, a1, b1)
		assert.NotEqual(t, a0, next(other, 0, tick))
	}
	for _, id := range append(gpuIDs(a.metrics(1, 1, start)), gpuIDs(other.metrics(0, 1, start))...) {
		assert.NotContains(t, gpuIDs(a.metrics(0, 1, start)), id, "GPUs of other nodes and other seeds are others")
	}
}

// A job that ends leaves its nodes at rest for a while, without step times.
func TestJobsEnd(t *testing.T) {
	f := newFleet(t, Config{
		Nodes: 2, GPUs: 1, Seed: 1, Raw: true, Runs: 20 * time.Minute, Pause: 5 * time.Minute,
	})
	reports := map[int]int{} // by how many resources they are of
	for tick := range 6 * 60 {
		for i := range 2 {
			reports[f.metrics(i, 1, start.Add(time.Duration(tick)*10*time.Second)).ResourceMetrics().Len()]++
		}
	}
	assert.Greater(t, reports[1], 40, "the receiver's alone")
	assert.Greater(t, reports[2], 400, "with the step time")
	assert.Len(t, reports, 2)
}
