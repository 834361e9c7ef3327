// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"cmp"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// DriverLoad identifies a load of the driver, as far as the host shows it. An empty
// field is unknown.
type DriverLoad struct {
	// BootID is the kernel's, another after each boot.
	BootID string
	// Module is the kernel module's instance, another after each load of it.
	Module string
	// Version of the driver.
	Version string
}

// Same reports whether no known field of the two differs.
func (l DriverLoad) Same(o DriverLoad) bool {
	same := func(a, b string) bool { return a == "" || b == "" || a == b }
	return same(l.BootID, o.BootID) && same(l.Module, o.Module) && same(l.Version, o.Version)
}

// Opened records that NVML was opened anew, at start, on this load of the driver.
// reloaded: the driver was seen gone before; it counts where the load has no module.
// Opened reports whether the load is new. On the same load the next sample shows
// whether a GPU was reset while NVML was closed.
func (m *Monitor) Opened(load DriverLoad, reloaded bool, start time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	reloaded = reloaded && (load.Module == "" || m.load.Module == "")
	same := m.opened && !reloaded && load.Same(m.load)
	if same {
		// A value that could not be read this time stays as it was.
		load.BootID, load.Module, load.Version = cmp.Or(load.BootID, m.load.BootID), cmp.Or(load.Module, m.load.Module), cmp.Or(load.Version, m.load.Version)
	}
	m.opened, m.load = true, load
	if !same {
		m.newLoad(start)
		return true
	}
	for _, t := range m.tracks {
		t.reopened = start
	}
	return false
}

// resetSigns is what a reset of the GPU, or a load of the driver, sets back.
type resetSigns struct {
	Volatile [NumECCErrors]Opt[uint64]
	Recovery Opt[RecoveryAction]
	Remap    Opt[bool]
	Retire   Opt[bool]
}

func signsOf(s *Sample) resetSigns {
	signs := resetSigns{Recovery: s.RecoveryAction, Remap: s.On(reading.RemapPending), Retire: s.On(reading.RetirementPending)}
	for e := range NumECCErrors {
		signs.Volatile[e] = s.ECC[e][ECCVolatile]
	}
	return signs
}

// reset reports whether the GPU was reset between the signs and those after:
// NVIDIA's volatile counts begin again, a recovery that the driver asked for
// is done, a row or page that waited for a reset waits no longer.
func (r *resetSigns) reset(after *resetSigns) bool {
	for e := range NumECCErrors {
		if b, a := r.Volatile[e], after.Volatile[e]; b.OK && a.OK && a.V < b.V {
			return true
		}
	}
	done := func(b, a Opt[bool]) bool { return b.OK && a.OK && b.V && !a.V }
	asked := r.Recovery.V == RecoveryReset || r.Recovery.V == RecoveryDrainReset || r.Recovery.V == RecoveryReboot
	return r.Recovery.OK && asked && after.Recovery == Some(RecoveryNone) || done(r.Remap, after.Remap) || done(r.Retire, after.Retire)
}

// learn takes the signs that the sample has, and keeps the others.
func (r *resetSigns) learn(now *resetSigns) {
	for e := range NumECCErrors {
		learn(&r.Volatile[e], now.Volatile[e])
	}
	learn(&r.Recovery, now.Recovery)
	learn(&r.Remap, now.Remap)
	learn(&r.Retire, now.Retire)
}

func learn[T any](to *Opt[T], now Opt[T]) {
	if now.OK {
		*to = now
	}
}

// noteReset ends what a reset ends, when the first sample after NVML was
// opened anew shows one.
func (t *track) noteReset(rules []Rule, s *Sample) {
	signs := signsOf(s)
	if !t.reopened.IsZero() {
		if t.Signs.reset(&signs) {
			t.newGeneration(rules, t.reopened)
		}
		t.reopened = time.Time{}
	}
	t.Signs.learn(&signs)
}
