// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"errors"
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
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/peergroup"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const tick = 10 * time.Second

// fleet drives an engine: one push of each node, then a tick.
type fleet struct {
	t   require.TestingT
	e   *Engine
	now time.Time
}

func newFleet(t require.TestingT, change func(*Config)) *fleet {
	cfg := DefaultConfig()
	if change != nil {
		change(&cfg)
	}
	require.NoError(t, cfg.Validate(""))
	return &fleet{t: t, e: New(cfg), now: start}
}

// newPlain is a fleet under the plain rule.
func newPlain(t require.TestingT, change func(*Config)) *fleet {
	return newFleet(t, func(c *Config) {
		c.Decision = DecisionThreshold
		if change != nil {
			change(c)
		}
	})
}

func (f *fleet) push(cluster, node string, peers []string, state State, score float64) {
	o := Observation{Cluster: cluster, Node: node, Peers: peers, State: state, HasState: true, Score: score, HasScore: true}
	require.NoError(f.t, f.e.Observe(&o, f.now))
}

// round pushes scores[i] for node i of cluster c and ticks.
func (f *fleet) round(scores ...float64) *Report {
	for i, s := range scores {
		f.push("c", fmt.Sprintf("n%02d", i), nil, StateActive, s)
	}
	return f.tick()
}

func (f *fleet) tick() *Report {
	f.now = f.now.Add(tick)
	return f.e.Tick(f.now)
}

func throughput(x float64) (v nodesignal.Values) {
	v.Set(nodesignal.Throughput, x)
	return v
}

func groupOf(t require.TestingT, r *Report, cluster, group string) GroupReport {
	for _, g := range r.Groups {
		if g.Cluster == cluster && g.Group == group {
			return g
		}
	}
	require.Failf(t, "no such group", "%s/%s in %v", cluster, group, r.Groups)
	return GroupReport{}
}

func stragglers(r *Report) []string {
	var names []string
	for _, n := range r.Nodes {
		if n.Straggler {
			names = append(names, n.Node)
		}
	}
	return names
}

func TestThresholdFollowsTheFormula(t *testing.T) {
	f := newPlain(t, nil)
	g := groupOf(t, f.round(0.90, 0.94, 0.80, 1.00, 0.92), "c", peergroup.Default)
	// median 0.92, deviations 0.02 0.02 0.12 0.08 0 -> MAD 0.02
	assert.True(t, g.Valid)
	assert.True(t, g.Quorum)
	assert.InDelta(t, 0.92, g.Median, 1e-12)
	assert.InDelta(t, 0.02, g.MAD, 1e-12)
	assert.InDelta(t, 0.92-2*1.4826*0.02, g.Threshold, 1e-12)

	first := g.Threshold
	g = groupOf(t, f.round(1, 1, 1, 1, 1), "c", peergroup.Default)
	assert.Zero(t, g.MAD)
	assert.InDelta(t, 0.2*0.95+0.8*first, g.Threshold, 1e-12, "MAD 0 leaves min_gap, smoothed")
}

func TestStragglerNeedsPersistence(t *testing.T) {
	f := newPlain(t, nil)
	healthy := []float64{1, 1, 1, 1, 1, 1}
	slow := []float64{1, 1, 0.4, 1, 1, 1}
	f.round(healthy...)
	assert.Empty(t, stragglers(f.round(slow...)))
	assert.Empty(t, stragglers(f.round(healthy...)), "one dip is none")

	since := f.now.Add(tick)
	f.round(slow...)
	f.round(slow...)
	r := f.round(slow...)
	require.Len(t, r.Changes, 1)
	assert.Equal(t, "n02", r.Changes[0].Node)
	assert.True(t, r.Changes[0].Straggler)
	assert.Equal(t, since, r.Changes[0].Since)
	assert.Equal(t, 1, groupOf(t, r, "c", peergroup.Default).Stragglers)
	assert.Equal(t, 1, groupOf(t, r, "c", "").Stragglers)

	for range 50 {
		r = f.round(slow...)
		assert.Equal(t, []string{"n02"}, stragglers(r))
		assert.Empty(t, r.Changes, "one change per episode")
	}
	f.round(healthy...)
	f.round(healthy...)
	r = f.round(healthy...)
	require.Len(t, r.Changes, 1)
	assert.False(t, r.Changes[0].Straggler)
	assert.Empty(t, stragglers(r))
}

