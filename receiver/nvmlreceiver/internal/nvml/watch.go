// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"time"
)

const (
	// eventWait bounds one wait for an event, and with it what a reload, a
	// release and a shutdown wait for the one in flight.
	eventWait = 500 * time.Millisecond
	// eventPause follows a wait that failed: a lost GPU may fail each of them at once.
	eventPause = time.Second
)

// watch waits for the events of one generation, on a goroutine of its own.
type watch struct {
	events Events
	stop   context.CancelFunc
	done   chan struct{} // closed when no wait is in flight any more
}

func (p *Poller) watchEvents(events Events) *watch {
	ctx, stop := context.WithCancel(p.ctx)
	w := &watch{events: events, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for ctx.Err() == nil {
			event, code := events.Wait(eventWait)
			switch {
			case ctx.Err() != nil:
			case code == Success:
				event.Time = time.Now()
				p.cfg.OnXid(event)
			case code != Timeout:
				select {
				case <-ctx.Done():
				case <-time.After(eventPause):
				}
			}
		}
	}()
	return w
}

// generation is what has to be given back before NVML is shut down.
type generation struct {
	watch   *watch
	devices []Device
}

// takeGeneration takes the generation from the poller and asks its goroutine
// to end. It takes the handles of workers that are idle only.
func (p *Poller) takeGeneration() generation {
	old := generation{watch: p.watch}
	if p.watch != nil {
		p.watch.stop()
		p.watch = nil
	}
	for _, s := range p.slots {
		if !s.worker.busy && s.device != nil {
			old.devices = append(old.devices, s.device)
			s.device = nil
		}
	}
	return old
}

// end gives everything back and shuts NVML down. It waits for the wait for
// events, since nothing may be freed under it, and so may hang with it.
func (g generation) end(lib Library) {
	if w := g.watch; w != nil && w.events != nil {
		if w.done != nil {
			<-w.done
		}
		w.events.Free()
	}
	for _, d := range g.devices {
		d.Close()
	}
	lib.Shutdown()
}

// letGo waits for the calls in flight and shuts NVML down, if ctx allows. It
// returns whether nothing is in flight and nothing open any more.
func (p *Poller) letGo(ctx context.Context) bool {
	for _, s := range p.slots {
		s.worker.wait(ctx)
	}
	if p.control == nil {
		return true
	}
	if state, ok := p.control.wait(ctx); ok && state.initialised {
		p.ready = true
		if state.events != nil {
			p.watch = p.watchEvents(state.events)
		}
	}
	if p.ready && p.idle() {
		p.ready = false
		old := p.takeGeneration()
		p.control.start(func() driverState { old.end(p.cfg.Library); return driverState{} })
		p.control.wait(ctx)
	}
	return p.idle()
}
