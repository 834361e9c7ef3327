// SPDX-License-Identifier: Apache-2.0

package families

import (
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// Cases are families besides those of the table: values that are not told as they are,
// several signals, and fleets like two that were recorded.
func Cases() []Family {
	f := func(name string, runs int, draw func(*draw, *Model)) Family {
		family := newFamily(name, runs, draw)
		family.Case = true
		return family
	}
	return []Family{
		f("signals", 24, drawSignals),
		f("quantised", 24, func(d *draw, m *Model) { m.Quantum, m.Fault.Loss = d.log(0.01, 0.05), d.loss30() }),
		f("clamped", 24, func(d *draw, m *Model) { m.Top, m.Fault.Loss = d.uniform(0.97, 1.02), d.loss30() }),
		f("shards", 24, func(d *draw, m *Model) {
			m.Shard, m.Fault.Loss = &Shard{Band: d.log(0.002, 0.05), Resync: 2 * time.Minute}, d.loss30()
		}),
		f("seconds", 8, func(d *draw, m *Model) {
			d.nodes(m, 64)
			d.sampled(m, time.Second, d.uniform(0.1, 20), d.log(0.01, 0.06))
			m.Fault.Loss = d.loss30()
		}),
		f("workers", 64, drawWorkers),
		f("samples", 16, drawSamples),
	}
}

// sampled makes the noise of a tick the mean of noise that lasts for tau seconds.
func (d *draw) sampled(m *Model, interval time.Duration, tau, sigma float64) {
	tick := interval.Seconds()
	m.Interval, m.Phi = interval, math.Exp(-tick/tau)
	m.Sigma = sigma * min(1, math.Sqrt(2*tau/max(tick, 2*tau)))
}

// drawSignals has four signals that decide. The fault is in one of two.
func drawSignals(d *draw, m *Model) {
	m.Others = []Other{
		{Signal: nodesignal.Compute, Level: d.uniform(0.85, 1), Sigma: d.log(0.003, 0.02), Phi: d.uniform(0, 0.95)},
		{Signal: nodesignal.Interconnect, Level: d.uniform(0.9, 1), Sigma: d.log(0.001, 0.01), Phi: d.uniform(0, 0.95)},
		{Signal: nodesignal.CPU, Level: d.uniform(0.8, 1), Sigma: d.log(0.005, 0.03), Phi: d.uniform(0, 0.95)},
	}
	m.Fault.Loss = d.loss30()
	if d.Float64() < 0.5 {
		m.Fault.Signal = nodesignal.Compute
	}
}

// drawWorkers is a job of 64 with noise of 13 % per step, a step per tick. Each run slows
// another worker for an hour.
func drawWorkers(d *draw, m *Model) {
	m.Length = 6 * time.Hour
	d.nodes(m, 64)
	m.Sigma, m.Phi, m.Bias = d.uniform(0.12, 0.14), []float64{0, 0.3, 0.6}[d.IntN(3)], d.uniform(0, 0.02)
	m.Fault = FaultLaw{Which: []int{d.run % m.Nodes}, Begin: 2 * time.Hour, To: 5 * time.Hour, For: time.Hour, Loss: 0.1}
}

// drawSamples is 16 GPUs of one job sampled at 10 Hz: a tick is the mean of ten samples.
// All rest between the steps, at about the same time. Each run slows another one.
func drawSamples(d *draw, m *Model) {
	m.Length = 3 * time.Hour
	d.nodes(m, 16)
	d.sampled(m, time.Second, d.uniform(0.05, 0.3), d.log(0.03, 0.1))
	m.Bias = d.uniform(0, 0.03)
	m.Dips = &Dips{
		Depth: d.uniform(0.2, 0.8), For: d.time(50*time.Millisecond, 500*time.Millisecond),
		Every: d.time(600*time.Millisecond, 4*time.Second), Clocks: d.time(0, 100*time.Millisecond),
	}
	m.Fault = FaultLaw{Which: []int{d.run % m.Nodes}, Begin: 75 * time.Minute, To: 2 * time.Hour, For: 30 * time.Minute, Loss: 0.1}
}

// Recording are rates of a real run, by tick and node. It is played over and over, from
// a tick that is drawn.
type Recording struct {
	Rates [][]float64
	// Peers are the values of each node's peer-group attributes.
	Peers [][]string
	// Slow nodes are slow in the recording itself: they do not count.
	Slow []int
}

// LeastPeers is how many nodes the smallest peer group has; 0 of no recording.
func (r *Recording) LeastPeers() int {
	if r == nil {
		return 0
	}
	peers := map[string]int{}
	for _, p := range r.Peers {
		peers[strings.Join(p, "/")]++
	}
	return slices.Min(slices.Collect(maps.Values(peers)))
}

// Fastest is the greatest rate; 0 of no recording.
func (r *Recording) Fastest() float64 {
	fastest := 0.0
	if r != nil {
		for _, rates := range r.Rates {
			fastest = max(fastest, slices.Max(rates))
		}
	}
	return fastest
}

// Recorded is a family of a recording. Run k slows the k-th of these nodes by itself for
// an hour, by a share from loss to most; none is no fault.
func Recorded(name string, r *Recording, nodes []int, loss, most float64) Family {
	f := newFamily(name, max(len(nodes), 1), func(d *draw, m *Model) {
		m.Length, m.Recording, m.Sigma, m.Phi = 6*time.Hour, r, 0, 0
		d.nodes(m, len(r.Peers))
		m.Fault = FaultLaw{Which: []int{}, Begin: 2 * time.Hour, To: 5 * time.Hour, For: time.Hour, Loss: loss, LossTo: most}
		if len(nodes) > 0 {
			m.Fault.Which = []int{nodes[d.run%len(nodes)]}
		}
	})
	f.Case, f.Unrated = true, true
	return f
}
