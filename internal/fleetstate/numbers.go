// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"math"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// The numbers of a node, a GPU and a group, in the units of the catalogue;
// flags are 0 and 1.
var (
	NodeNumbers = [...]reading.Field{
		reading.NodeHealthScore, reading.AgentThreshold, reading.AgentStraggler, reading.AgentReachable,
		reading.NodeStraggler, reading.NodeSuspicion, reading.NodeRank, reading.NodeUnjudged, reading.NodeUnjudgedUntil,
		reading.CPUPressure, reading.GPUsExpected, reading.GPUsFound, reading.GPUsLost, reading.GPUsPending,
	}
	GPUNumbers = [...]reading.Field{
		reading.Up, reading.Health, reading.Temperature, reading.TemperatureLimit, reading.TemperatureMargin, reading.MemoryTemperature,
		reading.Power, reading.PowerLimit, reading.Utilization, reading.TensorActivity, reading.SMActivity, reading.SMClock, reading.SMClockLimit,
		reading.MemoryUsed, reading.MemoryLimit,
		reading.ECCCorrected, reading.ECCUncorrected, reading.ECCCorrectedTotal, reading.ECCUncorrectedTotal,
		reading.RemappedCorrected, reading.RemappedUncorrected, reading.PCIeWidth, reading.PCIeWidthLimit, reading.PCIeReplays,
	}
	GroupNumbers = [...]reading.Field{
		reading.GroupThreshold, reading.GroupMedian, reading.GroupMAD, reading.GroupQuorum,
		reading.GroupCoverageLow, reading.GroupPanic, reading.GroupStragglers, reading.GroupIncident, reading.GroupDetectable,
	}
)

type (
	ofNode  [len(NodeNumbers)]float64
	ofGPU   [len(GPUNumbers)]float64
	ofGroup [len(GroupNumbers)]float64
)

// place is where the number of a field lies among those of its subject.
var place = func() (at [reading.NumFields]uint8) {
	for _, fields := range [...][]reading.Field{NodeNumbers[:], GPUNumbers[:], GroupNumbers[:]} {
		for i, f := range fields {
			at[f] = uint8(i)
		}
	}
	return at
}()

// Numbers holds the numbers of one subject, and which of them are known.
type Numbers[A ofNode | ofGPU | ofGroup] struct {
	v     A
	known uint32
}

// Get returns the number, nil when it is unknown. The target never changes.
func (n *Numbers[A]) Get(f reading.Field) *float64 {
	if n.known&(1<<place[f]) == 0 {
		return nil
	}
	return &n.v[place[f]]
}

// Flag reports whether the field is known and not 0.
func (n *Numbers[A]) Flag(f reading.Field) bool {
	v := n.Get(f)
	return v != nil && *v != 0
}

// same reports whether set would change nothing.
func (n *Numbers[A]) same(f reading.Field, x float64) bool {
	if v := n.Get(f); v != nil {
		return math.Float64bits(*v) == math.Float64bits(x)
	}
	return !finite(x)
}

// set gives a number. NaN ends it.
func (n *Numbers[A]) set(f reading.Field, x float64) {
	if !finite(x) {
		n.known &^= 1 << place[f]
		return
	}
	n.v[place[f]] = x
	n.known |= 1 << place[f]
}
