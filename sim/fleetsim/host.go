// SPDX-License-Identifier: Apache-2.0

package fleetsim

import (
	"math/rand/v2"
	"time"
)

// HostReading is what one poll of a node itself gives.
type HostReading struct {
	// CPUPressure is the part of the last ten seconds in which some task waited
	// for a CPU, as /proc/pressure/cpu has it.
	CPUPressure float64
	// StepSeconds is what the node's own work on the last training step took,
	// without the wait for others, as a job would tell that measures it. It is 0
	// while there is no job. The wait is left out because with it every node of a
	// job in lockstep has the same step time, that of the slowest.
	StepSeconds float64
}

// How what the host tells scatters.
const (
	usualPressure     = 0.03
	pressureNoise     = 0.3 // of the usual
	pressureNoiseTime = time.Minute
	pressureWindow    = 10 * time.Second // the kernel's avg10
	stepNoise         = 0.008
	stepNoiseTime     = 30 * time.Second
)

// host is the state of what is not a GPU.
type host struct {
	rng            *rand.Rand // its own, so that the GPUs' noise does not depend on it
	pressure, work ar1
	now            HostReading
}

func newHost(seed uint64) host {
	return host{
		rng:      rand.New(rand.NewPCG(seed, 0x6770755f686f7374)),
		pressure: ar1{sigma: pressureNoise, time: pressureNoiseTime},
		work:     ar1{sigma: stepNoise, time: stepNoiseTime},
		now:      HostReading{CPUPressure: usualPressure},
	}
}

func (h *host) step(n *Node, d demand, whole *wholeEffect, dt time.Duration) {
	level := max(0, min(1, usualPressure*(1+h.pressure.next(h.rng, dt))+whole.pressure))
	h.now.CPUPressure += (level - h.now.CPUPressure) * min(1, dt.Seconds()/pressureWindow.Seconds())
	noise := 1 + h.work.next(h.rng, dt)
	switch {
	case n.schedule.load != Training || d.memory == 0:
		h.now.StepSeconds = 0
	case d.busy == 1: // a step, and no checkpoint
		own := n.slowest(func(g *gpu) float64 { return g.free * g.speed })
		h.now.StepSeconds = stepTime.Seconds() / own * noise
	}
}
