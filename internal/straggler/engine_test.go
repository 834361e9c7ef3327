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

	"github.com/gpu-collector/gpu-collector/internal/episode"
	"github.com/gpu-collector/gpu-collector/internal/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// TestThresholdDecides: under `decision: threshold` some scores in a row below it are
// needed for a verdict and some above it for its end. Others' groups do not count.
func TestThresholdDecides(t *testing.T) {
	f := newFleet(t, plain)
	var told []episode.Event
	for k, slow := range []bool{false, true, false, true, true, true, false, false, false} {
		for i := range 6 {
			f.push(nodeName("b", i), []string{"slower", "stage"}, nodesignal.StateActive, 0.5)
		}
		r := f.round(1, 1, map[bool]float64{true: 0.4, false: 1}[slow], 1, 1, 1)
		told = append(told, r.Events...)
		require.Equal(t, k >= 5 && k < 8, len(stragglers(r)) == 1, "%d", k)
		for group, n := range map[string]int{"default": 6, "": 12} {
			assert.Equal(t, len(stragglers(r)), groupOf(t, r, group).Stragglers)
			assert.Equal(t, n, groupOf(t, r, group).Counts[nodesignal.StateActive])
		}
		assert.InDelta(t, 0.95, groupOf(t, r, "default").Value, 1e-9)
		assert.InDelta(t, 0.45, groupOf(t, r, "slower/stage").Value, 1e-9)
	}
	require.Equal(t, []string{"node onset n-02", "node end n-02 recovered"}, brief(told))
	on := told[0]
	assert.Equal(t, start.Add(4*tick), on.Since)
	assert.Equal(t, nodesignal.Score, on.Signal)
	assert.InDeltaSlice(t, []float64{0.6, 0.4, 1}, []float64{on.Gap, on.Value, on.Median}, 1e-6)
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
		"a push without a score":          {func(f *fleet) { f.observe(Observation{Cluster: "c", Node: "n-05", Values: throughput(3)}) }, nil},
		"an earlier job's score": {func(f *fleet) {
			for i := range 5 {
				f.push(nodeName("b", i), []string{"B"}, nodesignal.StateActive, 1)
			}
			f.observe(Observation{Cluster: "c", Node: "n-05", Peers: []string{"B"}, HasState: true})
		}, nil},
		"idle nodes are no stragglers": {func(f *fleet) { f.push("n-05", nil, nodesignal.StateIdle, 0.3) }, nil},
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
			f.push(nodeName("n", i), []string{"J", "stage-0", ""}, nodesignal.StateActive, score)
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
		"empty cluster":       {func(o *Observation) { o.Cluster = "" }, nodesignal.ErrNoCluster},
		"empty node":          {func(o *Observation) { o.Node = "" }, nodesignal.ErrNoNode},
		"10 MB node":          {func(o *Observation) { o.Node = long }, nodesignal.ErrNameTooLong},
		"10 MB culprit":       {func(o *Observation) { o.Culprit.GPU = long }, nodesignal.ErrNameTooLong},
		"NaN":                 {func(o *Observation) { o.Score = math.NaN() }, nodesignal.ErrScoreRange},
		"above 1":             {func(o *Observation) { o.Score = 1.0000001 }, nodesignal.ErrScoreRange},
		"NaN throughput":      {func(o *Observation) { o.Values = throughput(math.NaN()) }, nodesignal.ErrSignalRange},
		"infinite throughput": {func(o *Observation) { o.Values = throughput(math.Inf(1)) }, nodesignal.ErrSignalRange},
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

// TestNoPlace: a refused observation changes nothing. A cluster that was silent for the
// TTL makes room, with all that it holds; silence that nobody could have heard is none.
func TestNoPlace(t *testing.T) {
	f := newFleet(t, func(c *Config) { c.MaxClusters, c.MaxGroups, c.MaxNodes = 2, 6, 7 })
	push := func(cluster, node, group string) error {
		return f.e.Observe(&Observation{Cluster: cluster, Node: node, Peers: []string{group}, HasScore: true, Score: 0.9}, f.now)
	}
	require.NoError(t, push("a", "1", "g1"))
	require.NoError(t, push("b", "1", "g1"))
	for i, want := range []error{nil, nil, nil, fairshare.ErrClusterNodes} {
		require.ErrorIs(t, push("a", strconv.Itoa(i), "g1"), want)
	}
	require.NoError(t, push("a", "1", "g2"))
	require.NoError(t, push("a", "2", "g3"))
	require.ErrorIs(t, push("c", "1", "g1"), fairshare.ErrTooManyClusters)
	assert.Equal(t, 4, f.e.Nodes())
	f.tick()
	f.now = f.now.Add(10 * time.Minute)
	f.tick()
	require.ErrorIs(t, push("c", "1", "g1"), fairshare.ErrTooManyClusters)
	for range 6 {
		require.NoError(t, push("b", "1", "g1"))
		f.tick()
	}
	require.NoError(t, push("c", "1", "g1"))
	assert.EqualValues(t, 1, f.tick().Counters.ReclaimedClusters)
	assert.False(t, f.e.Has("a", "1"))
	assert.True(t, f.e.Has("b", "1"))
	assert.Equal(t, 2, f.e.Nodes())
}

func TestConfigSaysAllMistakesAtOnce(t *testing.T) {
	cfg := Config{Signals: nodesignal.Defaults(), TTL: time.Minute, ExitBand: -1}
	cfg.K, cfg.MinGap, cfg.Alpha = math.NaN(), -1, 2
	err := cfg.Validate("gateway::")
	for _, key := range []string{"k", "min_gap", "alpha", "quorum", "panic_fraction", "panic_exit_ticks", "exit_band", "min_peers", "max_onsets", "retention", "max_clusters", "max_groups", "max_nodes"} {
		require.ErrorContains(t, err, "`gateway::"+key+"`")
	}
	require.ErrorContains(t, err, "`enter_ticks`")
	cfg = DefaultConfig()
	cfg.Signals = [nodesignal.Count]nodesignal.Spec{}
	require.ErrorContains(t, cfg.Validate(""), "`signals::cpu::min_gap`")
	require.ErrorContains(t, cfg.Validate(""), "decide nothing")
	decision, err := ParseDecision("threshold")
	require.NoError(t, err)
	assert.Equal(t, DecisionThreshold, decision)
	_, err = ParseDecision("cusum")
	require.ErrorContains(t, err, "must be deviation or threshold")
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
			f, rng := newFleet(b, func(c *Config) { c.Decision = decision }), rand.New(rand.NewPCG(1, 2))
			names := make([]string, 100_000)
			for i := range names {
				names[i] = fmt.Sprintf("n%06d", i)
			}
			observe := func() {
				for i, name := range names {
					x := 0.9 * (1 + 0.01*rng.NormFloat64())
					o := Observation{Cluster: "c", Node: name, Peers: []string{names[i%2000]}, HasState: true, Score: min(x, 1), HasScore: true}
					o.Values.Set(nodesignal.Throughput, 1000*x)
					o.Values.Set(nodesignal.Compute, 0.95*(1+0.01*rng.NormFloat64()))
					f.observe(o)
				}
			}
			for range 20 { // to be warm
				observe()
				f.tick()
			}
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				b.StopTimer()
				observe()
				b.StartTimer()
				f.tick()
			}
		})
	}
}