func TestGroupsAreJudgedApart(t *testing.T) {
	f := newPlain(t, func(c *Config) { c.Quorum = 4 })
	var r *Report
	for range 5 {
		for i := range 4 {
			f.push("c", fmt.Sprintf("a%d", i), []string{"job", "stage-0"}, StateActive, 1)
			f.push("c", fmt.Sprintf("b%d", i), []string{"job", "stage-1"}, StateActive, 0.6)
			f.push("other", fmt.Sprintf("a%d", i), []string{"job", "stage-0"}, StateActive, 0.3)
		}
		r = f.tick()
	}
	assert.Empty(t, stragglers(r), "a slower stage is no straggler")
	assert.InDelta(t, 0.95, groupOf(t, r, "c", "job/stage-0").Threshold, 1e-9)
	assert.InDelta(t, 0.55, groupOf(t, r, "c", "job/stage-1").Threshold, 1e-9)
	assert.InDelta(t, 0.25, groupOf(t, r, "other", "job/stage-0").Threshold, 1e-9)
	assert.Equal(t, 8, groupOf(t, r, "c", "").Counts[StateActive])
}

func TestIdleAndCalibratingNodesAreLeftOut(t *testing.T) {
	f := newPlain(t, nil)
	var r *Report
	for range 5 {
		for i := range 5 {
			f.push("c", fmt.Sprintf("busy%d", i), nil, StateActive, 0.9)
			f.push("c", fmt.Sprintf("idle%d", i), nil, StateIdle, 0.1)
			f.push("c", fmt.Sprintf("new%d", i), nil, StateCalibrating, 0.2)
		}
		r = f.tick()
	}
	g := groupOf(t, r, "c", peergroup.Default)
	assert.InDelta(t, 0.9, g.Median, 1e-12)
	assert.Empty(t, stragglers(r))
	assert.Equal(t, [numStates]int{StateActive: 5, StateIdle: 5, StateCalibrating: 5}, g.Counts)

	f.push("c", "busy0", nil, StateActive, 0.1)
	f.tick()
	f.push("c", "busy0", nil, StateIdle, 0.1)
	r = f.tick()
	assert.Empty(t, stragglers(r))
}

func TestQuorumHoldsTheLastThreshold(t *testing.T) {
	f := newPlain(t, nil)
	g := groupOf(t, f.round(1, 1, 1, 1), "c", peergroup.Default)
	assert.False(t, g.Valid, "four of five nodes say nothing")

	g = groupOf(t, f.round(1, 1, 1, 1, 1), "c", peergroup.Default)
	assert.True(t, g.Valid && g.Quorum)
	for i := range 3 {
		f.push("c", fmt.Sprintf("n%02d", i), nil, StateIdle, 1)
	}
	g = groupOf(t, f.tick(), "c", peergroup.Default)
	assert.True(t, g.Valid)
	assert.False(t, g.Quorum)
	assert.InDelta(t, 0.95, g.Threshold, 1e-12)
}

func TestCheckpointDipAccusesNobody(t *testing.T) {
	f := newPlain(t, nil)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 400 {
		level := 0.95
		if i%40 < 6 {
			level = 0.55
		}
		scores := make([]float64, 64)
		for j := range scores {
			scores[j] = level + 0.005*(rng.Float64()-0.5)
		}
		r := f.round(scores...)
		require.Empty(t, stragglers(r), "tick %d", i)
		require.False(t, groupOf(t, r, "c", peergroup.Default).Panic, "tick %d", i)
	}
}

func TestPanicHoldsTheThresholdAndEnds(t *testing.T) {
	f := newPlain(t, nil)
	healthy := slices.Repeat([]float64{1}, 20)
	f.round(healthy...)
	before := groupOf(t, f.round(healthy...), "c", peergroup.Default).Threshold

	sick := slices.Clone(healthy)
	for i := range 9 {
		sick[i] = 0.3
	}
	r := f.round(sick...)
	g := groupOf(t, r, "c", peergroup.Default)
	assert.True(t, g.Panic && g.PanicBegan, "9 of 20 are more than 0.4")
	assert.InDelta(t, before, g.Threshold, 0)
	for range 5 {
		r = f.round(sick...)
		g = groupOf(t, r, "c", peergroup.Default)
		assert.True(t, g.Panic)
		assert.False(t, g.PanicBegan, "said once")
		assert.Empty(t, stragglers(r))
	}
	f.round(healthy...)
	f.round(healthy...)
	f.round(sick...)
	for i := range 3 {
		assert.True(t, groupOf(t, f.tick0(), "c", peergroup.Default).Panic, "tick %d", i)
		g = groupOf(t, f.round(healthy...), "c", peergroup.Default)
	}
	assert.False(t, g.Panic)
}

