// SPDX-License-Identifier: Apache-2.0

package reading

import (
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
)

// shifted is a time whose wall clock alone is wrong, which no function makes: the
// first word of a time with a monotonic reading has 30 bits of nanoseconds, and
// above them 33 of seconds.
func shifted(t time.Time, by time.Duration) time.Time {
	const bits = 30
	wall := (*uint64)(unsafe.Pointer(&t))
	nanos := time.Duration(*wall&(1<<bits-1)) + by%time.Second
	seconds := by / time.Second
	if nanos < 0 {
		nanos, seconds = nanos+time.Second, seconds-1
	} else if nanos >= time.Second {
		nanos, seconds = nanos-time.Second, seconds+1
	}
	*wall = *wall&^(1<<bits-1) + uint64(seconds)<<bits + uint64(nanos)
	return t
}

func TestClock(t *testing.T) {
	type reading struct{ after, wrong, want time.Duration } // want is after start
	for _, tt := range []struct {
		name     string
		readings []reading
	}{
		{"right all the time", []reading{{0, 0, 0}, {time.Minute, 0, time.Minute}, {time.Hour, 0, time.Hour}}},
		{"set ahead is followed", []reading{{0, 0, 0}, {time.Minute, time.Hour, time.Hour + time.Minute}, {2 * time.Minute, time.Hour, time.Hour + 2*time.Minute}}},
		{"set back goes on as before", []reading{{0, 0, 0}, {time.Minute, -time.Hour, time.Minute}, {2 * time.Minute, -time.Hour, 2 * time.Minute}}},
		{"set back and right again", []reading{{0, 0, 0}, {time.Minute, -time.Hour, time.Minute}, {2 * time.Minute, 0, 2 * time.Minute}, {3 * time.Minute, time.Minute, 4 * time.Minute}}},
		{"ahead and right again goes on ahead", []reading{{0, 0, 0}, {time.Minute, time.Hour, time.Hour + time.Minute}, {2 * time.Minute, 0, time.Hour + 2*time.Minute}, {3 * time.Minute, 2 * time.Hour, 2*time.Hour + 3*time.Minute}}},
		{"half a second back is taken as it is, and again", []reading{{0, 0, 0}, {time.Minute, -500 * time.Millisecond, time.Minute - 500*time.Millisecond}, {2 * time.Minute, -1200 * time.Millisecond, 2*time.Minute - 1200*time.Millisecond}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			start, c := time.Now(), new(Clock)
			for _, r := range tt.readings {
				got := c.Time(shifted(start.Add(r.after), r.wrong))
				assert.Equal(t, r.want, got.Round(0).Sub(start.Round(0)), "after %s, wrong by %s", r.after, r.wrong)
				assert.Equal(t, r.after, got.Sub(start), "by the monotonic clock, after %s", r.after)
			}
		})
	}
}

func TestClockAllocatesNothing(t *testing.T) {
	c := new(Clock)
	c.Now()
	assert.Zero(t, testing.AllocsPerRun(100, func() { c.Now() }))
}
