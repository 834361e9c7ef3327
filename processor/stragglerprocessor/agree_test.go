// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

// sides runs a gateway and the agents of its nodes on one series, and what the
// gateway publishes goes to them in the headers of the answers to their pushes.
type sides struct {
	cfg    *Config
	engine *straggler.Engine
	snap   *threshold.Snapshot
	group  string
	peers  []string
	agents []*agentSide
	names  wire.Names
	now    time.Time
	// said is what the gateway found at the last ticks, the newest last.
	said [3][]straggler.NodeReport
	// lossy is set where pushes are lost: then a tick's parameters never come,
	// and words may differ, which are counted.
	lossy                                   bool
	compared, flagged, split, held, differs int
}

type agentSide struct {
	name  string
	node  *nodescore.Node
	plan  *nodescore.Plan
	inbox threshold.Inbox
	// offset in the interval at which it pushes.
	offset time.Duration
	active int // evaluations in a row
}

const sideInterval = 10 * time.Second

func newSides(cfg *Config, nodes int, peers []string) (*sides, error) {
	nodeCfg, err := cfg.node()
	if err != nil {
		return nil, err
	}
	s := &sides{
		cfg: cfg, engine: straggler.New(cfg.engine()), peers: peers, group: straggler.GroupKey(peers),
		names: wire.Names{Params: "p", Threshold: "t", QuorumMet: "q"},
		now:   time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	plan := nodescore.NewPlan(&nodeCfg.Measures)
	for i := range nodes {
		s.agents = append(s.agents, &agentSide{
			name: fmt.Sprintf("n%02d", i), node: nodescore.NewNode(&nodeCfg, plan), plan: plan,
			offset: sideInterval * time.Duration(i+1) / time.Duration(nodes+1),
		})
	}
	return s, nil
}

// work is what a node does in one interval.
type work struct {
	rate, clock, pressure float64
	idle, lost            bool
}

// interval lets every node push once, then the gateway tick, and compares what
// each node says of itself with what the gateway said of the very same values.
func (s *sides) interval(t require.TestingT, does func(node int) work) {
	for i, a := range s.agents {
		w := does(i)
		if w.lost {
			a.active = 0
			continue
		}
		now := s.now.Add(a.offset)
		res := a.evaluate(t, now, &w, s.group)
		s.compare(t, a, &res)
		o := straggler.Observation{
			Cluster: "c", Node: a.name, Peers: s.peers, State: res.State, HasState: true,
			Score: res.Score, HasScore: res.HasScore, NoScore: !res.HasScore, Values: res.Signals.Values,
		}
		require.NoError(t, s.engine.Observe(&o, now))
		s.answer(t, a, now.Add(time.Millisecond))
	}
	s.now = s.now.Add(sideInterval)
	report := s.engine.Tick(s.now)
	s.snap = snapshot(report, s.cfg)
	s.said[0], s.said[1], s.said[2] = s.said[1], s.said[2], append(s.said[0][:0], report.Nodes...)
	for i := range report.Nodes {
		// Only the gateway knows that a node came after the others.
		s.lossy = s.lossy || report.Nodes[i].Waits
	}
	for i := range report.Groups {
		g := &report.Groups[i]
		if len(g.Cohorts) > 0 {
			s.split++
			require.Equal(t, g.Held, s.snap.Clusters["c"].Groups[g.Group].Hold)
			if g.Held {
				s.held++
			}
		}
	}
}

func (a *agentSide) evaluate(t require.TestingT, now time.Time, w *work, group string) nodescore.Result {
	var r nodescore.Reading
	put := func(metric, attr string, v float64) {
		inputs := a.plan.Inputs(metric)
		for i := range inputs {
			if attr == "" || inputs[i].Attributes[0].Value == attr {
				require.True(t, r.Add(&inputs[i], nodesignal.Subject{}, v))
			}
		}
	}
	if !w.idle {
		put(gpusemconv.MetricAppStepRate, "", w.rate)
	}
	put(gpusemconv.MetricGPUUtilization, "general", map[bool]float64{false: 0.97}[w.idle])
	put(gpusemconv.MetricGPUClock, "sm", w.clock*1.98e9)
	put(gpusemconv.MetricGPUClockLimit, "sm", 1.98e9)
	put(gpusemconv.MetricNodeCPUPressure, "", w.pressure)
	a.node.Observe(&r, now)
	received, known := a.inbox.Get("c", group)
	return a.node.Evaluate(now, received, known)
}

func (s *sides) answer(t require.TestingT, a *agentSide, now time.Time) {
	if s.snap == nil || s.snap.Clusters["c"] == nil {
		return
	}
	for _, h := range s.snap.Clusters["c"].Respond(nil, &s.names, []string{s.group}) {
		if h.Name != s.names.Params {
			continue
		}
		values, err := threshold.ParseParams([]string{h.Value})
		require.NoError(t, err)
		for _, v := range values {
			a.inbox.Put("c", v, now)
		}
	}
}

// compare holds a node's word against the gateway's of the tick before the last
// but one: the node's values of then it pushed two pushes ago, and the answer to
// the next one told of their tick.
func (s *sides) compare(t require.TestingT, a *agentSide, res *nodescore.Result) {
	if res.State != straggler.StateActive {
		a.active = 0
		return
	}
	a.active++
	// A node that has been away forgets at once what the gateway forgets with
	// the tick; after three values both speak of the same.
	at := slices.IndexFunc(s.said[1], func(n straggler.NodeReport) bool { return n.Node == a.name })
	if a.active <= 3 || at < 0 || !res.BySignals {
		return
	}
	want := &s.said[1][at]
	s.compared++
	if want.Straggler {
		s.flagged++
	}
	if s.lossy {
		if want.Straggler != res.Straggler {
			s.differs++
		}
		return
	}
	// To the last bit: what hangs on less or more has no tolerance.
	require.Equal(t, want.Straggler, res.Straggler, "%s at %s: gateway %+v, node %+v", a.name, s.now, want, res)
	require.Equal(t, want.Suspicion, res.Suspicion, "%s at %s: gateway %+v, node %+v", a.name, s.now, want, res) //nolint:testifylint // see above
	if want.Suspicion > 0 {
		require.Equal(t, want.Signal, res.Signal)
	}
}

// history draws what a fleet goes through.
type history struct {
	random *rand.Rand
	noise  float64
	phi    float64
	ar     []float64
	levels []float64
	events []event
}

type event struct {
	node, from, to int
	depth          float64
	kind           int
}

// Kinds of events.
const (
	slowRate = iota
	slowClock
	pressed
	dipOfAll
	idle
	stuck
	lost // its pushes are
	eventKinds
)

func drawHistory(t *rapid.T, nodes, ticks, kinds int) *history {
	h := &history{
		random: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)),
		noise:  rapid.SampledFrom([]float64{0, 0.005, 0.02}).Draw(t, "noise"),
		phi:    rapid.SampledFrom([]float64{0, 0.8}).Draw(t, "phi"),
		ar:     make([]float64, nodes), levels: make([]float64, nodes),
	}
	twoJobs := rapid.Bool().Draw(t, "two jobs")
	for i := range h.levels {
		h.levels[i] = 20
		if twoJobs && i%2 == 1 {
			h.levels[i] = 11
		}
	}
	for range rapid.IntRange(0, 8).Draw(t, "events") {
		from := rapid.IntRange(0, ticks-2).Draw(t, "from")
		h.events = append(h.events, event{
			node: rapid.IntRange(0, nodes-1).Draw(t, "node"), from: from, to: from + rapid.IntRange(1, 60).Draw(t, "length"),
			depth: rapid.SampledFrom([]float64{0.05, 0.1, 0.3, 0.8}).Draw(t, "depth"), kind: rapid.IntRange(0, kinds-1).Draw(t, "kind"),
		})
	}
	return h
}

