// SPDX-License-Identifier: Apache-2.0

package episode

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
)

const tick = 10 * time.Second

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// rig is one group of nodes, whose losses a test sets. A loss below 0 keeps up at its last
// value, and its average does not yet.
type rig struct {
	t            *testing.T
	tracker      Tracker
	group        Group
	nodes        map[string]*Node
	loss         map[string]float64
	since        map[string]time.Time
	missing      map[string]time.Time
	rising, wait int
	rank         nodesignal.Subject // of every finding
	now          time.Time
	open         []*Episode
	ids          map[string]*Episode // of the open episodes
	over         map[string]bool     // IDs
	ended        map[string]time.Time
}

// peers are a group at 10.
type peers struct{ r *rig }

func (p peers) Compare(slot int, _ nodesignal.Signal) (value, median float64, known bool) {
	return 10 * (1 - p.r.loss[nameOf(slot)]), 10, true
}

func (p peers) Rank(slot int) int { return slot + 1 }

func nameOf(slot int) string { return fmt.Sprintf("n%02d", slot) }

func newRig(t *testing.T, active int) *rig {
	r := &rig{
		t: t, tracker: Tracker{MaxOnsets: 10}, nodes: map[string]*Node{}, now: noon, loss: map[string]float64{}, since: map[string]time.Time{},
		missing: map[string]time.Time{}, ids: map[string]*Episode{}, over: map[string]bool{}, ended: map[string]time.Time{},
	}
	r.group = Group{Cluster: "c", Name: "j", Labels: []string{"j"}, Active: active, Comparer: peers{r}}
	for i := range active {
		r.nodes[nameOf(i)] = &Node{}
	}
	return r
}

// tick moves the group on, and returns copies of the changes.
func (r *rig) tick() (recorded []Episode) {
	r.now = r.now.Add(tick)
	r.tracker.Begin(r.now)
	var slow []Finding
	for i, name := range slices.Sorted(maps.Keys(r.nodes)) {
		n, loss := r.nodes[name], r.loss[name]
		if loss == 0 {
			delete(r.since, name)
			r.tracker.Calm(n, i, 0, CauseRecovered)
			continue
		}
		if _, known := r.since[name]; !known {
			r.since[name] = r.now.Add(-tick)
		}
		f := Finding{Node: n, Name: name, Slot: i, Since: r.since[name], Gap: max(loss, -loss), Suspicion: 1, Behind: loss > 0, Culprit: r.rank, Wait: r.wait}
		switch {
		case loss == -1: // its average is about to follow
			f.Suspicion = 0
		case !f.Behind:
			f.Suspicion = 0.5
		}
		slow = append(slow, f)
	}
	r.tracker.Slow(&r.group, slow, r.rising)
	r.tracker.Cluster()
	var lost []MissingNode
	for name, since := range r.missing {
		if !r.nodes[name].Missing() {
			lost = append(lost, MissingNode{Node: r.nodes[name], Group: &r.group, Name: name, Since: since})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.nodes)) {
		if _, missing := r.missing[name]; !missing {
			r.tracker.Returned(r.nodes[name], CauseRecovered)
		} else {
			r.tracker.StaysMissing(r.nodes[name])
		}
	}
	r.tracker.WentMissing(lost)
	events, open := r.tracker.Take(nil)
	r.open = open
	for _, e := range events {
		recorded = append(recorded, *e)
		r.check(e)
	}
	for _, e := range open {
		require.Contains(r.t, r.ids, e.ID)
		require.Equal(r.t, r.now, e.Updated)
	}
	return recorded
}

// check holds every episode to its form: one onset first and one end last for an ID, and
// none that begins before the last of its subject ended.
func (r *rig) check(e *Episode) {
	what := fmt.Sprint(e.Subject, e.Node)
	require.NotEmpty(r.t, e.ID)
	require.False(r.t, r.over[e.ID], "%+v comes after its end", e)
	require.Equal(r.t, e.Phase == PhaseOnset, r.ids[e.ID] == nil, "%+v", e)
	require.Equal(r.t, e.Phase == PhaseEnd, !e.Open(), "%+v", e)
	require.False(r.t, e.Since.After(e.Updated), "%+v", e)
	require.False(r.t, e.Node+e.Group != "" && e.Since.Before(r.ended[what]), "%+v begins before %s", e, r.ended[what])
	if r.ids[e.ID] = e; e.Phase == PhaseEnd {
		r.over[e.ID] = true
		r.ended[what] = e.Ended
		delete(r.ids, e.ID)
	}
}

func brief(recorded []Episode) (all []string) {
	for _, e := range recorded {
		s := fmt.Sprint(e.Subject, " ", e.Phase, " ", e.Node)
		if e.Node == "" {
			s = fmt.Sprint(e.Subject, " ", e.Phase, " ", e.NodeCount)
		}
		switch e.Phase {
		case PhaseEnd:
			s += " " + e.Cause
		case PhaseSeverity:
			s += " " + e.Severity.String()
		case PhaseOnset, PhaseUpdate:
		}
		all = append(all, s)
	}
	return all
}

