// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// TestThresholdDecides: under `decision: threshold` some scores in a row below it are
// needed for a verdict and some above it for its end. Others' groups do not count.
func TestThresholdDecides(t *testing.T) {
	well := []float64{1, 1, 1, 1, 1, 1}
	slow := []float64{1, 1, 0.4, 1, 1, 1}
	f := newFleet(t, plain)
	var told []Event
	round := func(scores []float64) []string {
		for i := range 6 {
			f.push("c", nodeName("b", i), []string{"slower", "stage"}, nodesignal.StateActive, 0.5)
		}
		r := f.round(scores...)
		told = append(told, r.Events...)
		return stragglers(r)
	}
	round(well)
	assert.Empty(t, round(slow))
	assert.Empty(t, round(well), "one dip is none")
	since := f.now
	round(slow)
	round(slow)
	require.Equal(t, []string{"n-02"}, round(slow))
	assert.Equal(t, 1, groupOf(t, &f.e.report, "default").Stragglers)
	assert.Equal(t, 1, groupOf(t, &f.e.report, "").Stragglers)
	assert.InDelta(t, 0.95, groupOf(t, &f.e.report, "default").Value, 1e-9)
	assert.InDelta(t, 0.45, groupOf(t, &f.e.report, "slower/stage").Value, 1e-9)
	assert.Equal(t, 12, groupOf(t, &f.e.report, "").Counts[nodesignal.StateActive])
	round(well)
	round(well)
	require.Equal(t, []string{"n-02"}, stragglers(&f.e.report))
	require.Empty(t, round(well))
	require.Equal(t, []string{"node onset n-02", "node end n-02 recovered"}, brief(told))
	assert.WithinDuration(t, since, told[0].Since, tick)
	assert.Equal(t, nodesignal.Score, told[0].Signal)
	assert.InDelta(t, 0.6, told[0].Gap, 1e-6)
	assert.InDelta(t, 0.4, told[0].Value, 1e-6)
	assert.InDelta(t, 1, told[0].Median, 1e-6)
}

// TestStates: only active nodes are peers. A score alone makes a node active that never
// told its state; one that tells nothing to compare is calibrating.
func TestStates(t *testing.T) {
	state := func(s nodesignal.State) Observation { return Observation{HasState: true, State: s} }
	score, nothing := Observation{HasScore: true, Score: 1}, Observation{State: nodesignal.StateMissing} // it pushes nothing
	for name, tc := range map[string]struct {
		told []Observation
		want nodesignal.State
	}{
		"nothing":                       {[]Observation{{}}, nodesignal.StateCalibrating},
		"a score":                       {[]Observation{score}, nodesignal.StateActive},
		"active, with nothing to tell":  {[]Observation{state(nodesignal.StateActive)}, nodesignal.StateCalibrating},
		"idle":                          {[]Observation{score, state(nodesignal.StateIdle)}, nodesignal.StateIdle},
		"idle, and then a score":        {[]Observation{state(nodesignal.StateIdle), score}, nodesignal.StateIdle},
		"a score that is void":          {[]Observation{score, {NoScore: true}}, nodesignal.StateCalibrating},
		"and a good one again":          {[]Observation{score, {NoScore: true}, score}, nodesignal.StateActive},
		"power alone decides nothing":   {[]Observation{{HasState: true, Values: nodesignal.Values{Known: [nodesignal.Count]bool{nodesignal.Power: true}}}}, nodesignal.StateCalibrating},
		"a throughput, and it is gone":  {[]Observation{{HasState: true, Values: throughput(1)}, {Gone: [nodesignal.Count]bool{true}}}, nodesignal.StateCalibrating},
		"silent":                        {append([]Observation{score}, slices.Repeat([]Observation{nothing}, 6)...), nodesignal.StateMissing},
		"a heartbeat after the silence": {append(append([]Observation{score}, slices.Repeat([]Observation{nothing}, 6)...), Observation{Heartbeat: true}), nodesignal.StateActive},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, plain)
			var r *Report
			for _, o := range tc.told {
				if o.Cluster, o.Node = "c", "n"; o.State != nodesignal.StateMissing {
					f.observe(o)
				}
				r = f.tick()
			}
			g := groupOf(t, r, "default")
			assert.Equal(t, 1, g.Counts[tc.want])
			assert.Equal(t, tc.want, r.Nodes[0].State)
			assert.Equal(t, tc.want == nodesignal.StateMissing, g.CoverageLow)
		})
	}
}

