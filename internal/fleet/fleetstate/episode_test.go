// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// known are the episodes, the newest first, those that are over with their cause.
func known(s *Store) string {
	var list []string
	for _, e := range s.Episodes(&EpisodeFilter{}) {
		text := e.ID
		if !e.Open() {
			text += fmt.Sprintf(" %s at %s", e.Cause, e.Ended.Sub(t0))
		}
		list = append(list, text)
	}
	return strings.Join(list, "; ")
}

// TestEpisodeRecords puts records, such as "e1 node n1 60 recovered" for the end
// of an episode of n1 after a minute.
func TestEpisodeRecords(t *testing.T) {
	for name, tc := range map[string]struct {
		records []string
		want    string
	}{
		"from onset to end": {[]string{"e1 node n1 0", "e1 node n1 30", "e1 node n1 60 recovered"}, "e1 recovered at 1m0s"},
		"all twice": {
			[]string{"e1 node n1 0", "e1 node n1 0", "e1 node n1 60 recovered", "e1 node n1 60 recovered", "e1 node n1 0"},
			"e1 recovered at 1m0s",
		},
		"an end alone":       {[]string{"e1 node n1 60 recovered"}, "e1 recovered at 1m0s"},
		"found again":        {[]string{"e1 node n1 0", "e2 node n1 90"}, "e2; e1 superseded at 1m30s"},
		"the former is late": {[]string{"e2 node n1 90", "e1 node n1 0"}, "e2; e1 superseded at 1m30s"},
		"the former ends after all": {
			[]string{"e1 node n1 0", "e2 node n1 90", "e1 node n1 80 recovered"}, "e2; e1 recovered at 1m20s",
		},
		"the former goes on": {
			[]string{"e1 node n1 0", "e2 node n1 90", "e1 node n1 100"}, "e2 superseded at 1m40s; e1",
		},
		"other nodes":         {[]string{"e1 node n1 0", "e2 node n2 90"}, "e2; e1"},
		"slow, then missing":  {[]string{"e1 node n1 0", "e2 missing n1 90"}, "e2; e1"},
		"a group's again":     {[]string{"e1 group . 0", "e2 group . 90"}, "e2; e1 superseded at 1m30s"},
		"many at two times":   {[]string{"e1 cluster . 0", "e2 cluster . 90"}, "e2; e1"},
		"as many as are kept": {[]string{"e1 node n1 0", "e2 node n2 1", "e3 node n3 2", "e4 node n4 3"}, "e3; e2; e1"},
		"reopened, in its own slot": {
			[]string{"e1 node n1 0", "e2 node n1 1", "x node n2 2 recovered", "e1 node n1 3", "e1 node n1 4 recovered", "y node n2 5 recovered"},
			"y recovered at 5s; e2 superseded at 3s; e1 recovered at 4s",
		},
		"older than a concluded end": {
			[]string{"e1 node n1 0", "e2 node n1 90", "e2 node n1 100 recovered", "e1 node n1 80"}, "e2 recovered at 1m40s; e1 superseded at 1m30s",
		},
		"no end before the start": {[]string{"e1 node n1 0", "e1 node n1 90", "e2 node n1 50"}, "e2 superseded at 50s; e1"},
		"found again, full": {
			[]string{"e1 node n1 0", "e2 node n2 1", "e3 node n3 2", "e4 node n3 3"}, "e4; e3 superseded at 3s; e2; e1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.MaxEpisodes, cfg.ClusterShare = 3, 1
			s := New(cfg)
			for _, record := range tc.records {
				f := strings.Fields(record)
				at := t0
				if d, err := time.ParseDuration(f[3] + "s"); assert.NoError(t, err) {
					at = t0.Add(d)
				}
				ep := &episode.Episode{ID: f[0], Subject: episode.Subject(f[1]), Cluster: "c", Group: "g", Node: strings.Trim(f[2], "."), Since: at, Updated: at}
				if len(f) > 4 {
					ep.Ended, ep.Cause = at, f[4]
				}
				s.PutEpisode(ep)
			}
			assert.Equal(t, tc.want, known(s))
			again := New(cfg)
			again.RestoreEpisodes(s.Episodes(&EpisodeFilter{}))
			for _, ep := range again.Episodes(&EpisodeFilter{}) {
				assert.False(t, ep.Open(), "the end of the process ended it")
			}
		})
	}
}

// TestSinceBefore: a loss that was there from the first value on began when its node was
// first seen, or earlier. The first record counts.
func TestSinceBefore(t *testing.T) {
	s := New(DefaultConfig())
	u, _ := s.Begin(Key{Node: "n"}, t0.Add(-time.Hour))
	u.Commit(t0)
	for i, before := range []bool{true, false} {
		at := t0.Add(time.Duration(i) * time.Minute)
		s.PutEpisode(&episode.Episode{ID: "e", Subject: episode.SubjectNode, Node: "n", Since: at, Updated: at, SinceBefore: before})
	}
	list := s.Episodes(&EpisodeFilter{IDs: []string{"e"}})
	require.Len(t, list, 1)
	assert.Equal(t, t0.Add(-time.Hour), list[0].Since.UTC())
	assert.True(t, list[0].SinceBefore)
}

