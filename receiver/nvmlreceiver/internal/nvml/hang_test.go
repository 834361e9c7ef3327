// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"context"
	"errors"
	"os"
	"reflect"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
)

// newer are the calls that stand for an older one.
var newer = []function{fnMemoryV2, fnTemperatureV, fnClockEvents, fnFabricV}

// everything is a node on which a new handle makes every call of the guard's
// table: the newer calls are not supported, so that the older ones are made too.
func everything(gpus int) *fakenvml.State {
	state := fakenvml.NewH100(gpus)
	for i := range gpus {
		state.SetGPU(i, "mig.mode", 1).SetGPU(i, "mig.places", 1).Slice(i, 0, 2, 0, "3g.40gb", 40<<30)
		state.DeleteGPU(i, "field.186") // GetPowerUsage answers where it does not
		for _, fn := range newer {
			state.SetGPU(i, "call."+functions[fn].symbols[0]+".return", int(NotSupported))
		}
	}
	return state
}

// guardedCalls are the symbols that go-nvml calls on a GPU, or those that it calls on
// none, from the guard's table: a new entry is a new case.
func guardedCalls(ofGPU bool) []string {
	device := reflect.TypeFor[gonvml.Device]()
	var symbols []string
	for fn, f := range functions {
		_, is := device.MethodByName(f.method)
		if (is || function(fn) == fnDeviceByIndex) == ofGPU {
			symbols = append(symbols, f.symbols[0])
		}
	}
	return symbols
}

// hangs are the calls that the library was seen to hang in, in order.
func (a *abi) hangs() []string {
	a.Helper()
	text, err := os.ReadFile(a.trace)
	require.NoError(a, err)
	var hangs []string
	for line := range strings.Lines(string(text)) {
		if call, ok := strings.CutPrefix(strings.TrimSpace(line), "hang "); ok {
			hangs = append(hangs, call)
		}
	}
	slices.Sort(hangs)
	return hangs
}

func (a *abi) reasons(samples map[string]gpuhealth.Sample) map[string]gpuhealth.Reason {
	out := map[string]gpuhealth.Reason{}
	for uuid, s := range samples {
		out[uuid] = s.Reason
	}
	return out
}

// pollUntil polls with deadlines that double until a report holds: on a busy machine a
// short one cuts GPUs off that answer. poller_test holds Poll to its deadline. After it a poll
// that waits for a call that hangs would not end.
func (a *abi) pollUntil(holds func() bool) {
	deadline := 100 * time.Millisecond
	for a.cfg.Deadline = deadline; !holds(); a.cfg.Deadline = deadline {
		deadline = min(2*deadline, time.Minute)
	}
	a.cfg.Deadline = time.Hour
}

// settled waits for what hung at the close to be given back.
func (a *abi) settled() {
	a.Helper()
	require.Eventually(a, func() bool {
		text, err := os.ReadFile(a.trace)
		return err == nil && strings.Count(string(text), "init\n") == strings.Count(string(text), "shutdown\n")
	}, time.Minute, time.Millisecond)
}

