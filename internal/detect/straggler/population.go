// SPDX-License-Identifier: Apache-2.0

package straggler

import "github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"

// population has the constants in which nodes and ranks differ. A rank's value is an average
// of many operations, so that few values show what takes nodes minutes.
type population struct {
	warmTicks uint8 // with a value make a member comparable
	// oddTicks at most are left out in which members differ by much more than usual: ranks
	// do while a checkpoint is written.
	maxSkipped uint8
	baseline   float32 // share of a member's usual difference that does not count as spread
	// In the first young seconds a member's usual difference is learnt, up to mostBaseline.
	young, mostBaseline float64
	behind              float64 // a member is slow if it is behind its peers by this part of the limit too
	leastLoss           float64 // factor of the smallest loss that counts
	alike               bool    // members are nodes: they differ for good, start together, and may work in lockstep
	eitherSide          bool    // of two may have changed, see sides
}

var (
	populationOfNodes = population{warmTicks: warmTicks, behind: 0.5, leastLoss: 1, alike: true}
	// Healthy ranks' shares of time differ by some percent at most: Not All GPUs Are Created
	// Equal (SC '22). Of ranks the slow side computes longer, and the other one waits.
	populationOfRanks = population{
		warmTicks: 3, maxSkipped: 6, baseline: 1, leastLoss: 1.25, young: 5 * 60, mostBaseline: 0.03, eitherSide: true,
	}
)

// rankGap is the smallest loss of a rank's own time that counts. A report is an average of
// many steps, so that twice as much, as of a rank that is 10 % slower, is found after three.
const rankGap = 0.04

// OfRanks is the configuration of the engine that compares the ranks of jobs by those two of
// their signals that decide in c: the share of time in collectives, and own time.
func (c Config) OfRanks() Config {
	c.ranks = true
	for s := range c.Signals {
		of := nodesignal.Signal(s)
		c.Signals[s].Decides = c.Signals[s].Decides && (of == nodesignal.Communication || of == nodesignal.Throughput)
	}
	c.Signals[nodesignal.Throughput].MinGap = rankGap
	return c
}
