// SPDX-License-Identifier: Apache-2.0

package fleetsim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Kind is what is wrong with a node or a GPU.
type Kind string

// The kinds, and what their severity means.
const (
	// SlowNode loses a part of the speed of all of its work, and no sensor says why.
	SlowNode Kind = "slow_node"
	// Drift is the same, getting worse by the severity each hour.
	Drift Kind = "drift"
	// Flapping is the same, coming and going.
	Flapping Kind = "flapping"
	// ThermalThrottle loses a part of the cooling. Half of it heats an H100 at
	// work beyond its limit.
	ThermalThrottle Kind = "thermal_throttle"
	// PowerLimit is a power limit lowered by a part.
	PowerLimit Kind = "power_cap"
	// Brake is the hardware's power brake, which takes a part of the clock.
	Brake Kind = "power_brake"
	// ClockLock is a limit of the application clock, lower by a part.
	ClockLock Kind = "clock_lock"
	// ECC is uncorrectable errors of the memory among many that are corrected:
	// Xids 94 and 63, a row that waits to be remapped. From a severity of 0.8 on
	// the row cannot be remapped, with Xid 64. The part is lost to the repetition
	// of work.
	ECC Kind = "ecc"
	// ECCCorrected is many errors that are corrected, in units of 100 per second.
	// They cost nothing.
	ECCCorrected Kind = "ecc_corrected"
	// XidError is an Xid, whose code the severity is, once in a minute, and three
	// tenths of the speed. 79 is LostGPU.
	XidError Kind = "xid"
	// LostGPU is a GPU that falls off the bus, with Xid 79. The node's other GPUs do
	// its work, however severe the fault.
	LostGPU Kind = "lost_gpu"
	// NVLink is a part of the NVLinks that are down, which slows the exchange.
	NVLink Kind = "nvlink"
	// NVLinkErrors is replays and CRC errors, which take a part of the bandwidth.
	NVLinkErrors Kind = "nvlink_errors"
	// PCIe is a part of the lanes that are gone, in powers of two.
	PCIe Kind = "pcie"
	// PCIeSlow is a part of the generations that are gone.
	PCIeSlow Kind = "pcie_generation"
	// CPU is other work on the host: tasks wait for a CPU for that part of the
	// time more than before, and for half of that part the GPUs wait for them.
	CPU Kind = "cpu"
	// Neighbour is another process that takes a part of the GPU.
	Neighbour Kind = "neighbour"
)

// AllGPUs in Fault.GPU means every GPU of the node.
const AllGPUs = -1

// Fault is one thing that is wrong with a node for a while.
type Fault struct {
	Kind Kind
	// GPU is an index, or AllGPUs. Kinds of the whole node have AllGPUs.
	GPU int
	// From and Until are times since the node's start; with Until 0 it lasts.
	From, Until time.Duration
	// Severity is a part, 0 to 1, if the kind says nothing else; 0 is the kind's
	// default.
	Severity float64
}

type kindInfo struct {
	severity float64 // by default
	most     float64
	node     bool // of the node, never of one GPU
}

var kinds = map[Kind]kindInfo{
	SlowNode:        {severity: 0.2, most: 0.95, node: true},
	Drift:           {severity: 0.1, most: 0.95, node: true},
	Flapping:        {severity: 0.2, most: 0.95, node: true},
	ThermalThrottle: {severity: 0.6, most: 0.95},
	PowerLimit:      {severity: 0.4, most: 0.8},
	Brake:           {severity: 0.5, most: 0.8},
	ClockLock:       {severity: 0.3, most: 0.8},
	ECC:             {severity: 0.3, most: 0.95},
	ECCCorrected:    {severity: 0.5, most: 1e3},
	XidError:        {severity: 119, most: 999},
	LostGPU:         {severity: 1, most: 1},
	NVLink:          {severity: 0.5, most: 1},
	NVLinkErrors:    {severity: 0.5, most: 0.95},
	PCIe:            {severity: 0.5, most: 0.95},
	PCIeSlow:        {severity: 0.4, most: 0.8},
	CPU:             {severity: 0.4, most: 0.9, node: true},
	Neighbour:       {severity: 0.3, most: 0.95},
}

// Kinds returns all kinds, sorted.
func Kinds() []Kind { return slices.Sorted(maps.Keys(kinds)) }

// flapPeriod is that of Flapping, which is there for the first half of each.
const flapPeriod = 10 * time.Minute

// Validate returns what is wrong with the fault for a node of so many GPUs; 0
// when that is not known.
func (f *Fault) Validate(gpus int) error {
	k, ok := kinds[f.Kind]
	switch {
	case !ok:
		return fmt.Errorf("kind is %q, must be one of %v", f.Kind, Kinds())
	case !(f.Severity >= 0 && f.Severity <= k.most):
		return fmt.Errorf("severity of %s is %v, must be between 0 and %v", f.Kind, f.Severity, k.most)
	case f.Kind == XidError && f.Severity != float64(int(f.Severity)):
		return fmt.Errorf("severity of %s is %v, must be the code, a whole number", f.Kind, f.Severity)
	case f.GPU < AllGPUs || gpus > 0 && f.GPU >= gpus:
		return fmt.Errorf("gpu is %d, must be below the %d of the node, or none for all", f.GPU, gpus)
	case k.node && f.GPU != AllGPUs:
		return fmt.Errorf("gpu is %d, but %s is of the whole node and must have none", f.GPU, f.Kind)
	case f.From < 0:
		return fmt.Errorf("begin is %s, must not be negative", f.From)
	case f.Until != 0 && f.Until <= f.From:
		return fmt.Errorf("end is %s, must be after the begin at %s", f.Until, f.From)
	}
	return nil
}

// severity with the kind's default.
func (f *Fault) severity() float64 { return cmp.Or(f.Severity, kinds[f.Kind].severity) }

// active reports whether the fault is there at a time.
func (f *Fault) active(at time.Duration) bool {
	if at < f.From || f.Until != 0 && at >= f.Until {
		return false
	}
	return f.Kind != Flapping || f.since(at)%flapPeriod < flapPeriod/2
}

// hits reports whether the fault is one of a GPU.
func (f *Fault) hits(gpu int) bool { return f.GPU == AllGPUs || f.GPU == gpu }

// since is how long the fault is there, 0 in its first moment. A fault that comes
// and goes is there since its first time.
func (f *Fault) since(at time.Duration) time.Duration { return at - f.From }
