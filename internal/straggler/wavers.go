// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math"
	"time"
)

// wavers follows how long what sets a cohort's nodes apart lasts. Nodes that wait for one
// another at each step begin it together, and what sets them apart begins anew. Where
// communication runs beside compute nobody has to wait: then a well node is ahead of the
// others for minutes, or behind, and its share of time in collectives says nothing of its
// speed.
//
// The two are told apart by Wald's sequential test (Annals of Mathematical Statistics 16,
// 1945). All nodes' values count, so a large group knows it after two minutes. Until then
// only a great loss accuses.
type wavers struct {
	// long and short are the variances that the sums of blockValues deviations and the
	// deviations have, times of, the blocks in the memory of waversWindow. Of values without
	// memory they are alike. Steps that are cut by the end of a tick make the former less.
	long, short, of float64
	moves           bool // values change, and not of one node alone
	state           waiting
}

// waiting is what is known of a cohort whose nodes may wait for one another.
type waiting uint8

const (
	undecided waiting = iota
	waits
	overlaps
	numWaiting
)

const (
	// waversWindow is the memory, and waversTicks the least of it.
	waversWindow, waversTicks = 30 * time.Minute, 120
	// In sim/ranks the ratio of long to short is at most 1.1 where ranks wait at each step,
	// and 1.4 to 3.7 in the jobs with false verdicts. Some overlap is told when much is known.
	blockValues, overlapping, someOverlap = 4, 2.5, 1.6
	// decided is the logarithm of how many times as likely one is as the other.
	decided = 3.0 // 20
	// doubt is how many times the loud limit accuses a node while it is not known whether it
	// waits: what overlap does is within a few of its peers' spreads.
	doubt = 4
	// meanValues is the memory of a node's own mean.
	meanValues = 32
)

// waver is a block of the newest values of a node, as losses against its peers, and the
// mean before it. What the node always differs by is no memory.
type waver struct {
	mean, sum, long, short float32
	values, in             uint8 // in the mean, and in the block
}

// sides sums up what the nodes say at a tick. The node against which most speaks does not
// count: a slow one is always on one side.
type sides struct {
	all, worst block
	most       float32 // against the worst
	n          int
}

// block is what one that is over says, or several.
type block struct {
	long, short, of float64
	told            int // nodes with another value than before
}

// against is how much speaks against a node, whether or not it may be accused.
func (t *Tracker) against(s *steps) float32 {
	return maxFull * max(t.sum[loud]/s.bound[loud], t.sum[mid]/s.bound[mid])
}

// add takes what a node says at this tick, against which so much speaks.
func (s *sides) add(b block, against float32) {
	if s.n++; s.n == 1 || against > s.most {
		s.most, s.worst = against, b
	}
	s.all = block{s.all.long + b.long, s.all.short + b.short, s.all.of + b.of, s.all.told + b.told}
}

// take takes a new loss of the node.
func (w *waver) take(loss, perScale float64) block {
	said := block{told: 1}
	if w.values == 0 && w.in == 0 {
		said.told = 0 // there is no value before
	}
	z := float32(clamp((loss-float64(w.mean))*perScale, -maxLag, maxLag))
	w.sum, w.long, w.short = w.sum+float32(loss), w.long+z, w.short+z*z
	if w.in++; w.in < blockValues {
		return said
	}
	if n := float64(w.values); n > 0 { // the error of the mean is in all of them
		said.long = float64(w.long) * float64(w.long) / blockValues / (1 + blockValues/n)
		said.short, said.of = float64(w.short)/blockValues/(1+1/n), 1
	}
	w.values = min(w.values+blockValues, meanValues)
	w.mean += (w.sum/blockValues - w.mean) * blockValues / float32(w.values)
	w.sum, w.long, w.short, w.in = 0, 0, 0, 0
	return said
}

func (f *wavers) follow(s *sides, elapsed time.Duration) {
	f.moves = f.moves || s.all.told > s.worst.told
	keep := math.Exp(-float64(elapsed) / float64(max(waversWindow, waversTicks*elapsed)))
	f.long = f.long*keep + s.all.long - s.worst.long
	f.short = f.short*keep + s.all.short - s.worst.short
	f.of = f.of*keep + s.all.of - s.worst.of
	if !(f.short > 0) {
		return
	}
	switch much, some := f.likelier(overlapping), f.likelier(someOverlap); {
	case max(much, some) >= decided:
		f.state = overlaps
	case much <= -decided && some < 0:
		f.state = waits
	}
}

// likelier is the logarithm of how many times as likely it is that the variance of normal
// sums is ratio times that of the values as that both are alike.
func (f *wavers) likelier(ratio float64) float64 {
	return f.of / 2 * (f.long/f.short*(1-1/ratio) - math.Log(ratio))
}

// silent reports whether no usual loss accuses by a signal of nodes that wait for one
// another. Values that never change tell nothing of it, and are compared.
func (f *wavers) silent() bool {
	return f != nil && (f.state == overlaps || f.state == undecided && f.moves)
}

// overlaps reports whether it is known that they do not wait.
func (f *wavers) overlaps() bool { return f != nil && f.state == overlaps }
