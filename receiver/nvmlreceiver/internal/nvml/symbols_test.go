// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
)

// The linker binds a symbol once per process. A call of a missing symbol ends the
// process (exit status 127). So each library has a process of its own.

func init() { child = pollOnce }

// childReport is what the child found with the library that it was given.
type childReport struct {
	Samples      []gpuhealth.Sample
	Unidentified int
	Err          string
}

// installEnv lists libraries that the child moves to the path of its own, one
// before each further poll.
const installEnv = "NVML_TEST_INSTALL"

func pollOnce(path string) error {
	p := NewPoller(Config{
		Library: NewLibrary(path, nil, nil), Deadline: time.Minute, Retry: time.Nanosecond,
		OnXid: func(gpuhealth.XidEvent) {}, Activity: true, PerLink: true,
	})
	reports := json.NewEncoder(os.Stdout)
	report := func() error {
		p.Poll(context.Background()) // GPM's activity takes two samples
		r := p.Poll(context.Background())
		out := childReport{Samples: r.Samples}
		for i := range r.NoReadings {
			if r.NoReadings[i].UUID == "" {
				out.Unidentified++
			}
		}
		if r.Err != nil {
			out.Err = r.Err.Error()
		}
		return reports.Encode(out)
	}
	err := report()
	for _, library := range filepath.SplitList(os.Getenv(installEnv)) {
		err = errors.Join(err, os.Rename(library, path), report())
	}
	return errors.Join(err, p.Close(time.Minute))
}

// runChild returns what the child found, for each of its libraries.
func runChild(ctx context.Context, state, library string, install ...string) ([]childReport, error) {
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+library, fakenvml.StateEnv+"="+state,
		installEnv+"="+strings.Join(install, string(filepath.ListSeparator)))
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	reports := make([]childReport, 1+len(install))
	decoder := json.NewDecoder(bytes.NewReader(out))
	for i := range reports {
		err = errors.Join(err, decoder.Decode(&reports[i]))
	}
	return reports, err
}

// readings are the values that are there, by GPU and the path of their fields.
func readings(t *testing.T, samples []gpuhealth.Sample) map[string]any {
	t.Helper()
	found := map[string]any{}
	var walk func(path string, node any)
	walk = func(path string, node any) {
		switch node := node.(type) {
		case map[string]any:
			if ok, is := node["OK"].(bool); is {
				if ok {
					found[path] = node["V"]
				}
				return
			}
			for k, v := range node {
				walk(path+"."+k, v)
			}
		case []any:
			for i, v := range node {
				walk(fmt.Sprintf("%s[%d]", path, i), v)
			}
		case nil:
		default:
			if node != "" {
				found[path] = node
			}
		}
	}
	for _, s := range samples {
		s.Cached = false // which poll it was is no reading
		text, err := json.Marshal(s)
		require.NoError(t, err)
		var tree any
		require.NoError(t, json.Unmarshal(text, &tree))
		walk(s.UUID, tree)
	}
	return found
}

// Without these there is nothing to report of any GPU.
var essential = []function{fnInit, fnDeviceCount, fnDeviceByIndex, fnUUID}

// answeredFor has the calls that another call replaces, and the readings that are
// lost nevertheless.
var answeredFor = map[string]string{
	"nvmlDeviceGetMemoryInfo_v2":                fmt.Sprintf(`\.Numbers\[%d\]$`, reading.MemoryReserved),
	"nvmlDeviceGetTemperatureV":                 `^$`,
	"nvmlDeviceGetCurrentClocksEventReasons":    `^$`,
	"nvmlDeviceGetGpuFabricInfoV":               `\.Fabric\.(Conditions|Summary)`,
	"nvmlDeviceGetMemoryInfo":                   `^$`,
	"nvmlDeviceGetTemperature":                  `^$`,
	"nvmlDeviceGetCurrentClocksThrottleReasons": `^$`,
	"nvmlDeviceGetGpuFabricInfo":                `^$`,
	"nvmlDeviceGetPowerUsage":                   `^$`,
}

