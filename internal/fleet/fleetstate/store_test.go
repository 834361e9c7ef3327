// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func put(tb testing.TB, s *Store, cluster, node string, now time.Time, f func(*Update)) {
	tb.Helper()
	require.True(tb, try(s, cluster, node, now, f))
}

// try returns false where there is no room for the node.
func try(s *Store, cluster, node string, now time.Time, f func(*Update)) bool {
	u, ok := s.Begin(Key{cluster, node}, now)
	if ok {
		if f != nil {
			f(&u)
		}
		u.Commit(now)
	}
	return ok
}

func names(views []View) []string {
	list := []string{}
	for _, v := range views {
		list = append(list, v.Cluster+"/"+v.Key.Node)
	}
	return list
}

func dropped(s *Store) map[string]int64 {
	out := map[string]int64{}
	s.Dropped(func(d Drop, n int64) {
		if n > 0 {
			out[d.String()] = n
		}
	})
	return out
}

func TestBounds(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxGPUsPerNode, cfg.MaxEpisodes, cfg.ClusterShare = 2, 2, 1
	s := New(cfg)
	long := strings.Repeat("x", MaxName+1)
	for _, k := range []Key{{"c", "a"}, {"c", "b"}} {
		put(t, s, k.Cluster, k.Node, t0, nil)
	}
	for _, k := range []Key{{"c", ""}, {"c", long}, {long, "d"}, {"c", "."}, {"c", ".."}} {
		_, ok := s.Begin(k, t0)
		assert.False(t, ok)
	}
	put(t, s, "c", "a", t0, func(u *Update) {
		assert.Equal(t, 0, u.GPU("0"))
		assert.Equal(t, 1, u.GPU("1"))
		assert.Equal(t, -1, u.GPU("2"))
		assert.Equal(t, -1, u.GPU(long))
		assert.Equal(t, -1, u.GPU(""))
		for i := range 2 * maxXids {
			u.SetXid(0, Xid{Code: i, Count: 1}, true)
			u.SetReason(0, HealthReason{Reason: strconv.Itoa(i)}, true)
			u.SetThrottle(0, strconv.Itoa(i), true)
		}
		u.SetState(long, true)
		u.SetGroup(long)
		u.Set(reading.NodeHealthScore, math.Inf(1))
	})
	v, _ := s.Node(Key{"c", "a"}, t0)
	assert.Len(t, v.GPUs[0].Xids, maxXids)
	assert.Len(t, v.GPUs[0].Reasons(), maxReasons)
	assert.Len(t, v.GPUs[0].Throttles(), maxThrottles)
	assert.Empty(t, v.State)
	assert.Nil(t, v.Values.Get(reading.NodeHealthScore), "JSON has no infinity")

	assert.True(t, s.UpdateGroup(GroupKey{"c", "g"}, t0, func(*GroupUpdate) {}))
	for _, id := range []string{"1", "2", "3"} {
		s.PutEpisode(&episode.Episode{ID: id, Since: t0})
	}
	assert.Equal(t, map[string]int64{
		"no_node": 5, "max_gpus_per_node": 1, "max_episodes": 1,
		"max_details": 2*maxXids - maxXids + 2*maxXids - maxReasons + 2*maxXids - maxThrottles, "text_too_long": 3,
	}, dropped(s))
}

func TestExpiry(t *testing.T) {
	cfg := DefaultConfig()
	s := New(cfg)
	put(t, s, "c", "old", t0, nil)
	put(t, s, "c", "new", t0.Add(time.Hour), nil)
	s.UpdateGroup(GroupKey{"c", "g"}, t0, func(*GroupUpdate) {})
	views := slices.Collect(s.Each(&Filter{}, t0))
	assert.Equal(t, []string{"c/new", "c/old"}, names(views))
	assert.Zero(t, s.Expire(t0.Add(cfg.NodeExpiry)))
	assert.Equal(t, 1, s.Expire(t0.Add(cfg.NodeExpiry+time.Millisecond)))
	views = slices.Collect(s.Each(&Filter{}, t0))
	assert.Equal(t, []string{"c/new"}, names(views))
	assert.Empty(t, s.Groups())
	assert.Equal(t, leastNode, s.bytes.Taken())
	put(t, s, "c", "another", t0, nil) // there is room again
	assert.Equal(t, 2, s.Nodes())
}

