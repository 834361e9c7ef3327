// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMadeUpClustersKeepNoPlace: made-up names give their places back once they are
// silent for the TTL. They never cost an established cluster its place, not even in
// an outage.
func TestMadeUpClustersKeepNoPlace(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxClusters = 8
	e := New(cfg)
	now := time.Unix(1_000_000, 0)
	observe := func(cluster, node string) error {
		return e.Observe(&Observation{Cluster: cluster, Node: node, Score: 0.9, HasScore: true}, now)
	}
	tick := func(d time.Duration) {
		for end := now.Add(d); now.Before(end); now = now.Add(10 * time.Second) {
			e.Tick(now)
		}
	}
	for range 30 {
		require.NoError(t, observe("established", "a"))
		tick(10 * time.Second)
	}
	for i := range 7 {
		require.NoError(t, observe(fmt.Sprintf("made up %d", i), "x"))
	}
	require.ErrorIs(t, observe("late", "a"), ErrTooManyClusters, "none is silent yet")

	// From here on the established cluster is out of reach, too.
	tick(cfg.TTL + 10*time.Second)
	for i := range 7 {
		require.NoError(t, observe(fmt.Sprintf("late %d", i), "a"))
	}
	assert.True(t, e.Has("established", "a"))
	assert.False(t, e.Has("made up 0", "x"))
	require.NoError(t, observe("one more", "a"), "the established one is the only silent one")
	assert.False(t, e.Has("established", "a"))
	assert.Equal(t, 8, e.Nodes())
	assert.Len(t, e.order, 8)
	assert.EqualValues(t, 8, e.Tick(now).Counters.ReclaimedClusters)
}

// TestAGatewayThatDidNotListenForgetsNobody: silence that nobody could have heard
// is not held against a cluster.
func TestAGatewayThatDidNotListenForgetsNobody(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxClusters = 1
	e := New(cfg)
	now := time.Unix(1_000_000, 0)
	observe := func(cluster string) error {
		return e.Observe(&Observation{Cluster: cluster, Node: "a", Score: 0.9, HasScore: true}, now)
	}
	require.NoError(t, observe("first"))
	e.Tick(now)
	now = now.Add(10 * time.Minute)
	e.Tick(now)
	require.ErrorIs(t, observe("second"), ErrTooManyClusters)
	for range 6 {
		now = now.Add(10 * time.Second)
		e.Tick(now)
	}
	require.NoError(t, observe("second"))
}

// TestNodesOfMadeUpClustersGiveTheirPlaces is the same for nodes and groups.
func TestNodesOfMadeUpClustersGiveTheirPlaces(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxNodes, cfg.MaxGroups = 16, 16
	e := New(cfg)
	now := time.Unix(1_000_000, 0)
	observe := func(cluster, node string) error {
		return e.Observe(&Observation{Cluster: cluster, Node: node, Score: 0.9, HasScore: true, Peers: []string{node}}, now)
	}
	for c := range 16 {
		for n := range 16 {
			_ = observe(fmt.Sprintf("made up %d", c), strconv.Itoa(n)) // refused in the end
		}
	}
	require.Equal(t, 16, e.Nodes())
	require.ErrorIs(t, observe("honest", "a"), ErrTooManyNodes)
	for range 7 {
		now = now.Add(10 * time.Second)
		e.Tick(now)
	}
	require.NoError(t, observe("honest", "a"))
	require.NoError(t, observe("honest", "b"), "and so is room for its next")
}