// older is a driver of about the year 2016: what is left is the first version
// of a call, and no call that is younger.
func older() []string {
	young := append([]function{
		fnFieldValues, fnMargin, fnSRAM, fnRemappedRows, fnMIGMode, fnMIGCount, fnMIGDevice, fnGPUInstance, fnComputeInstance,
		fnGSPMode, fnConfidential, fnFabric, fnCUDAVersion, fnEnergy, fnGPMSupport, fnGPMAlloc, fnGPMFree, fnGPMSample, fnGPMSliceSample, fnGPMMetrics,
	}, newer...)
	var without []string
	for fn, f := range functions {
		if slices.Contains(young, function(fn)) {
			without = append(without, f.symbols...)
		} else {
			without = append(without, f.symbols[:len(f.symbols)-1]...)
		}
	}
	return without
}

// bare has nothing but what is essential.
func bare() []string {
	var without []string
	for fn, f := range functions {
		if !slices.Contains(essential, function(fn)) {
			without = append(without, f.symbols...)
		}
	}
	return without
}

type variant struct {
	fn      function
	whole   bool // no version of the function is left
	without []string
	report  childReport
	err     error
}

// TestEverySymbolMayBeMissing takes each symbol of the guard's table out of
// the library, each version by itself and all versions of a function.
func TestEverySymbolMayBeMissing(t *testing.T) {
	state := fakenvml.NewH100(2).SetGPU(0, "retired.sbe", 1).SetGPU(0, "retired.dbe", 2).SetGPU(0, "retired.pending", 0).
		SetGPU(0, "mig.mode", 1).SetGPU(0, "mig.places", 1).Slice(0, 0, 2, 0, "3g.40gb", 40<<30).SetGPU(0, "mig.0.gpm.2", 25)
	for i := range 2 { // what the old calls do not separate
		state.SetGPU(i, "memory.reserved", 0).SetGPU(i, "power", 350_000).SetGPU(i, "field.186", 350_000)
	}
	path := filepath.Join(t.TempDir(), "state")
	require.NoError(t, state.Write(path))
	reports, err := runChild(t.Context(), path, fakenvml.Library(t))
	require.NoError(t, err)
	whole := reports[0]
	require.Empty(t, whole.Err)
	require.Len(t, whole.Samples, 3)
	all := readings(t, whole.Samples)

	variants := []*variant{{without: older(), fn: -1}, {without: bare(), fn: -1}}
	for fn, f := range functions {
		variants = append(variants, &variant{fn: function(fn), whole: true, without: f.symbols})
		for _, s := range f.symbols {
			if len(f.symbols) > 1 {
				variants = append(variants, &variant{fn: function(fn), without: []string{s}})
			}
		}
	}
	// A child mostly waits for its wait for events.
	var wait sync.WaitGroup
	running := make(chan struct{}, 16)
	for _, v := range variants {
		library := fakenvml.LibraryWithout(t, v.without...)
		running <- struct{}{}
		wait.Go(func() {
			defer func() { <-running }()
			reports, err := runChild(t.Context(), path, library)
			if v.err = err; err == nil {
				v.report = reports[0]
			}
		})
	}
	wait.Wait()

	for _, v := range variants {
		t.Run(strings.Join(v.without[:min(3, len(v.without))], "+"), func(t *testing.T) {
			require.NoError(t, v.err, "the process has to survive")
			if v.whole && slices.Contains(essential, v.fn) {
				assert.Empty(t, v.report.Samples)
				assert.True(t, v.report.Err != "" || v.report.Unidentified == 2, "it is reported that nothing is known")
				return
			}
			assert.Empty(t, v.report.Err)
			gpus := 0
			for _, s := range v.report.Samples {
				assert.Equal(t, gpuhealth.ReasonOK, s.Reason)
				if s.Parent == "" {
					gpus++
				}
			}
			assert.Equal(t, 2, gpus)
			have := readings(t, v.report.Samples)
			lost := 0
			for reading, value := range all {
				got, ok := have[reading]
				switch {
				case ok:
					assert.Equal(t, value, got, reading)
				case v.fn >= 0 && !v.whole:
					assert.Fail(t, "another version of the call would have it", reading)
				case v.fn >= 0 && answeredFor[v.without[0]] != "":
					assert.Regexp(t, answeredFor[v.without[0]], reading, "lost")
				default:
					lost++
				}
			}
			if v.fn >= 0 {
				assert.Less(t, lost, len(all)/2)
			}
		})
	}
	for _, s := range variants[0].report.Samples {
		// The readings of the first drivers are there.
		for name, there := range map[string]bool{
			"memory": s.Numbers[reading.MemoryUsed].OK, "temperature": s.Numbers[reading.Temperature].OK, "power": s.Numbers[reading.Power].OK, "clock": s.Numbers[reading.GraphicsClock].OK,
			"utilization": s.Numbers[reading.Utilization].OK || s.Index == 0, "throttle": s.Throttle.OK, "ecc": s.ECC[1][1].OK, "pcie": s.Numbers[reading.PCIeWidth].OK,
			"processes": s.Numbers[reading.Processes].OK && s.Numbers[reading.Processes].V == float64(len(s.PIDs)), "address": s.PCIBusID != "",
			"links": s.NVLink.Up.OK || s.Parent != "",
		} {
			assert.True(t, there, "%s of GPU %d", name, s.Index)
		}
	}
}

