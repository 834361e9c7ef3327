// SPDX-License-Identifier: Apache-2.0

package csvreplayreceiver

import (
	"math"
	"time"
)

// pacer says when a step is due.
type pacer struct {
	speed  float64
	maxGap time.Duration

	due     time.Time
	last    time.Duration
	gap     time.Duration // the last gap, of the replay
	running bool
	rewound bool
}

// next returns when the step at the recording's time at is due, and by how
// much a pause before it was shortened.
func (p *pacer) next(at time.Duration, now time.Time) (due time.Time, cut time.Duration) {
	switch {
	case !p.running:
		p.running = true
		p.due = now
	case p.rewound:
		// The end and the beginning are as far apart as the last two steps were.
		p.rewound = false
		if p.gap <= 0 {
			p.gap = p.scale(time.Second)
		}
		p.advance(now)
	default:
		gap := at - p.last
		if p.maxGap > 0 && gap > p.maxGap {
			cut = gap - p.maxGap
			gap = p.maxGap
		}
		p.gap = p.scale(gap)
		p.advance(now)
	}
	p.last = at
	return p.due, cut
}

// advance keeps the schedule over small delays, but after one of more than a
// gap it starts from now: a consumer that was slow gets no burst of old states.
func (p *pacer) advance(now time.Time) {
	p.due = p.due.Add(p.gap)
	if now.Sub(p.due) > p.gap {
		p.due = now
	}
}

func (p *pacer) scale(d time.Duration) time.Duration {
	scaled := float64(d) / p.speed
	// 2^62 ns, about 146 years: far from overflow in time arithmetic.
	if scaled > math.MaxInt64/2 {
		return math.MaxInt64 / 2
	}
	return time.Duration(scaled)
}

// rewind prepares for the recording to start over.
func (p *pacer) rewind() { p.rewound = p.running }
