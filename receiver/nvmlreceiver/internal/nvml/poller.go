// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/roster"
)

// The errors of a Report besides those of Library.Open.
var (
	// ErrDriver means that NVML could not be initialised.
	ErrDriver = errors.New("the NVIDIA driver does not answer")
	// ErrHang means that a call that concerns no single GPU has not returned.
	ErrHang = errors.New("a call of NVML has not returned")
	// ErrClosed means that the poller was closed.
	ErrClosed = errors.New("the poller is closed")
)

var errHeld = fmt.Errorf("%w: NVML is not shut down", ErrHang)

// Config is what a Poller needs.
type Config struct {
	Library Library
	// Deadline bounds a Poll. A GPU that has not answered by then hangs.
	Deadline time.Duration
	// Retry is the pause between attempts to load the library or to initialise
	// the driver. It is long because nvmlInit may load the kernel module and
	// so fight with someone who is replacing the driver.
	Retry time.Duration
	// SlowInterval is how often the readings that rarely change are read
	// again, a minute where it is 0. The GPUs take turns within it.
	SlowInterval time.Duration
	// OnXid is called with each Xid, by a goroutine that must not be held up. The UUID
	// is empty for a GPU that is not registered. Where OnXid is nil the poller does not
	// wait for events.
	OnXid func(gpuhealth.XidEvent)
	// Activity reads GPM (Hopper and newer), PerLink each NVLink by itself,
	// Detail the raw bytes, effective errors and bit error rates of the NVLinks.
	Activity, PerLink, Detail bool
	// Roster remembers the GPUs, also from one poller to the next. It is one of
	// the poller's own where it is nil.
	Roster *roster.Roster

	_ struct{}
}

// Report is what one Poll found.
type Report struct {
	// Samples has one entry for each GPU of the roster that is not acknowledged as missing,
	// ordered by index and UUID. It belongs to the caller. The samples are not validated.
	Samples []gpuhealth.Sample
	// Generation counts the times that NVML was initialised.
	Generation uint64
	// Listed is how many GPUs NVML enumerates.
	Listed int
	// NoReadings are the GPUs that NVML enumerates and that have no reading. The UUID is
	// empty for a GPU that has never reported one, or that reports another GPU's.
	NoReadings []NoReading
	// InvalidUUIDs counts the GPUs that gave an empty UUID or another GPU's.
	InvalidUUIDs int
	// Err is why nothing, or nothing new, is known of the node as a whole.
	Err error
	// Down is why the driver as a whole does not answer, empty where it does.
	Down gpuhealth.Reason
}

// NoReading is a GPU that NVML enumerates and that has no reading.
type NoReading struct {
	Index int
	// UUID is the GPU's, or of the GPU that was last at the index. PCIBusID is empty
	// where NVML does not report it.
	UUID, PCIBusID string
	Reason         gpuhealth.Reason
	// Why is NVML's error, or what is wrong with the UUID; empty for a call in flight.
	Why string
	// Reported: the driver has reported this GPU, if only with an error.
	Reported bool
}

// Poller reads all GPUs of the node. Each GPU has its own worker, and the driver has
// another. So a call that never returns costs one thread and the readings of one GPU.
type Poller struct {
	cfg    Config
	ctx    context.Context // done when the poller is closed
	cancel context.CancelFunc

	mu      sync.Mutex // held by Poll and Close
	closed  bool
	control *worker[driverState]
	slots   []*slot

	ready      bool
	watch      *watch // for events of this generation, or nil
	generation uint64
	driver     driverState // of the last attempt to initialise
	gone       bool        // in the last round all GPUs failed as without a driver
	next       time.Time   // no attempt to initialise before
}

// driverState is what the control worker found out.
type driverState struct {
	err         error // of Library.Open
	code        Code  // of nvmlInit or nvmlDeviceGetCount
	initialised bool  // the job was to initialise, and did
	events      Events
	count       int
	version     string
	cuda        string
}

// NewPoller returns a poller that has not touched the library yet.
func NewPoller(cfg Config) *Poller {
	cfg.Roster = cmp.Or(cfg.Roster, roster.New(""))
	cfg.SlowInterval = cmp.Or(cfg.SlowInterval, time.Minute)
	ctx, cancel := context.WithCancel(context.Background())
	return &Poller{cfg: cfg, ctx: ctx, cancel: cancel}
}

// Poll reads every GPU, and returns within the deadline whatever they do.
func (p *Poller) Poll(ctx context.Context) Report {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return Report{Err: ErrClosed, Generation: p.generation}
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Deadline)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()

	r := p.poll(ctx)
	if p.ctx.Err() != nil {
		// A GPU without an answer when the poll was cut short did not hang.
		return Report{Err: ErrClosed, Generation: p.generation}
	}
	return r
}

func (p *Poller) poll(ctx context.Context) Report {
	if !p.ready && !p.initialise(ctx, false) {
		return p.down()
	}
	suspect := p.round(ctx)
	if !suspect {
		p.next = time.Time{}
		return p.report()
	}
	if p.idle() && !time.Now().Before(p.next) {
		if !p.initialise(ctx, true) {
			return p.down()
		}
		p.round(ctx)
	}
	return p.report()
}

