// SPDX-License-Identifier: Apache-2.0

package hang

import (
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/packed"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

const maxID = 64

// Save begins to write what is known of the jobs. Each call of the function that it
// returns writes some more of them, and reports whether there are any left; no Tick may
// come in between. It writes no last
// word of a rank or node: ranks and nodes repeat theirs.
func (b *Book) Save(c *packed.Coder) (next func(jobs int) (more bool)) {
	left := slices.Clone(b.order)
	c.Size(len(left))
	return func(jobs int) bool {
		for ; len(left) > 0 && jobs > 0; jobs-- {
			left[0].ranked = left[0].isRanked()
			left[0].pack(c)
			left = left[1:]
		}
		return len(left) > 0
	}
}

// Restore reads what was saved into a book that is empty. The coder has the mistakes.
func (b *Book) Restore(c *packed.Coder, now time.Time) {
	for range c.Size(0) {
		var j job
		j.pack(c)
		c.Check(j.cluster != "" && j.usual >= 0)
		if c.Err() != nil {
			return
		}
		kept, err := b.job(j.cluster, j.name, now)
		if err != nil {
			continue // there is less room than there was
		}
		kept.since, kept.progress, kept.power, kept.usual, kept.learned = j.since, j.progress, j.power, j.usual, j.learned
		kept.id, kept.byPower, kept.began, kept.named, kept.ranked = j.id, j.byPower, j.began, j.named, j.ranked
		kept.resumed = now
		// Nobody listened: that is no pause of the job.
		kept.progress.broken, kept.power.broken = true, true
	}
	b.continues = true
}

func (j *job) pack(c *packed.Coder) {
	c.Text(&j.cluster, maxName)
	c.Text(&j.name, maxName)
	c.Time(&j.since)
	for _, s := range [...]*stall{&j.progress, &j.power} {
		c.Time(&s.moved)
		packed.Count(c, &s.pause)
	}
	c.Float(&j.usual)
	packed.Count(c, &j.learned)
	c.Text(&j.id, maxID)
	c.Time(&j.began)
	for _, x := range [...]*bool{&j.byPower, &j.named, &j.ranked} {
		c.Bool(x)
	}
}

// awaited reports whether the job's ranks and nodes may not have told anything yet, since
// the process began anew.
func (j *job) awaited(now time.Time) bool {
	return !j.resumed.IsZero() && now.Sub(j.resumed) <= forget
}

// isRanked reports whether the job tells of its operations, as far as is known.
func (j *job) isRanked() bool {
	return len(j.ranks) > 0 || j.ranked && j.awaited(j.ticked)
}

// Open lists the hangs that were told and go on, as events of a kind:
// straggler.EventContinues, or straggler.EventEnd where nobody can know.
func (b *Book) Open(kind straggler.EventKind, cause string, now time.Time) (events []Event) {
	for _, j := range b.order {
		switch {
		case j.id == "":
		case kind == straggler.EventEnd:
			events = append(events, j.end(cause, now))
		default:
			events = append(events, j.tell(kind, j.stall(), now))
		}
	}
	return events
}