// tick0 returns the last report again without a tick.
func (f *fleet) tick0() *Report { return &f.e.report }

func TestSilentNodes(t *testing.T) {
	f := newPlain(t, nil)
	f.round(1, 1, 1, 1, 1, 0.2)
	f.round(1, 1, 1, 1, 1, 0.2)
	require.Equal(t, []string{"n05"}, stragglers(f.round(1, 1, 1, 1, 1, 0.2)))
	var r *Report
	for range 6 {
		r = f.round(1, 1, 1, 1, 1)
	}
	g := groupOf(t, r, "c", peergroup.Default)
	assert.Equal(t, 1, g.Counts[StateMissing])
	assert.False(t, g.CoverageLow, "5 of 6")
	assert.Empty(t, stragglers(r), "who is silent is missing, not slow")

	back := Observation{Cluster: "c", Node: "n05", Heartbeat: true}
	require.NoError(t, f.e.Observe(&back, f.now))
	r = f.round(1, 1, 1, 1, 1)
	assert.Equal(t, 6, groupOf(t, r, "c", peergroup.Default).Counts[StateActive], "a heartbeat brings the old score back")

	for range 6 {
		r = f.round(1, 1, 1)
	}
	assert.True(t, groupOf(t, r, "c", peergroup.Default).CoverageLow, "3 of 6")
	f.now = f.now.Add(2 * time.Hour)
	r = f.tick()
	assert.Empty(t, r.Groups)
	assert.Zero(t, f.e.Nodes())
	assert.Zero(t, f.e.groups)
	assert.Empty(t, f.e.clusters)
}

func TestHeartbeatConfirmsAScore(t *testing.T) {
	f := newPlain(t, nil)
	f.round(1, 1, 1, 1, 1, 0.3)
	for range 20 {
		for i := range 6 {
			o := Observation{Cluster: "c", Node: fmt.Sprintf("n%02d", i), Heartbeat: true}
			require.NoError(t, f.e.Observe(&o, f.now))
		}
		f.tick()
	}
	assert.Equal(t, []string{"n05"}, stragglers(f.tick0()))
}

func TestANodeIsWantedOnceAndOnlyWhenItSaidNothing(t *testing.T) {
	f := newPlain(t, nil)
	assert.False(t, f.e.Wants("c", "n"), "nothing is known of it")
	beat := Observation{Cluster: "c", Node: "n", Heartbeat: true}
	require.NoError(t, f.e.Observe(&beat, f.now))
	f.e.Asked("c", "n2")
	assert.True(t, f.e.Wants("c", "n"))
	assert.True(t, f.e.Wants("c", "n"), "nobody asked yet")
	f.e.Asked("c", "n")
	assert.False(t, f.e.Wants("c", "n"), "it may have nothing to say")
	for node, o := range map[string]Observation{
		"score":      {HasScore: true, Score: 1},
		"state":      {HasState: true, State: StateIdle},
		"throughput": {Values: throughput(1)},
	} {
		o.Cluster, o.Node = "c", node
		require.NoError(t, f.e.Observe(&o, f.now))
		assert.False(t, f.e.Wants("c", node), node)
	}
}

func TestStateAndScoreComeApart(t *testing.T) {
	f := newPlain(t, nil)
	observe := func(o Observation) GroupReport {
		o.Cluster, o.Node = "c", "n"
		require.NoError(t, f.e.Observe(&o, f.now))
		return groupOf(t, f.tick(), "c", peergroup.Default)
	}
	assert.Equal(t, 1, observe(Observation{}).Counts[StateCalibrating])
	assert.Equal(t, 1, observe(Observation{Score: 1, HasScore: true}).Counts[StateActive], "never told its state")
	assert.Equal(t, 1, observe(Observation{State: StateIdle, HasState: true}).Counts[StateIdle])
	assert.Equal(t, 1, observe(Observation{Score: 1, HasScore: true}).Counts[StateIdle], "a changed score alone changes no state")
}

func TestABadScoreVoidsTheOldOneOnly(t *testing.T) {
	f := newPlain(t, nil)
	observe := func(o Observation) GroupReport {
		o.Cluster, o.Node = "c", "n"
		require.NoError(t, f.e.Observe(&o, f.now))
		return groupOf(t, f.tick(), "c", peergroup.Default)
	}
	assert.Equal(t, 1, observe(Observation{Score: 1, HasScore: true}).Counts[StateActive])
	assert.Equal(t, 1, observe(Observation{NoScore: true}).Counts[StateCalibrating])
	assert.Equal(t, 1, observe(Observation{Score: 1, HasScore: true}).Counts[StateActive], "the next good one counts again")
}