func (h *history) at(tick int) func(node int) work {
	for i := range h.ar {
		h.ar[i] = h.phi*h.ar[i] + math.Sqrt(1-h.phi*h.phi)*h.noise*h.random.NormFloat64()
	}
	return func(i int) work {
		w := work{rate: h.levels[i] * max(1+h.ar[i], 0.01), clock: 1, pressure: 0.05 + 0.01*h.random.Float64()}
		for _, e := range h.events {
			switch hit := tick >= e.from && tick < e.to; {
			case !hit || e.kind != dipOfAll && e.node != i:
			case e.kind == slowRate, e.kind == dipOfAll:
				w.rate *= 1 - e.depth
			case e.kind == slowClock:
				w.clock *= 1 - e.depth
			case e.kind == pressed:
				w.pressure = min(w.pressure+e.depth, 1)
			case e.kind == idle:
				w.idle = true
			case e.kind == stuck:
				w.rate = 15
			case e.kind == lost:
				w.lost = true
			}
		}
		return w
	}
}

func agreeConfig(t require.TestingT) *Config {
	cfg := createDefaultConfig().(*Config)
	cfg.Mode = modeGateway
	require.NoError(t, cfg.Validate())
	return cfg
}

// play draws a history and lets both sides live through it.
func play(t *rapid.T, kinds int) *sides {
	nodes := rapid.SampledFrom([]int{4, 6, 12, 16}).Draw(t, "nodes")
	ticks := rapid.IntRange(30, 140).Draw(t, "ticks")
	peers := []string{"J", "stage-0"}
	if rapid.Bool().Draw(t, "unlabelled") {
		peers = []string{"", ""}
	}
	h := drawHistory(t, nodes, ticks, kinds)
	s, err := newSides(agreeConfig(t), nodes, peers)
	require.NoError(t, err)
	s.lossy = kinds > lost
	for tick := range ticks {
		s.interval(t, h.at(tick))
	}
	return s
}

