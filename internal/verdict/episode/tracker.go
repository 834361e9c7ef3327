// SPDX-License-Identifier: Apache-2.0

package episode

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
)

const (
	// settleTicks in a row must agree on another severity.
	settleTicks = 6
	// flapEpisodes of one node within flapWindow make it flapping: its episode stays open
	// until flapWindow has passed without it being slow.
	flapEpisodes, flapWindow = 3, time.Hour
	// More stragglers than manyNodes and than manyShare of the group are one incident. It
	// ends after calmTicks without, wellTicks without any, and reports more nodes each
	// updateAfter.
	manyNodes, manyShare, calmTicks, wellTicks, updateAfter = 2, 0.15, 18, 3, 10 * time.Minute
)

// Tracker follows the episodes of nodes and groups from tick to tick. At most MaxOnsets
// episodes of nodes begin in a cluster at a tick.
type Tracker struct {
	MaxOnsets int
	// Rest is for how many ticks no episode begins: after a restart its facts are on their way.
	Rest int
	// Flapping counts episodes that were held open, Folded the onsets in an incident.
	Flapping, Folded int64

	now          time.Time
	events, open []*Episode
	onsets       []*openEpisode
	changes      int // of severity, in this cluster
}

// Node is what a Tracker keeps of a node. The zero value has no episode.
type Node struct {
	SavedNode
	listed *openEpisode // the incident that named it
}

// Group are the nodes whose episodes are one incident while many are slow.
type Group struct {
	Cluster, Name string
	Labels        []string // values of the `group_by` attributes
	Active        int
	Comparer

	incident *openEpisode
	ended    time.Time // when the last incident did
}

// Comparer knows how the nodes of a group compare.
type Comparer interface {
	// Compare returns a node's value and its peers' median in the unit of the signal.
	Compare(slot int, s nodesignal.Signal) (value, median float64, known bool)
	// Rank returns a node's rank in the group, 1 for the worst.
	Rank(slot int) int
}

// Finding is what a tick found of a slow node.
type Finding struct {
	*Node
	Name string
	Slot int
	// Since is when it became slow, the Unix epoch where that is not known.
	Since  time.Time
	Signal nodesignal.Signal
	// Gap is the loss. Suspicion is its deviation by the limit, 0 where it is about to be
	// well. Behind: it was slow at its last value.
	Gap, Suspicion float64
	Behind         bool
	// Wait is for how many ticks its onset waits while so many nodes are about to fall that it
	// may be one of many, and after an incident that it was one of.
	Wait    int
	Culprit nodesignal.Subject
	Ranks   int    // compared by their communication
	Job     string // theirs
}

// openEpisode is an Episode and what the Tracker decides by. An episode has an ID once it began. The
// exported fields last over a restart.
type openEpisode struct {
	Episode
	Compared nodesignal.Signal
	Loss     float64
	Sure     float64 // confidence
	Worst    float64 // the greatest confidence
	Behind   bool    // at the last value
	Last     time.Time
	Held     bool  // flapping
	Joined   bool  // a node is in it that no record has named
	Most     int64 // nodes that were in it at a time
	Recorded time.Time

	of      *Node
	group   *Group
	slot    int
	in      *openEpisode // the absence of many that it is part of
	live    int          // nodes still in it
	differs int          // ticks in a row with another severity
	waited  int          // ticks
	counted bool         // in a counter
}

// Begin begins a tick, or what comes between two ticks.
func (b *Tracker) Begin(now time.Time) { b.now, b.open = now, b.open[:0] }

// Take returns the episodes that began, changed or ended since it was last called, and those
// that are open at this tick. The lists are valid until the next tick.
func (b *Tracker) Take(room []*Episode) (events, open []*Episode) {
	slices.SortStableFunc(b.events, func(a, b *Episode) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Node, b.Node), a.Updated.Compare(b.Updated))
	})
	clear(room)
	events = b.events
	b.events = room[:0]
	return events, b.open
}

// begin opens an episode that began at since, or before now where that is the Unix epoch.
// Its begin is not before the end of the last one, so that their IDs differ.
func (b *Tracker) begin(s Subject, g *Group, node string, since, ended time.Time) *openEpisode {
	sp := &openEpisode{Episode: Episode{Subject: s, Cluster: g.Cluster, Group: g.Name, Node: node, GroupLabels: g.Labels, Since: since}}
	if since.Unix() <= 0 {
		sp.Since, sp.SinceBefore = b.now, true
	}
	if sp.Since.Before(ended) {
		sp.Since, sp.SinceBefore = ended, false
	}
	return sp
}

