// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"math"
	"slices"
	"sync/atomic"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// live is what searches need of every node, side by side in memory: to look at
// 50,000 views for one page would be 50,000 waits for memory.
type live struct {
	// seen is when the node last gave a sign of life, Unix milliseconds.
	seen atomic.Int64
	// facts are what nodes are selected by, see pack.
	facts atomic.Uint64
}

// Layout of the facts: usage as the bits of a float32, then health, verdict,
// state, and whether the node was forgotten.
const (
	healthShift  = 32
	stragglerBit = 1 << 35
	stateShift   = 36
	stateMask    = 7
	goneBit      = 1 << 40
)

// states are those that can be selected; missing is a matter of time.
var states = [...]string{"", gpusemconv.StateActive, gpusemconv.StateIdle, gpusemconv.StateCalibrating}

func (l *live) gone() bool { return l.facts.Load()&goneBit != 0 }

// set replaces the facts. That the node was forgotten meanwhile stays so.
func (l *live) set(facts uint64) {
	for {
		old := l.facts.Load()
		if l.facts.CompareAndSwap(old, facts|old&goneBit) {
			return
		}
	}
}

func pack(n *Node) uint64 {
	facts := uint64(math.Float32bits(float32(n.Usage))) | uint64(n.Health)<<healthShift
	if n.Values.Flag(reading.NodeStraggler) {
		facts |= stragglerBit
	}
	if i := slices.Index(states[:], n.State); i > 0 {
		facts |= uint64(i) << stateShift
	}
	return facts
}

// matchFacts is matchNode without the view, but for the groups.
func (f *Filter) matchFacts(facts uint64, missing bool) bool {
	if f.Straggler != nil && *f.Straggler != (facts&stragglerBit != 0 && !missing) {
		return false
	}
	// Unknown usage is NaN, which is not at least anything; of a missing node it
	// is the former.
	if f.MinUsage > 0 && (missing || !(math.Float32frombits(uint32(facts)) >= float32(f.MinUsage))) {
		return false
	}
	if len(f.Health) > 0 && !slices.Contains(f.Health, Health(facts>>healthShift&3)) {
		return false
	}
	if len(f.States) == 0 {
		return true
	}
	state := gpusemconv.StateMissing
	if !missing {
		state = states[facts>>stateShift&stateMask]
	}
	return state != "" && slices.Contains(f.States, state)
}
