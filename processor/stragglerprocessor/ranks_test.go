// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.uber.org/zap"
	zapobserver "go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/detect/straggler"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

// arrangement is how the ranks of a job push.
type arrangement int

const (
	onePoint      arrangement = iota // all ranks of a node in one push, a point each
	oneResource                      // likewise, a resource each
	ownPush                          // each rank by itself, at its own time
	sharedHead                       // one collector in front of all nodes batches all ranks
	ownInstance                      // each rank by itself, without a name
	sharedProcess                    // one collector, without names
	arrangements
)

func (a arrangement) String() string {
	return [...]string{"a point each", "a resource each", "a push each", "a shared collector", "a push each without a name", "a shared collector without names"}[a]
}

func (a arrangement) apart() bool    { return a == ownPush || a == ownInstance }
func (a arrangement) shared() bool   { return a == sharedHead || a == sharedProcess }
func (a arrangement) nameless() bool { return a == ownInstance || a == sharedProcess }

// jobPlay plays the ranks of a job through the agents to the gateway.
type jobPlay struct {
	pushed arrangement
	ranks  []int // by node
	noise  float64
	// From tick `from` on one rank takes `by` longer.
	node, rank, from int
	by               float64

	rnd    *rand.Rand
	agents []*agent
	o      *observer
	engine *straggler.Engine
	now    time.Time
	events []episode.Episode
}

func (p *jobPlay) start(t require.TestingT, seed uint64) {
	p.rnd = rand.New(rand.NewPCG(seed, 17))
	p.now = noon
	cfg := createDefaultConfig().(*Config)
	tb, err := metadata.NewTelemetryBuilder(componenttest.NewNopTelemetrySettings())
	require.NoError(t, err)
	p.o, p.engine = newObserver(cfg, newRejects(tb), zap.NewNop()), straggler.New(cfg.engine())
	n := len(p.ranks)
	if p.pushed.shared() {
		n = 1
	}
	for range n {
		agentCfg := createDefaultConfig().(*Config)
		agentCfg.Mode = modeAgent
		a, err := newAgent(processor.Settings{ID: component.NewID(metadata.Type), TelemetrySettings: componenttest.NewNopTelemetrySettings()}, agentCfg, consumertest.NewNop())
		require.NoError(t, err)
		p.agents = append(p.agents, a)
	}
}

func (p *jobPlay) push(a *agent, md pmetric.Metrics, at time.Time) {
	a.score(context.Background(), md, at)
	p.o.observe(context.Background(), p.engine, md, at)
}

func (p *jobPlay) resource(md pmetric.Metrics, node int) pmetric.ResourceMetrics {
	return resource(md, map[string]any{
		gpusemconv.AttrHostName: fmt.Sprintf("n%02d", node), gpusemconv.AttrClusterName: "prod",
		gpusemconv.AttrJobID: "J", gpusemconv.AttrJobRole: "all",
	})
}

// of is a rank of a node: the first node has the first ranks of the job.
func (p *jobPlay) of(node, local int) nodesignal.Subject {
	global := local
	for _, n := range p.ranks[:node] {
		global += n
	}
	return nodesignal.Subject{
		GPU:  fmt.Sprintf("GPU-%d-%d", node, local),
		Rank: nodesignal.OrdinalOf(int64(global)), LocalRank: nodesignal.OrdinalOf(int64(local)),
	}
}

// name writes a rank as numbers or, as from the environment, as text.
func (p *jobPlay) name(attrs pcommon.Map, of nodesignal.Subject) {
	attrs.PutStr(gpusemconv.AttrHWID, of.GPU)
	for key, o := range map[string]nodesignal.Ordinal{gpusemconv.AttrJobRank: of.Rank, gpusemconv.AttrJobLocalRank: of.LocalRank} {
		n, _ := o.Get()
		if p.pushed == oneResource {
			attrs.PutStr(key, strconv.FormatInt(n, 10))
		} else {
			attrs.PutInt(key, n)
		}
	}
}

// instance writes what a rank without a name is told from others by.
func (p *jobPlay) instance(attrs pcommon.Map, node, local int) {
	if p.pushed == ownInstance {
		attrs.PutStr(gpusemconv.AttrServiceInstanceID, fmt.Sprintf("instance-%d-%d", node, local))
	} else {
		attrs.PutInt(gpusemconv.AttrProcessPID, int64(1000+local))
	}
}

func (p *jobPlay) seconds(tick, node, local int) float64 {
	s := 1 + p.noise*p.rnd.NormFloat64()
	if node == p.node && local == p.rank && tick >= p.from {
		s *= 1 + p.by
	}
	return s
}