// TestScoresUnderTheThreshold: whose count, and how often.
func TestScoresUnderTheThreshold(t *testing.T) {
	low := []float64{1, 1, 1, 1, 1, 0.3}
	for name, tc := range map[string]struct {
		then func(f *fleet)
		want []string
	}{
		"a heartbeat confirms a score": {func(f *fleet) {
			for i := range 6 {
				f.observe(Observation{Cluster: "c", Node: nodeName("n", i), Heartbeat: true})
			}
		}, []string{"n-05"}},
		"one low push is one observation": {func(*fleet) {}, nil},
		"a push without a score": {func(f *fleet) {
			f.observe(Observation{Cluster: "c", Node: "n-05", Values: throughput(3)})
		}, nil},
		"the peers go on, it says nothing": {func(f *fleet) {
			for i := range 5 {
				f.push("c", nodeName("n", i), nil, nodesignal.StateActive, 1)
			}
		}, nil},
		"an earlier job's score": {func(f *fleet) {
			for i := range 5 {
				f.push("c", nodeName("b", i), []string{"B"}, nodesignal.StateActive, 1)
			}
			f.observe(Observation{Cluster: "c", Node: "n-05", Peers: []string{"B"}, HasState: true})
		}, nil},
		"idle nodes are no stragglers": {func(f *fleet) {
			f.push("c", "n-05", nil, nodesignal.StateIdle, 0.3)
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, plain)
			f.round(low...)
			for range 5 {
				tc.then(f)
				f.tick()
			}
			assert.Equal(t, tc.want, stragglers(&f.e.report))
		})
	}
}

// TestReportsThatKnowAPartEach: a node's job tells the job, its GPUs their model. Each
// node moves once, and is judged.
func TestReportsThatKnowAPartEach(t *testing.T) {
	f := newFleet(t, plain)
	moves := int64(0)
	for range 5 {
		for i, score := range []float64{1, 1, 0.3, 1, 1} {
			f.push("c", nodeName("n", i), []string{"J", "stage-0", ""}, nodesignal.StateActive, score)
			f.observe(Observation{Cluster: "c", Node: nodeName("n", i), Peers: []string{"", "", "H100"}, Heartbeat: true})
		}
		moves += f.tick().Counters.GroupChanges
	}
	assert.EqualValues(t, 5, moves)
	assert.Equal(t, 5, groupOf(t, &f.e.report, "J/stage-0/H100").Counts[nodesignal.StateActive])
	assert.Equal(t, []string{"n-02"}, stragglers(&f.e.report))

	for range 10 {
		for i := range 5 {
			f.observe(Observation{Cluster: "c", Node: nodeName("n", i), Peers: []string{"", "", ""}, Heartbeat: true})
		}
		f.tick()
	}
	assert.Equal(t, 5, groupOf(t, &f.e.report, "default").Counts[nodesignal.StateCalibrating], "the job is over")
}

// TestRefIsTheMedianThroughputOfBusyNodes, calibrating ones included: they wait for it.
func TestRefIsTheMedianThroughputOfBusyNodes(t *testing.T) {
	f := newFleet(t, plain)
	for i := range 8 {
		o := Observation{Cluster: "c", Node: strconv.Itoa(i), State: nodesignal.StateCalibrating, HasState: true, Values: throughput(float64(i))}
		if i > 5 {
			o.State = nodesignal.StateIdle
		}
		f.observe(o)
	}
	assert.InDelta(t, 3, groupOf(t, f.tick(), "default").Ref, 1e-12, "who does nothing at all is no reference")
}