// TestForgottenWhileItReports expires nodes during an update, which is not lost.
func TestForgottenWhileItReports(t *testing.T) {
	s := New(DefaultConfig())
	put(t, s, "c", "n", t0, nil)
	late := t0.Add(25 * time.Hour)
	u, ok := s.Begin(Key{"c", "n"}, late)
	require.True(t, ok)
	fresh, ok := s.Begin(Key{"c", "fresh"}, late)
	require.True(t, ok)
	assert.Zero(t, s.Expire(late), "both are being written to")
	u.Set(reading.NodeHealthScore, 1)
	u.Commit(late)
	fresh.Commit(late)
	views := slices.Collect(s.Each(&Filter{}, late))
	assert.Equal(t, []string{"c/fresh", "c/n"}, names(views))
	assert.InDelta(t, 1, *views[1].Values.Get(reading.NodeHealthScore), 0)

	// Between the look for a node and the lock.
	e := s.find(Key{"c", "n"})
	much := late.Add(25 * time.Hour)
	require.Equal(t, 2, s.Expire(much))
	_, ok = s.lock(e, much)
	assert.False(t, ok)
	put(t, s, "c", "n", much, nil)
	views = slices.Collect(s.Each(&Filter{}, much))
	assert.Equal(t, []string{"c/n"}, names(views))
}

func TestGPUExpiry(t *testing.T) {
	s := New(DefaultConfig())
	expiry := DefaultConfig().GPUExpiry
	report := func(at time.Time, uuids ...string) {
		put(t, s, "c", "n", at, func(u *Update) {
			for _, id := range uuids {
				u.SetGPU(u.GPU(id), reading.Temperature, 50)
			}
		})
	}
	count := func() int { v, _ := s.Node(Key{"c", "n"}, t0); return len(v.GPUs) }
	report(t0, "a", "b", "c")
	report(t0.Add(expiry), "c", "a")
	assert.Equal(t, 3, count())
	report(t0.Add(expiry+gpuCheck), "c", "a")
	assert.Equal(t, 2, count(), "b is gone, the others are not")
	v, _ := s.Node(Key{"c", "n"}, t0)
	assert.Equal(t, []string{"a", "c"}, []string{v.GPUs[0].UUID, v.GPUs[1].UUID})
	put(t, s, "c", "n", t0.Add(expiry+time.Minute), func(u *Update) { u.SetGPU(u.KnownGPU("a"), reading.Temperature, math.NaN()) })
	assert.Equal(t, 1, count(), "nothing is known of a any more")
	assert.Equal(t, t0.Add(expiry+gpuCheck).UnixMilli(), v.GPUs[1].Reported().UnixMilli())
}

// TestGPUReplaced reports another GPU at a bus address: the former one goes at once, with its
// slices, and nothing else does.
func TestGPUReplaced(t *testing.T) {
	s := New(DefaultConfig())
	report := func(second int, gpus ...string) {
		put(t, s, "c", "n", t0.Add(time.Duration(second)*time.Second), func(u *Update) {
			for _, text := range gpus {
				f := strings.Split(text, "@")
				i := u.GPU(f[0])
				u.SetInfo(i, Info{Index: -1, BusID: f[1]})
				u.SetParent(i, f[2])
				u.SetGPU(i, reading.Temperature, 50)
			}
		})
	}
	list := func() string {
		v, _ := s.Node(Key{"c", "n"}, t0)
		var uuids []string
		for i := range v.GPUs {
			uuids = append(uuids, v.GPUs[i].UUID)
		}
		return strings.Join(uuids, " ")
	}
	report(0, "a@18@", "slice@18@a", "b@2a@", "c@@")
	report(1, "d@@")
	assert.Equal(t, "a slice b c d", list(), "without an address it replaces nothing")
	report(2, "e@18@")
	assert.Equal(t, "b c d e", list())
	report(3, "slice2@18@e", "slice3@2a@b")
	assert.Equal(t, "b c d e slice2 slice3", list(), "slices share the address of their GPU")
	report(4, "f@3b@", "g@3b@")
	assert.Equal(t, "b c d e slice2 slice3 f g", list(), "in one report neither is older")
	report(5, "h@2a@", "slice3@2a@b")
	assert.Equal(t, "c d e slice2 slice3 f g h", list(), "a slice of the same report stays")
}

