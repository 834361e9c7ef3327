// SPDX-License-Identifier: Apache-2.0

package csvreplayreceiver

import "time"

// pacer says when a step is due.
type pacer struct {
	speed float64

	due     time.Time
	last    time.Duration
	gap     time.Duration // the last gap, of the replay
	running bool
}

// next returns when the step at the recording's time at is due.
func (p *pacer) next(at time.Duration, now time.Time) time.Time {
	switch {
	case !p.running:
		p.running, p.due, p.gap = true, now, p.scale(time.Second)
	case at > p.last:
		p.gap = p.scale(at - p.last)
		p.advance(now)
	default:
		// Times rise within a pass, so the recording has started over. Its end and
		// its beginning are as far apart as the last two steps were.
		p.advance(now)
	}
	p.last = at
	return p.due
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
	// About 146 years: far from overflow in time arithmetic.
	return time.Duration(min(float64(d)/p.speed, 1<<62))
}
