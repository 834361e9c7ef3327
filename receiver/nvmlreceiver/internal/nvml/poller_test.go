// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// child is what the test binary does instead of testing when childEnv names a
// library, nil where there is no NVML.
var child func(library string) error

const childEnv = "NVML_TEST_LIBRARY"

func TestMain(m *testing.M) {
	if library := os.Getenv(childEnv); child != nil && library != "" {
		if err := child(library); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

const (
	testDeadline = 3 * time.Second
	testRetry    = 30 * time.Second
)

// scripted is a Library whose answers a test writes.
type scripted struct {
	mu        sync.Mutex
	initCode  Code
	countCode Code
	gpus      []*scriptedGPU
	hangInit  chan struct{} // nvmlInit returns when it is closed
	hangCount chan struct{}

	events    chan gpuhealth.XidEvent // nil: there are none
	waitCode  Code
	registers []string
	freed     int
	freedBusy bool // an event set was freed under a wait

	inits, shutdowns, inFlight, waiting int
	shutdownInFlight                    bool // nvmlShutdown was called while a device call was in flight
}

type scriptedGPU struct {
	lib     *scripted
	uuid    string
	code    Code // of every call
	hang    chan struct{}
	entered int

	slow, closed int
	answered     time.Time
}

func script(n int) *scripted {
	s := &scripted{}
	for i := range n {
		s.gpus = append(s.gpus, &scriptedGPU{lib: s, uuid: "GPU-" + strconv.Itoa(i)})
	}
	return s
}

func (s *scripted) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (*scripted) Open() error { return nil }

func (s *scripted) Init() Code {
	s.mu.Lock()
	s.inits++
	hang := s.hangInit
	s.mu.Unlock()
	if hang != nil {
		<-hang
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.initCode
}

func (s *scripted) Shutdown() Code {
	s.set(func() {
		s.shutdowns++
		s.shutdownInFlight = s.shutdownInFlight || s.inFlight > 0 || s.waiting > 0
	})
	return Success
}

func (*scripted) Versions() (string, string) { return "570.1", "12.8" }

func (s *scripted) DeviceCount() (int, Code) {
	s.mu.Lock()
	hang := s.hangCount
	s.mu.Unlock()
	if hang != nil {
		<-hang
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.gpus), s.countCode
}

func (s *scripted) Device(i int) (Device, Code) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gpus[i].code != Success {
		return nil, s.gpus[i].code
	}
	return &scriptedDevice{index: i, gpu: s.gpus[i]}, Success
}

func (s *scripted) NewEvents() (Events, Code) {
	if s.events == nil {
		return nil, NotSupported
	}
	return scriptedEvents{s}, Success
}

type scriptedEvents struct{ lib *scripted }

func (e scriptedEvents) Register(_ Device, uuid string) Code {
	e.lib.set(func() { e.lib.registers = append(e.lib.registers, uuid) })
	return Success
}

func (e scriptedEvents) Wait(timeout time.Duration) (gpuhealth.XidEvent, Code) {
	s := e.lib
	s.mu.Lock()
	s.waiting++
	code := s.waitCode
	s.mu.Unlock()
	defer s.set(func() { s.waiting-- })
	if code != Success {
		return gpuhealth.XidEvent{}, code
	}
	select {
	case event := <-s.events:
		return event, Success
	case <-time.After(timeout):
		return gpuhealth.XidEvent{}, Timeout
	}
}

func (e scriptedEvents) Free() {
	e.lib.set(func() { e.lib.freed++; e.lib.freedBusy = e.lib.freedBusy || e.lib.waiting > 0 })
}

type scriptedDevice struct {
	index int
	gpu   *scriptedGPU
}

func (d *scriptedDevice) Identity() (gpuhealth.Identity, Code) {
	return gpuhealth.Identity{UUID: d.gpu.uuid, Index: d.index}, Success
}

func (d *scriptedDevice) Close() { d.gpu.lib.set(func() { d.gpu.closed++ }) }

func (d *scriptedDevice) Read(_ context.Context, request Request, r *Answer) Code {
	g := d.gpu
	g.lib.mu.Lock()
	if request.Slow {
		g.slow++
	}
	g.entered++
	g.lib.inFlight++
	hang, code := g.hang, g.code
	g.lib.mu.Unlock()
	if hang != nil {
		<-hang
	}
	g.lib.set(func() { g.lib.inFlight--; g.answered = time.Now() })
	r.Numbers[reading.Power] = gpuhealth.Some(100.0)
	return code
}

func poller(s *scripted) *Poller {
	return NewPoller(Config{Library: s, Deadline: testDeadline, Retry: testRetry})
}

func reasons(r Report) map[string]gpuhealth.Reason {
	out := map[string]gpuhealth.Reason{}
	for _, s := range r.Samples {
		out[s.UUID] = s.Reason
	}
	return out
}

func TestHangCostsOneGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := script(4)
		p := poller(s)
		p.Poll(t.Context())

		release := make(chan struct{})
		s.set(func() { s.gpus[2].hang = release })
		began := time.Now()
		r := p.Poll(t.Context())
		assert.Equal(t, testDeadline, time.Since(began))
		assert.Equal(t, map[string]gpuhealth.Reason{"GPU-0": "ok", "GPU-1": "ok", "GPU-2": "hang", "GPU-3": "ok"}, reasons(r))
		assert.Equal(t, gpuhealth.Readings{}, r.Samples[2].Readings)
		for _, g := range slices.Delete(slices.Clone(s.gpus), 2, 3) {
			assert.Equal(t, began, g.answered, "the others do not wait for it")
		}

		// Polls that follow neither wait for it again nor call it again.
		for range 5 {
			began = time.Now()
			assert.Equal(t, gpuhealth.ReasonHang, reasons(p.Poll(t.Context()))["GPU-2"])
			assert.Zero(t, time.Since(began))
		}
		assert.Equal(t, 2, s.gpus[2].entered)

		s.set(func() { s.gpus[2].hang = nil })
		close(release)
		synctest.Wait()
		assert.Equal(t, gpuhealth.ReasonOK, reasons(p.Poll(t.Context()))["GPU-2"])
		require.NoError(t, p.Close(time.Second))
		require.ErrorIs(t, p.Poll(t.Context()).Err, ErrClosed)
	})
}

func TestCloseWhileACallHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := script(2)
		release := make(chan struct{})
		s.gpus[1].hang = release
		p := poller(s)
		polled := make(chan Report)
		go func() { polled <- p.Poll(context.Background()) }()
		synctest.Wait()

		began := time.Now()
		require.ErrorIs(t, p.Close(2*time.Second), ErrHang)
		assert.Equal(t, 2*time.Second, time.Since(began))
		r := <-polled
		require.ErrorIs(t, r.Err, ErrClosed)
		assert.Empty(t, r.Samples, "a poll that was cut short does not call anyone hanging")
		assert.Zero(t, s.shutdowns)

		close(release) // the worker ends with its call: synctest fails if it does not
		synctest.Wait()
		assert.Equal(t, 1, s.shutdowns, "what was left open is closed when that is safe")
		assert.False(t, s.shutdownInFlight)
	})
}

func TestDriverReload(t *testing.T) {
	for _, code := range []Code{DriverNotLoaded, Uninitialized, Unknown, LibRMVersionMismatch} {
		for _, from := range []string{"count", "devices"} {
			t.Run(code.String()+" from "+from, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := script(2)
					p := poller(s)
					p.Poll(t.Context())

					fail := func(c Code) {
						s.set(func() {
							s.initCode = c
							if from == "count" {
								s.countCode = c
								return
							}
							s.gpus[0].code, s.gpus[1].code = c, c
						})
					}
					fail(code)
					r := p.Poll(t.Context())
					require.ErrorIs(t, r.Err, ErrDriver)
					assert.Equal(t, map[string]gpuhealth.Reason{"GPU-0": code.reason(), "GPU-1": code.reason()}, reasons(r))
					assert.Equal(t, 2, s.inits)

					// nvmlInit is left alone for a while.
					p.Poll(t.Context())
					assert.Equal(t, 2, s.inits)

					fail(Success)
					time.Sleep(testRetry)
					r = p.Poll(t.Context())
					require.NoError(t, r.Err)
					assert.EqualValues(t, 2, r.Generation)
					assert.Equal(t, map[string]gpuhealth.Reason{"GPU-0": "ok", "GPU-1": "ok"}, reasons(r))
					require.NoError(t, p.Close(time.Second))
					assert.False(t, s.shutdownInFlight)
				})
			})
		}
	}
}

func TestNoRestartWhileACallHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := script(2)
		p := poller(s)
		p.Poll(t.Context())
		release := make(chan struct{})
		s.set(func() { s.gpus[0].hang = release })
		p.Poll(t.Context())

		s.set(func() { s.countCode = DriverNotLoaded })
		r := p.Poll(t.Context())
		require.ErrorIs(t, r.Err, ErrDriver)
		assert.Zero(t, s.shutdowns)

		s.set(func() { s.countCode, s.gpus[0].hang = Success, nil })
		close(release)
		synctest.Wait()
		p.Poll(t.Context())
		require.NoError(t, p.Close(time.Second))
		assert.False(t, s.shutdownInFlight)
	})
}

func TestInitThatNeverReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := script(1)
		s.hangInit = make(chan struct{})
		p := poller(s)
		require.ErrorIs(t, p.Poll(t.Context()).Err, ErrHang)
		require.ErrorIs(t, p.Close(time.Second), ErrHang)
		close(s.hangInit)
		synctest.Wait()
		assert.Equal(t, 1, s.shutdowns, "an init that comes back after the end is undone")
	})
}

func TestHangingCountCostsNoGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := script(2)
		p := poller(s)
		p.Poll(t.Context())
		hang := make(chan struct{})
		s.set(func() { s.hangCount = hang })
		r := p.Poll(t.Context())
		require.ErrorIs(t, r.Err, ErrHang)
		assert.Equal(t, map[string]gpuhealth.Reason{"GPU-0": "ok", "GPU-1": "ok"}, reasons(r))
		s.set(func() { s.hangCount = nil })
		close(hang)
		synctest.Wait()
		require.NoError(t, p.Poll(t.Context()).Err)
		require.NoError(t, p.Close(time.Second))
	})
}

func TestTally(t *testing.T) {
	for _, tt := range []struct {
		name  string
		codes []Code
		want  Code
	}{
		{"nothing asked", nil, Success},
		{"one failing call costs its own field only", []Code{Unknown, Success}, Success},
		{"nothing is supported, but it answers", []Code{NotSupported, NotSupported}, Success},
		{"what is not supported is no answer", []Code{NotSupported, NoPermission}, NoPermission},
		{"nothing but errors", []Code{Unknown, NoPermission}, Unknown},
		{"an error and symbols that are missing", []Code{FunctionNotFound, Unknown}, Unknown},
		{"lost in the middle", []Code{Success, GPUIsLost, Success}, GPUIsLost},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var tl tally
			for _, code := range tt.codes {
				assert.Equal(t, code == Success, tl.ok(code))
			}
			assert.Equal(t, tt.want, tl.verdict())
		})
	}
}