// step sets losses for some ticks, and has the changes that they report.
type step struct {
	loss     map[int]float64 // nil is as before
	ticks    int
	recorded []string
	check    func(t *testing.T, r *rig, recorded []Episode)
}

func all(n int, loss float64) map[int]float64 {
	m := map[int]float64{}
	for i := range n {
		m[i] = loss
	}
	return m
}

func with(m map[int]float64, i int, loss float64) map[int]float64 {
	m = maps.Clone(m)
	m[i] = loss
	return m
}

func TestTracker(t *testing.T) {
	none := map[int]float64{}
	one := func(loss float64) map[int]float64 { return map[int]float64{2: loss} }
	flap := func(n int) (steps []step) {
		for i := range n {
			on, off := step{loss: one(0.3), ticks: 2, recorded: []string{"node onset n02"}}, step{loss: none, ticks: 20, recorded: []string{"node end n02 recovered"}}
			if i >= 2 {
				off.recorded = nil
			}
			if i > 2 {
				on.recorded = nil
			}
			steps = append(steps, on, off)
		}
		return steps
	}
	flapping := func(n int64) func(*testing.T, *rig, []Episode) {
		return func(t *testing.T, r *rig, _ []Episode) { assert.Equal(t, n, r.tracker.Flapping) }
	}
	for name, tt := range map[string]struct {
		active int
		steps  []step
	}{
		"severity follows after six ticks, and falls below four fifths of its bound": {8, []step{
			{loss: one(0.07), ticks: 20, recorded: []string{"node onset n02"}},
			{loss: one(0.15), ticks: 5},
			{ticks: 1, recorded: []string{"node severity n02 major"}},
			{loss: one(0.4), ticks: 20, recorded: []string{"node severity n02 critical"}},
			{loss: one(0.22), ticks: 20},
			{loss: one(0.15), ticks: 20, recorded: []string{"node severity n02 major"}},
			{loss: one(-0.05), ticks: 20}, // on the way to the end nothing changes
			{loss: none, ticks: 1, recorded: []string{"node end n02 recovered"}, check: func(t *testing.T, _ *rig, recorded []Episode) {
				assert.Equal(t, SeverityMajor, recorded[0].Severity)
				assert.Equal(t, noon, recorded[0].Since)
				assert.InDelta(t, 0.632, *recorded[0].Confidence, 0.001, "the greatest there was")
				assert.Nil(t, recorded[0].Rank)
			}},
		}},
		"two glitches do not add up": {8, []step{
			{loss: one(0.15), ticks: 10, recorded: []string{"node onset n02"}},
			{loss: one(0.4), ticks: 4},
			{loss: one(0.15), ticks: 1},
			{loss: one(0.4), ticks: 4},
		}},
		"one that is about to be well does not begin":    {8, []step{{loss: one(-0.3), ticks: 50}}},
		"many that are about to be well are no incident": {8, []step{{loss: all(5, -1), ticks: 50}}},
		"figures follow at each tick": {8, []step{
			{loss: one(0.3), ticks: 3, recorded: []string{"node onset n02"}},
			{loss: one(0.26), ticks: 1, check: func(t *testing.T, r *rig, _ []Episode) {
				require.Len(t, r.open, 1)
				e := r.open[0]
				assert.Equal(t, []float64{0.26, 7.4, 10}, []float64{*e.Gap, *e.Value, *e.Median})
				assert.Equal(t, []any{int64(3), int64(8), "throughput", false}, []any{*e.Rank, *e.Active, e.Signal, e.Recovering})
			}},
			{loss: one(-0.2), ticks: 1, check: func(t *testing.T, r *rig, _ []Episode) { assert.True(t, r.open[0].Recovering) }},
		}},
		"a rank stays named to the end": {8, []step{
			{check: func(_ *testing.T, r *rig, _ []Episode) { r.rank.Rank = nodesignal.OrdinalOf(3) }},
			{loss: one(0.3), ticks: 3, recorded: []string{"node onset n02"}, check: func(_ *testing.T, r *rig, _ []Episode) { r.rank.Rank = 0 }},
			{ticks: 3, check: func(t *testing.T, r *rig, _ []Episode) {
				assert.Equal(t, nodesignal.OrdinalOf(3), r.open[0].Culprit.Rank)
			}},
		}},
		"the third within an hour stays open until it has been well for one": {8, append(flap(5),
			step{ticks: 360, recorded: []string{"node end n02 recovered"}, check: flapping(1)},
			step{loss: one(0.3), ticks: 2, recorded: []string{"node onset n02"}})},
		"twice is no flapping": {8, append(flap(2), step{check: flapping(0)})},
		"three of twenty are 15 %, not more": {20, []step{
			{loss: all(3, 0.2), ticks: 30, recorded: []string{"node onset n00", "node onset n01", "node onset n02"}},
		}},
		"one, then six": {20, []step{
			{loss: all(1, 0.2), ticks: 10, recorded: []string{"node onset n00"}},
			{loss: all(6, 0.2), ticks: 30, recorded: []string{"group onset 6"}, check: func(t *testing.T, r *rig, recorded []Episode) {
				in := recorded[0]
				assert.Equal(t, []string{"n00", "n01", "n02", "n03", "n04", "n05"}, in.Nodes)
				assert.Equal(t, []any{"throughput", SeverityMajor, noon, CauseStragglers}, []any{in.Signal, in.Severity, in.Since, in.Cause})
				assert.InDeltaSlice(t, []float64{0.2, 8, 10, 20}, []float64{*in.Gap, *in.Value, *in.Median, float64(*in.Active)}, 1e-9)
				assert.EqualValues(t, 5, r.tracker.Folded)
				assert.True(t, r.group.Incident())
				assert.Len(t, r.open, 2)
			}},
			{loss: map[int]float64{3: 0.2}, ticks: 30, recorded: []string{"node end n00 recovered", "group end 6 recovered", "node onset n03"}},
		}},
		"an incident that gets worse, and better": {20, []step{
			{loss: all(5, 0.15), ticks: 10, recorded: []string{"group onset 5"}},
			{loss: all(5, 0.4), ticks: 10, recorded: []string{"group severity 5 critical"}, check: func(t *testing.T, r *rig, _ []Episode) {
				assert.InDelta(t, 0.4, *r.open[0].Gap, 1e-9)
			}},
			{loss: all(5, 0.22), ticks: 10},
			{loss: all(5, 0.15), ticks: 10, recorded: []string{"group severity 5 major"}},
			{loss: all(4, 0.15), ticks: 1, check: func(t *testing.T, r *rig, _ []Episode) {
				assert.Equal(t, []any{int64(4), false}, []any{r.open[0].NodeCount, r.open[0].Recovering})
			}},
			{loss: all(5, -0.15), ticks: 30, check: func(t *testing.T, r *rig, _ []Episode) { // about to be well, none is named alone
				assert.Equal(t, []any{int64(5), true}, []any{r.open[0].NodeCount, r.open[0].Recovering})
			}},
			{loss: none, ticks: 2, check: func(t *testing.T, r *rig, _ []Episode) { assert.Nil(t, r.open[0].Gap, "no node is behind") }},
			{ticks: 1, recorded: []string{"group end 5 recovered"}},
		}},
		"more nodes are reported each ten minutes": {20, []step{
			{loss: all(4, 0.2), ticks: 60, recorded: []string{"group onset 4"}},
			{loss: all(5, 0.2), ticks: 20, recorded: []string{"group update 5"}},
			{loss: all(7, 0.2), ticks: 30},
			{ticks: 20, recorded: []string{"group update 7"}},
			{loss: all(6, 0.2), ticks: 60},
			{loss: all(7, 0.2), ticks: 60}, // its name has been reported
		}},
		"one that is far worse than its incident": {16, []step{
			{loss: all(4, 0.12), ticks: 30, recorded: []string{"group onset 4"}},
			{loss: with(all(4, 0.12), 1, 0.29), ticks: 30}, // critical, but not clearly
			{loss: with(all(4, 0.12), 1, 0.4), ticks: 30, recorded: []string{"node onset n01"}},
			{loss: all(4, 0.12), ticks: 30, recorded: []string{"node severity n01 major"}},
		}},
		"one that is hardly worse": {16, []step{
			{loss: all(4, 0.23), ticks: 30, recorded: []string{"group onset 4"}},
			{loss: with(all(4, 0.23), 1, 0.335), ticks: 30},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, tt.active)
			for i, s := range tt.steps {
				if s.loss != nil {
					clear(r.loss)
					for n, loss := range s.loss {
						r.loss[nameOf(n)] = loss
					}
				}
				var recorded []Episode
				for range s.ticks {
					recorded = append(recorded, r.tick()...)
				}
				require.Equal(t, s.recorded, brief(recorded), "step %d", i)
				if s.check != nil {
					s.check(t, r, recorded)
				}
			}
		})
	}
}

