// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/detect/robust"
	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// scratch is what a tick needs while it runs, kept so that it allocates nothing.
type scratch struct {
	at      int64            // the tick, unix milliseconds
	elapsed time.Duration    // since the tick before
	dt      float64          // the same in seconds, at most the TTL
	weight  [windows]float64 // of this tick in each EMA

	order                       []*cluster // by name
	sample                      robust.Sample
	values                      []float64
	slots, cold, calm, upper    []int32   // members
	scores, throughputs         []float64 // of this group
	wideScores, wideThroughputs []float64
	slow                        []episode.Finding
}

// Tick computes thresholds and verdicts from the observations so far.
func (e *Engine) Tick(now time.Time) *Report {
	r := &e.report
	r.At, r.Groups = now, r.Groups[:0]
	e.at, e.elapsed, e.row = now.UnixMilli(), 0, 0
	if !e.ticked.IsZero() {
		e.elapsed = max(now.Sub(e.ticked), 0)
	}
	// Pushes during a pause of the gateway are lost: it counts as one TTL.
	e.dt = min(e.elapsed, e.cfg.TTL).Seconds()
	for w := range windows {
		e.weight[w] = -math.Expm1(-e.dt / window[w])
	}
	e.tracker.Begin(now)
	e.tracker.Rest = max(0, e.tracker.Rest-1)
	if e.relabel {
		e.order = slices.SortedFunc(maps.Values(e.clusters), func(a, b *cluster) int { return cmp.Compare(a.name, b.name) })
	}
	for _, c := range e.order {
		if e.relabel {
			c.order = slices.SortedFunc(maps.Values(c.groups), func(a, b *group) int { return cmp.Compare(a.name, b.name) })
		}
		e.tickCluster(c, now)
	}
	clear(r.Nodes[e.row:])
	r.Nodes = r.Nodes[:e.row]
	e.relabel, e.ticked = false, now
	r.Events, r.Open = e.tracker.Take(r.Events)
	e.counters.Flapping, e.counters.Folded, e.tracker.Flapping, e.tracker.Folded = e.tracker.Flapping, e.tracker.Folded, 0, 0
	r.Counters, e.counters = e.counters, Counters{}
	return r
}

func (e *Engine) tickCluster(c *cluster, now time.Time) {
	c.wideCounts = [nodesignal.NumStates]int{}
	e.wideScores, e.wideThroughputs = e.wideScores[:0], e.wideThroughputs[:0]
	at, stragglers := len(e.report.Groups), 0
	e.report.Groups = append(e.report.Groups, GroupReport{})
	for _, g := range c.order {
		e.expire(g, now)
		if g.settle(); g.live == 0 {
			continue
		}
		e.tickGroup(g)
		stragglers += g.slow
		for s, n := range g.counts {
			c.wideCounts[s] += n
		}
	}
	if len(c.nodes) == 0 {
		e.report.Groups = e.report.Groups[:at]
		return
	}
	c.wide.Update(&e.cfg.Config, &e.sample, e.wideScores, e.wideThroughputs)
	e.groupReport(&e.report.Groups[at], c.name, "", &c.wide, c.wideCounts, stragglers)
	e.tracker.Cluster()
	if c.missingTicks++; len(c.missing) == 0 {
		c.missingTicks = 0
	}
	if c.missingTicks <= 2 { // the pushes of one outage end within one interval
		return
	}
	var missing []episode.MissingNode
	for _, n := range c.missing {
		if c.nodes[n.name] == n && !n.episodes.Missing() && n.group.members[n.slot].state == nodesignal.StateMissing {
			since := time.UnixMilli(n.group.members[n.slot].seen / 1e6).UTC()
			missing = append(missing, episode.MissingNode{Node: &n.episodes, Group: &n.group.episodes, Name: n.name, Since: since})
		}
	}
	e.tracker.WentMissing(missing)
	c.missing, c.missingTicks = nil, 0
}