// record adds the phase of an episode to the events.
func (b *Tracker) record(sp *openEpisode, phase Phase) {
	if sp.ID == "" {
		sp.ID = ID(sp.Subject, sp.Cluster, sp.Group, sp.Node, sp.Since)
	}
	sp.Phase, sp.Updated, sp.differs = phase, b.now, 0
	b.events = append(b.events, &sp.Episode)
}

// recordRanked is record for a node, with its rank.
func (b *Tracker) recordRanked(sp *openEpisode, phase Phase) {
	sp.Rank = new(int64(sp.group.Rank(sp.slot)))
	b.record(sp, phase)
}

// end ends an episode that began.
func (b *Tracker) end(sp *openEpisode, cause string) {
	b.record(sp, PhaseEnd)
	sp.End(b.now, cause)
}

// recorded reports whether an onset was recorded. Only then the episode gets an end.
func (sp *openEpisode) recorded() bool { return sp.ID != "" }

// settles reports whether another severity has been so for long enough.
func (sp *openEpisode) settles(differs bool) bool {
	if sp.differs++; !differs {
		sp.differs = 0
	}
	return sp.differs >= settleTicks
}

// many is how many slow nodes are more than single ones.
func (g *Group) many() int { return max(manyNodes, int(manyShare*float64(g.Active))) }

// Incident reports whether many of the group's nodes are slow.
func (g *Group) Incident() bool { return g.incident != nil }

// Slow takes the slow nodes of a group, which has so many that are slow or about to be.
func (b *Tracker) Slow(g *Group, slow []Finding, rising int) {
	for i := range slow {
		if f := &slow[i]; f.Slow == nil {
			f.Slow = b.begin(SubjectNode, g, f.Name, f.Since, f.SlowEnded)
			f.Slow.of = f.Node
		}
	}
	b.watch(g, slow)
	for i := range slow {
		b.follow(g, &slow[i], rising)
	}
}

// follow moves the open episode of a slow node along.
func (b *Tracker) follow(g *Group, f *Finding, rising int) {
	n, sp := f.Node, f.Slow
	sp.group, sp.slot, sp.Last, sp.Behind = g, f.Slot, b.now, f.Behind
	sp.Compared, sp.Loss, sp.Sure, sp.Ranks, sp.Job = f.Signal, f.Gap, 1-math.Exp(-f.Suspicion), int64(f.Ranks), f.Job
	sp.Worst = max(sp.Worst, sp.Sure)
	if f.Culprit != (nodesignal.Subject{}) {
		sp.Culprit = f.Culprit
	}
	// To be better takes a fifth less than to be worse: a loss of about 10 % must not
	// change it each minute. One that is about to be well does not become better first.
	severity := SeverityOf(f.Gap)
	if severity < sp.Severity {
		severity = min(SeverityOf(f.Gap/0.8), sp.Severity)
		if !f.Behind {
			severity = sp.Severity
		}
	}
	switch in := g.incident; {
	case sp.recorded():
		b.figures(sp)
		if sp.settles(severity != sp.Severity) && b.changes < b.MaxOnsets { // else at the next tick
			b.changes++
			sp.Severity = severity
			b.recordRanked(sp, PhaseSeverity)
		}
		b.open = append(b.open, &sp.Episode)
	case f.Suspicion < 1 || !f.Behind: // it is about to be well
	case in != nil:
		sp.count(&b.Folded)
		in.Joined = in.Joined || n.listed != in
		// One that lies clearly beyond the others gets its own onset.
		if sp.settles(SeverityOf(0.8*f.Gap) > in.Severity && f.Gap > 1.5*in.Loss) && !b.flaps(n.Onsets) {
			b.onsets = append(b.onsets, sp)
		}
	case b.Rest > 0:
	case (rising > g.many() || sp.counted) && sp.waited < f.Wait:
		sp.waited++
	case b.flaps(n.Onsets):
		sp.count(&b.Flapping)
	default:
		b.onsets = append(b.onsets, sp)
	}
}

func (sp *openEpisode) count(counter *int64) {
	if !sp.counted {
		sp.counted = true
		*counter++
	}
}

// flaps reports whether enough of a node's episodes began within flapWindow.
func (b *Tracker) flaps(recorded []time.Time) bool {
	return len(recorded) >= flapEpisodes && b.now.Sub(recorded[len(recorded)-flapEpisodes]) < flapWindow
}

// appendNow adds this tick to the newest episodes.
func (b *Tracker) appendNow(recorded []time.Time) []time.Time {
	return append(recorded[max(0, len(recorded)+1-flapEpisodes):], b.now)
}