// tick lets every rank push once, and then the gateway compare.
func (p *jobPlay) tick(tick int) {
	const interval = 10 * time.Second
	shared := pmetric.NewMetrics()
	for node, ranks := range p.ranks {
		at := p.now.Add(interval * time.Duration(node) / time.Duration(len(p.ranks)))
		md := shared
		if !p.pushed.shared() {
			md = pmetric.NewMetrics()
		}
		var rm pmetric.ResourceMetrics
		for local := range ranks {
			if p.pushed.apart() {
				md = pmetric.NewMetrics()
			}
			if local == 0 || p.pushed != onePoint {
				rm = p.resource(md, node)
			}
			point := gauge(rm, gpusemconv.MetricAppStepDuration, p.seconds(tick, node, local))
			attrs := point.Attributes()
			if p.pushed == oneResource {
				attrs = rm.Resource().Attributes()
			}
			if p.pushed.nameless() {
				p.instance(rm.Resource().Attributes(), node, local)
			} else {
				p.name(attrs, p.of(node, local))
			}
			if p.pushed.apart() {
				p.push(p.agents[node], md, at.Add(interval*time.Duration(local)/time.Duration(ranks)))
			}
		}
		if !p.pushed.shared() && !p.pushed.apart() {
			p.push(p.agents[node], md, at)
		}
	}
	p.now = p.now.Add(interval)
	if p.pushed.shared() {
		p.push(p.agents[0], shared, p.now.Add(-time.Second))
	}
	for _, ev := range p.engine.Tick(p.now).Events {
		p.events = append(p.events, *ev)
	}
}

// onsets returns the beginnings among what the gateway told.
func (p *jobPlay) onsets() (all []episode.Episode) {
	for _, ev := range p.events {
		if ev.Phase == episode.PhaseOnset {
			all = append(all, ev)
		}
	}
	return all
}

// TestAnySlowRankIsFound draws the job, the fault, and how the ranks push. Its node is named:
// a whole step names no rank.
func TestAnySlowRankIsFound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes, ranks := rapid.IntRange(5, 8).Draw(t, "nodes"), rapid.IntRange(1, 16).Draw(t, "ranks")
		p := &jobPlay{
			pushed: arrangement(rapid.IntRange(0, int(arrangements)-1).Draw(t, "pushed")),
			noise:  rapid.Float64Range(0, 0.005).Draw(t, "noise"),
			node:   rapid.IntRange(0, nodes-1).Draw(t, "node"), rank: rapid.IntRange(0, ranks-1).Draw(t, "rank"),
			by: rapid.Float64Range(0.1, 0.4).Draw(t, "by"), from: 90, // a node's first minutes weigh most in its baseline
		}
		for range nodes {
			p.ranks = append(p.ranks, ranks)
		}
		p.start(t, rapid.Uint64().Draw(t, "seed"))
		const bound = 18 // ticks of 10 s
		for tick := 0; tick < p.from+bound && len(p.events) == 0; tick++ {
			p.tick(tick)
		}
		for tick := range 6 {
			p.tick(p.from + bound + tick)
		}
		onsets := p.onsets()
		require.Len(t, onsets, 1)
		assert.Equal(t, fmt.Sprintf("n%02d", p.node), onsets[0].Node)
	})
}

// TestHealthyRanksNameNobody: the least of many noisy ranks is less than that of
// few, and nodes of one group may have more or fewer.
func TestHealthyRanksNameNobody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &jobPlay{
			pushed: arrangement(rapid.IntRange(0, int(arrangements)-1).Draw(t, "pushed")),
			noise:  rapid.Float64Range(0, 0.02).Draw(t, "noise"),
			ranks:  rapid.SliceOfN(rapid.IntRange(1, 16), 5, 8).Draw(t, "ranks"),
			node:   -1,
		}
		p.start(t, rapid.Uint64().Draw(t, "seed"))
		for tick := range 40 {
			p.tick(tick)
		}
		assert.Empty(t, p.events)
	})
}

// TestTheLogAsksForNames: once, and only where a node has several ranks without one.
func TestTheLogAsksForNames(t *testing.T) {
	for instances, want := range map[int]int{1: 0, 2: 1} {
		synctest.Test(t, func(t *testing.T) {
			r := newAgentRig(t, nil)
			core, logs := zapobserver.New(zap.WarnLevel)
			r.a.logger = zap.New(core)
			for range 5 {
				md := pmetric.NewMetrics()
				for i := range instances {
					rm := resource(md, map[string]any{gpusemconv.AttrHostName: "n1", gpusemconv.AttrJobID: "J", gpusemconv.AttrProcessPID: i})
					gauge(rm, gpusemconv.MetricAppStepDuration, 1)
				}
				r.push(md)
			}
			assert.Equal(t, want, logs.FilterMessageSnippet("ranks of a job have no name").Len())
		})
	}
}

func TestRanksThatAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newAgentRig(t, nil)
		md := pmetric.NewMetrics()
		rm := resource(md, map[string]any{gpusemconv.AttrHostName: "n1"})
		for i := range nodescore.MaxRanks + 7 {
			gauge(rm, gpusemconv.MetricAppStepRate, 1).Attributes().PutInt(gpusemconv.AttrJobRank, int64(i))
		}
		r.push(md)
		assert.Equal(t, int64(7), rejected(t, r.tel)["max_gpus"])
	})
}