func TestBadObservations(t *testing.T) {
	long := strings.Repeat("x", 10<<20)
	for name, tc := range map[string]struct {
		change func(*Observation)
		want   error
	}{
		"empty cluster":       {func(o *Observation) { o.Cluster = "" }, ErrNoCluster},
		"empty node":          {func(o *Observation) { o.Node = "" }, ErrNoNode},
		"10 MB node":          {func(o *Observation) { o.Node = long }, ErrNameTooLong},
		"10 MB cluster":       {func(o *Observation) { o.Cluster = long }, ErrNameTooLong},
		"10 MB peer":          {func(o *Observation) { o.Peers = []string{long} }, ErrNameTooLong},
		"10 MB culprit":       {func(o *Observation) { o.Culprit.GPU = long }, ErrNameTooLong},
		"NaN":                 {func(o *Observation) { o.Score = math.NaN() }, ErrScoreRange},
		"infinite":            {func(o *Observation) { o.Score = math.Inf(1) }, ErrScoreRange},
		"above 1":             {func(o *Observation) { o.Score = 1.0000001 }, ErrScoreRange},
		"below 0":             {func(o *Observation) { o.Score = -0.1 }, ErrScoreRange},
		"NaN throughput":      {func(o *Observation) { o.Values = throughput(math.NaN()) }, ErrSignalRange},
		"infinite throughput": {func(o *Observation) { o.Values = throughput(math.Inf(1)) }, ErrSignalRange},
	} {
		t.Run(name, func(t *testing.T) {
			e := New(DefaultConfig())
			o := Observation{Cluster: "c", Node: "n", Score: 0.5, HasScore: true, Values: throughput(1)}
			tc.change(&o)
			require.ErrorIs(t, e.Observe(&o, start), tc.want)
			assert.Zero(t, e.Nodes())
			assert.Empty(t, e.clusters)
		})
	}
}

// TestStateIsBounded: of groups and nodes a cluster holds no more than half of what the
// others do not. Known nodes still count, and a group ends with its last node.
func TestStateIsBounded(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxClusters, cfg.MaxGroups, cfg.MaxNodes = 4, 5, 7
	e := New(cfg)
	const groups, nodes = "cluster holds its share of `max_groups`", "cluster holds its share of `max_nodes`"
	for i, step := range []struct{ cluster, node, group, refused string }{
		{"a", "1", "g1", ""},
		{"b", "1", "g1", ""},
		{"a", "2", "g2", ""},
		{"a", "3", "g3", groups},
		{"a", "1", "g3", ""}, // its old group ends with it
		{"a", "3", "g2", ""},
		{"a", "2", "g4", groups}, // its old group lives on
		{"a", "4", "g2", nodes},
		{"a", "2", "g2", ""},
		{"c", "1", "g1", ""},
		{"b", "2", "g1", ""},
		{"b", "3", "g1", nodes},
		{"c", "2", "g1", nodes},
		{"d", "1", "g1", ""}, // the last node and group
		{"c", "3", "g2", "more nodes than `max_nodes`"},
		{"z", "1", "g1", "more clusters than `max_clusters`"},
		{"a", "2", "g4", "more peer groups than `max_groups`"},
	} {
		err := e.Observe(&Observation{Cluster: step.cluster, Node: step.node, Peers: []string{step.group}}, start)
		if step.refused == "" {
			require.NoError(t, err, "%d", i)
		} else {
			require.EqualError(t, err, step.refused, "%d", i)
		}
	}
	assert.Equal(t, 7, e.Nodes())
}

// TestMadeUpNames give their places back once they are silent for the TTL, and never
// cost an established cluster its place, not even in an outage.
func TestMadeUpNames(t *testing.T) {
	f := newFleet(t, func(c *Config) { c.MaxClusters, c.MaxNodes, c.MaxGroups = 8, 64, 64 })
	push := func(cluster string) error {
		return f.e.Observe(&Observation{Cluster: cluster, Node: "a", Score: 0.9, HasScore: true}, f.now)
	}
	wait := func(ticks int) (reclaimed int64) {
		for range ticks {
			reclaimed += f.tick().Counters.ReclaimedClusters
		}
		return reclaimed
	}
	for range 30 {
		require.NoError(t, push("established"))
		wait(1)
	}
	for i := range 7 {
		require.NoError(t, push(fmt.Sprint("made up ", i)))
	}
	require.Error(t, push("late"), "none is silent yet")
	wait(7) // the established one is out of reach, too
	for i := range 7 {
		require.NoError(t, push(fmt.Sprint("late ", i)))
	}
	assert.True(t, f.e.Has("established", "a"))
	assert.False(t, f.e.Has("made up 0", "a"))
	require.NoError(t, push("one more"), "the established one is the only silent one")
	assert.False(t, f.e.Has("established", "a"))
	assert.Equal(t, 8, f.e.Nodes())
	assert.EqualValues(t, 8, wait(1))

	// Silence that nobody could have heard is none.
	f.now = f.now.Add(10 * time.Minute)
	wait(1)
	require.Error(t, push("after a pause"))
	wait(6)
	require.NoError(t, push("after a pause"))

	// The same with nodes and groups.
	f = newFleet(t, func(c *Config) { c.MaxNodes, c.MaxGroups = 16, 16 })
	for i := range 256 {
		_ = f.e.Observe(&Observation{Cluster: fmt.Sprint("made up ", i/16), Node: strconv.Itoa(i), Peers: []string{strconv.Itoa(i)}}, f.now)
	}
	require.Equal(t, 16, f.e.Nodes())
	require.Error(t, push("honest"))
	wait(7)
	require.NoError(t, push("honest"))
	assert.Less(t, f.e.Nodes(), 16)
}

