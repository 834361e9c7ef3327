// SPDX-License-Identifier: Apache-2.0

package fleetsim

import "time"

// Port is what a poll of the network port next to a GPU gives. Counters are since the
// start.
type Port struct {
	Up        bool
	Bandwidth float64 // bytes per second
	Downed    float64 // times that the link went down
	Symbols   float64 // bit errors: a healthy PAM4 link has some
	Packets   float64 // sent
	Again     float64 // packets that were sent again
}

// How a port of 400 Gb/s behaves. Health's bit errors and retransmissions are well below
// the limits of internal/reason; those of a fault are above them from a severity of a
// third on. Both are our judgement.
const (
	portBandwidth     = 50e9
	portPackets       = 1e6 // per second
	usualSymbols      = 1.0 // per second
	symbolsPerSecond  = 100.0
	usualAgain        = 1e-6 // of the packets
	againAtFull       = 500e-6
	flapEvery, flapOf = 30 * time.Second, time.Second
)

// portEffect is what the faults of a moment do to a port.
type portEffect struct {
	down          bool
	rate          float64 // left of it
	downed        float64
	symbols, loss float64
}

func (e *portEffect) add(f *Fault, severity float64, at, dt time.Duration) {
	switch f.Kind {
	case PortDown:
		e.down = true
		if f.since(at) < dt {
			e.downed++
		}
	case PortSlow:
		e.rate *= 1 - severity
	case PortFlaps:
		if in := f.since(at) % flapEvery; in < flapOf {
			e.down = true
			if in < dt {
				e.downed++
			}
		}
	case PortErrors:
		e.symbols += symbolsPerSecond * severity * dt.Seconds()
	case PortLoss:
		e.loss += againAtFull * severity
	}
}

func (p *Port) step(e *portEffect, dt time.Duration) {
	p.Up, p.Bandwidth = !e.down, portBandwidth*e.rate
	p.Downed += e.downed
	p.Symbols += usualSymbols*dt.Seconds() + e.symbols
	p.Packets += portPackets * dt.Seconds()
	p.Again += portPackets * dt.Seconds() * (usualAgain + e.loss)
}