// The API's tests have the plain selections and the pages.
func TestFilters(t *testing.T) {
	s := New(DefaultConfig())
	put(t, s, "c1", "a1", t0, func(u *Update) {
		u.SetState("active", true)
		u.Set(reading.NodeStraggler, 1)
		u.SetGPU(u.GPU("0"), reading.Utilization, 0.9)
		u.SetGPU(u.GPU("1"), reading.Utilization, 0.5)
		u.SetHealth(1, Degraded, true)
	})
	put(t, s, "c1", "a2", t0, func(u *Update) {
		u.SetState("idle", true)
		u.SetHealth(u.GPU("0"), Healthy, true)
		u.SetGPU(0, reading.Utilization, 0)
	})
	put(t, s, "c2", "b1", t0.Add(-time.Hour), func(u *Update) {
		u.SetState("active", true)
		u.Set(reading.NodeStraggler, 1) // before it went missing
		u.SetGPU(u.GPU("0"), reading.Utilization, 1)
	})
	yes, no := true, false
	for name, tc := range map[string]struct {
		f    Filter
		want []string
	}{
		"prefix":        {Filter{Nodes: []string{"a*"}}, []string{"c1/a1", "c1/a2"}},
		"active":        {Filter{States: []string{"active"}}, []string{"c1/a1"}},
		"missing":       {Filter{States: []string{"missing"}}, []string{"c2/b1"}},
		"unknown":       {Filter{Health: []string{"unknown"}}, []string{"c2/b1"}},
		"straggler":     {Filter{Straggler: &yes}, []string{"c1/a1"}},
		"no straggler":  {Filter{Straggler: &no}, []string{"c1/a2", "c2/b1"}},
		"usage":         {Filter{MinUtilization: 0.7}, []string{"c1/a1"}},
		"greater usage": {Filter{MinUtilization: 0.71}, []string{}},
		"overlapping":   {Filter{Nodes: []string{"a1", "a*", "a1", "a"}}, []string{"c1/a1", "c1/a2"}},
		"no such name":  {Filter{Nodes: []string{"a", "a3", "z*", ""}}, []string{}},
	} {
		views := slices.Collect(s.Each(&tc.f, t0))
		assert.Equal(t, tc.want, names(views), name)
	}
	put(t, s, "c0", "a1", t0, nil)
	views := slices.Collect(s.Each(&Filter{Nodes: []string{"a1"}}, t0))
	assert.Equal(t, []string{"c0/a1", "c1/a1"}, names(views))
}

func TestRanking(t *testing.T) {
	s := New(DefaultConfig())
	for name, v := range map[string][3]float64{ // straggler, suspicion, score; NaN is unknown
		"flagged":    {1, 0.2, 0.9},
		"suspect":    {0, 0.9, 0.9},
		"suspected":  {0, 0.3, 0.95},
		"low score":  {0, 0, 0.5},
		"high score": {0, 0, 1},
		"only score": {math.NaN(), math.NaN(), 0.8},
		"nothing":    {math.NaN(), math.NaN(), math.NaN()},
	} {
		put(t, s, "c", name, t0, func(u *Update) {
			u.SetGroup("g")
			u.Set(reading.NodeStraggler, v[0])
			u.Set(reading.NodeSuspicion, v[1])
			u.Set(reading.NodeHealthScore, v[2])
		})
	}
	put(t, s, "c", "missing", t0.Add(-time.Hour), func(u *Update) { u.Set(reading.NodeStraggler, 1) })
	s.UpdateGroup(GroupKey{"c", "g"}, t0, func(u *GroupUpdate) { u.Set(reading.GroupMedian, 1) })
	want := []string{"c/flagged", "c/suspect", "c/suspected", "c/low score", "c/only score", "c/high score"}
	var got []string
	for i, v := range s.Stragglers(&Filter{}, t0) {
		assert.Equal(t, i+1, v.Place)
		got = append(got, v.Cluster+"/"+v.Key.Node)
	}
	assert.Equal(t, want, got)
}