// TestFigures: what moves between two records is shown.
func TestFigures(t *testing.T) {
	s := New(DefaultConfig())
	for i := range 4 {
		at := t0.Add(time.Duration(i) * time.Second)
		require.True(t, s.PutEpisode(&episode.Episode{ID: "e", Phase: episode.PhaseOnset, Subject: episode.SubjectNode, Node: "n", Since: t0, Updated: at, Gap: new(float64(i))}))
		assert.InDelta(t, i, *s.Episodes(&EpisodeFilter{})[0].Gap, 0)
	}
	assert.Equal(t, 1, s.episodes.openRoom.Taken(), "it is one episode")
}

// TestEpisodeOfAnother: a record of another subject has the ID of an open episode, and of an
// episode with a concluded end.
func TestEpisodeOfAnother(t *testing.T) {
	s := New(DefaultConfig())
	put := func(id string, subject episode.Subject, cluster, group, node string, second int, over bool) bool {
		at := t0.Add(time.Duration(second) * time.Second)
		ep := &episode.Episode{ID: id, Subject: subject, Cluster: cluster, Group: group, Node: node, Since: at, Updated: at}
		if over {
			ep.Ended, ep.Cause = at, "recovered"
		}
		return s.PutEpisode(ep)
	}
	require.True(t, put("former", episode.SubjectNode, "lab", "g", "n1", 0, false))
	require.True(t, put("e", episode.SubjectNode, "lab", "g", "n1", 10, false)) // supersedes former
	require.True(t, put("incident", episode.SubjectGroup, "lab", "g", "", 10, false))
	before := known(s)

	for _, over := range []bool{true, false} {
		for _, id := range []string{"e", "former"} {
			assert.False(t, put(id, episode.SubjectNode, "lab", "g", "n2", 20, over), "another node")
			assert.False(t, put(id, episode.SubjectMissing, "lab", "g", "n1", 20, over), "another kind")
			assert.False(t, put(id, episode.SubjectGroup, "lab", "g", "", 20, over), "no node")
		}
		assert.False(t, put("incident", episode.SubjectGroup, "lab", "h", "", 20, over), "another group")
	}
	assert.Equal(t, before, known(s))
	assert.Equal(t, map[string]int64{"foreign_episode": 14}, dropped(s))

	// Another cluster has its own episodes, by whatever IDs.
	require.True(t, put("e", episode.SubjectNode, "evil", "g", "n1", 20, true))
	require.True(t, put("incident", episode.SubjectGroup, "evil", "g", "", 20, false))
	var lab []string
	for _, ep := range s.Episodes(&EpisodeFilter{Clusters: []string{"lab"}}) {
		lab = append(lab, ep.ID)
		assert.Equal(t, ep.ID != "former", ep.Open(), ep.ID)
	}
	assert.Equal(t, []string{"e", "incident", "former"}, lab)
	assert.Len(t, s.Episodes(&EpisodeFilter{}), 5)

	// A node that moves to another group is the same node.
	require.True(t, put("e", episode.SubjectNode, "lab", "h", "n1", 30, true))
	assert.Len(t, s.Episodes(&EpisodeFilter{}), 5)
	s.Expire(t0)
	assert.Equal(t, map[string]int64{"foreign_episode": 14}, dropped(s))
}

