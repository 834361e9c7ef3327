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

// Node is a simulated node. It is used by one goroutine.
type Node struct {
	schedule schedule
	rng      *rand.Rand
	at       time.Duration
	gpus     []gpu
	effects  []effect
	faults   []Fault
	host     host
}

// NewNode returns a node of so many GPUs. Nodes of different seeds differ;
// the same seed gives the same node.
func NewNode(gpus int, load Load, seed uint64) *Node {
	rng := rand.New(rand.NewPCG(seed, 0x6770755f666c6565))
	n := &Node{
		schedule: newSchedule(load, rng), rng: rng,
		gpus: make([]gpu, gpus), effects: make([]effect, gpus), host: newHost(seed),
	}
	for i := range n.gpus {
		n.gpus[i] = newGPU(rng)
	}
	return n
}

// Inject gives the node a fault, which must be valid. One that should have
// begun begins now.
func (n *Node) Inject(f Fault) {
	f.From = max(f.From, n.at+1)
	n.faults = append(n.faults, f)
}

// Advance moves the node on in time. The nodes of a Job are moved by it.
func (n *Node) Advance(by time.Duration) {
	for by > 0 {
		dt := min(by, maxStep)
		n.step(n.schedule.at(n.at+dt, dt, n.rng), n.speed(), dt)
		by -= dt
	}
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

// step moves the node on by dt under a demand, in a job whose slowest GPU has
// the speed pace.
func (n *Node) step(d demand, pace float64, dt time.Duration) {
	n.at += dt
	whole := n.effect(dt)
	for i := range n.gpus {
		g := &n.gpus[i]
		g.step(n.schedule.waiting(d, pace, g.speed, whole.starved), &n.effects[i], dt)
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