func TestEpisodeRing(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxEpisodes, cfg.ClusterShare = 3, 1
	s := New(cfg)
	for i := range 5 {
		id := strconv.Itoa(i)
		since := t0.Add(time.Duration(i) * time.Minute)
		require.True(t, s.PutEpisode(&episode.Episode{ID: id, Cluster: "c", Node: "n" + id, Since: since, Updated: since, Reason: "why", Holders: []reading.Holder{{Job: "12"}}}))
		require.True(t, s.PutEpisode(&episode.Episode{ID: id, Cluster: "c", Node: "n" + id, Since: since, Updated: since.Add(time.Second), Ended: since.Add(time.Second)}))
	}
	last := &episode.Episode{ID: "open", Cluster: "d", Node: "m", Nodes: []string{"n4"}, Since: t0, Updated: t0.Add(time.Hour)}
	require.True(t, s.PutEpisode(last))
	assert.False(t, s.PutEpisode(&episode.Episode{ID: "open", Cluster: "d", Node: "m", Updated: t0}), "an older record comes too late")
	list := func(f EpisodeFilter) string {
		var ids []string
		for _, e := range s.Episodes(&f) {
			ids = append(ids, e.ID)
		}
		return strings.Join(ids, " ")
	}
	assert.Equal(t, "4 3 2 open", list(EpisodeFilter{}))
	assert.Equal(t, "4 3 open", list(EpisodeFilter{Since: t0.Add(3*time.Minute + time.Second)}), "3 ended at that time")
	assert.Equal(t, "4 open", list(EpisodeFilter{Nodes: []string{"n4"}}))
	assert.Equal(t, "why", s.Episodes(&EpisodeFilter{Nodes: []string{"n4"}})[0].Reason, "what it was is known from its onset")
	assert.Equal(t, []reading.Holder{{Job: "12"}}, s.Episodes(&EpisodeFilter{Nodes: []string{"n4"}})[0].Holders)
}

// TestConcurrency has writers, readers, watchers and expiry at once; the race
// detector looks on.
func TestConcurrency(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxBytes, cfg.ClusterShare = 50*leastNode, 1
	s := New(cfg)
	f := NewFeed(s)
	var wg sync.WaitGroup
	const rounds = 300
	for w := range 4 {
		wg.Go(func() {
			for i := range rounds {
				now := t0.Add(time.Duration(i) * time.Minute)
				u, ok := s.Begin(Key{"c", strconv.Itoa((i + w) % 60)}, now)
				if ok {
					u.SetGPU(u.GPU(strconv.Itoa(i%3)), reading.Temperature, float64(i))
					u.SetThrottle(0, strconv.Itoa(i%5), i%2 == 0)
					u.Commit(now)
				}
				s.UpdateGroup(GroupKey{"c", strconv.Itoa(i % 5)}, now, func(u *GroupUpdate) { u.SetNodes("active", float64(i)) })
				s.PutEpisode(&episode.Episode{ID: strconv.Itoa(i % 9), Since: now, Updated: now})
				s.Expire(now)
			}
		})
		wg.Go(func() {
			watch := f.Watch(Filter{Nodes: []string{"1*"}, MinUtilization: float64(w % 2)})
			defer watch.Close()
			watch.Full(t0, func(v View) bool { return v.MaxCelsius >= 0 || v.Node != nil })
			for range rounds {
				watch.Changes(t0, func(Change) bool { return true })
				for range s.Each(&Filter{States: []string{"missing"}}, t0) { // reads
				}
				s.Stragglers(&Filter{}, t0)
				s.Episodes(&EpisodeFilter{})
			}
		})
	}
	wg.Go(func() {
		for i := range rounds {
			f.Advance(t0.Add(time.Duration(i) * time.Minute))
		}
	})
	wg.Wait()
	assert.Zero(t, f.Watchers())
}

func TestGroupViewsDoNotChange(t *testing.T) {
	s := New(DefaultConfig())
	k := GroupKey{"c", "g"}
	s.UpdateGroup(k, t0, func(u *GroupUpdate) { u.SetNodes("active", 1) })
	before, _ := s.Group(k)
	s.UpdateGroup(k, t0, func(u *GroupUpdate) { u.SetNodes("active", 2) })
	assert.Equal(t, int64(1), before.Nodes["active"], "a view changed under its reader")
	after, _ := s.Group(k)
	assert.Equal(t, int64(2), after.Nodes["active"])
}

// A subject has no numbers of another one.
func TestNumbersOfAnotherSubject(t *testing.T) {
	s := New(DefaultConfig())
	put(t, s, "c", "n", t0, func(u *Update) { u.Set(reading.NodeHealthScore, 0.9) })
	v, ok := s.Node(Key{"c", "n"}, t0)
	require.True(t, ok)
	for _, f := range append(GPUNumbers[:], GroupNumbers[:]...) {
		assert.Nil(t, v.Values.Get(f))
	}
	assert.Panics(t, func() { new(Node).Values.set(reading.Up, 1) })
}
