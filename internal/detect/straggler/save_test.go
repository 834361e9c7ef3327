// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"bytes"
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
	told := p.ticks(30)
	require.Equal(t, []string{"node onset a-05", "node onset -05"}, brief(told))
	before := p.node("a-05")
	for _, e := range p.last.Open {
		e.Reason = "of before"
	}

	var kept bytes.Buffer
	require.NoError(t, p.e.Save().Write(&kept))
	saved := kept.Bytes()
	again := New(p.e.cfg)
	require.NoError(t, again.Restore(&kept, p.now))
	idles := New(p.e.cfg)
	require.NoError(t, idles.Restore(bytes.NewReader(saved), p.now))
	require.NoError(t, idles.Observe(&nodesignal.Observation{Cluster: "c", Node: "a-05", Peers: []string{"a"}, HasState: true, State: nodesignal.StateIdle}, p.now))
	assert.Equal(t, []string{"node end a-05 idle"}, brief(copies(idles.Tick(p.now.Add(tick)).Events)), "it ends where it is over by then")
	p.e = again
	assert.Empty(t, p.ticks(1), "nothing begins anew")
	require.Len(t, p.last.Open, 2)
	for i, e := range p.last.Open {
		assert.Equal(t, []any{told[i].ID, told[i].Since, told[i].Severity, "of before"}, []any{e.ID, e.Since, e.Severity, e.Reason})
	}
	after := p.node("a-05")
	assert.Equal(t, []any{before.Straggler, before.Since, before.Signal}, []any{after.Straggler, after.Since, after.Signal})
	assert.InDelta(t, before.Gap, after.Gap, 0.01)
	for i := range p.last.Nodes {
		assert.Equal(t, unjudged.Judged, p.last.Nodes[i].Unjudged, "nobody warms up again")
	}
	assert.Empty(t, p.ticks(60), "baseline stays")
	p.loss = func(_ string, i int) float64 { return map[int]float64{2: -0.05}[i] }
	assert.Equal(t, []string{"node end a-05 recovered", "node end -05 recovered"}, brief(p.ticks(60)))

	late := New(p.e.cfg)
	require.NoError(t, late.Restore(bytes.NewReader(saved), p.now.Add(2*p.e.cfg.Retention)))
	assert.Zero(t, late.Nodes(), "too old")
	for _, broken := range [][]byte{nil, []byte("no engine"), saved[:len(saved)/3]} {
		require.Error(t, New(p.e.cfg).Restore(bytes.NewReader(broken), p.now))
	}
	few := p.e.cfg
	few.MaxNodes = 4
	small := New(few)
	require.NoError(t, small.Restore(bytes.NewReader(saved), p.now.Add(-time.Hour)))
	assert.Equal(t, 2, small.Nodes(), "a lone cluster has half")
}

// TestAnOnsetThatWasNotSaved is told again after a crash, under the ID of the first time.
func TestAnOnsetThatWasNotSaved(t *testing.T) {
	p := newPlay(t, []string{"j"}, 12, nil)
	p.ticks(400)
	lose(0.2, 5)(p)
	p.ticks(2)
	var kept bytes.Buffer
	require.NoError(t, p.e.Save().Write(&kept))
	first := p.ticks(10)
	require.Equal(t, []string{"node onset j-05"}, brief(first))
	p.e = New(p.e.cfg)
	require.NoError(t, p.e.Restore(&kept, p.now))
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
	restored := func() (groups []savedGroup) {
		var kept bytes.Buffer
		require.NoError(t, saved.Write(&kept))
		e := New(p.e.cfg)
		require.NoError(t, e.Restore(&kept, at))
		for _, name := range []string{"a", "default"} {
			groups = append(groups, e.clusters["c"].groups[name].save(&episode.Saver{}))
		}
		return groups
	}
	before := restored()
	lose(0.5, 4, 5)(p)
	p.ticks(100)
	assert.Equal(t, before, restored())
}

// TestIncidentOverARestart: it goes on, and ends once.
func TestIncidentOverARestart(t *testing.T) {
	p := newPlay(t, []string{"j"}, 20, nil)
	p.ticks(400)
	lose(0.3, 0, 1, 2, 3)(p)
	require.Equal(t, []string{"group onset 4 stragglers"}, brief(p.ticks(12)))
	var kept bytes.Buffer
	require.NoError(t, p.e.Save().Write(&kept))
	p.e = New(p.e.cfg)
	require.NoError(t, p.e.Restore(&kept, p.now))
	assert.Empty(t, p.ticks(90), "nobody has joined it")
	assert.True(t, p.group().Incident)
	lose(0)(p)
	assert.Equal(t, []string{"group end 4 recovered"}, brief(p.ticks(100)))
}

// TestMissingOverARestart: a node that was missing is, since the same time. Nobody else is
// before the TTL, however long the restart took.
func TestMissingOverARestart(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	p.ticks(60)
	seen := p.now.Add(-tick)
	silent(5)(p)
	told := p.ticks(30)
	require.Equal(t, []string{"missing onset j-05"}, brief(told))
	var kept bytes.Buffer
	require.NoError(t, p.e.Save().Write(&kept))
	p.now = p.now.Add(10 * time.Minute)
	p.e = New(p.e.cfg)
	require.NoError(t, p.e.Restore(&kept, p.now))
	require.Empty(t, p.ticks(10))
	assert.Equal(t, seen, p.node("j-05").Seen)
	silent()(p)
	again := p.ticks(3)
	require.Equal(t, []string{"missing end j-05 recovered"}, brief(again))
	assert.Equal(t, told[0].ID, again[0].ID)
}