// TestNodeAndGatewayAgree is the promise of the parameters that travel: on the
// same values, a node finds of itself what its gateway finds, tick by tick.
func TestNodeAndGatewayAgree(t *testing.T) {
	if testing.Short() {
		t.Skip("half a minute of drawn histories: make proof")
	}
	compared, flagged, split := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		s := play(t, lost)
		compared, flagged, split = compared+s.compared, flagged+s.flagged, split+s.split
	})
	t.Logf("%d words compared, %d of stragglers, %d ticks of split groups", compared, flagged, split)
	require.Greater(t, compared, 10_000)
	require.Greater(t, flagged, 200)
	require.Greater(t, split, 100)
}

// TestNodeAndGatewayAgreeWhenAFractionSplits the group, which until then would
// have been split by the throughput, while a node is slow: it knows its part.
func TestNodeAndGatewayAgreeWhenAFractionSplits(t *testing.T) {
	const nodes = 20
	h := &history{
		random: rand.New(rand.NewPCG(0xb34, 1)),
		noise:  0.02, phi: 0.8, ar: make([]float64, nodes), levels: slices.Repeat([]float64{20}, nodes),
		events: []event{
			{node: 1, from: 4, to: 58, depth: 0.3, kind: slowRate},
			{from: 42, to: 74, depth: 0.3, kind: dipOfAll},
			{node: 5, from: 4, to: 7, depth: 0.05, kind: stuck},
			{from: 21, to: 78, depth: 0.3, kind: dipOfAll},
		},
	}
	for i := range nodes {
		to := 80
		if i < nodes/2 {
			to = 20 // half of them take up other work
		}
		h.events = append(h.events, event{node: i, to: to, depth: 0.3, kind: slowClock})
	}
	s, err := newSides(agreeConfig(t), nodes, []string{"", ""})
	require.NoError(t, err)
	for tick := range 80 {
		s.interval(t, h.at(tick))
	}
	require.NotZero(t, s.split)
	require.NotZero(t, s.flagged)
}

