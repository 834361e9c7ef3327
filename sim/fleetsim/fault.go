// SPDX-License-Identifier: Apache-2.0

package fleetsim

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// Kind is what is wrong with a node or a GPU.
type Kind string

// The kinds, and what their severity means.
const (
	SlowNode Kind = "slow_node" // loses a part of the speed of all of its work, and no sensor shows why
	Drift    Kind = "drift"     // the same, getting worse by the severity each hour
	Flapping Kind = "flapping"  // the same, coming and going
	// ThermalThrottle loses a part of the cooling. Half of it heats an H100 at work beyond
	// its limit.
	ThermalThrottle Kind = "thermal_throttle"
	PowerLimit      Kind = "power_cap"   // a power limit lowered by a part
	Brake           Kind = "power_brake" // the hardware's power brake, which takes a part of the clock
	ClockLock       Kind = "clock_lock"  // a limit of the application clock, lower by a part
	// ECC is uncorrectable errors of the memory among many that are corrected: Xids 94 and
	// 63, a row that waits to be remapped, or from a severity of 0.8 on cannot be (Xid 64).
	// The part is lost to the repetition of work.
	ECC          Kind = "ecc"
	ECCCorrected Kind = "ecc_corrected" // corrected errors, in units of 100 per second; they cost nothing
	// XidError is an Xid, whose code the severity is, once in a minute, and three
	// tenths of the speed. 79 is LostGPU.
	XidError Kind = "xid"
	// LostGPU is a GPU that falls off the bus, with Xid 79. The node's other GPUs do
	// its work, however severe the fault.
	LostGPU      Kind = "lost_gpu"
	NVLink       Kind = "nvlink"          // a part of the NVLinks is down, which slows the exchange
	NVLinkErrors Kind = "nvlink_errors"   // replays and CRC errors take a part of the bandwidth
	PCIe         Kind = "pcie"            // a part of the lanes is gone, in powers of two
	PCIeSlow     Kind = "pcie_generation" // a part of the generations is gone
	// CPU is other work on the host: tasks wait for a CPU for that part of the time more
	// than before, and for half of that part the GPUs wait for them.
	CPU       Kind = "cpu"
	Neighbour Kind = "neighbour" // another process takes a part of the GPU
)

// AllGPUs in Fault.GPU means every GPU of the node.
const AllGPUs = -1

// Fault is one thing that is wrong with a node for a while.
type Fault struct {
	Kind Kind
	// Node has it, or a Share in (0, 1] of all nodes.
	Node  int
	Share float64
	// GPU is an index, or AllGPUs. Kinds of the whole node have AllGPUs.
	GPU int
	// From and Until are times since the node's start; with Until 0 it lasts.
	From, Until time.Duration
	// Severity is a part, 0 to 1, if the kind has no other unit; 0 is the kind's
	// default.
	Severity float64
}

type kindInfo struct {
	severity float64 // by default
	most     float64
	takes    part // of which the severity is lost
	node     bool // of the node, never of one GPU
}

var kinds = map[Kind]kindInfo{
	SlowNode:        {0.2, 0.95, speed, true},
	Drift:           {0.1, 0.95, nothing, true},
	Flapping:        {0.2, 0.95, speed, true},
	ThermalThrottle: {0.6, 0.95, cooling, false},
	PowerLimit:      {0.4, 0.8, powerLimit, false},
	Brake:           {0.5, 0.8, brake, false},
	ClockLock:       {0.3, 0.8, clockLimit, false},
	ECC:             {0.3, 0.95, speed, false},
	ECCCorrected:    {0.5, 1e3, nothing, false},
	XidError:        {119, 999, nothing, false},
	LostGPU:         {1, 1, nothing, false},
	NVLink:          {0.5, 1, nvlinks, false},
	NVLinkErrors:    {0.5, 0.95, nothing, false},
	PCIe:            {0.5, 0.95, pcieLanes, false},
	PCIeSlow:        {0.4, 0.8, pcieGenerations, false},
	CPU:             {0.4, 0.9, nothing, true},
	Neighbour:       {0.3, 0.95, speed, false},
}

// Kinds returns all kinds, sorted.
func Kinds() []Kind { return slices.Sorted(maps.Keys(kinds)) }

// flapPeriod is that of Flapping, which is there for the first half of each.
const flapPeriod = 10 * time.Minute