func TestAStaleScoreCountsOnce(t *testing.T) {
	f := newPlain(t, nil)
	r := f.round(1, 1, 1, 1, 1, 0.3)
	for range 4 {
		r = f.tick()
	}
	assert.Empty(t, stragglers(r), "one low push is one observation, whatever the number of ticks")
}

// TestReportsThatNameNoJobMoveNobody mixes a node's two reports: its GPUs',
// which know no job, and its job's.
func TestReportsThatNameNoJobMoveNobody(t *testing.T) {
	f := newPlain(t, nil)
	var r *Report
	for range 5 {
		for i := range 6 {
			name := fmt.Sprintf("n%02d", i)
			f.push("c", name, []string{"job", ""}, StateActive, map[bool]float64{true: 0.3, false: 1}[i == 3])
			gpus := Observation{Cluster: "c", Node: name, Peers: []string{"", ""}, Heartbeat: true}
			require.NoError(t, f.e.Observe(&gpus, f.now))
		}
		r = f.tick()
	}
	assert.Equal(t, []string{"n03"}, stragglers(r))
	assert.Equal(t, 6, groupOf(t, r, "c", "job").Counts[StateActive])

	for range 5 {
		for i := range 6 {
			name := fmt.Sprintf("n%02d", i)
			f.push("c", name, []string{"job", "role"}, StateActive, map[bool]float64{true: 0.3, false: 1}[i == 3])
			half := Observation{Cluster: "c", Node: name, Peers: []string{"job", ""}, Heartbeat: true}
			require.NoError(t, f.e.Observe(&half, f.now))
		}
		r = f.tick()
	}
	assert.Equal(t, []string{"n03"}, stragglers(r), "a report that knows half of it moves nobody either")

	for range 6 {
		for i := range 6 {
			gpus := Observation{Cluster: "c", Node: fmt.Sprintf("n%02d", i), Peers: []string{"", ""}}
			require.NoError(t, f.e.Observe(&gpus, f.now))
		}
		r = f.tick()
	}
	assert.Equal(t, 6, groupOf(t, r, "c", peergroup.Default).Counts[StateCalibrating], "the job is over")
}

// TestAnOldScoreIsNotJudgedAnew: a node that reports no score, or has just changed
// its job, is not judged by its earlier reports.
func TestAnOldScoreIsNotJudgedAnew(t *testing.T) {
	f := newPlain(t, nil)
	f.round(1, 1, 1, 1, 1, 0.3)
	for range 10 {
		f.round(1, 1, 1, 1, 1)
		o := Observation{Cluster: "c", Node: "n05", Values: throughput(3)}
		require.NoError(t, f.e.Observe(&o, f.now))
	}
	assert.Empty(t, stragglers(f.tick()))
	for range 10 {
		for i := range 5 {
			f.push("c", fmt.Sprintf("b%d", i), []string{"B"}, StateActive, 1)
		}
		o := Observation{Cluster: "c", Node: "n05", Peers: []string{"B"}, Heartbeat: true}
		require.NoError(t, f.e.Observe(&o, f.now))
		assert.Empty(t, stragglers(f.tick()))
	}
}

func TestMovingToAnotherGroupStartsAnew(t *testing.T) {
	f := newPlain(t, nil)
	for range 4 {
		f.round(1, 1, 1, 1, 1, 0.3)
	}
	require.Equal(t, []string{"n05"}, stragglers(f.tick0()))
	f.push("c", "n05", []string{"elsewhere"}, StateActive, 0.3)
	r := f.tick()
	assert.Empty(t, stragglers(r))
	assert.Equal(t, 1, groupOf(t, r, "c", "elsewhere").Counts[StateActive])
	assert.Equal(t, 5, groupOf(t, r, "c", peergroup.Default).Counts[StateActive])
}

