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
		reading.RankShare, reading.RankShareMedian, reading.RankRate, reading.RankRateMedian,
		reading.CPUPressure, reading.CPUSteal, reading.LoadAverage, reading.HostMemory, reading.GPUsExpected, reading.GPUsFound, reading.GPUsLost, reading.GPUsPending,
		// Of the rank that reported last. They say that the node's throughput is in steps.
		reading.StepDuration, reading.StepOwnDuration, reading.StepRate,
	}
	GPUNumbers = [...]reading.Field{
		reading.Up, reading.Health, reading.Temperature, reading.TemperatureLimit, reading.TemperatureMargin, reading.MemoryTemperature,
		reading.Power, reading.PowerLimit, reading.Utilization, reading.TensorActivity, reading.SMActivity, reading.SMClock, reading.SMClockLimit,
		reading.MemoryUsed, reading.MemoryLimit,
		reading.ECCCorrected, reading.ECCUncorrected, reading.ECCCorrectedTotal, reading.ECCUncorrectedTotal,
		reading.RemappedCorrected, reading.RemappedUncorrected, reading.PCIeGeneration, reading.PCIeGenerationLimit, reading.PCIeWidth, reading.PCIeWidthLimit, reading.PCIeReplays,
		reading.NVLinksUp, reading.Processes,
	}
	GroupNumbers = [...]reading.Field{
		reading.GroupThreshold, reading.GroupMedian, reading.GroupMAD, reading.GroupQuorum,
		reading.GroupCoverageLow, reading.GroupStragglers, reading.GroupIncident, reading.GroupDetectable,
	}
)

type (
	ofNode  [len(NodeNumbers)]float64
	ofGPU   [len(GPUNumbers)]float64
	ofGroup [len(GroupNumbers)]float64
)

// columns are the indices of a subject's numbers, elsewhere for those of other subjects.
type columns [reading.NumFields]uint8

const elsewhere = 31 // no number has that bit, and no list is so long

func columnsOf(fields []reading.Field) (at columns) {
	for f := range at {
		at[f] = elsewhere
	}
	for i, f := range fields {
		at[f] = uint8(i)
	}
	return at
}

var nodeColumns, gpuColumns, groupColumns = columnsOf(NodeNumbers[:]), columnsOf(GPUNumbers[:]), columnsOf(GroupNumbers[:])

func (*ofNode) columns() *columns  { return &nodeColumns }
func (*ofGPU) columns() *columns   { return &gpuColumns }
func (*ofGroup) columns() *columns { return &groupColumns }

type hasColumns[A any] interface {
	*A
	columns() *columns
}

// Numbers holds the numbers of one subject and the set of the known ones.
type Numbers[A ofNode | ofGPU | ofGroup, S hasColumns[A]] struct {
	v     A
	known uint32
}

// Get returns the number, nil when it is unknown or of another subject. The target never
// changes.
func (n *Numbers[A, S]) Get(f reading.Field) *float64 {
	at := S(nil).columns()[f]
	if n.known&(1<<at) == 0 {
		return nil
	}
	return &n.v[at]
}

// Flag reports whether the field is known and not 0.
func (n *Numbers[A, S]) Flag(f reading.Field) bool {
	v := n.Get(f)
	return v != nil && *v != 0
}

// same reports whether set would change nothing.
func (n *Numbers[A, S]) same(f reading.Field, x float64) bool {
	if v := n.Get(f); v != nil {
		return math.Float64bits(*v) == math.Float64bits(x)
	}
	return !finite(x)
}

// set gives a number. NaN ends it. It panics for a field of another subject.
func (n *Numbers[A, S]) set(f reading.Field, x float64) {
	at := S(nil).columns()[f]
	if !finite(x) {
		n.known &^= 1 << at
		return
	}
	n.v[at] = x
	n.known |= 1 << at
}
