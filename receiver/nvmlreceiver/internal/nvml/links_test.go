// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
)

// TestHealthyModelsFailNoCall: where a list ends, and what a model does not have, is no
// failure, in the first poll, in slow ones and in others.
func TestHealthyModelsFailNoCall(t *testing.T) {
	profiles := maps.Clone(fakenvml.Profiles)
	profiles["another code for an empty slot"] = func(gpus int) *fakenvml.State {
		return fakenvml.NewA100MIG(gpus).SetGPU(0, "call.nvmlDeviceGetMigDeviceHandleByIndex.return", int(InvalidArgument))
	}
	for model, profile := range profiles {
		t.Run(model, func(t *testing.T) {
			for _, interval := range []time.Duration{time.Nanosecond, time.Hour} {
				var failed []string
				failure := func(function string, code Code) { failed = append(failed, function+" "+code.String()) }
				a := openFake(t, profile(1), func(c *Config) {
					c.SlowInterval, c.Activity, c.Detail, c.PerLink = interval, true, true, true
					c.Library = NewLibrary(fakenvml.Library(t), failure, nil)
				})
				for range 3 {
					a.poll()
				}
				require.NoError(t, a.Close(time.Minute))
				assert.Empty(t, failed)
			}
		})
	}
}

// TestLinksFabricAndProcessesAtEachPoll: a link that went, a fabric that was
// left and a process that ended are seen by the next poll, not a minute later.
func TestLinksFabricAndProcessesAtEachPoll(t *testing.T) {
	for name, field := range map[string]int{"by field": 1, "by call": 0} {
		t.Run(name, func(t *testing.T) {
			state := fakenvml.NewH100(1).SetGPU(0, "nvlink.state.field", field).SetGPU(0, "nvlink.6.up", 1+field) // 2: asleep, it is up
			a := openFake(t, state, func(c *Config) { c.SlowInterval, c.PerLink = time.Hour, true })
			s := a.poll()[fakenvml.UUID(0)]
			n := gpuhealth.Some[uint32]
			assert.Equal(t, [2]gpuhealth.Opt[uint32]{n(18), n(0)}, [2]gpuhealth.Opt[uint32]{s.NVLink.Up, s.NVLink.Down})

			state.SetGPU(0, "nvlink.5.up", 0).SetGPU(0, "fabric.state", 2).SetGPU(0, "processes.compute", 7)
			a.rewrite()
			s = a.poll()[fakenvml.UUID(0)]
			assert.Equal(t, [2]gpuhealth.Opt[uint32]{n(17), n(1)}, [2]gpuhealth.Opt[uint32]{s.NVLink.Up, s.NVLink.Down})
			assert.Equal(t, gpuhealth.Some(false), s.NVLink.PerLink[5].Up)
			assert.Equal(t, gpuhealth.Some(gpuhealth.FabricInProgress), s.Fabric.State)
			assert.Equal(t, gpuhealth.Some[float64](7), s.Numbers[reading.Processes])
			assert.Equal(t, []uint32{1000, 1001, 1002, 1003, 1004, 1005, 1006}, s.PIDs)

			state.SetGPU(0, "nvlink.5.up", 1)
			a.rewrite()
			s = a.poll()[fakenvml.UUID(0)]
			assert.Equal(t, [2]gpuhealth.Opt[uint32]{n(18), n(0)}, [2]gpuhealth.Opt[uint32]{s.NVLink.Up, s.NVLink.Down})
			assert.Empty(t, a.rejected)

			// An impossible state costs the count: it would be a link short.
			state.SetGPU(0, "nvlink.5.up", 3)
			a.rewrite()
			s = a.poll()[fakenvml.UUID(0)]
			assert.False(t, s.NVLink.Up.OK || s.NVLink.Down.OK || s.NVLink.PerLink[5].Up.OK)
			assert.Equal(t, gpuhealth.Some(true), s.NVLink.PerLink[6].Up)
			assert.Equal(t, map[string][]gpuhealth.Field{s.UUID: {gpuhealth.FieldNVLinks}}, a.rejected)
		})
	}
}

// TestLinksAreCountedOnce by the calls that slow polls cost: the links of a
// handle are counted once, unless the GPU was in trouble.
func TestLinksAreCountedOnce(t *testing.T) {
	calls := filepath.Join(t.TempDir(), "calls")
	t.Setenv("FAKENVML_CALLS", calls)
	const function = "nvmlDeviceGetNvLinkState"
	state := fakenvml.NewH100(1).SetGPU(0, "call."+function+".return", int(Unknown))
	a := openFake(t, state, func(c *Config) { c.SlowInterval = time.Nanosecond })
	asked := func() (int, gpuhealth.Opt[uint32]) {
		require.NoError(t, os.Truncate(calls, 0))
		s := a.poll()[fakenvml.UUID(0)]
		text, err := os.ReadFile(calls)
		require.NoError(t, err)
		return strings.Count(string(text), function), s.NVLink.Up
	}
	a.poll()
	_, up := asked()
	assert.Equal(t, gpuhealth.Opt[uint32]{}, up, "no link is known to be up while the calls fail")

	state.DeleteGPU(0, "call."+function+".return")
	a.rewrite()
	n, up := asked()
	assert.Equal(t, 18+1, n)
	assert.Equal(t, gpuhealth.Some[uint32](18), up)
	for range 2 {
		n, up = asked()
		assert.Zero(t, n)
		assert.Equal(t, gpuhealth.Some[uint32](18), up)
	}

	// A new handle may have others, and one that has no state is not counted.
	state.Set("driver.epoch", 1).SetGPU(0, "nvlink.links", 12).SetGPU(0, "nvlink.5.up", "none")
	a.rewrite()
	for _, want := range []int{12 + 1 + 1, 1, 1} {
		n, up = asked()
		assert.Equal(t, want, n)
		assert.Equal(t, gpuhealth.Some[uint32](11), up)
	}
}

// TestFabricIsNotAskedForInVain: a GPU without one is asked with the slow
// readings only.
func TestFabricIsNotAskedForInVain(t *testing.T) {
	calls := filepath.Join(t.TempDir(), "calls")
	t.Setenv("FAKENVML_CALLS", calls)
	for interval, want := range map[time.Duration]int{time.Hour: 0, time.Nanosecond: 3} {
		a := openFake(t, fakenvml.NewT4(1), func(c *Config) { c.SlowInterval = interval })
		a.poll()
		require.NoError(t, os.Truncate(calls, 0))
		a.poll()
		text, err := os.ReadFile(calls)
		require.NoError(t, err)
		assert.Equal(t, want, strings.Count(string(text), "GpuFabricInfo"))
		require.NoError(t, a.Close(time.Minute))
	}
}