func TestBadObservations(t *testing.T) {
	long := strings.Repeat("x", 10<<20)
	ok := Observation{Cluster: "c", Node: "n", Score: 0.5, HasScore: true, Values: throughput(1)}
	for name, tc := range map[string]struct {
		change func(*Observation)
		want   error
	}{
		"empty cluster":       {func(o *Observation) { o.Cluster = "" }, ErrNoCluster},
		"empty node":          {func(o *Observation) { o.Node = "" }, ErrNoNode},
		"10 MB node":          {func(o *Observation) { o.Node = long }, ErrNameTooLong},
		"10 MB cluster":       {func(o *Observation) { o.Cluster = long }, ErrNameTooLong},
		"10 MB peer":          {func(o *Observation) { o.Peers = []string{long} }, ErrNameTooLong},
		"NaN":                 {func(o *Observation) { o.Score = math.NaN() }, ErrScoreRange},
		"infinite":            {func(o *Observation) { o.Score = math.Inf(1) }, ErrScoreRange},
		"above 1":             {func(o *Observation) { o.Score = 1.0000001 }, ErrScoreRange},
		"below 0":             {func(o *Observation) { o.Score = -0.1 }, ErrScoreRange},
		"NaN throughput":      {func(o *Observation) { o.Values = throughput(math.NaN()) }, ErrSignalRange},
		"infinite throughput": {func(o *Observation) { o.Values = throughput(math.Inf(1)) }, ErrSignalRange},
	} {
		t.Run(name, func(t *testing.T) {
			e := New(DefaultConfig())
			o := ok
			tc.change(&o)
			require.ErrorIs(t, e.Observe(&o, start), tc.want)
			assert.Zero(t, e.Nodes())
			assert.Empty(t, e.clusters)
		})
	}
}

func TestStateIsBounded(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxClusters, cfg.MaxGroups, cfg.MaxNodes = 4, 5, 7
	e := New(cfg)
	observe := func(cluster, node string, peers ...string) error {
		return e.Observe(&Observation{Cluster: cluster, Node: node, Peers: peers}, start)
	}
	require.NoError(t, observe("a", "1", "g1"))
	require.NoError(t, observe("b", "1", "g1"))
	require.NoError(t, observe("a", "2", "g2"))
	require.ErrorIs(t, observe("a", "3", "g3"), ErrClusterGroups, "half of the 4 that b does not hold")
	require.NoError(t, observe("a", "1", "g3"), "its old group ends with it")
	require.NoError(t, observe("a", "3", "g2"))
	require.ErrorIs(t, observe("a", "2", "g4"), ErrClusterGroups, "its old group lives on")
	require.ErrorIs(t, observe("a", "4", "g2"), ErrClusterNodes, "half of the 6 that b does not hold")
	require.NoError(t, observe("a", "2", "g2"), "known nodes still count")
	require.NoError(t, observe("c", "1", "g1"), "others find room")
	require.NoError(t, observe("b", "2", "g1"))
	require.ErrorIs(t, observe("b", "3", "g1"), ErrClusterNodes)
	require.ErrorIs(t, observe("c", "2", "g1"), ErrClusterNodes)
	require.NoError(t, observe("d", "1", "g1"), "the last node and group")
	require.ErrorIs(t, observe("c", "3", "g2"), ErrTooManyNodes)
	require.ErrorIs(t, observe("z", "1", "g1"), ErrTooManyClusters)
	require.ErrorIs(t, observe("a", "2", "g4"), ErrTooManyGroups)
}

// One tenant's forged names leave room for those of others.
func TestATenantDoesNotTakeItAll(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxGroups, cfg.MaxNodes = 100, 1000
	e := New(cfg)
	var nodes, groups int
	for i := range 5000 {
		o := Observation{Cluster: "forger", Node: strconv.Itoa(i), Peers: []string{strconv.Itoa(i % 200)}}
		switch err := e.Observe(&o, start); {
		case errors.Is(err, ErrClusterNodes):
			nodes++
		case errors.Is(err, ErrClusterGroups):
			groups++
		default:
			require.NoError(t, err)
		}
	}
	assert.Positive(t, nodes)
	assert.Positive(t, groups)
	assert.Equal(t, 500, e.Nodes())
	for c := range 5 {
		for i := range 30 {
			o := Observation{Cluster: fmt.Sprintf("c%d", c), Node: strconv.Itoa(i), Peers: []string{"job"}}
			require.NoError(t, e.Observe(&o, start))
		}
	}
}

func TestRefIsTheMedianThroughputOfBusyNodes(t *testing.T) {
	f := newPlain(t, nil)
	for i := range 7 {
		state := StateCalibrating
		if i > 4 {
			state = StateIdle
		}
		o := Observation{Cluster: "c", Node: strconv.Itoa(i), State: state, HasState: true, Score: 1, HasScore: true, Values: throughput(float64(i + 1))}
		require.NoError(t, f.e.Observe(&o, f.now))
	}
	stuck := Observation{Cluster: "c", Node: "stuck", State: StateActive, HasState: true, Values: throughput(0)}
	require.NoError(t, f.e.Observe(&stuck, f.now))
	g := groupOf(t, f.tick(), "c", peergroup.Default)
	assert.InDelta(t, 3, g.Ref, 1e-12, "who does nothing at all is no reference")
	assert.False(t, g.Valid, "nobody is active")
}

