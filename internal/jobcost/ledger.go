// SPDX-License-Identifier: Apache-2.0

package jobcost

import (
	"time"

	"github.com/gpu-collector/gpu-collector/internal/packed"
)

// Slowdown returns S_w of a worker that does gap less work per second than its peers,
// a fraction: all others of a synchronous job wait for it (Greyhound, ATC '25). It is 1
// where nothing is lost.
func Slowdown(gap float64) float64 { return 1 / (1 - min(max(gap, 0), maxGap)) }

// maxGap keeps a worker that stands still from a slowdown without end.
const maxGap = 0.99

// Hours returns the GPU-hours that so many GPUs of a job lose in a time.
func Hours(gap float64, gpus int, d time.Duration) float64 {
	return min(max(gap, 0), 1) * float64(gpus) * max(d, 0).Hours()
}

// Ledger adds up what one job loses. The zero value has lost nothing.
type Ledger struct {
	// S is the job's slowdown at the last tick, 1 for none; Today the GPU-hours lost
	// since midnight, UTC, or since the ledger began.
	S, Today float64

	day int64
}

// Add counts the time since the tick before. gap is what the worst worker loses, gpus
// are the job's, 0 where they are not known.
func (l *Ledger) Add(at time.Time, since time.Duration, gap float64, gpus int) {
	const day = 24 * time.Hour
	if today := at.Unix() / int64(day/time.Second); today != l.day {
		l.day, l.Today = today, 0
		since = min(since, at.Sub(at.UTC().Truncate(day)))
	}
	l.S = Slowdown(gap)
	if since <= maxSilence {
		l.Today += Hours(gap, gpus, since)
	}
}

// maxSilence is the longest time between two ticks in which the loss is taken to last.
const maxSilence = time.Hour

// Pack writes or reads the ledger.
func (l *Ledger) Pack(c *packed.Coder) {
	c.Float(&l.S)
	c.Float(&l.Today)
	packed.Int(c, &l.day)
}
