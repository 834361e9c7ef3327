// SPDX-License-Identifier: Apache-2.0

package nodescore

import (
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
)

// trackers run the gateway's state machines on the node. An answer tells of a tick
// between it and the answer before. By then the gateway had compared the newest that
// the node had pushed before that answer. So a dip of the whole fleet is compared
// with the same dip.
type trackers struct {
	signals [nodesignal.Count]tracker
	// pushed are the newest evaluations, the last at next-1.
	pushed  [4]pushed
	next    int
	version int64 // the tick that was stepped last
	// warm counts the ticks since the node became active.
	warm   int
	late   bool // its group was settled before it came
	same   sameness
	cohort cohort
	// passing is true while the node goes to another cohort: nobody judges it.
	passing bool
}

type tracker struct {
	straggler.Tracker
	told int64     // tick of the last value
	born time.Time // the peers that it was compared with last
}

type pushed struct {
	at     time.Time
	state  straggler.State
	active int // pushes in a row, this one included
	score  float64
	values nodesignal.Values
}

// push notes what goes to the gateway.
func (t *trackers) push(now time.Time, res *Result) {
	active := 0
	if res.State == straggler.StateActive {
		active = 1
		if t.next > 0 {
			active += t.pushed[(t.next-1)%len(t.pushed)].active
		}
	}
	t.pushed[t.next%len(t.pushed)] = pushed{now, res.State, active, res.Score, res.Signals.Values}
	t.next++
}

// hear steps the trackers with a tick that is new. A tick without parameters
// ends what the trackers say: nobody is compared any more.
func (t *trackers) hear(cfg *Config, peers *threshold.Received) {
	if peers.Version == t.version {
		return
	}
	elapsed := time.Duration(peers.Version-t.version) * time.Millisecond
	p := t.pair(cfg, peers)
	switch {
	case t.version == 0:
		// The gateway counted the pushes before its first answer.
		t.late = peers.Settled
		if p != nil {
			t.warm = max(p.active-1, 0)
			t.cohort.start(p, t.warm)
		}
	case elapsed > cfg.ReadingTTL:
		// To the gateway, too, the node was missing.
		t.pause()
	}
	t.version = peers.Version
	if p != nil {
		t.step(cfg, p, peers, elapsed)
	}
}

// pair finds what the gateway had of this node at the tick of an answer, nil for
// nothing new. Where the answer before is long ago or unknown, the tick is no more
// than an interval old. Pushes are at least half of one apart.
func (t *trackers) pair(cfg *Config, peers *threshold.Received) *pushed {
	by := peers.After
	if by.IsZero() || peers.First.Sub(by) > cfg.Interval+cfg.Interval/2 {
		by = peers.First.Add(-cfg.Interval / 2)
	}
	for i := 1; i <= min(t.next, len(t.pushed)); i++ {
		p := &t.pushed[(t.next-i)%len(t.pushed)]
		switch {
		case p.at.After(by):
		case by.Sub(p.at) > 2*cfg.Interval:
			return nil
		default:
			return p
		}
	}
	return nil
}

func (t *trackers) step(cfg *Config, p *pushed, peers *threshold.Received, elapsed time.Duration) {
	t.same.count(p)
	if p.state != straggler.StateActive {
		t.forget()
		return
	}
	_, slow := t.straggler()
	t.warm = min(t.warm+1, straggler.MaxWarmTicks)
	warmup := straggler.WarmTicks(cfg.Warmup, elapsed, t.late)
	parts := t.cohort.count
	moved, turned := t.cohort.follow(cfg, p, &peers.Value, elapsed, t.suspects(slow))
	if moved && parts != t.cohort.count && t.bornWith(peers.Signals) {
		moved = false // other parts left: its own goes on
	}
	if turned || moved && !slow {
		// The past among other peers does not count.
		t.resetAll()
	}
	t.passing = !slow && t.cohort.passing
	if t.cohort.unknown() || t.passing {
		return
	}
	for s := range nodesignal.Score {
		tr := &t.signals[s]
		params := t.cohort.params(s, peers.Signals)
		if params == nil {
			// Too few peers to say anything of any of them.
			tr.Reset()
			continue
		}
		switch {
		case !p.values.Known[s]:
			tr.Miss()
			if time.Duration(peers.Version-tr.told)*time.Millisecond > cfg.ReadingTTL {
				tr.Reset()
			}
		default:
			tr.told = peers.Version
			if t.warm < warmup {
				continue
			}
			before := tr.Tracker
			tr.Step(&cfg.CUSUM, params, p.values.V[s], peers.Version)
			tr.born = params.Born
			if s == nodesignal.Throughput && t.same.ticks >= cfg.StuckTicks && before.Calm() && tr.MoreThan(&before) {
				// It is the peers that moved: nobody measures this one.
				tr.Skip(&before)
			}
		}
	}
}

