// SPDX-License-Identifier: Apache-2.0

package episode

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

const (
	// waitTicks is for how long an onset waits while so many nodes are about to fall that
	// it may be one of many.
	waitTicks = 6
	// settleTicks in a row must agree on another severity.
	settleTicks = 6
	// flapEpisodes of one node within flapWindow make it flapping: its episode stays open
	// until flapWindow has passed without it being slow.
	flapEpisodes, flapWindow = 3, time.Hour
	// More stragglers than manyNodes and than manyShare of the group are one incident. It
	// ends after calmTicks without, and tells of more nodes each updateAfter.
	manyNodes, manyShare, calmTicks, updateAfter = 2, 0.15, 18, 10 * time.Minute
	// maxListed bounds the nodes that an event lists.
	maxListed = 100
)

// Book follows the episodes of nodes and groups from tick to tick, and makes events of
// them. It is pure. MaxOnsets nodes per cluster are told of at a tick.
type Book struct {
	MaxOnsets int
	Incidents bool // many slow nodes of a group are one event
	// Rest is for how many ticks nobody new is told of: after a restart the facts that
	// explain it are on their way.
	Rest int
	// Flapping counts episodes that were held open, Folded the onsets in an incident.
	Flapping, Folded int64

	now     time.Time
	events  []Event
	onsets  []*spell
	changes int // of severity told in this cluster
}

// Node is what a Book keeps of a node. The zero value has no episode.
type Node struct {
	slow, silence *spell
	listed        *spell // the incident that named it
	// When the newest episodes were told.
	onsets, silences []time.Time
}

// Group are the nodes that are told of together while many are slow.
type Group struct {
	Cluster, Name string
	Peers         []string
	Active        int
	Comparer

	incident *spell
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
	// well. Behind says that it was slow at its last value.
	Gap, Suspicion float64
	Behind         bool
	Culprit        nodesignal.Subject
	Ranks          int    // compared by their communication
	Job            string // theirs
}

// spell is a time in which a node is slow or silent, or many nodes are. Its Event is what
// was last known of it.
type spell struct {
	Event
	of      *Node
	group   *Group
	slot    int
	told    bool    // its onset is out; only then it gets an end
	in      *spell  // the silence of many that tells of it
	live    int     // nodes still in it
	worst   float64 // confidence
	differs int     // ticks in a row with another severity
	waited  int     // ticks
	last    time.Time
	held    bool // flapping
	counted bool // in a counter
	joined  bool // a node is in it that no event has named
	updated time.Time
}

// Begin begins a tick, or what comes between two ticks.
func (b *Book) Begin(now time.Time) { b.now = now }

// Take returns the events since it was last called. They are valid until it is called
// again.
func (b *Book) Take(room []Event) []Event {
	slices.SortStableFunc(b.events, func(a, b Event) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Node, b.Node), a.At.Compare(b.At))
	})
	clear(room)
	events := b.events
	b.events = room[:0]
	return events
}

// ID names an episode.
func ID(s Subject, cluster, group, node string, at time.Time) string {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%d\x00%s\x00%s\x00%s\x00%d", s, cluster, group, node, at.UnixMilli()) // never fails
	return fmt.Sprintf("%016x", h.Sum64())
}

// begin begins a spell. Its id is the same at every gateway that sees the same; of one
// without a beginning only the tick tells it from another.
func (b *Book) begin(s Subject, cluster, group, node string, since time.Time) *spell {
	at := since
	if at.Unix() <= 0 {
		at = b.now
	}
	return &spell{Event: Event{
		Subject: s, ID: ID(s, cluster, group, node, at), Cluster: cluster, Group: group, Node: node,
		Since: since, Confidence: 1, NodeCount: 1,
	}}
}

func (b *Book) tell(sp *spell, kind EventKind, cause string) {
	ev := sp.Event
	ev.Kind, ev.At, ev.Cause = kind, b.now, cmp.Or(cause, ev.Cause)
	sp.told, sp.differs = true, 0
	b.events = append(b.events, ev)
}