// figures takes what is known of an episode at this tick.
func (b *Tracker) figures(sp *openEpisode) {
	sp.Updated, sp.Signal, sp.Recovering = b.now, sp.Compared.String(), !sp.Behind
	sp.Gap, sp.Confidence, sp.Active = new(sp.Loss), new(sp.Sure), new(int64(sp.group.Active))
	sp.Value, sp.Median = nil, nil
	if value, median, known := sp.group.Compare(sp.slot, sp.Compared); known {
		sp.Value, sp.Median = &value, &median
	}
}

// Calm ends a node's episode of slowness, and reports whether it has none any more: one
// that flaps is held. Gap is what is left of the loss, slot the node's in its group.
func (b *Tracker) Calm(n *Node, slot int, gap float64, cause string) bool {
	sp := n.Slow
	if sp == nil {
		return true
	}
	sp.slot, sp.Loss, sp.Behind = slot, gap, false
	if cause != CauseMoved && cause != CauseForgotten {
		if sp.recorded() && !sp.Held && b.flaps(n.Onsets) {
			sp.Held = true
			b.Flapping++
		}
		if sp.Held && b.now.Sub(sp.Last) < flapWindow {
			b.figures(sp)
			b.open = append(b.open, &sp.Episode)
			return false
		}
	}
	if sp.recorded() {
		sp.Sure = sp.Worst
		b.figures(sp)
		sp.Rank = nil
		b.end(sp, cause)
		n.SlowEnded = b.now
	}
	n.Slow = nil
	return true
}

// Cluster ends a cluster's part of a tick: its new episodes begin, the worst ones first. The
// rest waits for the next tick.
func (b *Tracker) Cluster() {
	slices.SortStableFunc(b.onsets, func(x, y *openEpisode) int { return cmp.Compare(y.Sure, x.Sure) })
	for _, sp := range b.onsets[:min(len(b.onsets), b.MaxOnsets)] {
		sp.Severity, sp.of.Onsets = SeverityOf(sp.Loss), b.appendNow(sp.of.Onsets)
		b.figures(sp)
		b.recordRanked(sp, PhaseOnset)
		b.open = append(b.open, &sp.Episode)
	}
	b.onsets, b.changes = b.onsets[:0], 0
}

// MissingNode is a node that last reported at Since.
type MissingNode struct {
	*Node
	*Group
	Name  string
	Since time.Time
}

// Missing reports whether the node has an episode of absence.
func (n *Node) Missing() bool { return n.Absence != nil }

// StaysMissing keeps the absence of a node open at this tick.
func (b *Tracker) StaysMissing(n *Node) {
	sp := n.Absence
	if sp != nil && sp.in != nil {
		sp = sp.in
	}
	if sp != nil && sp.recorded() && !sp.Updated.Equal(b.now) {
		sp.Updated = b.now
		b.open = append(b.open, &sp.Episode)
	}
}

// WentMissing takes the nodes of a cluster that went missing together. Many are one episode: their
// group's when all are of one, else the cluster's.
func (b *Tracker) WentMissing(missing []MissingNode) {
	var f *openEpisode // for many
	if len(missing) > manyNodes {
		slices.SortFunc(missing, func(x, y MissingNode) int { return cmp.Compare(x.Name, y.Name) })
		group := Group{Cluster: missing[0].Cluster, Name: missing[0].Group.Name}
		if slices.ContainsFunc(missing, func(s MissingNode) bool { return s.Group.Name != group.Name }) {
			group.Name = ""
		}
		f = b.begin(SubjectMissing, &group, "", b.now, time.Time{})
		f.Severity, f.NodeCount, f.live = SeverityCritical, int64(len(missing)), len(missing)
	}
	for _, s := range missing {
		sp := b.begin(SubjectMissing, s.Group, s.Name, s.Since, s.AbsenceEnded)
		sp.Severity, sp.in, s.Absence = SeverityMajor, f, sp
		switch {
		case f != nil:
			if sp.Since.Before(f.Since) {
				f.Since = sp.Since
			}
			f.list(s.Name)
		case b.flaps(s.Absences):
			b.Flapping++
		default:
			s.Absences = b.appendNow(s.Absences)
			b.record(sp, PhaseOnset)
		}
	}
	if f != nil {
		// The name makes it differ from another of the same group and time.
		f.ID = ID(f.Subject, f.Cluster, f.Group, missing[0].Name, f.Since)
		b.record(f, PhaseOnset)
	}
}

// list adds a node to those of an episode of many.
func (sp *openEpisode) list(name string) {
	if len(sp.Nodes) < MaxNodes {
		sp.Nodes = append(sp.Nodes, name)
	}
}

