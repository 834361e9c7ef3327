// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/topology"
)

// placed is a play whose nodes are on leaves of eight.
func placed(t *testing.T, groups []string, nodes int) *play {
	p := newPlay(t, groups, nodes, nil)
	p.e.Jobs(1)
	p.ticks(1)
	for k, g := range groups {
		for i := range nodes {
			at := k*nodes + i
			require.NoError(t, p.e.Locate("c", nodeName(g, i), []topology.Label{{Level: "leaf", Value: fmt.Sprint("leaf-", at/8)}, {Level: "spine", Value: fmt.Sprint("spine-", at/32)}}))
		}
	}
	p.ticks(60)
	return p
}

var leaf = func(k int) []topology.Label { return []topology.Label{{Level: "leaf", Value: fmt.Sprint("leaf-", k)}} }

// TestALeafIsOneRecord: seven of eight nodes of one leaf among 64 are too few for an
// incident of their group. One event names the leaf, and none a node.
func TestALeafIsOneRecord(t *testing.T) {
	for _, loss := range []float64{0.06, 0.1, 0.3} {
		p := placed(t, []string{"j"}, 64)
		p.slow(loss, 16, 17, 18, 19, 20, 21, 22)
		told := p.ticks(90)
		require.Equal(t, []string{"cluster onset 7"}, brief(told))
		f := told[0].Shared
		assert.Equal(t, leaf(2), f.Labels)
		assert.Equal(t, [2]int{7, 8}, [2]int{f.Bad, f.Nodes})
		assert.Equal(t, "j-16", told[0].Nodes[0])
		p.slow(0)
		told = p.ticks(90)
		require.Equal(t, []string{"cluster end 7 recovered"}, brief(told))
		assert.Equal(t, leaf(2), told[0].Shared.Labels)
	}
}

// TestTheEighthNodeJoins the event of its leaf, and has none of its own.
func TestTheEighthNodeJoins(t *testing.T) {
	p := placed(t, []string{"j"}, 64)
	p.slow(0.1, 16, 17, 18, 19, 20, 21, 22)
	require.Equal(t, []string{"cluster onset 7"}, brief(p.ticks(90)))
	p.slow(0.1, 16, 17, 18, 19, 20, 21, 22, 23)
	told := p.ticks(60)
	require.Equal(t, []string{"cluster update 8"}, brief(told))
	assert.Equal(t, 8, told[0].Shared.Bad)
	p.slow(0)
	assert.Equal(t, []string{"cluster end 8 recovered"}, brief(p.ticks(90)))
}

// TestAnIncidentNamesItsLeaf: half of the group's nodes are slow, those of one leaf.
func TestAnIncidentNamesItsLeaf(t *testing.T) {
	p := placed(t, []string{"j"}, 32)
	p.slow(0.1, 8, 9, 10, 11, 12, 13, 14, 15)
	told := p.ticks(90)
	require.Equal(t, []string{"group onset 8 stragglers"}, brief(told)[:1])
	last := told[len(told)-1]
	assert.Equal(t, leaf(1), last.Shared.Labels)
	assert.LessOrEqual(t, len(told), 2, "with the onset, or with one update")
}

// TestScatteredNodesShareNothing and have an event each.
func TestScatteredNodesShareNothing(t *testing.T) {
	p := placed(t, []string{"j"}, 64)
	p.slow(0.1, 3, 17, 30, 44, 60)
	told := p.ticks(90)
	require.Len(t, onsets(told, SubjectNode), 5)
	for _, ev := range told {
		assert.Empty(t, ev.Shared.Labels)
	}
}

// TestASilentRackIsNamed, from a file that knows the racks.
func TestASilentRackIsNamed(t *testing.T) {
	p := newPlay(t, []string{"a", "b"}, 32, nil)
	var text strings.Builder
	for i := range 32 {
		fmt.Fprintf(&text, "a-%02d,rack=r%d\nb-%02d,rack=r%d\n", i, i/8, i, i/8)
	}
	table, err := topology.Parse(text.String())
	require.NoError(t, err)
	p.e.Place(table)
	p.ticks(20)
	p.silent = func(_ string, i int) bool { return i >= 8 && i < 16 }
	told := p.ticks(12)
	require.Equal(t, []string{"missing onset 16"}, brief(told))
	assert.Equal(t, []topology.Label{{Level: "rack", Value: "r1"}}, told[0].Shared.Labels)
	assert.Equal(t, [2]int{16, 16}, [2]int{told[0].Shared.Bad, told[0].Shared.Nodes})
}

// TestLabelsAreBounded in bytes, of which a lone cluster has half, and given back when
// their nodes are forgotten.
func TestLabelsAreBounded(t *testing.T) {
	for name, text := range map[string]func(i int) string{
		"short": strconv.Itoa,
		"long":  func(i int) string { return fmt.Sprintf("%063d", i) },
	} {
		t.Run(name, func(t *testing.T) {
			const most = 2 << 20
			cfg := DefaultConfig()
			cfg.MaxLabelBytes = most
			e := New(cfg)
			o := Observation{Cluster: "c", HasState: true}
			for i := range most / labelBytes / topology.MaxLevels {
				o.Node = fmt.Sprint("n", i)
				require.NoError(t, e.Observe(&o, start))
			}
			before := heapAlloc()
			var err error
			for i := 0; err == nil; i++ {
				err = e.Locate("c", fmt.Sprint("n", i/topology.MaxLevels), []topology.Label{{Level: fmt.Sprint("l", i%topology.MaxLevels), Value: text(i)}})
			}
			require.ErrorIs(t, err, ErrTooManyLabels)
			grown := int(heapAlloc() - before)
			t.Logf("%d bytes, %d counted", grown, e.labels)
			assert.Less(t, grown, most/2)
			assert.InDelta(t, most/2, e.labels, 400, "a lone cluster's half")
			require.NoError(t, e.Locate("c", "n0", []topology.Label{{Level: "l0", Value: text(0)}}), "known already")
			require.NoError(t, e.Locate("c", "other", []topology.Label{{Level: "l0", Value: "x"}}), "no node")
			for k := range 400 { // past the retention of an hour
				e.Tick(start.Add(time.Duration(k+1) * tick))
			}
			assert.Zero(t, e.Nodes())
			assert.Zero(t, e.labels)
		})
	}
}