// TestEpisodeDoubt has views that contradict an open episode, or do not.
func TestEpisodeDoubt(t *testing.T) {
	node := &episode.Episode{ID: "e", Subject: episode.SubjectNode, Cluster: "c", Node: "n1", Since: t0, Updated: t0}
	missing := &episode.Episode{ID: "e", Subject: episode.SubjectMissing, Cluster: "c", Node: "n1", Since: t0, Updated: t0}
	group := &episode.Episode{ID: "e", Subject: episode.SubjectGroup, Cluster: "c", Group: "g", Nodes: []string{"n1", "n2"}, Since: t0, Updated: t0}
	many := &episode.Episode{ID: "e", Subject: episode.SubjectMissing, Cluster: "c", Nodes: []string{"n1", "n2"}, Since: t0, Updated: t0}
	verdict := func(name string, straggler float64) func(*Store, time.Time) {
		return func(s *Store, now time.Time) {
			u, _ := s.Begin(Key{"c", name}, now)
			u.Set(reading.NodeStraggler, straggler)
			u.Commit(now)
		}
	}
	incident := func(on float64) func(*Store, time.Time) {
		return func(s *Store, now time.Time) {
			s.UpdateGroup(GroupKey{"c", "g"}, now, func(u *GroupUpdate) { u.Set(reading.GroupIncident, on) })
		}
	}
	unseen := func(s *Store, now time.Time) {
		if now.Equal(t0) {
			verdict("n1", 1)(s, now)
		}
	}
	flapping := func(s *Store, now time.Time) {
		minute := int(now.Sub(t0).Minutes())
		verdict("n1", float64((minute/60+1)%2))(s, now)
	}
	back := func(s *Store, now time.Time) {
		if now.Before(t0.Add(10 * time.Minute)) {
			verdict("n1", 0)(s, now)
		}
	}
	for name, tc := range map[string]struct {
		ep    *episode.Episode
		views []func(*Store, time.Time)
		hours int
		want  string // after so many hours
	}{
		"well":                    {node, []func(*Store, time.Time){verdict("n1", 0)}, 2, "e unconfirmed at 0s"},
		"not for long enough":     {node, []func(*Store, time.Time){verdict("n1", 0)}, 1, "e"},
		"slow":                    {node, []func(*Store, time.Time){verdict("n1", 1)}, 9, "e"},
		"well now and then":       {node, []func(*Store, time.Time){flapping}, 9, "e"},
		"not reporting":           {node, []func(*Store, time.Time){unseen}, 2, "e unconfirmed at 2m0s"},
		"nothing known":           {node, nil, 9, "e"},
		"nothing known for a day": {node, nil, 26, "e unconfirmed at 24h0m0s"},
		"seen again":              {missing, []func(*Store, time.Time){verdict("n1", 0)}, 2, "e unconfirmed at 1m0s"},
		"still missing":           {missing, []func(*Store, time.Time){unseen}, 9, "e"},
		"seen for ten minutes":    {missing, []func(*Store, time.Time){back}, 9, "e"},
		"incident is over":        {group, []func(*Store, time.Time){incident(0)}, 2, "e unconfirmed at 0s"},
		"all of many are back":    {many, []func(*Store, time.Time){verdict("n1", 0), verdict("n2", 0)}, 2, "e unconfirmed at 1m0s"},
		"one of many is back":     {many, []func(*Store, time.Time){verdict("n1", 0)}, 9, "e"},
		"incident goes on":        {group, []func(*Store, time.Time){incident(1)}, 9, "e"},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(DefaultConfig())
			require.True(t, s.PutEpisode(tc.ep))
			for minute := range tc.hours*60 + 1 {
				now := t0.Add(time.Duration(minute) * time.Minute)
				for _, view := range tc.views {
					view(s, now)
				}
				s.Expire(now)
			}
			assert.Equal(t, tc.want, known(s))
			assert.LessOrEqual(t, len(s.episodes.doubted), 1)
		})
	}
}

// TestEpisodesOfOthersStay: whatever some clusters report, open and past episodes of another
// stay, and memory has a bound.
func TestEpisodesOfOthersStay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := DefaultConfig()
		cfg.MaxEpisodes = 64
		s := New(cfg)
		report := func(cluster, node string) {
			u, ok := s.Begin(Key{cluster, node}, t0)
			require.True(t, ok)
			u.Set(reading.NodeStraggler, 1)
			u.Commit(t0)
		}
		put := func(cluster, node, id string, names int, over bool) bool {
			ep := &episode.Episode{ID: id, Subject: episode.SubjectNode, Cluster: cluster, Node: node, Since: t0, Updated: t0}
			for i := range names {
				ep.Nodes = append(ep.Nodes, strings.Repeat("n", MaxName-i))
			}
			if over {
				ep.Ended = t0
			}
			return s.PutEpisode(ep)
		}
		report("honest", "n1")
		report("honest", "n2")
		require.True(t, put("honest", "n1", "open", 0, false))
		require.True(t, put("honest", "n2", "past", 0, true))
		clusters := rapid.IntRange(1, 3).Draw(t, "clusters")
		for c := range clusters {
			report(fmt.Sprintf("evil-%d", c), "n0")
		}
		for i := range rapid.IntRange(100, 400).Draw(t, "records") {
			cluster := fmt.Sprintf("evil-%d", rapid.IntRange(0, clusters-1).Draw(t, "cluster"))
			put(cluster, fmt.Sprintf("n%d", rapid.IntRange(0, 200).Draw(t, "node")), fmt.Sprint("e", i),
				rapid.SampledFrom([]int{0, 0, 1, 100}).Draw(t, "names"), rapid.Bool().Draw(t, "over"))
		}
		// Subjects that never reported get no more room by being many clusters.
		for i := range 200 {
			put(fmt.Sprint("invented-", i), "n", "e", 0, i%2 == 0)
		}
		require.True(t, put("honest", "n1", "open", 1, false), "it goes on")
		open, past, size := 0, 0, 0
		for _, ep := range s.Episodes(&EpisodeFilter{}) {
			size += kibibytes(ep)
			if ep.Cluster == "honest" && ep.Open() {
				open++
			} else if ep.Cluster == "honest" {
				past++
			}
		}
		require.Equal(t, []int{1, 1}, []int{open, past})
		require.LessOrEqual(t, size, 2*cfg.MaxEpisodes)
	})
}
