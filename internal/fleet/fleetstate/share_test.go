// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestOneClusterLeavesRoom: a cluster at its share gets only the places of its own
// missing nodes. Another cluster's missing nodes stay until no place is left at all:
// its people look for them.
func TestOneClusterLeavesRoom(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxNodes, cfg.MaxGroups = 100, 100
	s := New(cfg)
	now := time.Unix(1_000_000, 0)
	put := func(cluster, node string) bool { return try(s, cluster, node, now, nil) }
	for i := range 25 {
		require.True(t, put("honest", strconv.Itoa(i)))
	}
	now = now.Add(2 * cfg.MissingAfter) // the honest ones are missing
	for i := range 1000 {
		put("greedy", strconv.Itoa(i))
		s.UpdateGroup(GroupKey{"greedy", strconv.Itoa(i)}, now, func(*GroupUpdate) {})
	}
	assert.Equal(t, 25, s.nodes.Held("honest"))
	assert.Equal(t, 38, s.nodes.Held("greedy"))
	assert.Equal(t, 50, s.groups.places.Held("greedy"))
	assert.True(t, s.UpdateGroup(GroupKey{"honest", "g"}, now, func(*GroupUpdate) {}))
	assert.True(t, put("third", "a"))

	now = now.Add(2 * cfg.MissingAfter)
	require.True(t, put("greedy", "another"), "in place of one of its own")
	assert.Equal(t, 38, s.nodes.Held("greedy"))
	assert.Equal(t, 25, s.nodes.Held("honest"))
	_, ok := s.Node(Key{"greedy", "0"}, now)
	assert.False(t, ok)

	now = now.Add(2 * cfg.NodeExpiry)
	s.Expire(now)
	assert.Zero(t, s.Nodes())
	assert.Zero(t, s.groups.places.Taken())
}

// TestNothingIsLeft: when every place is taken, a newcomer gets that of the node
// that has been missing longest, whoever's it is.
func TestNothingIsLeft(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxNodes = 16
	s := New(cfg)
	now := time.Unix(1_000_000, 0)
	put := func(cluster, node string) bool { return try(s, cluster, node, now, nil) }
	require.True(t, put("established", "a"))
	for c := range 16 {
		for n := range 16 {
			put(fmt.Sprintf("made up %d", c), strconv.Itoa(n)) // refused in the end
		}
	}
	require.Equal(t, 16, s.Nodes())
	require.False(t, put("established", "b"), "none is missing")
	now = now.Add(2 * cfg.MissingAfter)
	require.True(t, put("established", "a"))
	for n := range 8 {
		require.True(t, put("established", fmt.Sprintf("new %d", n)))
	}
	assert.Equal(t, 9, s.nodes.Held("established"))
	assert.Equal(t, 16, s.Nodes())
}
