// SPDX-License-Identifier: Apache-2.0

package reading

import (
	"sync/atomic"
	"time"
)

const (
	// clockSlack is how far back a clock may be set for its time to be taken as it is.
	clockSlack = time.Second
	// clockStep is from where on a difference is not one of reading two clocks in turn.
	clockStep = 10 * time.Millisecond
)

// Clock has a time that never goes back while the process runs: after an hour back a
// backend, which keeps the newest point of a series, would take none for that hour. It
// follows a wall clock that is set ahead. Where the wall clock is set back, Clock
// goes on by the monotonic clock until the wall clock has caught up or the process
// ends. The zero value is ready, and safe for concurrent use.
type Clock struct{ base atomic.Pointer[time.Time] }

// Now is Time of the machine's clock.
func (c *Clock) Now() time.Time { return c.Time(time.Now()) }

// Time is the time when the wall clock is at now. Its monotonic reading is
// that of now, so that durations between two times are what they were.
func (c *Clock) Time(now time.Time) time.Time {
	base := c.base.Load()
	if base == nil {
		first := now // or each call would have it on the heap
		c.base.CompareAndSwap(nil, &first)
		return now
	}
	steady := base.Add(now.Sub(*base))
	// By the wall clocks alone.
	back := steady.Round(0).Sub(now.Round(0))
	if back > clockSlack {
		return steady
	}
	if back.Abs() > clockStep {
		next := now
		c.base.CompareAndSwap(base, &next)
	}
	return now
}