// TestFabricOfOlderDrivers: V3 has a summary, V2 the conditions, V1 the state.
func TestFabricOfOlderDrivers(t *testing.T) {
	state := fakenvml.NewH100(1)
	a := openFake(t, state, func(c *Config) { c.SlowInterval = time.Nanosecond })
	v3 := a.poll()[fakenvml.UUID(0)].Fabric
	require.True(t, v3.Summary.OK)
	require.Equal(t, gpuhealth.Some(false), v3.Failed)

	state.SetGPU(0, "fabric.status", 999).SetGPU(0, "fabric.mask", 0xAA|1<<8|2<<12)
	a.rewrite()
	bad := a.poll()[fakenvml.UUID(0)].Fabric
	assert.Equal(t, gpuhealth.Some(true), bad.Failed)
	assert.Equal(t, gpuhealth.Some(true), bad.Conditions[gpuhealth.FabricNoPartition])
	state.SetGPU(0, "fabric.state", 2)
	a.rewrite()
	assert.False(t, a.poll()[fakenvml.UUID(0)].Fabric.Failed.OK, "it has yet to join")

	state.SetGPU(0, "fabric.state", 3).SetGPU(0, "fabric.status", 0).SetGPU(0, "fabric.mask", 0xAA|1<<8|1<<12).SetGPU(0, "fabric.version", 2)
	a.rewrite()
	want := v3
	want.Summary = gpuhealth.Opt[gpuhealth.FabricSummary]{}
	assert.Equal(t, want, a.poll()[fakenvml.UUID(0)].Fabric)

	state.SetGPU(0, "call.nvmlDeviceGetGpuFabricInfoV.return", int(NotSupported))
	a.rewrite()
	assert.Equal(t, gpuhealth.Fabric{State: v3.State, Failed: v3.Failed}, a.poll()[fakenvml.UUID(0)].Fabric)
}

// TestLibraryThatIsInstalledLater starts without a library, gets one, and has
// it replaced by another: what is loaded stays loaded.
func TestLibraryThatIsInstalledLater(t *testing.T) {
	dir := t.TempDir()
	state := filepath.Join(dir, "state")
	require.NoError(t, fakenvml.NewH100(2).Write(state))
	reports, err := runChild(t.Context(), state, filepath.Join(dir, "libnvidia-ml.so.1"),
		fakenvml.LibraryWithout(t), fakenvml.LibraryWithout(t, bare()...))
	require.NoError(t, err)
	assert.Contains(t, reports[0].Err, ErrLibraryNotFound.Error())
	assert.Empty(t, reports[0].Samples)
	assert.Empty(t, reports[1].Err)
	assert.Len(t, reports[1].Samples, 2)
	assert.Equal(t, reports[1], reports[2])
}
