// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package fakenvml

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func open(t *testing.T, state *State) (lib nvml.Interface, rewrite func()) {
	t.Helper()
	rewrite = state.Install(t)
	lib = nvml.New(nvml.WithLibraryPath(Library(t)))
	require.Equal(t, nvml.SUCCESS, lib.Init())
	t.Cleanup(func() { assert.Equal(t, nvml.SUCCESS, lib.Shutdown()) })
	return lib, rewrite
}

func TestStateIsReadAgain(t *testing.T) {
	state := NewState(2)
	lib, rewrite := open(t, state)
	gpu, ret := lib.DeviceGetHandleByIndex(1)
	require.Equal(t, nvml.SUCCESS, ret)
	uuid, ret := gpu.GetUUID()
	require.Equal(t, nvml.SUCCESS, ret)
	assert.Equal(t, UUID(1), uuid)

	for _, want := range []uint32{46, 80} {
		state.SetGPU(1, "temperature", want)
		rewrite()
		got, ret := gpu.GetTemperature(nvml.TEMPERATURE_GPU)
		require.Equal(t, nvml.SUCCESS, ret)
		assert.Equal(t, want, got)
	}

	state.SetGPU(1, "call.nvmlDeviceGetTemperature.return", int(nvml.ERROR_NO_PERMISSION))
	rewrite()
	_, ret = gpu.GetTemperature(nvml.TEMPERATURE_GPU)
	assert.Equal(t, nvml.ERROR_NO_PERMISSION, ret)

	state.SetGPU(1, "present", 0)
	rewrite()
	_, ret = gpu.GetUUID()
	assert.Equal(t, nvml.ERROR_GPU_IS_LOST, ret)
	_, ret = lib.DeviceGetHandleByIndex(1)
	assert.Equal(t, nvml.ERROR_GPU_IS_LOST, ret)
	n, ret := lib.DeviceGetCount()
	assert.Equal(t, nvml.SUCCESS, ret)
	assert.Equal(t, 2, n)
}

func TestDriverGoesAndComes(t *testing.T) {
	state := NewState(1)
	lib, rewrite := open(t, state)
	state.Set("driver.loaded", 0)
	rewrite()
	_, ret := lib.DeviceGetCount()
	assert.Equal(t, nvml.ERROR_DRIVER_NOT_LOADED, ret)
	state.Set("driver.loaded", 1)
	rewrite()
	_, ret = lib.DeviceGetCount()
	assert.Equal(t, nvml.ERROR_UNKNOWN, ret, "the old session does not see the new driver")
	require.Equal(t, nvml.SUCCESS, lib.Shutdown())
	require.Equal(t, nvml.SUCCESS, lib.Init())
	_, ret = lib.DeviceGetCount()
	assert.Equal(t, nvml.SUCCESS, ret)
}

func TestXidEvents(t *testing.T) {
	state := NewState(3).XID(2, 13) // from before the set existed
	lib, rewrite := open(t, state)
	set, ret := lib.EventSetCreate()
	require.Equal(t, nvml.SUCCESS, ret)
	defer func() { assert.Equal(t, nvml.SUCCESS, set.Free()) }()
	gpu, ret := lib.DeviceGetHandleByIndex(2)
	require.Equal(t, nvml.SUCCESS, ret)
	require.Equal(t, nvml.SUCCESS, gpu.RegisterEvents(nvml.EventTypeXidCriticalError, set))

	_, ret = set.Wait(1)
	require.Equal(t, nvml.ERROR_TIMEOUT, ret)

	state.XID(0, 31).XID(2, 79).XID(2, 79) // GPU 0 is not registered
	rewrite()
	for range 2 {
		event, ret := set.Wait(10_000)
		require.Equal(t, nvml.SUCCESS, ret)
		assert.EqualValues(t, 79, event.EventData)
		assert.EqualValues(t, nvml.EventTypeXidCriticalError, event.EventType)
		uuid, ret := event.Device.GetUUID()
		require.Equal(t, nvml.SUCCESS, ret)
		assert.Equal(t, UUID(2), uuid)
	}
	_, ret = set.Wait(1)
	assert.Equal(t, nvml.ERROR_TIMEOUT, ret)
}

func TestNoCompiler(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := Build(t.TempDir())
	require.ErrorIs(t, err, ErrNoCompiler)
}

func TestWriteLeavesNothingElse(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, NewState(1).Write(filepath.Join(dir, "state")))
	require.NoError(t, NewState(2).Write(filepath.Join(dir, "state")))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, entries, 1)
}
