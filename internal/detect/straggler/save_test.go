// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// TestRestart: an engine that takes up what another one learnt goes on as that would have:
// the slow node stays slow since the same time, baseline and limits hold, and the episode
// has the same name.
func TestRestart(t *testing.T) {
	p := newPlay(t, []string{"a", ""}, 12, nil)
	p.loss = func(_ string, i int) float64 { return map[int]float64{2: -0.05}[i] } // node 2 differs for good
	p.ticks(400)
	p.loss = func(_ string, i int) float64 { return map[int]float64{2: -0.05, 5: 0.2}[i] }
	events := p.ticks(30)
	require.Equal(t, []string{"node onset a-05", "node onset -05"}, brief(events))
	before := p.node("a-05")
	for _, e := range p.last.Open {
		e.Reason = "of before"
	}

	saved := p.e.Save()
	idles := restored(t, p.e.cfg, saved, p.now)
	require.NoError(t, idles.Observe(&nodesignal.Observation{Cluster: "c", Node: "a-05", GroupLabels: []string{"a"}, HasState: true, State: nodesignal.StateIdle}, p.now))
	assert.Equal(t, []string{"node end a-05 idle"}, brief(copies(idles.Tick(p.now.Add(tick)).Events)), "it ends where it is over by then")
	p.e = restored(t, p.e.cfg, saved, p.now)
	assert.Empty(t, p.ticks(1), "nothing begins anew")
	require.Len(t, p.last.Open, 2)
	for i, e := range p.last.Open {
		assert.Equal(t, []any{events[i].ID, events[i].Since, events[i].Severity, "of before"}, []any{e.ID, e.Since, e.Severity, e.Reason})
	}
	after := p.node("a-05")
	assert.Equal(t, []any{before.Straggler, before.Since, before.Signal}, []any{after.Straggler, after.Since, after.Signal})
	assert.InDelta(t, before.Gap, after.Gap, 0.01)
	for i := range p.last.Nodes {
		assert.Equal(t, unjudged.Judged, p.last.Nodes[i].Unjudged, "no node warms up again")
	}
	assert.Empty(t, p.ticks(60), "baseline stays")
	p.loss = func(_ string, i int) float64 { return map[int]float64{2: -0.05}[i] }
	assert.Equal(t, []string{"node end a-05 recovered", "node end -05 recovered"}, brief(p.ticks(60)))

	assert.Zero(t, restored(t, p.e.cfg, saved, p.now.Add(2*p.e.cfg.Retention)).Nodes(), "too old")
	var text bytes.Buffer
	require.NoError(t, saved.Write(&text))
	for _, broken := range []string{"", "no engine", text.String()[:text.Len()/3]} {
		require.Error(t, New(p.e.cfg).Restore(strings.NewReader(broken), p.now))
	}
	few := p.e.cfg
	few.MaxNodes = 6
	assert.Equal(t, 2, restored(t, few, saved, p.now.Add(-time.Hour)).Nodes(), "and their group, of three quarters of the slots")
}

// TestAnOnsetThatWasNotSaved comes again after a crash, under the ID of the first time.
func TestAnOnsetThatWasNotSaved(t *testing.T) {
	p := newPlay(t, []string{"j"}, 12, nil)
	p.ticks(400)
	lose(0.2, 5)(p)
	p.ticks(2)
	saved := p.e.Save()
	first := p.ticks(10)
	require.Equal(t, []string{"node onset j-05"}, brief(first))
	p.e = restored(t, p.e.cfg, saved, p.now)
	again := p.ticks(10)
	require.Equal(t, []string{"node onset j-05"}, brief(again))
	assert.Equal(t, first[0].ID, again[0].ID)
}

// TestSavedIsACopy: what the engine learns while it is written is not in it.
func TestSavedIsACopy(t *testing.T) {
	p := newPlay(t, []string{"a", ""}, 12, nil)
	lose(0.2, 3)(p)
	p.ticks(100)
	saved, at := p.e.Save(), p.now
	groups := func() (groups []savedGroup) {
		e := restored(t, p.e.cfg, saved, at)
		for _, name := range []string{"a", "default"} {
			groups = append(groups, e.clusters["c"].groups[name].save(&episode.Saver{}))
		}
		return groups
	}
	before := groups()
	lose(0.5, 4, 5)(p)
	p.ticks(100)
	assert.Equal(t, before, groups())
}

// TestIncidentOverARestart: it goes on, and ends once.
func TestIncidentOverARestart(t *testing.T) {
	p := newPlay(t, []string{"j"}, 20, nil)
	p.ticks(400)
	lose(0.3, 0, 1, 2, 3)(p)
	require.Equal(t, []string{"group onset 4 stragglers"}, brief(p.ticks(12)))
	p.e = restored(t, p.e.cfg, p.e.Save(), p.now)
	assert.Empty(t, p.ticks(90), "no node has joined it")
	assert.True(t, p.group().Incident)
	lose(0)(p)
	assert.Equal(t, []string{"group end 4 recovered"}, brief(p.ticks(100)))
}

// TestMissingOverARestart: a node that was missing is, since the same time. No other is
// before the TTL, however long the restart took.
func TestMissingOverARestart(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	p.ticks(60)
	seen := p.now.Add(-tick)
	missing(5)(p)
	events := p.ticks(30)
	require.Equal(t, []string{"missing onset j-05"}, brief(events))
	p.now = p.now.Add(10 * time.Minute)
	p.e = restored(t, p.e.cfg, p.e.Save(), p.now)
	require.Empty(t, p.ticks(10))
	assert.Equal(t, seen, p.node("j-05").Seen)
	missing()(p)
	again := p.ticks(3)
	require.Equal(t, []string{"missing end j-05 recovered"}, brief(again))
	assert.Equal(t, events[0].ID, again[0].ID)
}