// Target names the nodes that have the fault.
func (f *Fault) Target() string {
	if f.Share != 0 {
		return fmt.Sprintf("%.4g %% of nodes", 100*f.Share)
	}
	return fmt.Sprintf("node %d", f.Node)
}

// Nodes returns the numbers of those that have it among so many nodes. A share is at least
// one node, and spread evenly over the jobs, whose nodes are neighbours.
func (f *Fault) Nodes(nodes int) []int {
	if f.Share == 0 {
		return []int{f.Node}
	}
	hit := make([]int, max(1, int(f.Share*float64(nodes)+0.5)))
	for i := range hit {
		hit[i] = i * nodes / len(hit)
	}
	return hit
}

// Validate returns what is wrong with the fault for so many nodes and GPUs of each, 0 for unknown.
func (f *Fault) Validate(nodes, gpus int) error {
	k, ok := kinds[f.Kind]
	switch {
	case !ok:
		return fmt.Errorf("kind is %q, must be one of %v", f.Kind, Kinds())
	case !(f.Severity >= 0 && f.Severity <= k.most):
		return fmt.Errorf("severity of %s is %v, must be between 0 and %v", f.Kind, f.Severity, k.most)
	case f.Kind == XidError && f.Severity != float64(int(f.Severity)):
		return fmt.Errorf("severity of %s is %v, must be the code, a whole number", f.Kind, f.Severity)
	case !(f.Share >= 0 && f.Share <= 1):
		return fmt.Errorf("share is %v %%, must be more than 0 %% and at most 100 %%", 100*f.Share)
	case f.Share != 0 && f.Node != 0:
		return fmt.Errorf("node is %d and share %v %%, must be one of the two", f.Node, 100*f.Share)
	case f.Node < 0 || nodes > 0 && f.Node >= nodes:
		return fmt.Errorf("node is %d, must be one of the %d nodes, which count from 0", f.Node, nodes)
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

func (f *Fault) severity() float64 { return cmp.Or(f.Severity, kinds[f.Kind].severity) }

func (f *Fault) active(at time.Duration) bool {
	if at < f.From || f.Until != 0 && at >= f.Until {
		return false
	}
	return f.Kind != Flapping || f.since(at)%flapPeriod < flapPeriod/2
}

// since is the time since the fault first began.
func (f *Fault) since(at time.Duration) time.Duration { return at - f.From }

var faultForm = regexp.MustCompile(`^(\w*):(?:([\d.]+)%|(\d{1,9}))(?::(\d{1,9}))?(?:@([\w.]+)(?:-([\w.]+))?)?(?:=([\d.]+))?$`)

// ParseFault reads `kind:node[:gpu][@from[-until]][=severity]`, as in
// thermal_throttle:12:3@5m-10m=0.8, where nodes and GPUs count from 0 and times
// from the start. A share of the nodes, as in slow_node:30%, may replace the
// node. Without a GPU the fault is one of all of them.
func ParseFault(text string) (f Fault, err error) {
	bad := fmt.Errorf("fault %q must be `kind:node[:gpu][@from[-until]][=severity]`, as in "+
		"thermal_throttle:12:3@5m-10m=0.8 or slow_node:30%%, with an end, a share and a severity above 0", text)
	m := faultForm.FindStringSubmatch(text)
	if m == nil {
		return Fault{}, bad
	}
	f = Fault{Kind: Kind(m[1]), GPU: AllGPUs}
	ok := true
	number := func(text string, to *float64) {
		if text != "" {
			*to, err = strconv.ParseFloat(text, 64)
			ok = ok && err == nil && *to > 0
		}
	}
	duration := func(text string, to *time.Duration) {
		if text != "" {
			*to, err = time.ParseDuration(text)
			ok = ok && err == nil
		}
	}
	number(m[2], &f.Share)
	f.Share /= 100
	f.Node, _ = strconv.Atoi(m[3]) // of few digits
	if m[4] != "" {
		f.GPU, _ = strconv.Atoi(m[4])
	}
	duration(m[5], &f.From)
	duration(m[6], &f.Until)
	number(m[7], &f.Severity)
	if !ok || m[6] != "" && f.Until == 0 {
		return Fault{}, bad
	}
	if err := f.Validate(0, 0); err != nil {
		return Fault{}, fmt.Errorf("fault %q: %w", text, err)
	}
	return f, nil
}
