// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"cmp"
	"time"
)

// DriverLoad tells one load of the driver from another, as far as the host
// says: what is empty is not known.
type DriverLoad struct {
	// BootID is the kernel's, another after each boot.
	BootID string
	// Module is the kernel module's instance, another after each load of it.
	Module string
	// Version of the driver.
	Version string
}

// Same reports whether nothing tells the two apart.
func (l DriverLoad) Same(o DriverLoad) bool {
	same := func(a, b string) bool { return a == "" || b == "" || a == b }
	return same(l.BootID, o.BootID) && same(l.Module, o.Module) && same(l.Version, o.Version)
}

// Opened tells that NVML was opened anew, at start, on this load of the driver.
// reloaded says that the driver was seen gone before; it counts where the load does
// not say. Opened reports whether the load is new. On the same load a GPU may have
// been reset while NVML was closed: its next sample tells.
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
	signs := resetSigns{Recovery: s.RecoveryAction, Remap: s.RemappedRows.Pending, Retire: s.RetirementPending}
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

// learn keeps what the sample does not say.
func (r *resetSigns) learn(now *resetSigns) {
	for e := range NumECCErrors {
		if now.Volatile[e].OK {
			r.Volatile[e] = now.Volatile[e]
		}
	}
	if now.Recovery.OK {
		r.Recovery = now.Recovery
	}
	if now.Remap.OK {
		r.Remap = now.Remap
	}
	if now.Retire.OK {
		r.Retire = now.Retire
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