// TestWants: a node is asked once, and only when it never said what it could be
// compared by.
func TestWants(t *testing.T) {
	f := newFleet(t, nil)
	assert.False(t, f.e.Wants("c", "n"), "nothing is known of it")
	f.observe(Observation{Cluster: "c", Node: "n", Heartbeat: true})
	f.e.Asked("c", "another")
	assert.True(t, f.e.Wants("c", "n"))
	f.e.Asked("c", "n")
	assert.False(t, f.e.Wants("c", "n"))
	for node, o := range map[string]Observation{
		"score":      {HasScore: true, Score: 1},
		"state":      {HasState: true, State: nodesignal.StateIdle},
		"throughput": {Values: throughput(1)},
	} {
		o.Cluster, o.Node = "c", node
		f.observe(o)
		assert.False(t, f.e.Wants("c", node), node)
	}
}

func TestConfigSaysAllMistakesAtOnce(t *testing.T) {
	cfg := Config{Signals: nodesignal.Defaults(), TTL: time.Minute, ExitBand: -1}
	cfg.K, cfg.MinGap, cfg.Alpha = math.NaN(), -1, 2
	err := cfg.Validate("gateway::")
	for _, key := range []string{"k", "min_gap", "alpha", "quorum", "panic_fraction", "panic_exit_ticks", "exit_band", "min_peers", "max_onsets", "retention", "max_clusters", "max_groups", "max_nodes"} {
		require.ErrorContains(t, err, "`gateway::"+key+"`")
	}
	for _, key := range []string{"enter_ticks", "leave_ticks"} {
		require.ErrorContains(t, err, "`"+key+"`")
	}
	cfg = DefaultConfig()
	cfg.Signals = [nodesignal.Count]nodesignal.Spec{}
	require.ErrorContains(t, cfg.Validate(""), "`signals::cpu::min_gap`")
	require.ErrorContains(t, cfg.Validate(""), "decide nothing")
	require.NoError(t, func() error { c := DefaultConfig(); return c.Validate("") }())
	for _, d := range []Decision{DecisionDeviation, DecisionThreshold} {
		parsed, err := ParseDecision(d.String())
		require.NoError(t, err)
		assert.Equal(t, d, parsed)
	}
	_, err = ParseDecision("cusum")
	require.Error(t, err)
}

// TestMemoryOfANode and signal.
func TestMemoryOfANode(t *testing.T) {
	assert.LessOrEqual(t, unsafe.Sizeof(track{}), uintptr(120))
}

// BenchmarkTick is of 100,000 nodes in 2,000 groups. It takes new values before each
// tick, whose time does not count. What a tick allocates does not grow with the nodes.
func BenchmarkTick(b *testing.B) {
	for _, decision := range []Decision{DecisionThreshold, DecisionDeviation} {
		b.Run(decision.String(), func(b *testing.B) {
			cfg := DefaultConfig()
			cfg.Decision = decision
			e, at, rng := New(cfg), start, rand.New(rand.NewPCG(1, 2))
			names, jobs := make([]string, 100_000), make([][]string, 2000)
			for i := range names {
				names[i] = fmt.Sprintf("n%06d", i)
			}
			for i := range jobs {
				jobs[i] = []string{fmt.Sprintf("job-%d", i)}
			}
			observe := func() {
				for i, name := range names {
					x := 0.9 * (1 + 0.01*rng.NormFloat64())
					o := Observation{Cluster: "c", Node: name, Peers: jobs[i%len(jobs)], HasState: true, Score: min(x, 1), HasScore: true}
					o.Values.Set(nodesignal.Throughput, 1000*x)
					o.Values.Set(nodesignal.Compute, 0.95*(1+0.01*rng.NormFloat64()))
					require.NoError(b, e.Observe(&o, at))
				}
				at = at.Add(tick)
			}
			for range 20 { // to be warm
				observe()
				e.Tick(at)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				b.StopTimer()
				observe()
				b.StartTimer()
				e.Tick(at)
			}
		})
	}
}