// expire marks nodes that do not report as missing, and forgets those past the retention.
func (e *Engine) expire(g *group, now time.Time) {
	for i := range g.members {
		m, n := &g.members[i], g.nodes[i]
		age := time.Duration(now.UnixNano() - m.seen)
		switch {
		case n == nil || age <= e.cfg.TTL && m.flags&flagMissing == 0:
		case age > e.cfg.TTL && e.room.Due(time.Unix(0, m.seen).Sub(n.since), age, e.cfg.Retention):
			e.forget(n, now)
		case age <= e.cfg.TTL:
			m.flags &^= flagMissing
			e.tracker.Returned(&n.episodes, episode.CauseRecovered)
		case m.flags&flagMissing == 0 && e.elapsed <= e.cfg.TTL: // else the gateway paused
			m.flags |= flagMissing
			g.cluster.missing = append(g.cluster.missing, n)
		default:
			e.tracker.StaysMissing(&n.episodes)
		}
	}
}

func (e *Engine) tickGroup(g *group) {
	g.age += e.dt
	e.states(g)
	g.rule.Update(&e.cfg.Config, &e.sample, e.scores, e.throughputs)
	for s := range nodesignal.Count {
		if e.deciding.Has(s) && g.tracks[s] != nil {
			e.takeValues(g, s)
		}
	}
	e.assignLevels(g)
	for s := range nodesignal.Count {
		if e.deciding.Has(s) && g.tracks[s] != nil {
			for k := range g.levels {
				e.compare(g, s, uint8(k))
			}
		}
	}
	e.conclude(g)
	e.report.Groups = append(e.report.Groups, GroupReport{})
	r := &e.report.Groups[len(e.report.Groups)-1]
	e.groupReport(r, g.cluster.name, g.name, &g.rule, g.counts, g.slow)
	e.reportSignals(g, r)
}

// states settles what each member is, and gathers active ones' scores and throughputs.
func (e *Engine) states(g *group) {
	g.counts = [nodesignal.NumStates]int{}
	e.scores, e.throughputs = e.scores[:0], e.throughputs[:0]
	throughputs := g.tracks[nodesignal.Throughput]
	for i := range g.members {
		m := &g.members[i]
		switch {
		case m.flags&flagMissing != 0:
			m.state = nodesignal.StateMissing
		case m.reported == nodesignal.StateActive && m.known&(e.deciding|nodesignal.SetOf(nodesignal.Score)) == 0:
			m.state = nodesignal.StateCalibrating // there is nothing to compare it by
		default:
			m.state = m.reported
		}
		g.counts[m.state]++
		e.contest(g, i)
		m.flags &^= flagSlow | flagFewPeers | flagJudged | flagLockstep | flagNoise
		m.suspicion, m.gap, m.weight, m.signal = 0, 0, 0, nodesignal.Score
		active := m.state == nodesignal.StateActive
		// A calibrating node waits for the reference that it helps to form.
		if (active || m.state == nodesignal.StateCalibrating) && m.known.Has(nodesignal.Throughput) && throughputs[i].X > 0 {
			e.throughputs = append(e.throughputs, throughputs[i].X)
		}
		if !active {
			g.pause(i, m.state == nodesignal.StateMissing)
			if m.state != nodesignal.StateCalibrating {
				g.nodes[i].off = uint32(e.at / 1000)
			}
		} else if m.known.Has(nodesignal.Score) {
			e.scores = append(e.scores, g.tracks[nodesignal.Score][i].X)
		}
	}
	e.wideScores = append(e.wideScores, e.scores...)
	e.wideThroughputs = append(e.wideThroughputs, e.throughputs...)
}

// contestedTicks in a row with contradicting values under one name suspend the verdict, until
// six times as many without. After stuckTicks with the same throughput a node that was
// not behind when it last changed is taken for a stuck exporter.
const contestedTicks, stuckTicks = 3, 30