// Returned ends a node's absence.
func (b *Tracker) Returned(n *Node, cause string) {
	sp := n.Absence
	if sp == nil {
		return
	}
	n.Absence, n.AbsenceEnded = nil, b.now
	if sp.recorded() {
		b.end(sp, cause)
	}
	if f := sp.in; f != nil {
		if f.live--; f.live == 0 {
			b.end(f, cause)
		}
	}
}

// watch begins, updates or ends the incident of a group: one episode for many slow nodes.
func (b *Tracker) watch(g *Group, slow []Finding) {
	in := g.incident
	if in == nil && len(slow) == 0 {
		return
	}
	// One that is about to be well is none of the many.
	slow = slices.DeleteFunc(slices.Clone(slow), func(f Finding) bool { return f.Suspicion == 0 })
	// sizes counts slow nodes by severity. eased does so with gaps a fifth greater, see follow.
	var sizes, eased [SeverityCritical + 1]int
	n, behind, since := len(slow), 0, b.now
	for i := range slow {
		f := &slow[i]
		if f.Since.Before(since) {
			since = f.Since
		}
		sizes[SeverityOf(f.Gap)]++
		eased[SeverityOf(f.Gap/0.8)]++
		if f.Behind {
			behind++
		}
	}
	gravity := func(sizes *[SeverityCritical + 1]int) Severity { // of more than single nodes
		s, n := SeverityCritical, sizes[SeverityCritical]
		for ; s > SeverityMinor && n <= g.many(); n += sizes[s] {
			s--
		}
		return s
	}
	switch {
	case in == nil && n > g.many() && b.Rest == 0:
		in = b.begin(SubjectGroup, g, "", since, g.ended)
		in.Cause, in.Severity, g.incident = CauseStragglers, gravity(&sizes), in
		b.recordIncident(g, slow, PhaseOnset)
	case in == nil:
	case g.Active == 0:
		b.EndIncident(g, CauseIdle)
	case n <= g.many():
		if in.waited++; in.waited >= calmTicks || n == 0 && in.waited >= wellTicks {
			b.EndIncident(g, CauseRecovered)
		}
	default:
		in.waited = 0
		severity := gravity(&sizes)
		if severity < in.Severity {
			severity = min(gravity(&eased), in.Severity)
		}
		if in.settles(severity != in.Severity && behind > g.many()) {
			in.Severity = severity
			b.recordIncident(g, slow, PhaseSeverity)
		} else if in.Joined && b.now.Sub(in.Recorded) >= updateAfter {
			b.recordIncident(g, slow, PhaseUpdate)
		}
	}
	if in := g.incident; in != nil {
		in.incidentFigures(g, slow, behind, b.now)
		b.open = append(b.open, &in.Episode)
	}
}

// recordIncident records an incident and the nodes that are in it.
func (b *Tracker) recordIncident(g *Group, slow []Finding, phase Phase) {
	in := g.incident
	in.Nodes, in.NodeCount = nil, int64(len(slow))
	for i := range slow {
		slow[i].listed = in
		in.list(slow[i].Name)
	}
	in.Recorded, in.Joined = b.now, false
	b.record(in, phase)
}

// incidentFigures takes the numbers of an incident at this tick: those of the signal that most of
// its nodes are slow by.
func (sp *openEpisode) incidentFigures(g *Group, slow []Finding, behind int, now time.Time) {
	var count [nodesignal.Count]int
	most := nodesignal.Score
	for i := range slow {
		s := slow[i].Signal
		if count[s]++; count[s] > count[most] {
			most = s
		}
	}
	sp.Updated, sp.Recovering = now, behind == 0
	if count[most] == 0 {
		sp.Gap, sp.Value, sp.Median = nil, nil, nil
		return
	}
	sp.NodeCount = int64(len(slow))
	sp.Most = max(sp.Most, sp.NodeCount)
	gap, value, median := 0.0, 0.0, 0.0
	for i := range slow {
		if f := &slow[i]; f.Signal == most {
			v, m, _ := g.Compare(f.Slot, most)
			gap, value, median = gap+f.Gap, value+v, m
		}
	}
	n, active := float64(count[most]), int64(g.Active)
	gap, value = gap/n, value/n
	sp.Loss, sp.Signal, sp.Gap, sp.Value, sp.Median, sp.Active = gap, most.String(), &gap, &value, &median, &active
}

// EndIncident ends a group's incident, if there is one.
func (b *Tracker) EndIncident(g *Group, cause string) {
	if in := g.incident; in != nil {
		in.NodeCount = in.Most
		b.end(in, cause)
		g.incident, g.ended = nil, b.now
	}
}