// TestThresholdKeepsItsDistance is the guarantee of the published threshold:
// in [0,1], and never closer to the median than min_gap unless the median is.
func TestThresholdKeepsItsDistance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newPlain(t, func(c *Config) {
			c.K = rapid.Float64Range(0.1, 4).Draw(t, "k")
			c.Alpha = rapid.Float64Range(0.01, 1).Draw(t, "alpha")
			c.MinGap = rapid.Float64Range(0, 0.3).Draw(t, "min_gap")
		})
		for range 6 {
			scores := rapid.SliceOfN(rapid.Float64Range(0, 1), 5, 12).Draw(t, "scores")
			g := groupOf(t, f.round(scores...), "c", peergroup.Default)
			if !g.Valid || g.Panic {
				continue
			}
			require.GreaterOrEqual(t, g.Threshold, 0.0)
			require.LessOrEqual(t, g.Threshold, max(g.Median-f.e.cfg.MinGap, 0))
		}
	})
}

func TestMedian(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.OneOf(rapid.Float64Range(0, 1), rapid.SampledFrom([]float64{0, 0.5, 1}))
		x := rapid.SliceOfN(number, 1, 40).Draw(t, "x")
		got := median(bitsOf(nil, x))
		slices.Sort(x)
		n := len(x)
		assert.InDelta(t, (x[n/2]+x[(n-1)/2])/2, got, 1e-15)
		for k := range x {
			assert.InDelta(t, x[k], math.Float64frombits(nth(bitsOf(nil, x), k)), 0)
		}
	})
}

func TestConfigSaysAllMistakesAtOnce(t *testing.T) {
	cfg := Config{K: math.NaN(), MinGap: -1, Alpha: 2, Quorum: 1}
	err := cfg.Validate("")
	for _, key := range []string{"k", "min_gap", "alpha", "quorum", "panic_fraction", "panic_exit_ticks", "enter_ticks", "leave_ticks", "max_clusters", "max_groups", "max_nodes"} {
		assert.ErrorContains(t, err, "`"+key+"`")
	}
}

// benchFleet is a hundred thousand nodes in two thousand groups.
func benchFleet(b *testing.B, decision Decision) (*Engine, func(at time.Time)) {
	cfg := DefaultConfig()
	cfg.Decision = decision
	e := New(cfg)
	rng := rand.New(rand.NewPCG(1, 2))
	names, jobs := make([]string, 100_000), make([][]string, 2000)
	for i := range names {
		names[i] = fmt.Sprintf("n%06d", i)
	}
	for i := range jobs {
		jobs[i] = []string{fmt.Sprintf("job-%d", i)}
	}
	return e, func(at time.Time) {
		for i, name := range names {
			x := 0.9 * (1 + 0.01*rng.NormFloat64())
			o := Observation{Cluster: "c", Node: name, Peers: jobs[i%len(jobs)], Score: min(x, 1), HasScore: true}
			o.Values.Set(nodesignal.Throughput, 1000*x)
			o.Values.Set(nodesignal.Compute, 0.95*(1+0.01*rng.NormFloat64()))
			require.NoError(b, e.Observe(&o, at))
		}
	}
}

// BenchmarkTick takes new values before each tick, whose time does not count.
func BenchmarkTick(b *testing.B) {
	for _, decision := range []Decision{DecisionThreshold, DecisionCUSUM} {
		b.Run(decision.String(), func(b *testing.B) {
			e, observe := benchFleet(b, decision)
			at := start
			for range 20 { // to be warm
				observe(at)
				at = at.Add(tick)
				e.Tick(at)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				b.StopTimer()
				observe(at)
				at = at.Add(tick)
				b.StartTimer()
				e.Tick(at)
			}
		})
	}
}

func BenchmarkObserve(b *testing.B) {
	e := New(DefaultConfig())
	o := Observation{Cluster: "c", Node: "node-1", Peers: []string{"job", "stage-0"}, Score: 0.9, HasScore: true}
	b.ReportAllocs()
	for b.Loop() {
		if err := e.Observe(&o, start); err != nil {
			b.Fatal(err)
		}
	}
}