// settles reports whether another severity has been so for long enough.
func (sp *spell) settles(differs bool) bool {
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
func (b *Book) Slow(g *Group, slow []Finding, rising int) {
	for i := range slow {
		if f := &slow[i]; f.slow == nil {
			f.slow = b.begin(SubjectNode, g.Cluster, g.Name, f.Name, f.Since)
			f.slow.of, f.slow.Peers = f.Node, g.Peers
		}
	}
	if b.Incidents {
		b.watch(g, slow)
	}
	for i := range slow {
		b.follow(g, &slow[i], rising)
	}
}

// follow moves the spell of a slow node along.
func (b *Book) follow(g *Group, f *Finding, rising int) {
	n, sp := f.Node, f.slow
	sp.group, sp.slot, sp.last = g, f.Slot, b.now
	sp.Signal, sp.Gap, sp.Confidence, sp.Ranks, sp.Job = f.Signal, f.Gap, 1-math.Exp(-f.Suspicion), f.Ranks, f.Job
	sp.worst = max(sp.worst, sp.Confidence)
	if f.Culprit != (nodesignal.Subject{}) {
		sp.Culprit = f.Culprit
	}
	// To be better takes a fifth less than to be worse: a loss of about 10 % is no news
	// each minute. One that is about to be well does not become better first.
	severity := SeverityOf(f.Gap)
	if severity < sp.Severity {
		severity = min(SeverityOf(f.Gap/0.8), sp.Severity)
		if !f.Behind {
			severity = sp.Severity
		}
	}
	switch in := g.incident; {
	case sp.told:
		if sp.settles(severity != sp.Severity) && b.changes < b.MaxOnsets { // else at the next tick
			b.changes++
			sp.Severity = severity
			b.compare(sp)
			b.tell(sp, EventSeverity, "")
		}
	case f.Suspicion < 1 || !f.Behind: // it is about to be well
	case in != nil:
		sp.count(&b.Folded)
		in.joined = in.joined || n.listed != in
		// One that lies clearly beyond the others gets its own onset.
		if sp.settles(SeverityOf(0.8*f.Gap) > in.Severity && f.Gap > 1.5*in.Gap) && !b.flaps(n.onsets) {
			b.onsets = append(b.onsets, sp)
		}
	case b.Rest > 0:
	case rising > g.many() && sp.waited < waitTicks:
		sp.waited++
	case b.flaps(n.onsets):
		sp.count(&b.Flapping)
	default:
		b.onsets = append(b.onsets, sp)
	}
}

func (sp *spell) count(counter *int64) {
	if !sp.counted {
		sp.counted = true
		*counter++
	}
}

// flaps reports whether enough of a node's episodes were told lately.
func (b *Book) flaps(told []time.Time) bool {
	return len(told) >= flapEpisodes && b.now.Sub(told[len(told)-flapEpisodes]) < flapWindow
}

// lately adds this tick to the newest episodes.
func (b *Book) lately(told []time.Time) []time.Time {
	return append(told[max(0, len(told)+1-flapEpisodes):], b.now)
}

func (b *Book) compare(sp *spell) {
	g := sp.group
	sp.Active, sp.Rank = g.Active, g.Rank(sp.slot)
	sp.Value, sp.Median, sp.Compared = g.Compare(sp.slot, sp.Signal)
}

// Calm ends a node's episode of slowness, and reports whether it has none any more: one
// that flaps is held. Gap is what is left of the loss, slot the node's in its group.
func (b *Book) Calm(n *Node, slot int, gap float64, cause string) bool {
	sp := n.slow
	if sp == nil {
		return true
	}
	if cause != CauseMoved && cause != CauseForgotten {
		if sp.told && !sp.held && b.flaps(n.onsets) {
			sp.held = true
			b.Flapping++
		}
		if sp.held && b.now.Sub(sp.last) < flapWindow {
			return false
		}
	}
	if sp.told {
		sp.slot = slot
		b.compare(sp)
		sp.Confidence, sp.Gap, sp.Rank = sp.worst, gap, 0
		b.tell(sp, EventEnd, cause)
	}
	n.slow = nil
	return true
}

// Cluster ends a cluster's part of a tick: it tells of the new episodes, the worst ones
// first. The rest waits for the next tick.
func (b *Book) Cluster() {
	slices.SortStableFunc(b.onsets, func(x, y *spell) int { return cmp.Compare(y.Confidence, x.Confidence) })
	for _, sp := range b.onsets[:min(len(b.onsets), b.MaxOnsets)] {
		sp.Severity, sp.of.onsets = SeverityOf(sp.Gap), b.lately(sp.of.onsets)
		b.compare(sp)
		b.tell(sp, EventOnset, "")
	}
	b.onsets, b.changes = b.onsets[:0], 0
}

// Silence is a node that nothing is heard of since then.
type Silence struct {
	*Node
	*Group
	Name  string
	Since time.Time
}

// Silent reports whether a silence of the node is known.
func (n *Node) Silent() bool { return n.silence != nil }

// Silent takes the nodes of a cluster that fell silent together. Many are one event:
// their group's when all are of one, else the cluster's.
func (b *Book) Silent(silent []Silence) {
	var f *spell // for many
	if len(silent) > manyNodes {
		slices.SortFunc(silent, func(x, y Silence) int { return cmp.Compare(x.Name, y.Name) })
		group := silent[0].Group.Name
		if slices.ContainsFunc(silent, func(s Silence) bool { return s.Group.Name != group }) {
			group = ""
		}
		f = b.begin(SubjectMissing, silent[0].Cluster, group, silent[0].Name, b.now)
		f.Severity, f.Node, f.NodeCount, f.live = SeverityCritical, "", len(silent), len(silent)
	}
	for _, s := range silent {
		sp := b.begin(SubjectMissing, s.Cluster, s.Group.Name, s.Name, s.Since)
		sp.Peers, sp.Severity, sp.Active, sp.in, s.silence = s.Peers, SeverityMajor, s.Active, f, sp
		switch {
		case f != nil:
			if sp.Since.Before(f.Since) {
				f.Since = sp.Since
			}
			f.list(s.Name)
		case b.flaps(s.silences):
			b.Flapping++
		default:
			s.silences = b.lately(s.silences)
			b.tell(sp, EventOnset, "")
		}
	}
	if f != nil {
		b.tell(f, EventOnset, "")
	}
}

// list adds a node to those of an episode of many.
func (sp *spell) list(name string) {
	if len(sp.Nodes) < maxListed {
		sp.Nodes = append(sp.Nodes, name)
	}
}

// Heard ends a node's silence.
func (b *Book) Heard(n *Node, cause string) {
	sp := n.silence
	if sp == nil {
		return
	}
	if n.silence = nil; sp.told {
		b.tell(sp, EventEnd, cause)
	}
	if f := sp.in; f != nil {
		if f.live--; f.live == 0 {
			b.tell(f, EventEnd, cause)
		}
	}
}

// watch begins, updates or ends the incident of a group: one episode for many slow nodes.
func (b *Book) watch(g *Group, slow []Finding) {
	in := g.incident
	if in == nil && len(slow) == 0 {
		return
	}
	// sizes counts slow nodes by severity. eased does so with gaps a fifth greater, see follow.
	// A node that is about to be well counts in neither.
	var sizes, eased [SeverityCritical + 1]int
	n, behind, since := 0, 0, b.now
	for i := range slow {
		f := &slow[i]
		if f.Suspicion == 0 {
			continue
		}
		n++
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
		switch {
		case sizes[SeverityCritical] > g.many():
			return SeverityCritical
		case sizes[SeverityCritical]+sizes[SeverityMajor] > g.many():
			return SeverityMajor
		}
		return SeverityMinor
	}
	switch {
	case in == nil && n > g.many() && b.Rest == 0:
		in = b.begin(SubjectGroup, g.Cluster, g.Name, "", b.now)
		in.Since, in.Peers, in.Cause, g.incident = since, g.Peers, CauseStragglers, in
		in.Severity = gravity(&sizes)
		b.tellIncident(g, slow, EventOnset)
	case in == nil:
	case g.Active == 0:
		b.EndIncident(g, CauseIdle)
	case n <= g.many():
		if in.waited++; in.waited >= calmTicks {
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
			b.tellIncident(g, slow, EventSeverity)
		} else if in.joined && b.now.Sub(in.updated) >= updateAfter {
			b.tellIncident(g, slow, EventUpdate)
		}
	}
}

// tellIncident tells of an incident and who is in it. The numbers are those of the
// signal that most of them are slow in.
func (b *Book) tellIncident(g *Group, slow []Finding, kind EventKind) {
	in := g.incident
	var count [nodesignal.Count]int
	in.Nodes, in.NodeCount, in.Active, in.Signal = nil, 0, g.Active, nodesignal.Score
	for i := range slow {
		if f := &slow[i]; f.Suspicion > 0 {
			if count[f.Signal]++; count[f.Signal] > count[in.Signal] {
				in.Signal = f.Signal
			}
		}
	}
	gaps, values := 0.0, 0.0
	for i := range slow {
		f := &slow[i]
		if f.Suspicion == 0 {
			continue
		}
		f.listed = in
		in.NodeCount++
		in.list(f.Name)
		if f.Signal == in.Signal {
			value, median, _ := g.Compare(f.Slot, in.Signal)
			gaps, values, in.Median = gaps+f.Gap, values+value, median
		}
	}
	n := float64(count[in.Signal])
	in.Gap, in.Value, in.updated, in.joined = gaps/n, values/n, b.now, false
	b.tell(in, kind, "")
}

// EndIncident ends a group's incident, if there is one.
func (b *Book) EndIncident(g *Group, cause string) {
	if g.incident != nil {
		b.tell(g.incident, EventEnd, cause)
		g.incident = nil
	}
}
