// SPDX-License-Identifier: Apache-2.0

package nodescore

import (
	"math"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
)

// trackers run the gateway's state machines on the node. An answer tells of a
// tick between it and the answer before, so that what the gateway compared then
// is the newest that the node had pushed by that one: a dip of the whole fleet
// is compared with the same dip.
type trackers struct {
	signals [nodesignal.Count]tracker
	// pushed are the newest evaluations, the last at next-1.
	pushed [4]pushed
	next   int
	// version is the tick that was stepped last, spoken when the gateway last
	// told parameters.
	version int64
	spoken  time.Time
	// mean is the node's own in the signal that groups are split by.
	mean   float64
	meanAt time.Time
}

type tracker struct {
	straggler.Tracker
	params  straggler.Params // of the last step
	stepped time.Time
}

type pushed struct {
	at     time.Time
	state  straggler.State
	values nodesignal.Values
}

// push notes what goes to the gateway.
func (t *trackers) push(cfg *Config, now time.Time, state straggler.State, values *nodesignal.Values) {
	t.pushed[t.next%len(t.pushed)] = pushed{now, state, *values}
	t.next++
	by, ok := splitBy(cfg)
	if !ok || state != straggler.StateActive || !values.Known[by] {
		return
	}
	x := values.V[by]
	if t.meanAt.IsZero() {
		t.mean = x
	} else {
		t.mean += (1 - math.Exp(-now.Sub(t.meanAt).Seconds()/cfg.CohortWindow.Seconds())) * (x - t.mean)
	}
	t.meanAt = now
}

// splitBy is the signal by which the gateway splits groups: the first relative
// one that decides.
func splitBy(cfg *Config) (nodesignal.Signal, bool) {
	for s := range nodesignal.Score {
		if cfg.Signals[s].Decides && cfg.Signals[s].Relative {
			return s, true
		}
	}
	return 0, false
}

// hear steps the trackers with a tick that is new, and reports whether the
// gateway compares signal by signal, now or not long ago.
func (t *trackers) hear(cfg *Config, now time.Time, peers *threshold.Received) bool {
	if len(peers.Signals) > 0 {
		t.spoken = now
	}
	if !t.heard(cfg, now) {
		return false
	}
	if peers.Version != t.version {
		t.version = peers.Version
		if p := t.pair(cfg, peers); p != nil {
			t.step(cfg, now, p, peers)
		}
	}
	for s := range t.signals {
		// What nobody is compared by any more accuses nobody.
		if tr := &t.signals[s]; now.Sub(tr.stepped) > cfg.CachedTTL {
			tr.Reset()
		}
	}
	return true
}

func (t *trackers) heard(cfg *Config, now time.Time) bool {
	return !t.spoken.IsZero() && now.Sub(t.spoken) <= cfg.CachedTTL
}

// pair finds what the gateway had of this node at the tick of an answer, nil
// for nothing. Where the answer before is long ago or unknown, the tick is no
// more than an interval old, and pushes are at least half of one apart.
func (t *trackers) pair(cfg *Config, peers *threshold.Received) *pushed {
	by := peers.After
	if by.IsZero() || peers.First.Sub(by) > cfg.Interval+cfg.Interval/2 {
		by = peers.First.Add(-cfg.Interval / 2)
	}
	for i := range t.pushed {
		at := t.next - 1 - i
		if at < 0 {
			break
		}
		if p := &t.pushed[at%len(t.pushed)]; !p.at.After(by) {
			return p
		}
	}
	return nil
}

func (t *trackers) step(cfg *Config, now time.Time, p *pushed, peers *threshold.Received) {
	if p.state != straggler.StateActive {
		t.resetAll()
		return
	}
	for s := range nodesignal.Score {
		if !p.values.Known[s] {
			continue
		}
		if params := t.params(s, peers.Signals); params != nil {
			tr := &t.signals[s]
			tr.Step(&cfg.CUSUM, params, p.values.V[s], peers.Version)
			tr.params, tr.stepped = *params, now
		}
	}
}

// params returns those of a signal, of the node's own cohort where the group
// is split: the last whose lower bound the node's mean reaches.
func (t *trackers) params(s nodesignal.Signal, all []threshold.SignalParams) (found *straggler.Params) {
	from := math.Inf(-1)
	for i := range all {
		p := &all[i]
		if p.Signal != s || p.HasFrom && p.From > t.mean {
			continue
		}
		lower := math.Inf(-1)
		if p.HasFrom {
			lower = p.From
		}
		if found == nil || lower >= from {
			found, from = &p.Params, lower
		}
	}
	return found
}

// worst returns the greatest suspicion and whose it is.
func (t *trackers) worst() (suspicion float64, by nodesignal.Signal) {
	for s := range nodesignal.Score {
		tr := &t.signals[s]
		if x := tr.Suspicion(&tr.params); x > suspicion {
			suspicion, by = x, s
		}
	}
	return suspicion, by
}

// straggler reports whether any signal makes the node one, and since when.
func (t *trackers) straggler() (since time.Time, slow bool) {
	for s := range t.signals {
		tr := &t.signals[s]
		if !tr.Straggler() {
			continue
		}
		if at := tr.Since(); !slow || at.Before(since) {
			since = at
		}
		slow = true
	}
	return since, slow
}

func (t *trackers) reset(s nodesignal.Signal) { t.signals[s].Reset() }

func (t *trackers) resetAll() {
	for s := range t.signals {
		t.signals[s].Reset()
	}
}
