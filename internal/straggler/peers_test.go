// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestPeerMemory: a node's reports each know a part of its group.
func TestPeerMemory(t *testing.T) {
	const ttl = 50 * time.Second
	type report struct {
		after time.Duration // since the one before
		names []string
		group string
	}
	gpus := []string{"", "", "H100"}
	for name, reports := range map[string][]report{
		"each knows a part": {
			{0, []string{"J", "stage-0", ""}, "J/stage-0"},
			{5, gpus, "J/stage-0/H100"},
			{5, []string{"J", "stage-0", ""}, "J/stage-0/H100"},
			{5, gpus, "J/stage-0/H100"},
		},
		"one knows all": {
			{0, []string{"J", "stage-0", "H100"}, "J/stage-0/H100"}, {5, gpus, "J/stage-0/H100"}, {5, nil, "J/stage-0/H100"},
		},
		"a part that is not told any more ends, and only that": {
			{0, []string{"J", "stage-0", ""}, "J/stage-0"},
			{5, gpus, "J/stage-0/H100"},
			{45, gpus, "J/stage-0/H100"},
			{1, gpus, "//H100"},
			{1, nil, "//H100"},
		},
		"to tell it again keeps it": {
			{0, []string{"J", "stage-0", ""}, "J/stage-0"},
			{40, []string{"J", "", ""}, "J/stage-0"},
			{20, []string{"", "", ""}, "J"},
			{20, []string{"", "", ""}, "J"},
			{20, []string{"", "", ""}, DefaultGroup},
		},
		"another job need not have a role": {
			{0, []string{"J", "stage-0", ""}, "J/stage-0"}, {5, gpus, "J/stage-0/H100"}, {5, []string{"K", "", ""}, "K//H100"},
		},
		"another role is of the same job when another report tells it": {
			{0, []string{"J", "", ""}, "J"},
			{5, []string{"", "stage-0", ""}, "J/stage-0"},
			{5, []string{"", "stage-1", ""}, "J/stage-1"},
		},
		"a report that knows half of the job, and news": {
			{0, []string{"J", "stage-0", ""}, "J/stage-0"}, {5, []string{"J", "", "H100"}, "J/stage-0/H100"},
		},
		"reports that contradict each other": {
			{0, []string{"J", "", ""}, "J"}, {5, []string{"K", "", ""}, "K"}, {5, []string{"J", "", ""}, "J"},
		},
		"more names than before": {{0, nil, DefaultGroup}, {5, []string{"J"}, "J"}},
	} {
		t.Run(name, func(t *testing.T) {
			var m PeerMemory
			var known []string
			now := start
			for i, r := range reports {
				now = now.Add(r.after * time.Second)
				before := GroupKey(known)
				merged, changed := m.Merge(known, r.names, now, ttl)
				require.Equal(t, r.group, GroupKey(merged), "report %d", i)
				assert.Equal(t, before != r.group, changed, "report %d", i)
				known = merged
			}
		})
	}
}

// TestReportsThatKnowAPartEach move their node once, and it is judged.
func TestReportsThatKnowAPartEach(t *testing.T) {
	p := newPlain(t, nil)
	moves := int64(0)
	var r *Report
	for range 5 {
		for i, score := range []float64{1, 1, 0.3, 1, 1} {
			p.push("c", nodeName("n", i), []string{"J", "stage-0", ""}, StateActive, score)
			gpus := Observation{Cluster: "c", Node: nodeName("n", i), Peers: []string{"", "", "H100"}, Heartbeat: true}
			require.NoError(t, p.e.Observe(&gpus, p.now))
		}
		r = p.tick()
		moves += r.Counters.GroupChanges
	}
	assert.EqualValues(t, 5, moves)
	assert.Equal(t, 5, groupOf(t, r, "c", "J/stage-0/H100").Counts[StateActive])
	assert.Equal(t, []string{nodeName("n", 2)}, stragglers(r))
}

func TestGroupKey(t *testing.T) {
	assert.Equal(t, DefaultGroup, GroupKey(nil))
	assert.Equal(t, DefaultGroup, GroupKey([]string{"", ""}))
	assert.Equal(t, "AR/stage-0", GroupKey([]string{"AR", "stage-0"}))
	assert.Equal(t, "/stage-0", GroupKey([]string{"", "stage-0"}))
	assert.Equal(t, "AR", GroupKey([]string{"AR", "", ""}), "what nobody knows is not in the name")
	assert.Equal(t, "a%2Fb/c%20d%22%C3%BC", GroupKey([]string{"a/b", `c d"ü`}))
	assert.NotEqual(t, DefaultGroup, GroupKey([]string{DefaultGroup}))
	long := strings.Repeat("j", 130)
	one, other := GroupKey([]string{long, long + "1"}), GroupKey([]string{long, long + "2"})
	assert.Len(t, one, maxKeyLength)
	assert.Len(t, other, maxKeyLength)
	assert.NotEqual(t, one, other)
}

func TestGroupKeyNeverCollides(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[a/%"\\ü ]{0,4}`)
		a := rapid.SliceOfN(word, 2, 2).Draw(t, "a")
		b := rapid.SliceOfN(word, 2, 2).Draw(t, "b")
		if !slices.Equal(a, b) {
			assert.NotEqual(t, GroupKey(a), GroupKey(b))
		}
	})
}
