// SPDX-License-Identifier: Apache-2.0

package fairshare

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPlaces: of groups and nodes a cluster has no more than half of what the others do
// not have. A group's place ends with its last node.
func TestPlaces(t *testing.T) {
	p := Places{MaxClusters: 4, MaxGroups: 5, MaxNodes: 7, TTL: time.Minute}
	now := time.Unix(1_000_000, 0)
	for i, step := range []struct {
		cluster, from, to string // from another group, "" is a new node
		want              error
	}{
		{"a", "", "g1", nil},
		{"b", "", "g1", nil},
		{"a", "", "g2", nil},
		{"a", "", "g3", ErrClusterGroups},
		{"a", "g1", "g3", nil}, // it leaves a place
		{"a", "", "g2", nil},
		{"a", "g2", "g4", ErrClusterGroups}, // another node stays in g2
		{"a", "", "g2", ErrClusterNodes},
		{"a", "g2", "g3", nil},
		{"c", "", "g1", nil},
		{"b", "", "g1", nil},
		{"b", "", "g1", ErrClusterNodes},
		{"c", "", "g1", ErrClusterNodes},
		{"d", "", "g1", nil}, // the last node and group
		{"c", "", "g2", ErrTooManyNodes},
		{"z", "", "g1", ErrTooManyClusters},
		{"a", "g3", "g4", ErrTooManyGroups},
	} {
		if step.from != "" {
			require.ErrorIs(t, p.Move(step.cluster, step.from, step.to), step.want, "%d", i)
		} else {
			require.ErrorIs(t, p.Enter(step.cluster, step.to, now), step.want, "%d", i)
		}
	}
	for _, of := range []string{"a g2", "a g3", "a g3", "b g1", "b g1", "c g1", "d g1"} {
		p.Leave(of[:1], of[2:])
	}
	assert.Zero(t, p.nodes)
	assert.Zero(t, p.groups)
	assert.Empty(t, p.clusters)
}

// TestSilent: of those silent for the TTL the one with the shortest life makes room. An
// established cluster goes last, even in an outage, and a gateway that did not listen
// forgets nobody.
func TestSilent(t *testing.T) {
	p := Places{MaxClusters: 9, MaxGroups: 9, MaxNodes: 99, TTL: time.Minute}
	now := time.Unix(1_000_000, 0)
	silent := func() string { name, _ := p.Silent("own", now); return name }
	for _, c := range []string{"established", "own", "made up 2", "made up 1"} {
		require.NoError(t, p.Enter(c, "g", now))
		if c == "established" {
			now = now.Add(time.Hour)
			p.Hear(c, now)
		}
	}
	now = now.Add(time.Minute)
	assert.Empty(t, silent())
	now = now.Add(time.Second)
	for _, want := range []string{"made up 1", "made up 2", "established"} {
		require.Equal(t, want, silent())
		p.Leave(want, "g")
	}
	assert.Empty(t, silent())

	require.NoError(t, p.Enter("late", "g", now))
	now = now.Add(time.Hour)
	p.Deaf(now)
	assert.Empty(t, silent())
	now = now.Add(61 * time.Second)
	assert.Equal(t, "late", silent())
}
