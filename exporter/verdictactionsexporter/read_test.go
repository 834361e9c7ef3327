// SPDX-License-Identifier: Apache-2.0

package verdictactionsexporter

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/internal/repair"
)

var readAt = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// told is a machine with one rung, and what it is told.
type told struct {
	t *testing.T
	m *repair.Machine
}

func newTold(t *testing.T) *told {
	cfg := repair.DefaultConfig()
	cfg.Rungs, cfg.SilenceWait = []repair.Step{repair.StepTaint}, 0
	return &told{t, repair.New(cfg)}
}

// metric tells a point of a resource, node empty for a cluster; the pairs are attributes.
func (w *told) metric(node, name string, value float64, ended bool, pairs ...string) {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName(name)
	p := m.SetEmptyGauge().DataPoints().AppendEmpty()
	p.SetDoubleValue(value)
	p.SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(ended))
	for i := 0; i < len(pairs); i += 2 {
		p.Attributes().PutStr(pairs[i], pairs[i+1])
	}
	var from metricreading.Resource
	from.Begin(metricreading.New(zap.NewNop(), nil), rm.Resource().Attributes(), "", "")
	readMetrics(w.m, &from, rm, node, readAt)
}

func (w *told) record(ld plog.Logs, node string) {
	rl := ld.ResourceLogs().At(0)
	readRecord(w.m, rl.ScopeLogs().At(0).LogRecords().At(0), rl.Resource().Attributes(), node, readAt)
}

// refused is why nothing was done about a confirmed node, empty for a step that is due.
func (w *told) refused(at time.Time) repair.Rule {
	w.t.Helper()
	w.m.Tick(at)
	if _, due := w.m.Next(at); due {
		return ""
	}
	for _, r := range w.m.Take() {
		if r.Outcome == repair.Refused {
			return r.Rule
		}
	}
	require.Fail(w.t, "neither a step nor a refusal")
	return ""
}

// TestVerdictsAreReadByTheCatalogue: what the gateway says in metrics forbids to act.
func TestVerdictsAreReadByTheCatalogue(t *testing.T) {
	until := float64(readAt.Add(time.Hour).Unix())
	group := []string{gpusemconv.AttrPeerGroup, "g"}
	for name, tc := range map[string]struct {
		tell func(*told)
		want repair.Rule
	}{
		"nothing":              {func(*told) {}, ""},
		"a silence":            {func(w *told) { w.metric("", "gpu.straggler.silenced", until, false, gpusemconv.AttrHostName, "a") }, repair.RuleSilenced},
		"of another node":      {func(w *told) { w.metric("", "gpu.straggler.silenced", until, false, gpusemconv.AttrHostName, "b") }, ""},
		"of the group as such": {func(w *told) { w.metric("", "gpu.straggler.silenced", until, false, group...) }, ""},
		"no cluster's word":    {func(w *told) { w.metric("a", "gpu.straggler.silenced", until, false, gpusemconv.AttrHostName, "a") }, ""},
		"one that cannot be":   {func(w *told) { w.metric("", "gpu.straggler.silenced", 1e30, false, gpusemconv.AttrHostName, "a") }, ""},
		"one that has ended": {func(w *told) {
			w.metric("", "gpu.straggler.silenced", until, false, gpusemconv.AttrHostName, "a")
			w.metric("", "gpu.straggler.silenced", 0, true, gpusemconv.AttrHostName, "a")
		}, ""},
		"panic":        {func(w *told) { w.metric("", "gpu.straggler.panic_mode", 1, false, group...) }, repair.RulePanic},
		"no panic":     {func(w *told) { w.metric("", "gpu.straggler.panic_mode", 0, false, group...) }, ""},
		"coverage":     {func(w *told) { w.metric("", "gpu.straggler.coverage_low", 1, false, group...) }, repair.RuleCoverage},
		"an incident":  {func(w *told) { w.metric("", "gpu.straggler.incident", 1, false, group...) }, repair.RuleGroupIncident},
		"of a cluster": {func(w *told) { w.metric("", "gpu.straggler.incident", 1, false) }, ""},
		"peers": {func(w *told) {
			w.metric("", "gpu.straggler.nodes", 2, false, append(group, gpusemconv.AttrNodeState, "active")...)
		}, repair.RulePeers},
		"others": {func(w *told) {
			w.metric("", "gpu.straggler.nodes", 2, false, append(group, gpusemconv.AttrNodeState, "idle")...)
		}, ""},
		"a record that says so": {func(w *told) {
			ld := hot("prod", "a")
			a := ld.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0).Attributes()
			a.PutBool(gpusemconv.AttrSilenced, true)
			a.PutStr(gpusemconv.AttrSilenceUntil, readAt.Add(time.Hour).Format(time.RFC3339))
			w.record(ld, "a")
		}, repair.RuleSilenced},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTold(t)
			tc.tell(w)
			w.record(hot("prod", "a"), "a")
			assert.Equal(t, tc.want, w.refused(readAt))
			if tc.want == repair.RuleSilenced {
				assert.Empty(t, w.refused(readAt.Add(time.Hour)), "it ends by itself")
			}
		})
	}
}

