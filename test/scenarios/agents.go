// SPDX-License-Identifier: Apache-2.0

//go:build !enginebefore

package scenarios

import (
	"context"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
	"github.com/gpu-collector/gpu-collector/internal/wire"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/scenarios/families"
)

// Agreement is how often a node that judges itself, by what came back with its pushes,
// says what its gateway says of the same values.
type Agreement struct {
	Family string
	// Compared are node-ticks, Flagged those of them in which the gateway names the
	// node, and Differ those in which the node says otherwise.
	Compared, Flagged, Differ int
}

// agentNodes and agentTime are small: each push goes through the headers of its answer.
const (
	agentNodes = 16
	agentTime  = 2 * time.Hour
	agentRuns  = 3
	// mostDiffer is the promise: of the share of node-ticks.
	mostDiffer = 0.001
)

// EvaluateAgents plays short runs of each family to a gateway and its nodes' agents.
func EvaluateAgents(ctx context.Context, list []families.Family, o FamilyOptions) ([]Agreement, error) {
	results := make([]Agreement, len(list))
	done := 0
	err := inParallel(ctx, agentRuns*len(list), o.Workers, func(k int) (func(), error) {
		f := list[k/agentRuns].Short(agentNodes, agentTime)
		a, err := playAgents(f.Play(o.Seed, k%agentRuns, false))
		return func() {
			r := &results[k/agentRuns]
			r.Family = f.Name
			r.Compared, r.Flagged, r.Differ = r.Compared+a.Compared, r.Flagged+a.Flagged, r.Differ+a.Differ
			if done++; o.Progress != nil {
				o.Progress(done, agentRuns*len(list), f.Name)
			}
		}, err
	})
	return results, err
}

// AgentFigures prints what came of each family.
func AgentFigures(w io.Writer, results []Agreement) {
	for _, a := range results {
		prefix := "eval_" + a.Family + "_agents_"
		figure.FprintOnly(w, prefix+"flagged", float64(a.Flagged), "node-ticks")
		figure.Fprint(w, prefix+"differ", float64(a.Differ)/float64(a.Compared), "share", mostDiffer, true)
	}
}

// agents are both sides of a run.
type agents struct {
	run    *families.Run
	fleet  familyFleet
	engine *straggler.Engine
	cfg    nodescore.Config
	plan   *nodescore.Plan
	ttl    time.Duration
	nodes  []agent
	// answers are the headers' values by group, since the last tick.
	answers map[string]*threshold.Cluster
	result  Agreement
}

type agent struct {
	node   *nodescore.Node
	inbox  threshold.Inbox
	life   uint32
	active int // evaluations in a row
	// said is what the gateway said at the last two ticks, the newest last.
	said [2]said
}

type said struct{ known, straggler bool }

func playAgents(r *families.Run) (Agreement, error) { return playAgentsWith(r, func() {}) }

// playAgentsWith calls before at each tick.
func playAgentsWith(r *families.Run, before func()) (Agreement, error) {
	engine := straggler.DefaultConfig()
	ttl := engine.TTL / Interval * r.Model.Interval
	engine.TTL = ttl
	cfg := nodescore.DefaultConfig()
	cfg.Interval, cfg.ReadingTTL = r.Model.Interval, ttl
	a := &agents{
		run: r, fleet: familyFleet{r}, engine: straggler.New(engine), cfg: cfg, plan: nodescore.NewPlan(&cfg.Measures), ttl: ttl,
		nodes: make([]agent, r.Model.Nodes),
	}
	for i := range a.nodes {
		a.nodes[i].node = nodescore.NewNode(&a.cfg, a.plan)
	}
	for r.Next() {
		before()
		at := epoch.Add(time.Duration(r.Tick) * r.Model.Interval)
		step := r.Model.Interval / time.Duration(len(a.nodes)+1)
		for i := range a.nodes {
			at = at.Add(step)
			if err := a.push(i, at); err != nil {
				return a.result, fmt.Errorf("%s: %w", r.Family.Name, err)
			}
		}
		a.tick(epoch.Add(time.Duration(r.Tick+1) * r.Model.Interval))
	}
	return a.result, nil
}

