// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

const (
	// Settled in seconds is the age at which a node has reported all: missing state is requested
	// within a few pushes. An earlier report may be of an older state.
	Settled = 120
	// pause in seconds is the longest gap within one spell.
	pause = 120
	// spellAge in seconds is how long an ended spell is kept.
	spellAge = 3600
	// maxSpells and maxLinks bound the lists of a GPU and of a node.
	maxSpells, maxLinks = 2 * (maxReasons + maxThrottles), 128
	// boardsQuiet in milliseconds is two resyncs of a node: a board without a point for so long
	// was removed.
	boardsQuiet = 300_000
)

func unix(ms int64) uint32 { return uint32(ms / 1000) }

// LostSpell is the name of the spells in which a GPU did not answer.
const LostSpell = "gpu_lost"

// Spell is a time in which a health or throttle reason held of a GPU, or the GPU did not answer.
type Spell struct {
	Name, Action string // only health reasons have an action
	Health       bool
	// Since and Ended are Unix seconds. Since is 0 where the node's first report had the reason,
	// Ended is 0 while the reason holds.
	Since, Ended uint32
}

// Holds reports whether the spell is not over.
func (s Spell) Holds() bool { return s.Ended == 0 }

func (s Spell) same(o Spell) bool {
	return s.Name == o.Name && s.Action == o.Action && s.Health == o.Health
}

func (s Spell) holdsOf(g *GPU) bool {
	return slices.ContainsFunc(g.Spells, func(o Spell) bool { return o.Holds() && o.same(s) })
}

// Throttles are the reasons that hold the clocks of the GPU down, sorted.
func (g *GPU) Throttles() (list []string) {
	for _, s := range g.Spells {
		if s.Holds() && !s.Health && s.Name != LostSpell {
			list = append(list, s.Name)
		}
	}
	slices.Sort(list)
	return list
}

// Reasons are the rules that hold the health of the GPU down, sorted.
func (g *GPU) Reasons() (list []HealthReason) {
	for _, s := range g.Spells {
		if s.Holds() && s.Health {
			list = append(list, HealthReason{s.Name, s.Action})
		}
	}
	slices.SortFunc(list, func(a, b HealthReason) int {
		return cmp.Or(strings.Compare(a.Reason, b.Reason), strings.Compare(a.Action, b.Action))
	})
	return list
}

// hold sets whether a reason holds, of at most so many of its kind.
func (u *Update) hold(i int, s Spell, on bool, most int) {
	kind := 0
	for _, o := range u.view.GPUs[i].Spells {
		if o.Holds() && o.Health == s.Health {
			kind++
		}
	}
	switch {
	case s.holdsOf(&u.view.GPUs[i]) == on:
	case on && kind >= most:
		u.s.drop(DropMaxDetails)
	case u.text(s.Name, s.Action):
		u.spell(i, s, on)
	}
}

// spell records that a reason begins or ends.
func (u *Update) spell(i int, s Spell, on bool) {
	g, now := &u.gpus()[i], unix(u.at)
	list := slices.DeleteFunc(slices.Clone(g.Spells), func(o Spell) bool { return !o.Holds() && now-o.Ended > spellAge && !o.same(s) })
	at := slices.IndexFunc(list, s.same)
	switch {
	case at < 0 && on:
		if len(list) >= maxSpells { // no more than half of them hold
			first := slices.MinFunc(list, func(a, b Spell) int { return int(a.Ended-1) - int(b.Ended-1) }) // 0 is last
			list = slices.DeleteFunc(list, first.same)
		}
		if s.Since = now; now-u.view.Born < Settled {
			s.Since = 0
		}
		list = append(list, s)
	case at >= 0 && on:
		if !list[at].Holds() && now-list[at].Ended > pause {
			list[at].Since = now
		}
		list[at].Ended = 0
	case at >= 0:
		list[at].Ended = now
	}
	g.Spells = list
}

// leastThrottled in tenths of a second is the least growth of a reason's time that counts:
// drivers also count the microseconds of a clock change.
const leastThrottled = 2

// clocks are the throttle reasons whose times are read.
var clocks = [...]string{"power_brake", "hw_thermal", "sw_thermal"}

// SetThrottleTime sets the seconds for which a reason held the clocks of the GPU down. NaN
// ends the series.
func (u *Update) SetThrottleTime(i int, reason string, x float64) {
	clock := slices.Index(clocks[:], reason)
	tenths := uint32(0) // none is known
	if finite(x) {
		tenths = uint32(min(10*x+1, math.MaxUint32))
	}
	was := u.view.GPUs[i].throttled[clock]
	if tenths == was {
		return
	}
	if s := (Spell{Name: reason}); was != 0 && tenths >= was+leastThrottled && !s.holdsOf(&u.view.GPUs[i]) {
		u.spell(i, s, true)
		u.spell(i, s, false)
	}
	u.gpus()[i].throttled[clock] = tenths
}

