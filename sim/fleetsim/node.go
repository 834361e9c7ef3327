// SPDX-License-Identifier: Apache-2.0

package fleetsim

import (
	"math/rand/v2"
	"time"
)

// maxStep is the longest step of the model: the window over which NVML
// averages power on Hopper (Yang et al., "Part-time Power Measurements",
// arXiv 2312.02741).
const maxStep = time.Second

// Node is a simulated node, which its Job moves. It is used by one goroutine.
type Node struct {
	at      time.Duration
	gpus    []gpu
	effects []effect
	faults  []Fault
	host    host
}

// newNode returns a node of so many GPUs. Nodes of different seeds differ;
// the same seed gives the same node.
func newNode(gpus int, seed uint64) *Node {
	rng := rand.New(rand.NewPCG(seed, 0x6770755f666c6565))
	_ = newSchedule(rng) // the job has it; what is drawn next stays the same
	n := &Node{gpus: make([]gpu, gpus), effects: make([]effect, gpus), host: newHost(seed)}
	for i := range n.gpus {
		n.gpus[i] = newGPU(rng)
	}
	return n
}

// Inject gives the node a valid fault. One that should have begun begins now.
func (n *Node) Inject(f Fault) {
	f.From = max(f.From, n.at+1)
	n.faults = append(n.faults, f)
}

// speed is that of the slowest of the node's GPUs, 1 without a fault.
func (n *Node) speed() float64 { return n.slowest(func(g *gpu) float64 { return g.speed }) }

func (n *Node) slowest(speed func(*gpu) float64) float64 {
	least, up := 1.0, false
	for i := range n.gpus {
		if g := &n.gpus[i]; g.now.Up {
			least, up = min(least, speed(g)), true
		}
	}
	if !up {
		return minSpeed
	}
	return max(minSpeed, least)
}

// step moves the node on by dt under a demand, in a job at the speed pace.
func (n *Node) step(d demand, pace float64, dt time.Duration) {
	n.at += dt
	whole := n.effect(dt)
	for i := range n.gpus {
		g := &n.gpus[i]
		g.step(d.waiting(pace, g.speed, whole.starved), &n.effects[i], dt)
	}
	n.host.step(n, d, &whole, dt)
}

// Speed is what its faults leave of a GPU's speed, 0 for one that is lost.
func (n *Node) Speed(gpu int) float64 {
	if g := &n.gpus[gpu]; g.now.Up {
		return g.speed
	}
	return 0
}

// Reading returns what a poll of a GPU gives now.
func (n *Node) Reading(gpu int) Reading { return n.gpus[gpu].now }

// Host returns what a poll of the node itself gives now.
func (n *Node) Host() HostReading { return n.host.now }

// HostReading is what one poll of a node itself gives.
type HostReading struct {
	// CPUPressure is the part of the last ten seconds in which some task waited
	// for a CPU, as /proc/pressure/cpu has it.
	CPUPressure float64
	// StepSeconds is what the node's own work on the last training step took, 0 without a
	// job. The wait for others is left out: with it all nodes of a job in lockstep have
	// the same step time, that of the slowest.
	StepSeconds float64
}

// How the readings of the host scatter.
const (
	usualPressure     = 0.03
	pressureNoise     = 0.3 // of the usual
	pressureNoiseTime = time.Minute
	pressureWindow    = 10 * time.Second // the kernel's avg10
	stepNoise         = 0.008
	stepNoiseTime     = 30 * time.Second
)

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
	case d.memory == 0:
		h.now.StepSeconds = 0
	case d.busy == 1: // a step, and no checkpoint
		own := n.slowest(func(g *gpu) float64 { return g.free * g.speed })
		h.now.StepSeconds = stepTime.Seconds() / own * noise
	}
}