// TestMissingNodes: five nodes that go missing together are one episode, which ends once, over a
// restart too. An episode that ended before the restart does not begin again under its old id.
func TestMissingNodes(t *testing.T) {
	r := newRig(t, 8)
	r.since["n07"] = time.Unix(0, 0)
	r.loss["n07"], r.loss["n06"] = 0.3, 0.3
	recorded := r.tick()
	require.Equal(t, []string{"node onset n06", "node onset n07"}, brief(recorded))
	assert.True(t, recorded[1].SinceBefore)
	assert.Equal(t, r.now, recorded[1].Since, "its begin is not known")
	delete(r.loss, "n06")
	for i := range 5 {
		r.missing[nameOf(i)] = r.now
	}
	require.Equal(t, []string{"missing onset 5", "node end n06 recovered"}, brief(r.tick()))
	require.Empty(t, r.tick())
	require.Len(t, r.open, 2)

	var save Saver
	var restore Restorer
	nodes, incident := map[string]SavedNode{}, save.Group(&r.group)
	for _, name := range slices.Sorted(maps.Keys(r.nodes)) {
		nodes[name] = save.Node(r.nodes[name])
	}
	r.tracker = Tracker{MaxOnsets: 10}
	restore.Group(&r.group, &incident)
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		from := nodes[name]
		assert.Equal(t, name == "n07", restore.Node(r.nodes[name], name, &r.group, &from))
		r.ids = map[string]*Episode{}
	}
	for _, n := range r.nodes {
		for _, sp := range []*openEpisode{n.Slow, n.Absence} {
			if sp != nil && sp.in != nil {
				sp = sp.in
			}
			if sp != nil {
				r.ids[sp.ID] = &sp.Episode
			}
		}
	}
	require.Len(t, r.ids, 2)
	r.loss["n06"], r.since["n06"] = 0.3, noon // the loss of before
	require.Equal(t, []string{"node onset n06"}, brief(r.tick()), "checked: it begins after the one that ended")
	require.Len(t, r.open, 3)
	for i := range 4 {
		delete(r.missing, nameOf(i))
		require.Empty(t, r.tick())
	}
	delete(r.missing, nameOf(4))
	require.Equal(t, []string{"missing end 5 recovered"}, brief(r.tick()))
}