// push lets a node judge itself, tell its gateway, and hear the answer.
func (a *agents) push(i int, now time.Time) error {
	n, r := &a.nodes[i], a.run
	if n.life != r.Life[i] {
		*n = agent{node: nodescore.NewNode(&a.cfg, a.plan), life: r.Life[i]}
	}
	if math.IsNaN(r.Values[i]) {
		n.active = 0
		return nil
	}
	peers := a.fleet.peers(i)
	group := straggler.GroupKey(peers)
	res := a.evaluate(n, i, group, now)
	a.compare(n, &res)
	o := straggler.Observation{
		Cluster: cluster, Node: nodeName(i, n.life), Peers: peers, State: res.State, HasState: true,
		Score: res.Score, HasScore: res.HasScore, NoScore: !res.HasScore, Values: res.Signals.Values,
	}
	if r.Same != nil && r.Same[i] {
		o = straggler.Observation{Cluster: cluster, Node: o.Node, Heartbeat: true}
	}
	if err := a.engine.Observe(&o, now); err != nil {
		return err
	}
	return a.answer(n, group, now.Add(time.Millisecond))
}

func (a *agents) evaluate(n *agent, i int, group string, now time.Time) nodescore.Result {
	var values nodesignal.Values
	a.fleet.more(i, &values)
	var r nodescore.Reading
	put := func(metric, attr string, v float64) {
		inputs := a.plan.Inputs(metric)
		for k := range inputs {
			if attr == "" || inputs[k].Attributes[0].Value == attr {
				r.Add(&inputs[k], nodesignal.Subject{}, v)
			}
		}
	}
	put(gpusemconv.MetricAppStepRate, "", a.run.Values[i])
	put(gpusemconv.MetricGPUUtilization, "general", 0.97)
	if values.Known[nodesignal.Compute] {
		put(gpusemconv.MetricGPUClock, "sm", values.V[nodesignal.Compute]*1.98e9)
		put(gpusemconv.MetricGPUClockLimit, "sm", 1.98e9)
	}
	if values.Known[nodesignal.CPU] {
		put(gpusemconv.MetricNodeCPUPressure, "", 1-values.V[nodesignal.CPU])
	}
	n.node.Observe(&r, now)
	received, known := n.inbox.Get(cluster, group)
	return n.node.Evaluate(now, received, known)
}

// compare holds a node's word against the gateway's of the tick before the last. The
// node pushed its values of then two pushes ago, and the answer to the next one told of
// that tick. After an absence both sides speak of the same after three values.
func (a *agents) compare(n *agent, res *nodescore.Result) {
	if res.State != straggler.StateActive {
		n.active = 0
		return
	}
	n.active++
	want := n.said[0]
	if n.active <= 3 || !want.known || !res.BySignals {
		return
	}
	a.result.Compared++
	if want.straggler {
		a.result.Flagged++
	}
	if want.straggler != res.Straggler {
		a.result.Differ++
	}
}

var agentNames = wire.Names{Params: "params", Threshold: "threshold", QuorumMet: "quorum"}

func (a *agents) answer(n *agent, group string, now time.Time) error {
	for _, h := range a.answers[group].Respond(nil, &agentNames, []string{group}) {
		if h.Name != agentNames.Params {
			continue
		}
		values, err := threshold.ParseParams([]string{h.Value})
		if err != nil {
			return err
		}
		for _, v := range values {
			n.inbox.Put(cluster, v, now)
		}
	}
	return nil
}

// tick ends an interval and publishes what its nodes may judge themselves by.
func (a *agents) tick(now time.Time) {
	report := a.engine.Tick(now)
	a.answers = map[string]*threshold.Cluster{}
	for i := range report.Groups {
		g := &report.Groups[i]
		if g.Group == "" {
			continue
		}
		if e, err := threshold.NewEntry(threshold.Of(g, report.At, straggler.DefaultConfig().K, a.ttl)); err == nil {
			a.answers[g.Group] = &threshold.Cluster{Groups: map[string]*threshold.Entry{g.Group: e}}
		}
	}
	names := map[string]*straggler.NodeReport{}
	for i := range report.Nodes {
		names[report.Nodes[i].Node] = &report.Nodes[i]
	}
	for i := range a.nodes {
		n := &a.nodes[i]
		n.said[0], n.said[1] = n.said[1], said{}
		if node := names[nodeName(i, n.life)]; node != nil {
			n.said[1] = said{known: true, straggler: node.Straggler}
		}
	}
}