// TestEveryCallOfAGPUMayHang lets each call on a GPU hang on one GPU, sixteen of
// them at a time beside eight GPUs that answer.
func TestEveryCallOfAGPUMayHang(t *testing.T) {
	const healthy = 8
	fakenvml.LibraryWithout(t, guardedCalls(true)...) // fails on a call that the fake does not have, which cannot hang
	for hanging := range slices.Chunk(guardedCalls(true), 16) {
		t.Run(hanging[0], func(t *testing.T) {
			gpus := healthy + len(hanging)
			state := everything(gpus)
			a := openFake(t, state, func(c *Config) { c.Activity, c.PerLink = true, true })
			want, all, entered := map[string]gpuhealth.Reason{}, map[string]gpuhealth.Reason{}, []string{}
			for i := range gpus {
				all[fakenvml.UUID(i)], all[fakenvml.SliceUUID(i, 0)] = gpuhealth.ReasonOK, gpuhealth.ReasonOK
				want[fakenvml.UUID(i)], want[fakenvml.SliceUUID(i, 0)] = gpuhealth.ReasonOK, gpuhealth.ReasonOK
				if i >= healthy {
					want[fakenvml.UUID(i)], want[fakenvml.SliceUUID(i, 0)] = gpuhealth.ReasonHang, gpuhealth.ReasonHang
					entered = append(entered, strconv.Itoa(i)+" "+hanging[i-healthy])
				}
			}
			slices.Sort(entered)
			// A GPU that was lost and is back has a new handle, which makes every call.
			hang := func() {
				t.Helper()
				for i := healthy; i < gpus; i++ {
					state.SetGPU(i, "present", 0)
				}
				a.rewrite()
				a.poll()
				for i, call := range hanging {
					state.SetGPU(healthy+i, "present", 1).SetGPU(healthy+i, "hang", call)
				}
				a.rewrite()
			}
			release := func() {
				for i := range hanging {
					state.DeleteGPU(healthy+i, "hang")
				}
				a.rewrite()
			}

			a.poll()
			before := a.poll() // GPM's activity takes two samples
			require.Equal(t, all, a.reasons(before))
			hang()
			var during map[string]gpuhealth.Sample
			a.pollUntil(func() bool {
				during = a.poll()
				return assert.ObjectsAreEqual(want, a.reasons(during)) && assert.ObjectsAreEqual(entered, a.hangs())
			})
			for i := range healthy {
				assert.Equal(t, before[fakenvml.UUID(i)], during[fakenvml.UUID(i)])
				assert.Equal(t, before[fakenvml.SliceUUID(i, 0)], during[fakenvml.SliceUUID(i, 0)])
			}

			// Once known, a hang holds no poll up, and is not repeated.
			goroutines, threads := runtime.NumGoroutine(), pprof.Lookup("threadcreate").Count()
			const more = 20
			for range more {
				require.Equal(t, want, a.reasons(a.poll()))
			}
			assert.Equal(t, entered, a.hangs(), "one thread for each GPU")
			assert.LessOrEqual(t, runtime.NumGoroutine(), goroutines)
			// Each GPU that answers may need a thread, and the runtime some of its own.
			assert.Less(t, pprof.Lookup("threadcreate").Count()-threads, more)

			release()
			require.Eventually(t, func() bool { return assert.ObjectsAreEqual(all, a.reasons(a.poll())) }, time.Minute, time.Millisecond)

			hang()
			polled := make(chan struct{})
			go func() { defer close(polled); a.Poll(t.Context()) }()
			require.Eventually(t, func() bool { return len(a.hangs()) == 2*len(hanging) }, time.Minute, time.Millisecond)
			require.ErrorIs(t, a.Close(10*time.Millisecond), ErrHang, "and returns, though the calls do not")
			<-polled
			release()
			a.settled()
		})
	}
}

// TestEveryCallOfTheNodeMayHang lets each call that concerns no GPU hang in
// one thread, while GPUs are read, lost, found and the driver is replaced.
func TestEveryCallOfTheNodeMayHang(t *testing.T) {
	const gpus = 3
	for _, call := range guardedCalls(false) {
		t.Run(call, func(t *testing.T) {
			state := everything(gpus).Set("hang.limit", 1)
			a := openFake(t, state, func(c *Config) {
				c.Activity, c.SlowInterval = true, time.Nanosecond
			})
			a.poll()
			all := a.reasons(a.poll())
			require.Len(t, all, 2*gpus)

			state.Set("hang", call)
			for _, change := range []func(){
				func() {},
				func() { state.SetGPU(1, "present", 0) },
				func() { state.SetGPU(1, "present", 1) },
				func() { state.Set("driver.epoch", 1) },
				func() { state.Set("driver.epoch", 2) },
			} {
				change()
				a.rewrite()
				a.pollUntil(func() bool {
					r := a.Poll(t.Context())
					require.Len(t, r.Samples, 2*gpus)
					hung := 0
					for _, s := range r.Samples {
						if s.Parent == "" && s.Reason == gpuhealth.ReasonHang {
							hung++
						}
					}
					return hung <= 1 || errors.Is(r.Err, ErrHang) // what hangs every GPU is the driver
				})
				if len(a.hangs()) > 0 {
					break
				}
			}
			a.pollUntil(func() bool {
				a.Poll(t.Context())
				return slices.Equal(a.hangs(), []string{"-1 " + call})
			})

			state.Delete("hang")
			state.SetGPU(1, "present", 1)
			a.rewrite()
			require.Eventually(t, func() bool { return assert.ObjectsAreEqual(all, a.reasons(a.poll())) }, time.Minute, time.Millisecond)

			state.Set("hang", call)
			a.rewrite()
			if err := a.Close(50 * time.Millisecond); err != nil {
				require.ErrorIs(t, err, ErrHang)
			}
			state.Delete("hang")
			a.rewrite()
			a.settled()
		})
	}
}

// TestReadingThatIsCutShort: what was not read by the deadline is not taken
// for what the GPU does not support.
func TestReadingThatIsCutShort(t *testing.T) {
	fakenvml.NewH100(1).Install(t)
	library := NewLibrary(fakenvml.Library(t), nil, nil)
	require.NoError(t, library.Open())
	require.Equal(t, Success, library.Init())
	defer library.Shutdown()
	device, code := library.Device(0)
	require.Equal(t, Success, code)
	var whole, cut, again Answer
	require.Equal(t, Success, device.Read(t.Context(), Request{}, &whole))
	late, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, Timeout, device.Read(late, Request{Slow: true}, &cut))
	require.Equal(t, Timeout, device.Read(late, Request{}, &cut))
	require.Equal(t, Success, device.Read(t.Context(), Request{}, &again))
	assert.Equal(t, whole, again, "the slow readings are whole again")
}
