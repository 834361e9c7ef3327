// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
)

// allocates is what the polls made the process allocate, which a list that is
// as long as the driver claims would be seen in.
func (a *abi) allocates(polls int) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range polls {
		a.poll()
	}
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestListsOfAnyLength: no list is read that is as long as the driver claims, nor
// is the buffer for it grown until the driver is content.
func TestListsOfAnyLength(t *testing.T) {
	const enough = 1 << 20
	lists := map[string]struct {
		key  string
		call function
	}{
		"compute":  {"processes.compute", fnCompute},
		"graphics": {"processes.graphics", fnGraphics},
		"sbe":      {"retired.sbe", fnRetiredPages},
		"dbe":      {"retired.dbe", fnRetiredPages},
		"slices":   {"mig.places", fnMIGCount},
	}
	sound := func() *fakenvml.State {
		return fakenvml.NewH100(2).SetGPU(0, "retired.sbe", 1).SetGPU(0, "retired.dbe", 1).SetGPU(0, "mig.mode", 1).SetGPU(0, "mig.places", 7)
	}
	for name, list := range lists {
		t.Run(name, func(t *testing.T) {
			for _, n := range []uint32{1<<32 - 1, 1 << 31, 100_000_000} {
				t.Run(strconv.Itoa(int(n)), func(t *testing.T) {
					a := openFake(t, sound().SetGPU(0, list.key, n), nil)
					require.Less(t, a.allocates(2), uint64(enough))
					s := a.poll()[fakenvml.UUID(0)]
					require.True(t, s.Up())
					require.NotEmpty(t, a.rejected[s.UUID])
				})
			}
		})
		t.Run(name+" too small", func(t *testing.T) {
			// The driver's answer on the buffer, whatever its size.
			failures := map[string]int{}
			a := openFake(t, sound().SetGPU(0, "call."+functions[list.call].symbols[0]+".return", 7), func(c *Config) {
				c.Library = NewLibrary(fakenvml.Library(t), func(function string, code Code) {
					if code == 7 {
						failures[function]++
					}
				}, nil)
			})
			require.Less(t, a.allocates(2), uint64(enough))
			assert.Equal(t, gpuhealth.ReasonOK, a.poll()[fakenvml.UUID(0)].Reason)
			assert.Positive(t, failures[functions[list.call].symbols[0]])
		})
	}
	t.Run("counts", func(t *testing.T) {
		s := openFake(t, sound().SetGPU(0, "processes.compute", 5).SetGPU(0, "retired.dbe", 3).SetGPU(0, "processes.graphics", 0), nil).poll()[fakenvml.UUID(0)]
		assert.Equal(t, gpuhealth.Some[float64](5), s.Numbers[reading.Processes])
		assert.Equal(t, gpuhealth.Some[float64](0), s.Numbers[reading.GraphicsProcesses])
		assert.Equal(t, gpuhealth.Some[float64](3), s.Numbers[reading.RetiredDBE])
		assert.Equal(t, gpuhealth.Some[float64](1), s.Numbers[reading.RetiredSBE])
	})
}

// TestCountOfGPUsThatCannotBe neither ends the process nor what is read of the
// GPUs that are there.
func TestCountOfGPUsThatCannotBe(t *testing.T) {
	state := fakenvml.NewH100(2).Set("count", uint32(1<<32-1))
	a := openFake(t, state, nil)
	assert.Empty(t, a.poll())
	state.Set("count", 2)
	a.rewrite()
	require.Len(t, a.poll(), 2)
	state.Set("count", 1<<30)
	a.rewrite()
	r := a.Poll(t.Context())
	require.ErrorIs(t, r.Err, ErrDriver)
	for _, s := range r.Samples {
		assert.True(t, s.Up(), "the GPUs answer")
	}
}
