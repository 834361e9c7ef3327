// SPDX-License-Identifier: Apache-2.0

// Package lease decides who of several processes is the active one, by a record that all
// of them read and one at a time can replace. The rule is that of Kubernetes' leader
// election (client-go, tools/leaderelection): nobody trusts another's clock, and a record
// runs out its duration after a process first saw it. Pure.
package lease // import "github.com/gpu-collector/gpu-collector/internal/lease"

import "time"

// Record is what the processes share: the spec of a Lease of coordination.k8s.io/v1.
type Record struct {
	// Holder is the name of the process that is active, empty for nobody.
	Holder string
	// Duration is how long the others wait for another renewal.
	Duration time.Duration
	// Acquired and Renewed are by the holder's clock, for people.
	Acquired, Renewed time.Time
	// Transitions counts the holders before this one.
	Transitions int
}

func (r *Record) same(o *Record) bool {
	return r.Holder == o.Holder && r.Duration == o.Duration && r.Transitions == o.Transitions &&
		r.Acquired.Equal(o.Acquired) && r.Renewed.Equal(o.Renewed)
}

// Config of an Elector. Deadline is less than Duration: the holder gives up before any
// other begins.
type Config struct {
	// Name of the process. No two may have the same, nor two lives of one.
	Name               string
	Duration, Deadline time.Duration
}

// Elector is one process' part. Its times have to have monotonic readings, or come from a
// clock that is never set. Not safe for concurrent use.
type Elector struct {
	cfg     Config
	seen    Record
	seenAt  time.Time // when it was first seen
	renewed time.Time // when the last write of ours that was taken began
}

// New returns the part of a process that holds nothing.
func New(cfg Config) *Elector { return &Elector{cfg: cfg} }

// Next returns the record to store in place of one that was read, and whether there is
// one: not while another process holds it. now is after the reading, and before the writing.
func (e *Elector) Next(read Record, now time.Time) (next Record, mine bool) {
	if e.seenAt.IsZero() || !e.seen.same(&read) {
		e.seen, e.seenAt = read, now
	}
	if read.Holder != "" && read.Holder != e.cfg.Name && now.Sub(e.seenAt) < max(read.Duration, 0) {
		return Record{}, false
	}
	next = Record{Holder: e.cfg.Name, Duration: e.cfg.Duration, Acquired: read.Acquired, Renewed: now, Transitions: read.Transitions}
	if read.Holder != e.cfg.Name {
		next.Acquired = now
		next.Transitions++
	}
	return next, true
}

// Wrote notes that the record of a Next at that time was stored.
func (e *Elector) Wrote(next Record, at time.Time) {
	e.seen, e.seenAt, e.renewed = next, at, at
}

// Holds reports whether this process is active. It is no longer, Deadline after its last
// renewal, whatever the store has.
func (e *Elector) Holds(now time.Time) bool {
	return !e.renewed.IsZero() && now.Sub(e.renewed) < e.cfg.Deadline
}

// Release returns the record with which a holder lets go: the next one need not wait.
func (e *Elector) Release(now time.Time) Record {
	r := e.seen
	r.Holder, r.Duration, r.Renewed = "", time.Second, now
	e.renewed = time.Time{}
	return r
}