// initialise loads the library and begins a generation of handles, after the
// end of the one before where there was one. It returns whether NVML is ready.
func (p *Poller) initialise(ctx context.Context, again bool) bool {
	if p.control == nil {
		p.control = newWorker[driverState]()
	}
	if !p.control.busy {
		if time.Now().Before(p.next) {
			return false
		}
		p.ready = false
		end := p.takeGeneration()
		p.control.start(func() driverState { return p.begin(again, end) })
	}
	// An earlier attempt may still be in flight: without persistence mode
	// nvmlInit takes seconds for each GPU.
	state, ok := p.control.wait(ctx)
	if !ok {
		p.driver.err = fmt.Errorf("%w: initialisation", ErrHang)
		return false
	}
	p.next = time.Now().Add(p.cfg.Retry)
	p.driver = state
	if !state.initialised {
		return false
	}
	p.ready = true
	p.generation++
	p.resize(state.count)
	if state.events != nil {
		p.watch = p.watchEvents(state.events)
	}
	return true
}

// begin runs on the control worker.
func (p *Poller) begin(again bool, old generation) driverState {
	lib := p.cfg.Library
	var state driverState
	if again {
		// An error here is expected: the driver may have gone.
		old.end(lib)
	}
	if state.err = lib.Open(); state.err != nil {
		return state
	}
	if state.code = lib.Init(); state.code != Success {
		return state
	}
	if state.count, state.code = lib.DeviceCount(); state.code == Success {
		state.version, state.cuda = lib.Versions()
		if p.cfg.OnXid != nil {
			// Without events the readings are still worth having.
			state.events, _ = lib.NewEvents()
		}
	}
	// Where the poller was closed meanwhile, nothing else would shut down.
	if state.code != Success || p.ctx.Err() != nil {
		generation{watch: &watch{events: state.events}}.end(lib)
		return state
	}
	state.initialised = true
	return state
}

// resize gives each GPU of a new generation a slot without a handle. No worker
// is busy here.
func (p *Poller) resize(count int) {
	for i := count; i < len(p.slots); i++ {
		p.slots[i].worker.close()
	}
	now := time.Now()
	p.slots = p.slots[:min(count, len(p.slots))]
	for _, s := range p.slots {
		s.last = slotResult{}
	}
	for i := len(p.slots); i < count; i++ {
		p.slots = append(p.slots, &slot{index: i, worker: newWorker[slotResult]()})
	}
	for i, s := range p.slots {
		// All are slow at first, as their handles are new; then they take turns.
		s.slow = now.Add(p.cfg.SlowInterval * time.Duration(i+1) / time.Duration(count))
	}
}

// round asks every GPU that is not still busy with an earlier round, and the
// driver for their number. It returns whether the driver has to be initialised
// again: it is gone, or has other GPUs than this generation knows.
func (p *Poller) round(ctx context.Context) (suspect bool) {
	p.control.take() // a count that came too late
	counting := p.control.start(func() driverState {
		count, code := p.cfg.Library.DeviceCount()
		return driverState{count: count, code: code}
	})
	now, watch := time.Now(), p.watch // a job that hangs outlives the poller's own
	for _, s := range p.slots {
		s.worker.take() // a reading that came too late is of an earlier moment
		request := Request{Activity: p.cfg.Activity, PerLink: p.cfg.PerLink, Detail: p.cfg.Detail, Slow: !now.Before(s.slow)}
		s.asked = s.worker.start(func() slotResult { return s.read(ctx, p.cfg.Library, watch, request) })
		if s.asked && request.Slow {
			s.slow = now.Add(p.cfg.SlowInterval)
		}
	}

	broken := 0
	for _, s := range p.slots {
		var result slotResult
		ok := false
		if s.asked { // a GPU that hung in an earlier round is not waited for again
			result, ok = s.worker.wait(ctx)
		}
		s.note(result, ok)
		if ok && result.code.driverSuspect() {
			broken++
		}
	}
	var state driverState
	ok := false
	if counting {
		state, ok = p.control.wait(ctx)
	}
	switch {
	case !ok:
		p.driver.err = fmt.Errorf("%w: device count", ErrHang)
	case state.code == Success:
		p.driver.err, p.driver.code = nil, Success
		suspect = state.count != len(p.slots)
	default:
		p.driver.err, p.driver.code = nil, state.code
		suspect = state.code.driverSuspect()
	}
	p.gone = broken > 0 && broken == len(p.slots)
	return suspect || p.gone
}

// idle reports whether no call is in flight, so that NVML may be shut down.
func (p *Poller) idle() bool {
	if p.control != nil && p.control.busy {
		return false
	}
	for _, s := range p.slots {
		if s.worker.busy {
			return false
		}
	}
	return true
}

// Interrupt makes a Poll that is under way, and any later one, return at once.
func (p *Poller) Interrupt() { p.cancel() }

// Close stops a Poll that is under way, ends the workers and shuts NVML down,
// and returns within the timeout. While a call hangs NVML must not be shut
// down: Close returns errHeld, and NVML is shut down when the call returns, if ever.
func (p *Poller) Close(timeout time.Duration) error {
	p.cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()

	stuck := !p.letGo(ctx)
	for _, s := range p.slots {
		s.worker.close()
	}
	if p.control != nil {
		p.control.close()
	}
	if !stuck {
		return nil
	}
	if p.ready {
		go p.shutdownLate(p.takeGeneration())
	}
	return errHeld
}

// shutdownLate gives NVML back once the calls that hung at the end have
// returned. A session that is left open would keep the next poller of the
// process from ever seeing a driver that is loaded again.
func (p *Poller) shutdownLate(old generation) {
	for _, s := range p.slots {
		<-s.worker.done
	}
	<-p.control.done
	// A job that hung may have left a handle behind.
	for _, s := range p.slots {
		if s.device != nil {
			old.devices = append(old.devices, s.device)
		}
	}
	old.end(p.cfg.Library)
}