// stepping are the gauges that change when something breaks. Clocks and loads change all the
// time: their start is unknown.
var stepping = [...]reading.Field{reading.PCIeGeneration, reading.PCIeWidth, reading.NVLinksUp, reading.Processes, reading.PowerLimit}

// step records when a gauge became worse. A gauge that becomes better has no start: an idle
// GPU lowers its link's generation by itself.
func (g *GPU) step(f reading.Field, x float64, at int64) {
	i, was := slices.Index(stepping[:], f), g.Get(f)
	switch {
	case i < 0 || was == nil || !finite(x):
	case (x < *was) != (f == reading.Processes):
		g.stepped[i] = unix(at)
	default:
		g.stepped[i] = 0
	}
}

// Stepped is when one of these gauges last became worse, Unix seconds, 0 when unknown.
func (g *GPU) Stepped(f reading.Field) uint32 { return g.stepped[slices.Index(stepping[:], f)] }

// Link is a reading of a network adapter: its bandwidth, or its errors of one kind.
type Link struct {
	Adapter string
	errors  uint64 // a hash of the kind, 0 of the bandwidth
	// Value is in bytes per second, or the cumulative errors.
	Value float64
	// Grown is the number of errors from Since to Last, without a pause.
	Grown       float64
	Since, Last uint32
}

// Errors reports whether the reading is of errors.
func (l *Link) Errors() bool { return l.errors != 0 }

// SetBandwidth sets the bandwidth of a network adapter's link. NaN ends it.
func (u *Update) SetBandwidth(adapter string, x float64) { u.setLink(adapter, 0, x) }

// SetErrors sets the cumulative errors of a network adapter, of a kind that is not 0. NaN
// changes nothing: a count outlives its series.
func (u *Update) SetErrors(adapter string, kind uint64, x float64) {
	if finite(x) {
		u.setLink(adapter, kind, x)
	}
}

func (u *Update) setLink(adapter string, kind uint64, x float64) {
	list, on, now := u.view.Links, finite(x), unix(u.at)
	at := slices.IndexFunc(list, func(l Link) bool { return l.errors == kind && l.Adapter == adapter })
	switch {
	case at < 0 && on && adapter != "":
		if next, ok := edit(u, list, len(list), true, maxLinks, Link{Adapter: strings.Clone(adapter), errors: kind, Value: x}, adapter); ok {
			u.node().Links = next
		}
	case at >= 0 && !on:
		u.node().Links = slices.Delete(slices.Clone(list), at, at+1)
	case at >= 0 && list[at].Value != x:
		next := slices.Clone(list)
		l := &next[at]
		grown := x - l.Value
		if grown < 0 {
			grown = x // the count began anew
		}
		if now-l.Last > pause {
			l.Since, l.Grown = now, 0
		}
		l.Value, l.Grown, l.Last = x, l.Grown+grown, now
		u.node().Links = next
	}
}

// boards are the times of changes in a node's set of GPUs, Unix milliseconds.
type boards struct {
	changed int64 // a GPU was new, or the node reported fewer
	// replaced is when a board took the bus address of another. twice is when that came so
	// soon again that two machines must share the name.
	replaced, twice int64
}

func (b *boards) replace(at int64) {
	if at-b.replaced < boardsQuiet {
		b.twice = at
	}
	b.replaced = at
}

// Crowded reports whether two machines have the node's name: more GPUs answer than the node
// reported, or boards take turns. A GPU without a point since the last change was removed.
func (n *Node) Crowded() bool {
	answer, latest := 0, int64(0)
	for i := range n.GPUs {
		latest = max(latest, n.GPUs[i].seen.Load())
	}
	for i := range n.GPUs {
		g := &n.GPUs[i]
		at := g.seen.Load()
		if g.Flag(reading.Up) && g.Parent == "" && !strings.HasPrefix(g.UUID, "MIG-") && at >= n.boards.changed && at+boardsQuiet > latest {
			answer++
		}
	}
	found := n.Values.Get(reading.GPUsFound)
	return found != nil && *found > 0 && float64(answer) > *found || n.boards.twice != 0 && latest-n.boards.twice < boardsQuiet
}

// Size is the expected number of GPUs, else the found one, 0 when neither is known.
func (n *Node) Size() int {
	for _, f := range [...]reading.Field{reading.GPUsExpected, reading.GPUsFound} {
		if v := n.Values.Get(f); v != nil && *v > 0 {
			return int(*v)
		}
	}
	return 0
}