// TestASilenceMayFollowItsRecord: as after a restart of the gateway, which does not know the
// groups of the nodes yet.
func TestASilenceMayFollowItsRecord(t *testing.T) {
	cfg := repair.DefaultConfig()
	cfg.Rungs = []repair.Step{repair.StepNotify, repair.StepTaint}
	w := &told{t, repair.New(cfg)}
	w.record(hot("prod", "a"), "a")
	w.record(hot("prod", "b"), "b")
	_, due := w.m.Next(readAt)
	require.False(t, due, "not even a word to people")
	w.metric("", "gpu.straggler.silenced", float64(readAt.Add(time.Hour).Unix()), false, gpusemconv.AttrHostName, "a")
	later := readAt.Add(cfg.SilenceWait)
	w.m.Tick(later)
	for {
		p, due := w.m.Next(later)
		if !due {
			break
		}
		assert.Equal(t, "b", p.Case.Node)
		w.m.Done(p.ID, &repair.Result{Outcome: repair.Taken}, later)
	}
	states := map[string]repair.State{}
	for _, c := range w.m.Cases() {
		states[c.Node] = c.State
	}
	assert.Equal(t, map[string]repair.State{"a": repair.Confirmed, "b": repair.KeptOff}, states)
}

// TestANodeOnProbationIsRead: the same catalogue, of a node.
func TestANodeOnProbationIsRead(t *testing.T) {
	for name, tc := range map[string]struct {
		metric string
		value  float64
		pairs  []string
		want   repair.State
	}{
		"a straggler": {"gpu.node.straggler", 1, nil, repair.Confirmed},
		"none":        {"gpu.node.straggler", 0, nil, repair.OnProbation},
		"suspect":     {"gpu.node.suspicion", 0.5, nil, repair.Confirmed},
		"less so":     {"gpu.node.suspicion", 0.4, nil, repair.OnProbation},
		"impossible":  {"gpu.node.suspicion", 7, nil, repair.OnProbation},
		"foreign":     {"gpu.agent.straggler", 1, nil, repair.OnProbation},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := repair.DefaultConfig()
			cfg.Rungs, cfg.TestAfterDrain, cfg.SilenceWait = []repair.Step{repair.StepTaint, repair.StepBurnIn}, true, 0
			w := &told{t, repair.New(cfg)}
			w.record(hot("prod", "a"), "a")
			for {
				p, due := w.m.Next(readAt)
				if !due {
					break
				}
				w.m.Done(p.ID, &repair.Result{Outcome: repair.Taken}, readAt)
				w.m.See(&repair.Sight{Node: "a", Empty: true}, readAt)
				w.m.Tested(&repair.Test{Node: "a", ID: p.ID}, readAt)
			}
			require.Equal(t, repair.OnProbation, w.m.Cases()[0].State)
			w.metric("a", tc.metric, tc.value, false, tc.pairs...)
			assert.Equal(t, tc.want, w.m.Cases()[0].State)
		})
	}
}
