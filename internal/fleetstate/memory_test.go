// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// A view that changed has room for its own GPUs and no more: at 50,000 nodes a
// spare one for each would be 30 MB.
func TestViewsHaveNoRoomToSpare(t *testing.T) {
	const gpus = 8
	s := New(DefaultConfig())
	for report := range 2 {
		put(t, s, "c", "a", t0.Add(time.Duration(report)*time.Second), func(u *Update) {
			for g := range gpus {
				u.SetGPU(u.GPU(strconv.Itoa(g)), reading.Power, float64(report))
			}
		})
	}
	v, ok := s.Node(Key{"c", "a"}, t0)
	require.True(t, ok)
	require.Len(t, v.GPUs, gpus)
	assert.Equal(t, gpus, cap(v.GPUs))
}

// Every ten seconds a node's GPUs are looked through for those that are gone.
func TestNoGPUGoneAllocatesNothing(t *testing.T) {
	s, now := New(DefaultConfig()), t0
	report := func() {
		now = now.Add(gpuCheck)
		u, ok := s.Begin(Key{"c", "a"}, now)
		require.True(t, ok)
		for _, g := range [...]string{"0", "1", "2", "3"} {
			u.SetGPU(u.GPU(g), reading.Power, 1)
		}
		u.Commit(now)
	}
	report()
	assert.Zero(t, testing.AllocsPerRun(100, report))
}
