// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/fleetapi"
	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
	"github.com/gpu-collector/gpu-collector/test/bench/harness"
)

// TestWatch gives a watch of ten nodes the answers of a gateway: nodes that it knows, how
// many of them it calls missing, and the nodes of its open episodes.
func TestWatch(t *testing.T) {
	type look struct {
		nodes, missing int
		open           []string // node, or node/number of the episode
	}
	for name, tt := range map[string]struct {
		looks               []look
		ready               bool
		missing, lost, open int
	}{
		"nodes come, the slow one is found":     {[]look{{4, 0, nil}, {10, 0, nil}, {10, 0, []string{"slow"}}}, true, 0, 0, 1},
		"the slow one is not found":             {[]look{{10, 0, nil}}, false, 0, 0, 0},
		"a node never came":                     {[]look{{9, 0, []string{"slow"}}}, false, 0, 0, 1},
		"a node is forgotten":                   {[]look{{10, 0, []string{"slow"}}, {9, 0, []string{"slow"}}, {10, 0, []string{"slow"}}}, true, 1, 0, 1},
		"two are called missing":                {[]look{{10, 0, []string{"slow"}}, {10, 2, []string{"slow"}}}, true, 2, 0, 1},
		"an episode is away at one look":        {[]look{{10, 0, []string{"slow"}}, {10, 0, nil}, {10, 0, []string{"slow"}}}, true, 0, 1, 1},
		"and another one comes in its place":    {[]look{{10, 0, []string{"slow"}}, {10, 0, []string{"slow/2"}}}, true, 0, 1, 2},
		"a healthy node has an episode as well": {[]look{{10, 0, []string{"slow", "other"}}}, true, 0, 0, 2},
	} {
		t.Run(name, func(t *testing.T) {
			w := &watch{nodes: 10, slow: map[string]bool{"slow": true}, open: map[string]string{}, lost: map[string]bool{}}
			for _, l := range tt.looks {
				var open []fleetapi.Episode
				for _, id := range l.open {
					node := id
					if len(id) > 4 && id[:4] == "slow" {
						node = "slow"
					}
					open = append(open, fleetapi.Episode{ID: id, Node: node})
				}
				w.take(&fleetapi.Summary{Nodes: l.nodes, NodesByState: map[string]int{"missing": l.missing}}, open)
			}
			assert.Equal(t, tt.ready, w.ready())
			assert.Equal(t, tt.missing, w.missing)
			assert.Len(t, w.lost, tt.lost)
			assert.Len(t, w.open, tt.open)
			broken := tt.missing + tt.lost + max(0, tt.open-1) // one is right
			assert.Equal(t, broken, w.report())
		})
	}
}

// TestAgentsMove has nodes push to three servers, of which one leaves the name.
func TestAgentsMove(t *testing.T) {
	var names []string
	for range 3 {
		addr, stop, err := harness.NextHop(t.Context(), 0)
		require.NoError(t, err)
		defer stop()
		names = append(names, addr)
	}
	f, err := fleetpush.New(fleetpush.Config{Nodes: 60, GPUs: 1, Cluster: cluster, Load: fleetsim.Training, Step: time.Second, Start: time.Now()})
	require.NoError(t, err)
	a, err := newAgents(t.Context(), f, 200*time.Millisecond, names)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.run(ctx, time.Second) }()
	require.NoError(t, a.pushed(t.Context(), 2))
	before, _ := a.state()
	a.name.UpdateState(named(names[1:]))
	require.NoError(t, a.pushed(t.Context(), 2))
	after, failed := a.state()
	stop()
	require.NoError(t, <-done)
	moved := 0
	for i := range before {
		b, n := before[i], after[i]
		assert.Contains(t, names, b.shard, strconv.Itoa(i))
		assert.Positive(t, n.full)
		if b.shard != names[0] {
			assert.Equal(t, b.shard, n.shard, "node %d has no reason to move", i)
			continue
		}
		moved++
		assert.Contains(t, names[1:], n.shard)
	}
	assert.Positive(t, moved)
	assert.Zero(t, failed)
	assert.GreaterOrEqual(t, pushes(before, after), 2*len(after))
}
