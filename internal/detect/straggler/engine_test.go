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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/platform/fairshare"
)

// TestAThresholdJudgesNobody: a healthy cluster of two GPU models has thresholds of its groups
// and none of the whole, which is held. Nobody is slow, and nothing is told.
func TestAThresholdJudgesNobody(t *testing.T) {
	f := newFleet(t, nil)
	for range 120 {
		for i := range 11 {
			f.push(nodeName("a", i), []string{"A"}, 1-0.002*float64(i%3))
		}
		for i := range 9 {
			f.push(nodeName("b", i), []string{"B"}, 0.93-0.002*float64(i%3))
		}
		require.Empty(t, f.tick().Events)
	}
	r := &f.e.report
	assert.Empty(t, stragglers(r))
	assert.True(t, groupOf(t, r, "").Panic && !groupOf(t, r, "").Valid)
	for group, want := range map[string]float64{"": 0, "A": 0.948, "B": 0.878} {
		g := groupOf(t, r, group)
		assert.InDelta(t, want, g.Value, 1e-3, group)
		assert.False(t, g.Incident, group)
	}
}

// TestStates: only active nodes are peers. A score alone makes a node active that never
// told its state; one that tells nothing to compare is calibrating.
func TestStates(t *testing.T) {
	state := func(s nodesignal.State) nodesignal.Observation {
		return nodesignal.Observation{HasState: true, State: s}
	}
	score, nothing := nodesignal.Observation{HasScore: true, Score: 1}, nodesignal.Observation{State: nodesignal.StateMissing} // it pushes nothing
	for name, tc := range map[string]struct {
		told []nodesignal.Observation
		want nodesignal.State
	}{
		"nothing":                       {[]nodesignal.Observation{{}}, nodesignal.StateCalibrating},
		"a score":                       {[]nodesignal.Observation{score}, nodesignal.StateActive},
		"active, with nothing to tell":  {[]nodesignal.Observation{state(nodesignal.StateActive)}, nodesignal.StateCalibrating},
		"idle":                          {[]nodesignal.Observation{score, state(nodesignal.StateIdle)}, nodesignal.StateIdle},
		"idle, and then a score":        {[]nodesignal.Observation{state(nodesignal.StateIdle), score}, nodesignal.StateIdle},
		"a score that is void":          {[]nodesignal.Observation{score, {NoScore: true}}, nodesignal.StateCalibrating},
		"and a good one again":          {[]nodesignal.Observation{score, {NoScore: true}, score}, nodesignal.StateActive},
		"power alone decides nothing":   {[]nodesignal.Observation{{HasState: true, Values: nodesignal.Values{Known: [nodesignal.Count]bool{nodesignal.Power: true}}}}, nodesignal.StateCalibrating},
		"a throughput, and it is gone":  {[]nodesignal.Observation{{HasState: true, Values: throughput(1)}, {Gone: [nodesignal.Count]bool{true}}}, nodesignal.StateCalibrating},
		"silent":                        {append([]nodesignal.Observation{score}, slices.Repeat([]nodesignal.Observation{nothing}, 6)...), nodesignal.StateMissing},
		"a heartbeat after the silence": {append(append([]nodesignal.Observation{score}, slices.Repeat([]nodesignal.Observation{nothing}, 6)...), nodesignal.Observation{Heartbeat: true}), nodesignal.StateActive},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, nil)
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

// TestReportsThatKnowAPartEach: a node's job tells the job, its GPUs their model. Each
// node moves once, and is judged.
func TestReportsThatKnowAPartEach(t *testing.T) {
	f := newFleet(t, nil)
	moves := int64(0)
	for range 12 {
		for i, score := range []float64{1, 1, 0.3, 1, 1} {
			f.push(nodeName("n", i), []string{"J", "stage-0", ""}, score)
			f.observe(nodesignal.Observation{Cluster: "c", Node: nodeName("n", i), Peers: []string{"", "", "H100"}, Heartbeat: true})
		}
		moves += f.tick().Counters.GroupChanges
	}
	assert.EqualValues(t, 5, moves)
	assert.Equal(t, 5, groupOf(t, &f.e.report, "J/stage-0/H100").Counts[nodesignal.StateActive])
	assert.Equal(t, []string{"n-02"}, stragglers(&f.e.report))

	for range 10 {
		for i := range 5 {
			f.observe(nodesignal.Observation{Cluster: "c", Node: nodeName("n", i), Peers: []string{"", "", ""}, Heartbeat: true})
		}
		f.tick()
	}
	assert.Equal(t, 5, groupOf(t, &f.e.report, "default").Counts[nodesignal.StateCalibrating], "the job is over")
}

// TestRefIsTheMedianThroughputOfBusyNodes, calibrating ones included: they wait for it.
func TestRefIsTheMedianThroughputOfBusyNodes(t *testing.T) {
	f := newFleet(t, nil)
	for i := range 8 {
		o := nodesignal.Observation{Cluster: "c", Node: strconv.Itoa(i), State: nodesignal.StateCalibrating, HasState: true, Values: throughput(float64(i))}
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
		change func(*nodesignal.Observation)
		want   error
	}{
		"empty cluster":       {func(o *nodesignal.Observation) { o.Cluster = "" }, nodesignal.ErrNoCluster},
		"empty node":          {func(o *nodesignal.Observation) { o.Node = "" }, nodesignal.ErrNoNode},
		"10 MB node":          {func(o *nodesignal.Observation) { o.Node = long }, nodesignal.ErrNameTooLong},
		"NaN":                 {func(o *nodesignal.Observation) { o.Score = math.NaN() }, nodesignal.ErrScoreRange},
		"above 1":             {func(o *nodesignal.Observation) { o.Score = 1.0000001 }, nodesignal.ErrScoreRange},
		"NaN throughput":      {func(o *nodesignal.Observation) { o.Values = throughput(math.NaN()) }, nodesignal.ErrSignalRange},
		"infinite throughput": {func(o *nodesignal.Observation) { o.Values = throughput(math.Inf(1)) }, nodesignal.ErrSignalRange},
	} {
		t.Run(name, func(t *testing.T) {
			e := New(DefaultConfig())
			o := nodesignal.Observation{Cluster: "c", Node: "n", Score: 0.5, HasScore: true, Values: throughput(1)}
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
		return f.e.Observe(&nodesignal.Observation{Cluster: cluster, Node: node, Peers: []string{group}, HasScore: true, Score: 0.9}, f.now)
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
	cfg := Config{Signals: nodesignal.Defaults(), TTL: time.Minute}
	cfg.K, cfg.MinGap, cfg.Alpha = math.NaN(), -1, 2
	err := cfg.Validate("gateway::")
	for _, key := range []string{"k", "min_gap", "alpha", "quorum", "panic_fraction", "panic_exit_ticks", "min_peers", "max_onsets", "retention", "max_clusters", "max_groups", "max_nodes"} {
		require.ErrorContains(t, err, "`gateway::"+key+"`")
	}
	cfg = DefaultConfig()
	cfg.Signals = [nodesignal.Count]nodesignal.Spec{}
	require.ErrorContains(t, cfg.Validate(""), "`signals::cpu::min_gap`")
	require.ErrorContains(t, cfg.Validate(""), "decide nothing")
}

// BenchmarkTick is of 100,000 nodes in 2,000 groups. It takes new values before each
// tick, whose time does not count. What a tick allocates does not grow with the nodes.
func BenchmarkTick(b *testing.B) {
	f, rng := newFleet(b, nil), rand.New(rand.NewPCG(1, 2))
	names := make([]string, 100_000)
	for i := range names {
		names[i] = fmt.Sprintf("n%06d", i)
	}
	observe := func() {
		for i, name := range names {
			x := 0.9 * (1 + 0.01*rng.NormFloat64())
			o := nodesignal.Observation{Cluster: "c", Node: name, Peers: []string{names[i%2000]}, HasState: true, Score: min(x, 1), HasScore: true}
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
}