// TestOnsetsAreBounded: ten of a cluster begin at a tick, the surest first. None begins while
// facts are on their way, and all wait a minute while many may follow.
func TestOnsetsAreBounded(t *testing.T) {
	r := newRig(t, 100)
	for i := range 15 {
		r.loss[nameOf(i)] = 0.3
	}
	r.tracker.Rest = 1
	require.Empty(t, r.tick())
	r.tracker.Rest, r.rising = 0, 20
	r.wait = 6
	for range r.wait {
		require.Empty(t, r.tick())
	}
	require.Len(t, r.tick(), 10)
	require.Len(t, r.tick(), 5)
	for i := range 15 {
		r.loss[nameOf(i)] = 0.11
	}
	var changes []int
	for range 10 {
		if n := len(r.tick()); n > 0 {
			changes = append(changes, n)
		}
	}
	assert.Equal(t, []int{10, 5}, changes)
}

// TestAFigureOfZeroLasts over a restart: gob alone would make none of it.
func TestAFigureOfZeroLasts(t *testing.T) {
	var file bytes.Buffer
	was, is := []Evidence{{Fact: "nvlinks", Value: new(0.0), Peers: new(18.0)}, {Fact: "xid_79"}}, []Evidence(nil)
	require.NoError(t, gob.NewEncoder(&file).Encode(was))
	require.NoError(t, gob.NewDecoder(&file).Decode(&is))
	assert.Equal(t, was, is)
}

// TestSpells draws what happens to a group, and holds each episode to its form.
func TestSpells(t *testing.T) {
	onsets := 0
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 1))
		r := newRig(t, 4+rng.IntN(20))
		for range 6 * 60 * 4 {
			name := nameOf(rng.IntN(len(r.nodes)))
			switch rng.IntN(60) {
			case 0, 1:
				r.loss[name] = 0.05 + 0.5*rng.Float64()
			case 2:
				r.loss[name] = -r.loss[name]
			case 3, 4:
				delete(r.loss, name)
			case 5: // a pause after which the loss goes on
				loss, since := r.loss[name], r.since[name]
				r.loss[name] = 0
				r.tick()
				if r.loss[name] = loss; loss != 0 {
					r.since[name] = since
				}
			case 6:
				r.missing[name] = r.now.Add(-time.Minute)
			case 7:
				delete(r.missing, name)
			case 8:
				r.since[name] = time.Unix(0, 0) // its begin is not known
			}
			for _, e := range r.tick() {
				if e.Phase == PhaseOnset {
					onsets++
				}
			}
			require.Equal(t, len(r.ids), len(r.open)+countNew(r), "all that began is open")
		}
	}
	assert.Greater(t, onsets, 1000)
}

// countNew are the absences that began at this tick, which are listed from the next one on.
func countNew(r *rig) (n int) {
	for _, e := range r.ids {
		if e.Subject == SubjectMissing && e.Phase == PhaseOnset && !slices.Contains(r.open, e) {
			n++
		}
	}
	return n
}