// worst returns the greatest suspicion and whose it is: of several full sums,
// that of the greatest loss in terms of what is worth an alert.
func (t *trackers) worst(cfg *Config) (suspicion float64, by nodesignal.Signal) {
	weight := 0.0
	if t.passing {
		return 0, nodesignal.Score
	}
	for s := range nodesignal.Score {
		tr := &t.signals[s]
		w := tr.Gap() / cfg.Signals[s].MinGap
		if x := tr.Suspicion(); x > suspicion || (x > 0 && x == suspicion && w > weight) {
			suspicion, by, weight = x, s, w
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

// bornWith reports whether the node's peers are those that it was compared with before,
// by the first signal that it was compared by.
func (t *trackers) bornWith(all []threshold.SignalParams) bool {
	for s := range nodesignal.Score {
		if born := t.signals[s].born; !born.IsZero() {
			p := t.cohort.params(s, all)
			return p != nil && p.Born.Equal(born)
		}
	}
	return false
}

// suspects are the signals by which the node is suspect: all of them while it is slow.
func (t *trackers) suspects(slow bool) (by [nodesignal.Count]bool) {
	for s := range t.signals {
		by[s] = slow || t.signals[s].Suspect()
	}
	return by
}

// pause is for a node that was silent, and keeps what it always differs by.
func (t *trackers) pause() {
	t.warm = 0
	t.cohort = cohort{}
	for s := range t.signals {
		t.signals[s].Rest()
	}
}

// forget makes the node new.
func (t *trackers) forget() {
	t.warm, t.passing = 0, false
	t.cohort = cohort{}
	t.resetAll()
}

func (t *trackers) resetAll() {
	for s := range t.signals {
		t.signals[s].Reset()
	}
}

// sameness counts the ticks with the very same throughput.
type sameness struct {
	x     float64
	ticks int
}

func (s *sameness) count(p *pushed) {
	if !p.values.Known[nodesignal.Throughput] {
		return
	}
	if x := p.values.V[nodesignal.Throughput]; x != s.x {
		*s = sameness{x: x}
	} else {
		s.ticks++
	}
}

// cohort is the part of a split group that the node belongs to. The node's own mean
// of the signal that splits the group decides.
type cohort struct {
	// means of every signal, since any may split the group one day.
	means [nodesignal.Count]mean
	by    nodesignal.Signal
	// edges are lower bounds, from is that of the node's own part, if it has one.
	edges [maxEdges]float64
	count int
	from  float64
	below int // edges that the mean reaches
	// levels are the newest parameters of signal by, for each part that had some. The
	// values were at level toward for run ticks, -1 is none.
	levels  [maxEdges + 1]straggler.Params
	toward  int8
	run     uint8
	passing bool // the node may go there
}

// mean is a node's mean of one signal; ticks counts what is in it.
type mean struct {
	value float64
	ticks int
}

// maxEdges a group is split at, at most.
const maxEdges = 8

// maxMeanTicks is where a tick's weight in a young mean stops to fall.
const maxMeanTicks = 254

// start takes a value for those of the ticks before the first answer.
func (c *cohort) start(p *pushed, ticks int) {
	for s := range nodesignal.Count {
		if x, ok := p.value(s); ok {
			c.means[s] = mean{x, ticks}
		}
	}
}

// follow takes the values into the means. It reports whether the node's peers are
// others now, and whether they are since the node took up their work. A mean stands
// still while the node is suspect by that signal. Once there is one, it stands still too
// while the gateway says so. Like its gateway, a node looks at
// its mean only when the edges are new, or the mean is.
func (c *cohort) follow(cfg *Config, p *pushed, peers *threshold.Value, elapsed time.Duration, suspect [nodesignal.Count]bool) (moved, turned bool) {
	turned = c.turn(cfg, p, peers.Turns)
	by := splitBy(cfg, p, peers.Signals)
	young := by != c.by || c.means[by].ticks < straggler.LeastWarmTicks
	c.by = by
	for s := range nodesignal.Count {
		x, ok := p.value(s)
		m := &c.means[s]
		if !ok || suspect[s] || (peers.Hold && m.ticks >= straggler.LeastWarmTicks) {
			continue
		}
		m.ticks = min(m.ticks+1, maxMeanTicks)
		weight := max(float64(elapsed)/float64(cfg.CohortWindow), 1/float64(m.ticks))
		m.value += min(1, weight) * (x - m.value)
	}
	var edges [maxEdges]float64
	count := 0
	add := func(edge float64, told bool) {
		if told && count < maxEdges && !slices.Contains(edges[:count], edge) {
			edges[count] = edge
			count++
		}
	}
	for i := range peers.Signals {
		add(peers.Signals[i].From, peers.Signals[i].HasFrom)
		add(peers.Signals[i].To, peers.Signals[i].HasTo) // of a part that nobody is compared in
	}
	defer c.hear(peers.Signals)
	if count == c.count && edges == c.edges && !young {
		return false, turned
	}
	if x, ok := p.value(by); ok && peers.Turns && c.count == 0 && count > 0 {
		c.means[by].value = x // its mean lies anywhere
	}
	if count != c.count {
		c.levels = [maxEdges + 1]straggler.Params{}
	}
	count, c.count = c.count, count
	below := c.below
	c.edges, c.from, c.below = edges, 0, 0
	for _, from := range edges[:c.count] {
		if c.means[by].value < from {
			continue
		}
		if c.below == 0 || from > c.from {
			c.from = from
		}
		c.below++
	}
	if c.count != count || c.below != below {
		c.toward, c.run = -1, 0
		return true, turned
	}
	return false, turned
}

// turn follows the node's way to another cohort, by the levels of the tick before, and
// reports whether it is there.
func (c *cohort) turn(cfg *Config, p *pushed, turns bool) (moved bool) {
	c.passing = false
	x, ok := p.value(c.by)
	if c.count == 0 || c.unknown() || !ok {
		return false
	}
	var levels [maxEdges + 1]*straggler.Params
	for k := range c.count + 1 {
		if c.levels[k].Valid() {
			levels[k] = &c.levels[k]
		}
	}
	own := c.below
	c.below = straggler.Turn(levels[:c.count+1], own, x, turns, &c.toward, &c.run)
	c.passing = c.toward >= 0 && (turns || int(c.toward) > own)
	if c.below == own {
		return false
	}
	m := &c.means[c.by]
	m.value = straggler.Moved(m.value, levels[own], levels[c.below], cfg.Signals[c.by].Relative)
	edges := slices.Sorted(slices.Values(c.edges[:c.count]))
	if c.from = 0; c.below > 0 {
		c.from = edges[c.below-1]
	}
	return true
}

// hear keeps the levels of the parts.
func (c *cohort) hear(signals []threshold.SignalParams) {
	for i := range signals {
		s := &signals[i]
		if s.Signal != c.by || c.count == 0 {
			continue
		}
		k := 0
		for _, edge := range c.edges[:c.count] {
			if s.HasFrom && s.From >= edge {
				k++
			}
		}
		c.levels[k] = s.Params
	}
}

// splitBy is the signal that the node's group is split by, or would be first:
// the first relative signal that decides, else the score.
func splitBy(cfg *Config, p *pushed, signals []threshold.SignalParams) nodesignal.Signal {
	for i := range signals {
		if signals[i].HasFrom || signals[i].HasTo {
			return signals[i].By
		}
	}
	for s := range nodesignal.Score {
		if cfg.Signals[s].Decides && cfg.Signals[s].Relative && p.values.Known[s] {
			return s
		}
	}
	return nodesignal.Score
}

// value of a signal, the score's too.
func (p *pushed) value(s nodesignal.Signal) (x float64, known bool) {
	if s == nodesignal.Score {
		return p.score, true
	}
	return p.values.V[s], p.values.Known[s]
}

// unknown is true in a split group for a node too new to tell its part.
func (c *cohort) unknown() bool {
	return c.count > 0 && c.means[c.by].ticks < straggler.LeastWarmTicks
}

// params returns those of a signal for the node's cohort.
func (c *cohort) params(s nodesignal.Signal, all []threshold.SignalParams) *straggler.Params {
	for i := range all {
		p := &all[i]
		if p.Signal == s && (p.HasFrom && c.below > 0 && p.From == c.from || !p.HasFrom && c.below == 0) {
			return &p.Params
		}
	}
	return nil
}