// contest follows the values of one name that contradict each other.
func (e *Engine) contest(g *group, i int) {
	m := &g.members[i]
	differs, contested := m.flags&flagDiffers != 0, m.flags&flagContested != 0
	m.flags &^= flagDiffers
	g.nodes[i].cloned = g.nodes[i].cloned && (differs || contested)
	if differs == contested {
		m.contest = 0
		return
	}
	m.contest++
	if contested && m.contest >= 6*contestedTicks || !contested && m.contest >= contestedTicks {
		m.flags ^= flagContested
		m.contest = 0
		if !contested {
			e.counters.Contested++
			g.pause(i, false)
		}
	}
}

// outdated forgets a value that its node, which sends others, has not sent for the TTL,
// unless the gateway paused. Until then its verdict stands.
func (e *Engine) outdated(g *group, i int, s nodesignal.Signal) {
	t, m := &g.tracks[s][i], &g.members[i]
	if t.Stale += float32(e.dt); e.elapsed <= e.cfg.TTL && float64(t.Stale) > e.cfg.TTL.Seconds() {
		m.void(s)
		t.forget(e.at)
		return
	}
	e.stands(g, i, s)
}

// stands keeps the verdict on a node of which there is nothing new.
func (e *Engine) stands(g *group, i int, s nodesignal.Signal) {
	t, m := &g.tracks[s][i], &g.members[i]
	if t.Flagged {
		m.suspect(s, t, &e.cfg.Signals[s])
	}
	if t.Flagged || m.why.Compared() {
		m.flags |= flagJudged
	}
}

// conclude turns the verdicts of a group into rows and episodes.
func (e *Engine) conclude(g *group) {
	g.slow, g.unjudged, e.slow = 0, [unjudged.Count]int{}, e.slow[:0]
	rising := 0
	for i := range g.members {
		m, n := &g.members[i], g.nodes[i]
		e.applyRankVerdict(g, i)
		e.fill(g, i)
		m.fresh, m.received = 0, 0
		if m.suspicion >= 0.5 {
			rising++
		}
		switch {
		case m.flags&flagSlow != 0:
			g.slow++
			m.flags |= flagEpisode
			f := episode.Finding{
				Node: &n.episodes, Name: n.name, Slot: i, Since: time.UnixMilli(e.since(g, i)).UTC(), Signal: m.signal,
				Gap: float64(m.gap), Suspicion: float64(m.suspicion), Behind: g.behind(i),
			}
			if tracks := g.tracks[m.signal]; tracks != nil { // others that fall more slowly are seen in the next window
				f.Wait = int(window[min(tracks[i].By+1, baseline)] / max(e.dt, 1))
			}
			if n.ranks.judgesBy(m.signal) {
				f.Culprit, f.Ranks, f.Job = n.ranks.Culprit, n.ranks.Ranks, n.ranks.Job
			}
			e.slow = append(e.slow, f)
		case m.flags&flagEpisode != 0 && e.tracker.Calm(&n.episodes, i, float64(m.gap), m.calmCause()):
			m.flags &^= flagEpisode
		}
	}
	g.episodes.Active = g.counts[nodesignal.StateActive]
	e.tracker.Slow(&g.episodes, e.slow, rising)
}

// behind reports whether a slow member was slow at its last value.
func (g *group) behind(i int) bool {
	s := g.members[i].signal
	if g.nodes[i].ranks.judgesBy(s) {
		return g.nodes[i].ranks.Behind
	}
	t := &g.tracks[s][i]
	return t.beyond(t.R) > float64(t.Loss)/2
}

// calmCause is why a member is slow no more.
func (m *member) calmCause() string {
	switch {
	case m.flags&flagContested != 0:
		return episode.CauseContested
	case m.state == nodesignal.StateMissing:
		return episode.CauseMissing
	case m.flags&flagJudged != 0:
	case m.state != nodesignal.StateActive || m.flags&flagFewPeers != 0:
		return episode.CauseIdle
	}
	return episode.CauseRecovered
}
