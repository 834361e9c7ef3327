// SPDX-License-Identifier: Apache-2.0

package fakenvml

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// State is the text that the library answers from.
type State struct {
	values map[string]string
	xids   []string
}

// NewState returns the state of a healthy node with the given number of GPUs
// in the likeness of an H100, no two of them alike.
func NewState(gpus int) *State {
	s := &State{values: map[string]string{}}
	s.Set("driver.loaded", 1).Set("driver.version", "570.86.15").Set("cuda.version", 12080).Set("count", gpus)
	for i := range gpus {
		s.setAll(i, map[string]any{
			"uuid":   UUID(i),
			"name":   "NVIDIA H100 80GB HBM3",
			"serial": fmt.Sprintf("16524220%05d", i+1),
			"vbios":  "96.00.89.00.01",
			"pci":    fmt.Sprintf("00000000:%02X:00.0", 0x1B+i*0x10),

			"memory.total": uint64(80) << 30, "memory.used": uint64(60+i) << 30, "memory.reserved": uint64(512) << 20,
			"utilization.gpu": 90 + i%10, "utilization.memory": 40, "utilization.encoder": 0, "utilization.decoder": 0,
			"temperature": 45 + i, "temperature.memory": 55 + i,
			"power": 350_000 + 1_250*i, "power.limit": 700_000, "power.limit.max": 700_000, "energy": 1_000_000_500 + i,
			"clock.graphics": 1980, "clock.sm": 1980, "clock.memory": 2619, "clock.video": 1545,
			"clock.max.graphics": 1980, "clock.max.sm": 1980, "clock.max.memory": 2619, "clock.max.video": 1545,
			"ecc.corrected.volatile": 0, "ecc.corrected.aggregate": i, "ecc.uncorrected.volatile": 0, "ecc.uncorrected.aggregate": 0,
			"throttle": "0x0",
		})
	}
	return s
}

// UUID is the UUID that NewState gives to the GPU.
func UUID(gpu int) string {
	return fmt.Sprintf("GPU-00000000-0000-4000-8000-%012d", gpu)
}

// Set sets a key of the node.
func (s *State) Set(key string, value any) *State {
	s.values[key] = fmt.Sprint(value)
	return s
}

// Delete removes keys of the node. A reading whose key is not there is not supported.
func (s *State) Delete(keys ...string) *State {
	for _, key := range keys {
		delete(s.values, key)
	}
	return s
}

// SetGPU sets a key of the GPU.
func (s *State) SetGPU(gpu int, key string, value any) *State {
	return s.Set(gpuKey(gpu, key), value)
}

func (s *State) setAll(gpu int, values map[string]any) {
	for key, value := range values {
		s.SetGPU(gpu, key, value)
	}
}

// DeleteGPU removes keys of the GPU.
func (s *State) DeleteGPU(gpu int, keys ...string) *State {
	for _, key := range keys {
		s.Delete(gpuKey(gpu, key))
	}
	return s
}

// XID adds an Xid event, which goes to the event sets that exist by then.
func (s *State) XID(gpu, code int) *State {
	s.xids = append(s.xids, fmt.Sprintf("xid %d %d", gpu, code))
	return s
}

func gpuKey(gpu int, key string) string { return fmt.Sprintf("gpu.%d.%s", gpu, key) }

// String is the text of the state file.
func (s *State) String() string {
	lines := make([]string, 0, len(s.values)+len(s.xids))
	for key, value := range s.values {
		lines = append(lines, key+" "+value)
	}
	slices.Sort(lines)
	return strings.Join(append(lines, s.xids...), "\n") + "\n"
}

// Write replaces the file in one step, so that the library never sees half of it.
func (s *State) Write(path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".fakenvml-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone already when all went well
	_, err = f.WriteString(s.String())
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// Install writes the state to a file of the test and points the library to it,
// from its next nvmlInit on. The function it returns writes the state again.
func (s *State) Install(tb testing.TB) (update func()) {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "state")
	update = func() {
		tb.Helper()
		if err := s.Write(path); err != nil {
			tb.Fatalf("cannot write the state of the fake NVML library: %v", err)
		}
	}
	update()
	tb.Setenv(StateEnv, path)
	return update
}