// TestNodeAndGatewayAgreeInTurns: the nodes take each other's work in turns, and a node
// knows from which tick on it has other peers.
func TestNodeAndGatewayAgreeInTurns(t *testing.T) {
	const nodes = 16
	draw := rand.New(rand.NewPCG(7, 7))
	s, err := newSides(agreeConfig(t), nodes, []string{"", ""})
	require.NoError(t, err)
	job, turns := make([]int, nodes), 0
	for i := range job {
		job[i] = i % 2
	}
	for tick := range 900 {
		s.interval(t, func(i int) work {
			if tick > 60 && draw.Float64() < 1.0/60 {
				job[i] = 1 - job[i]
			}
			w := work{rate: []float64{12, 20}[job[i]] * (1 + 0.01*draw.NormFloat64()), clock: 1, pressure: 0.05}
			if i == 5 && tick >= 600 {
				w.rate *= 0.85
			}
			return w
		})
		if s.snap.Clusters["c"].Groups[s.group].Turns {
			turns++
		}
	}
	require.Greater(t, turns, 600)
	require.NotZero(t, s.flagged)
}

// TestNodeAndGatewayAgreeWhenAllFallButOne whose mean stands still where the
// others were, as it is slow: it is no cohort by itself.
func TestNodeAndGatewayAgreeWhenAllFallButOne(t *testing.T) {
	const nodes = 12
	h := &history{
		random: rand.New(rand.NewPCG(1, 1)),
		noise:  0.005, phi: 0.8, ar: make([]float64, nodes), levels: slices.Repeat([]float64{20, 11}, nodes/2),
		events: []event{
			{node: 8, from: 0, to: 90, depth: 0.1, kind: slowClock},
			{from: 13, to: 80, depth: 0.8, kind: dipOfAll},
		},
	}
	s, err := newSides(agreeConfig(t), nodes, []string{"", ""})
	require.NoError(t, err)
	for tick := range 80 {
		s.interval(t, h.at(tick))
	}
	require.NotZero(t, s.split)
	last := s.said[2]
	at := slices.IndexFunc(last, func(n straggler.NodeReport) bool { return n.Node == "n08" })
	require.True(t, last[at].Straggler, "it is slow all the time")
}

// TestNodeAndGatewayAgreeInAnIncident of a split group, whose means stand still
// meanwhile; one node comes during it, and does the other job after it.
func TestNodeAndGatewayAgreeInAnIncident(t *testing.T) {
	const nodes = 16
	h := &history{
		random: rand.New(rand.NewPCG(1, 1)),
		noise:  0.005, ar: make([]float64, nodes), levels: make([]float64, nodes),
		events: []event{
			{node: 8, from: 60, to: 160, depth: 0.3, kind: slowRate},
			{node: 10, from: 60, to: 160, depth: 0.3, kind: slowRate},
			{node: 11, from: 60, to: 160, depth: 0.3, kind: slowRate},
			{node: 13, from: 60, to: 160, depth: 0.3, kind: slowRate},
			{node: 4, from: 40, to: 80, kind: idle},
			{node: 4, from: 80, to: 400, depth: 0.45, kind: slowRate},
			{node: 6, from: 90, to: 110, depth: 0.3, kind: slowRate},
		},
	}
	for i := range h.levels {
		h.levels[i] = []float64{20, 11}[i%2]
	}
	s, err := newSides(agreeConfig(t), nodes, []string{"", ""})
	require.NoError(t, err)
	for tick := range 300 {
		s.interval(t, h.at(tick))
	}
	require.Greater(t, s.held, 50)
	require.Greater(t, s.flagged, 5)
}

// TestNodeAndGatewayAgreeAfterLosses loses pushes, and with them the parameters
// of ticks: the sums differ for a while, the verdicts hardly. That goes by history:
// now and then one has a loss that falls on a limit, after which a node's verdict
// differs for as long as all others of a hundred together.
func TestNodeAndGatewayAgreeAfterLosses(t *testing.T) {
	histories, compared, flagged, differs, differ := 0, 0, 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		s := play(t, eventKinds)
		histories++
		compared, flagged, differs = compared+s.compared, flagged+s.flagged, differs+s.differs
		if s.differs > s.flagged/20 {
			differ++
		}
	})
	t.Logf("%d words compared, %d of stragglers, %d differ, of %d in %d histories", compared, flagged, differs, differ, histories)
	require.Greater(t, flagged, 200)
	require.Less(t, differ, histories/10)
}
