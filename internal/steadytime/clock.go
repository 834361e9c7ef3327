// SPDX-License-Identifier: Apache-2.0

// Package steadytime tells a time that never goes back while the process runs. A
// backend keeps the newest point of a series: after a clock was set back by an hour
// it would take no point for that hour.
package steadytime // import "github.com/gpu-collector/gpu-collector/internal/steadytime"

import (
	"sync/atomic"
	"time"
)

const (
	// slack is how far back a clock may be set for its time to be taken as it is.
	slack = time.Second
	// step is from where on a difference is not one of reading two clocks in turn.
	step = 10 * time.Millisecond
)

// Clock follows a wall clock that is set ahead. Where the wall clock is set back, Clock
// goes on by the monotonic clock until the wall clock has caught up or the process
// ends. The zero value is ready, and safe for concurrent use.
type Clock struct {
	base   atomic.Pointer[time.Time]
	resume atomic.Pointer[resumed]
}

// resumed is that the clock says at least last, and as much more as passed since.
type resumed struct{ last, since time.Time }

// Resume has the clock tell no time before last, which a process before this one told: its
// wall clock may have been set back in between. now is what the wall clock says.
func (c *Clock) Resume(last, now time.Time) {
	if last.After(now) {
		c.resume.Store(&resumed{last.Round(0), now})
	}
}

// Now is Time of the machine's clock.
func (c *Clock) Now() time.Time { return c.Time(time.Now()) }

// Time is what time it is when the wall clock says now. Its monotonic reading is
// that of now, so that durations between two times are what they were.
func (c *Clock) Time(now time.Time) time.Time {
	at := c.steady(now)
	if r := c.resume.Load(); r != nil {
		// Without a monotonic reading, which would not be that of now.
		if least := r.last.Add(now.Sub(r.since)); at.Round(0).Before(least) {
			return least
		}
	}
	return at
}

func (c *Clock) steady(now time.Time) time.Time {
	base := c.base.Load()
	if base == nil {
		first := now // or each call would have it on the heap
		c.base.CompareAndSwap(nil, &first)
		return now
	}
	steady := base.Add(now.Sub(*base))
	// By the wall clocks alone.
	back := steady.Round(0).Sub(now.Round(0))
	if back > slack {
		return steady
	}
	if back.Abs() > step {
		next := now
		c.base.CompareAndSwap(base, &next)
	}
	return now
}
