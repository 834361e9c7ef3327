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

	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/platform/fairshare"
)

// TestAThresholdJudgesNobody: a healthy cluster of two GPU models has thresholds of its groups
// and none of the whole, which is held. No node is slow, and there is no event.
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
// sent a state; one without anything to compare is calibrating.
func TestStates(t *testing.T) {
	state := func(s nodesignal.State) nodesignal.Observation {
		return nodesignal.Observation{HasState: true, State: s}
	}
	score, nothing := nodesignal.Observation{HasScore: true, Score: 1}, nodesignal.Observation{State: nodesignal.StateMissing} // it pushes nothing
	for name, tc := range map[string]struct {
		reports []nodesignal.Observation
		want    nodesignal.State
	}{
		"nothing":                      {[]nodesignal.Observation{{}}, nodesignal.StateCalibrating},
		"a score":                      {[]nodesignal.Observation{score}, nodesignal.StateActive},
		"active, without a value":      {[]nodesignal.Observation{state(nodesignal.StateActive)}, nodesignal.StateCalibrating},
		"idle":                         {[]nodesignal.Observation{score, state(nodesignal.StateIdle)}, nodesignal.StateIdle},
		"idle, and then a score":       {[]nodesignal.Observation{state(nodesignal.StateIdle), score}, nodesignal.StateIdle},
		"a score that is void":         {[]nodesignal.Observation{score, {NoScore: true}}, nodesignal.StateCalibrating},
		"and a good one again":         {[]nodesignal.Observation{score, {NoScore: true}, score}, nodesignal.StateActive},
		"power alone decides nothing":  {[]nodesignal.Observation{{HasState: true, Values: nodesignal.Values{Known: [nodesignal.Count]bool{nodesignal.Power: true}}}}, nodesignal.StateCalibrating},
		"a throughput, and it is gone": {[]nodesignal.Observation{{HasState: true, Values: throughput(1)}, {Gone: [nodesignal.Count]bool{true}}}, nodesignal.StateCalibrating},
		"missing":                      {append([]nodesignal.Observation{score}, slices.Repeat([]nodesignal.Observation{nothing}, 6)...), nodesignal.StateMissing},
		"a heartbeat ends that":        {append(append([]nodesignal.Observation{score}, slices.Repeat([]nodesignal.Observation{nothing}, 6)...), nodesignal.Observation{Heartbeat: true}), nodesignal.StateActive},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, nil)
			var r *Report
			for _, o := range tc.reports {
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

// TestReportsThatKnowAPartEach: a node's job names the job, its GPUs their model. Each
// node moves once, and is judged.
func TestReportsThatKnowAPartEach(t *testing.T) {
	f := newFleet(t, nil)
	moves := int64(0)
	for range 12 {
		for i, score := range []float64{1, 1, 0.3, 1, 1} {
			f.push(nodeName("n", i), []string{"J", "stage-0", ""}, score)
			f.observe(nodesignal.Observation{Cluster: "c", Node: nodeName("n", i), GroupLabels: []string{"", "", "H100"}, Heartbeat: true})
		}
		moves += f.tick().Counters.GroupChanges
	}
	assert.EqualValues(t, 5, moves)
	assert.Equal(t, 5, groupOf(t, &f.e.report, "J/stage-0/H100").Counts[nodesignal.StateActive])
	assert.Equal(t, []string{"n-02"}, stragglers(&f.e.report))
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
	assert.InDelta(t, 3, groupOf(t, f.tick(), "default").Ref, 1e-12, "a node without throughput is no reference")
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

// TestNoSlot: a refused observation changes nothing. A lone cluster has three quarters of the
// slots, and leaves half of the rest to the next.
func TestNoSlot(t *testing.T) {
	f := newFleet(t, func(c *Config) { c.MaxNodes = 20 })
	push := func(cluster string, node int, group string) error {
		return f.e.Observe(&nodesignal.Observation{Cluster: cluster, Node: strconv.Itoa(node), GroupLabels: []string{group}, HasScore: true, Score: 0.9}, f.now)
	}
	for i := range 12 {
		require.NoError(t, push("a", i, "g"))
	}
	require.ErrorIs(t, push("a", 12, "g2"), fairshare.ErrFull, "a node and a group take three")
	require.NoError(t, push("a", 12, "g"))
	require.ErrorIs(t, push("a", 12, "g2"), fairshare.ErrFull, "a move needs a group")
	require.ErrorIs(t, push("a", 13, "g"), fairshare.ErrFull)
	assert.Equal(t, 13, f.e.Nodes())
	require.NoError(t, push("b", 0, "g"))
	require.NoError(t, push("b", 0, "g2"), "its group's slots come back")
	require.ErrorIs(t, push("b", 1, "g2"), fairshare.ErrFull)
	f.tick()
	f.now = f.now.Add(2 * f.e.cfg.Retention)
	f.tick()
	assert.Zero(t, f.e.room.Taken())
}

// TestMadeUpNodesGiveWay: under pressure a node that is missing for longer than it lived is
// forgotten before the retention.
func TestMadeUpNodesGiveWay(t *testing.T) {
	for made, left := range map[int]int{9: 10, 11: 10} { // of three slots each: three quarters are 30
		f := newFleet(t, func(c *Config) { c.MaxNodes = 40 })
		push := func(i int) {
			require.NoError(t, f.e.Observe(&nodesignal.Observation{Cluster: strconv.Itoa(i), Node: "n", HasScore: true, Score: 0.9}, f.now))
		}
		for range 20 {
			push(0)
			f.tick()
		}
		for i := range made {
			push(1 + i)
		}
		f.now = f.now.Add(f.e.cfg.TTL + time.Second)
		f.tick()
		assert.Equal(t, left, f.e.Nodes())
		assert.True(t, f.e.Has("0", "n"), "it lived for longer")
	}
}

func TestConfigSaysAllMistakesAtOnce(t *testing.T) {
	cfg := Config{Signals: nodesignal.Defaults(), TTL: time.Minute}
	cfg.K, cfg.MinGap, cfg.Alpha = math.NaN(), -1, 2
	err := cfg.Validate("gateway::")
	for _, key := range []string{"k", "min_gap", "alpha", "quorum", "panic_fraction", "panic_exit_ticks", "min_peers", "max_onsets", "retention", "max_nodes"} {
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
			o := nodesignal.Observation{Cluster: "c", Node: name, GroupLabels: []string{names[i%2000]}, HasState: true, Score: min(x, 1), HasScore: true}
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

func TestHowANodeStands(t *testing.T) {
	f := newFleet(t, nil)
	f.round(0.9, 0.9, 0.9)
	f.push(nodeName("n", 3), nil, 0.9)
	stands := func(node int) []any {
		group, active, why, known := f.e.Standing("c", nodeName("n", node))
		return []any{group, active, why, known}
	}
	assert.Equal(t, []any{"default", 3, unjudged.Calibrating, true}, stands(3), "it was not compared yet")
	for range warmTicks {
		f.round(0.9, 0.9, 0.9)
	}
	assert.Equal(t, unjudged.Judged, stands(2)[2])
	assert.Equal(t, []any{"", 0, unjudged.Judged, false}, stands(4))
	_, _, _, known := f.e.Standing("elsewhere", nodeName("n", 1)) //nolint:dogsled // known alone counts
	assert.False(t, known)
}

// A shard repeats its values by heartbeats. The value after a heartbeat is the same node's.
func TestAHeartbeatContradictsNobody(t *testing.T) {
	f := newFleet(t, nil)
	for k := range 30 {
		for i := range 4 {
			f.observe(nodesignal.Observation{Cluster: "c", Node: nodeName("n", i), Heartbeat: true})
			o := nodesignal.Observation{Cluster: "c", Node: nodeName("n", i), State: nodesignal.StateActive, HasState: true}
			o.Values.Set(nodesignal.CPU, 0.3+0.5*float64(k%2))
			f.observe(o)
		}
		assert.Zero(t, groupOf(t, f.tick(), "default").Unjudged[unjudged.Contested])
	}
}
