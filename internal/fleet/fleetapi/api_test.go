// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newAPI(change func(*Options)) *API {
	s := fleetstate.New(fleetstate.DefaultConfig())
	o := Options{Store: s, Feed: fleetstate.NewFeed(s), Clients: 10, Version: "v1", Now: func() time.Time { return t0 }}
	if change != nil {
		change(&o)
	}
	return New(o)
}

func put(a *API, cluster, node string, seen time.Time, f func(*fleetstate.Update)) {
	u, ok := a.o.Store.Begin(fleetstate.Key{Cluster: cluster, Node: node}, t0)
	if !ok {
		panic("no room")
	}
	if f != nil {
		f(&u)
	}
	u.Commit(seen)
}

// fleet is three nodes of two clusters, one of them a straggler with a sick GPU.
func fleet(a *API) {
	put(a, "c1", "n1", t0.Add(-2*time.Second), func(u *fleetstate.Update) {
		u.SetGroup("g")
		u.SetState("active", true)
		u.Set(reading.NodeStraggler, 1)
		u.Set(reading.NodeHealthScore, 0.5)
		u.SetSignal(nodesignal.Throughput, 0.02)
		for i, id := range []string{"GPU-b", "GPU-a"} {
			g := u.GPU(id)
			u.SetInfo(g, fleetstate.Info{Index: 1 - i, Model: "H100"})
			u.SetGPU(g, reading.Utilization, 0.5+0.4*float64(i))
			u.SetHealth(g, fleetstate.Healthy, true)
			u.SetUp(g, 1, "ok")
		}
		u.SetHealth(0, fleetstate.Unhealthy, true)
		u.SetUp(0, 0, "lost")
		u.SetReason(0, fleetstate.HealthReason{Reason: "lost", Action: "reboot"}, true)
		u.SetXid(0, fleetstate.Xid{Code: 79, Class: "fatal", Count: 1}, true)
		u.SetThrottle(1, "hw_thermal", true)
		for i, f := range []reading.Field{reading.RankShare, reading.RankShareMedian, reading.RankRate, reading.RankRateMedian} {
			u.Set(f, float64(i+1))
		}
	})
	put(a, "c1", "n2", t0.Add(-time.Second), func(u *fleetstate.Update) {
		u.SetGroup("g")
		u.SetState("active", true)
		u.Set(reading.NodeStraggler, 0)
		u.Set(reading.NodeHealthScore, 0.99)
		u.SetGPU(u.GPU("GPU-c"), reading.Power, 300)
	})
	put(a, "c2", "n1", t0.Add(-time.Hour), nil)
	a.o.Store.UpdateGroup(fleetstate.GroupKey{Cluster: "c1", Group: "g"}, t0, func(u *fleetstate.GroupUpdate) {
		u.Set(reading.GroupMedian, 0.98)
		u.Set(reading.GroupQuorum, 1)
		u.SetMedian(nodesignal.Throughput, 0.05)
		u.SetScale(nodesignal.Throughput, 0.01)
		u.SetThreshold(nodesignal.Throughput, 0.04)
		u.SetNodes("active", 2)
	})
	gap := 0.6
	a.o.Store.PutEpisode(&episode.Episode{
		ID: "e1", Subject: "node", Cluster: "c1", Group: "g", Node: "n1", Since: t0.Add(-time.Minute), Updated: t0.Add(-time.Minute),
		Gap: &gap, Evidence: []episode.Evidence{{Fact: "hot"}},
	})
	a.o.Store.PutEpisode(&episode.Episode{
		ID: "e0", Subject: "node", Cluster: "c1", Node: "n2", Since: t0.Add(-time.Hour), Updated: t0.Add(-50 * time.Minute), Ended: t0.Add(-50 * time.Minute),
	})
}

// An operator asks which nodes and GPUs a job has, and whether one is sick.
func TestJobs(t *testing.T) {
	a := newAPI(nil)
	fleet(a)
	put(a, "c1", "n1", t0, func(u *fleetstate.Update) {
		u.SetHolder(u.GPU("GPU-b"), reading.Holder{Job: "12"}, true)
		u.SetHolder(u.GPU("GPU-b"), reading.Holder{Pod: "p", Namespace: "ns", Container: "main"}, true)
		u.SetHolder(u.GPU("GPU-a"), reading.Holder{Job: "13"}, true)
	})
	put(a, "c1", "n2", t0, func(u *fleetstate.Update) { u.SetFacts(fleetstate.Facts{JobID: "14"}) })
	for query, want := range map[string][]string{"12": {"n1"}, "p": {"n1"}, "13,14": {"n1", "n2"}, "1": nil} {
		var nodes []string
		for _, n := range get200[NodePage](t, a, "/api/v1/nodes?job="+query).Nodes {
			nodes = append(nodes, n.Node)
		}
		assert.Equal(t, want, nodes, query)
	}
	gpus := get200[GPUPage](t, a, "/api/v1/gpus?job=12").GPUs
	require.Len(t, gpus, 1)
	assert.Equal(t, "unhealthy", gpus[0].Health)
	assert.Equal(t, []reading.Holder{{Pod: "p", Namespace: "ns", Container: "main"}, {Job: "12"}}, gpus[0].Allocations)
}

// TestWhyThereIsNoVerdict: nodes and groups have a reason and a sentence, nodes an end.
func TestWhyThereIsNoVerdict(t *testing.T) {
	a := newAPI(nil)
	fleet(a)
	until := t0.Add(time.Minute)
	why := func(code float64, until time.Time) Node {
		put(a, "c1", "n2", t0, func(u *fleetstate.Update) {
			u.SetState("active", true)
			u.Set(reading.NodeUnjudged, code)
			u.Set(reading.NodeUnjudgedUntil, float64(until.Unix()))
		})
		return get200[Node](t, a, "/api/v1/nodes/n2?cluster=c1")
	}
	n := why(float64(unjudged.Calibrating), until)
	assert.Equal(t, "calibrating", n.Unjudged)
	assert.Equal(t, unjudged.Calibrating.Sentence(), n.UnjudgedText)
	require.NotNil(t, n.UnjudgedUntil)
	assert.True(t, n.UnjudgedUntil.Equal(until))
	n = why(float64(unjudged.FewPeers), t0.Add(-time.Minute))
	assert.Equal(t, "too_few_peers", n.Unjudged)
	assert.Nil(t, n.UnjudgedUntil, "that was before")
	n = why(0, until)
	assert.Empty(t, n.Unjudged+n.UnjudgedText)

	a.o.Store.UpdateGroup(fleetstate.GroupKey{Cluster: "c1", Group: "g"}, t0, func(u *fleetstate.GroupUpdate) {
		u.SetUnjudged("idle", 2)
		u.SetUnjudged("contested", 0)
		u.Set(reading.GroupDetectable, 2.5)
	})
	g := get200[GroupPage](t, a, "/api/v1/groups?cluster=c1").Groups[0]
	assert.Equal(t, map[string]int64{"idle": 2}, g.Unjudged)
	assert.Equal(t, unjudged.Idle.Sentence(), g.UnjudgedText, "of both nodes")
	assert.InDelta(t, 0.025, *g.Detectable, 0)
	a.o.Store.UpdateGroup(fleetstate.GroupKey{Cluster: "c1", Group: "g"}, t0, func(u *fleetstate.GroupUpdate) { u.SetUnjudged("idle", 1) })
	assert.Empty(t, get200[GroupPage](t, a, "/api/v1/groups?cluster=c1").Groups[0].UnjudgedText, "one of them is judged")
}

func ask(a *API, target string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	a.ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, http.NoBody))
	return w
}

func get200[T any](t *testing.T, a *API, target string) T {
	t.Helper()
	w := ask(a, target)
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	assert.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	var out T
	dec := json.NewDecoder(w.Body)
	dec.DisallowUnknownFields()
	require.NoError(t, dec.Decode(&out))
	return out
}

func pageText(names []string, p Page) string {
	text := strings.TrimSpace(fmt.Sprint(strings.Join(names, " "), " of ", p.Total))
	return text + map[bool]string{true: ", more"}[p.More]
}

func TestNodes(t *testing.T) {
	a := newAPI(nil)
	fleet(a)
	for query, want := range map[string]string{
		"":                                  "c1/n1 c1/n2 c2/n1 of 3",
		"?limit=1&page=2":                   "c1/n2 of 3, more",
		"?page=9":                           "of 3",
		"?node=n1,n2&cluster=c1":            "c1/n1 c1/n2 of 2",
		"?node=n*&health=unhealthy":         "c1/n1 of 1",
		"?health=unknown,unhealthy":         "c1/n1 c1/n2 c2/n1 of 3",
		"?straggler=true":                   "c1/n1 of 1",
		"?state=active&min_utilization=0.9": "c1/n1 of 1",
		"?group=g":                          "c1/n1 c1/n2 of 2",
		"?cluster=":                         "c1/n1 c1/n2 c2/n1 of 3",
	} {
		t.Run(query, func(t *testing.T) {
			out := get200[NodePage](t, a, "/api/v1/nodes"+query)
			var names []string
			for _, n := range out.Nodes {
				names = append(names, n.Cluster+"/"+n.Node)
				assert.Nil(t, n.GPUs)
			}
			assert.Equal(t, want, pageText(names, out.Page))
		})
	}
	assert.Len(t, get200[NodePage](t, a, "/api/v1/nodes?gpus=true").Nodes[0].GPUs, 2)
}

// TestCursor: nodes that come and go between two pages neither skip nor repeat one that stays.
func TestCursor(t *testing.T) {
	for _, path := range []string{"nodes", "gpus", "stragglers", "attention", "episodes", "groups"} {
		rapid.Check(t, func(t *rapid.T) {
			a := newAPI(nil)
			add := func(name string, slow float64) {
				k := fleetstate.Key{Cluster: "c", Node: name}
				u, _ := a.o.Store.Begin(k, t0)
				u.Set(reading.NodeStraggler, 1)
				u.Set(reading.NodeSuspicion, slow)
				u.SetGPU(u.GPU("GPU-"+name), reading.Power, 300)
				u.Commit(t0)
				a.o.Store.UpdateGroup(fleetstate.GroupKey{Cluster: "c", Group: name}, t0, func(u *fleetstate.GroupUpdate) { u.Set(reading.GroupQuorum, 1) })
				a.o.Store.PutEpisode(&episode.Episode{ID: name, Phase: episode.PhaseOnset, Subject: episode.SubjectNode, Cluster: "c", Node: name, Since: t0.Add(-time.Duration(100*slow) * time.Second), Updated: t0})
			}
			slow := rapid.Float64Range(-1, 2)
			for i := range rapid.IntRange(1, 30).Draw(t, "nodes") {
				add(fmt.Sprintf("stays-%02d", i), slow.Draw(t, "slow"))
			}
			limit, seen, after := rapid.IntRange(1, 7).Draw(t, "limit"), map[string]int{}, ""
			for page := 0; page == 0 || after != ""; page++ {
				w := ask(a, fmt.Sprintf("/api/v1/%s?limit=%d&after=%s", path, limit, after))
				require.Equal(t, http.StatusOK, w.Code, w.Body)
				var out struct {
					Next  string
					Total int
					More  bool
				}
				require.NoError(t, json.Unmarshal(w.Body.Bytes(), &out))
				require.Equal(t, out.More, out.Next != "")
				for i := range 30 {
					name := fmt.Sprintf("stays-%02d", i)
					seen[name] += min(1, strings.Count(w.Body.String(), name))
				}
				after = out.Next
				add(rapid.StringMatching(`[a-z]{1,3}`).Draw(t, "another"), slow.Draw(t, "slow"))
			}
			for name, times := range seen {
				if _, there := a.o.Store.Node(fleetstate.Key{Cluster: "c", Node: name}, t0); there {
					require.Equal(t, 1, times, name)
				}
			}
		})
	}
	a := newAPI(nil)
	for _, wrong := range []string{"after=x", "after=bnVsbA", "after=WyJjIl0&page=2"} {
		w := ask(a, "/api/v1/nodes?"+wrong)
		assert.Equal(t, http.StatusUnprocessableEntity, w.Code, wrong)
		assert.Contains(t, w.Body.String(), "query.after")
	}
}

// TestValuesWithCommas: a comma of a value has a backslash before it.
func TestValuesWithCommas(t *testing.T) {
	a := newAPI(nil)
	for _, name := range []string{"a", "b", "a,b", `a\`, `\n`} {
		put(a, "c", name, t0, nil)
	}
	for names, want := range map[string][]string{
		"a,b": {"a", "b"}, `a\,b`: {"a,b"}, `a\\,b`: {`a\`, "b"}, `a\,b,a`: {"a", "a,b"}, `a\,*`: {"a,b"}, `a\`: {`a\`}, `\n`: {`\n`}, ",": {}, `\,`: {},
	} {
		got := []string{}
		for _, n := range get200[NodePage](t, a, "/api/v1/nodes?node="+url.QueryEscape(names)).Nodes {
			got = append(got, n.Node)
		}
		assert.Equal(t, want, got, names)
	}
	assert.Equal(t, "a,b", get200[Node](t, a, "/api/v1/nodes/a%2Cb").Node)
	assert.Equal(t, http.StatusUnprocessableEntity, ask(a, "/api/v1/nodes?node="+strings.Repeat("a,", 1000)).Code, "bounded as ever")
}

func TestNode(t *testing.T) {
	a := newAPI(nil)
	fleet(a)
	n := get200[Node](t, a, "/api/v1/nodes/n1?cluster=c1")
	assert.InDelta(t, 2, n.AgeSeconds, 1e-9)
	assert.Equal(t, t0.Add(-2*time.Second), n.LastSeen)
	assert.Equal(t, []string{"g", "active", "unhealthy"}, []string{n.Group, n.State, n.Health})
	assert.True(t, n.Straggler)
	require.Len(t, n.Signals, 3)
	assert.Equal(t, []Signal{{Signal: "communication", Value: 1, Median: new(2.0)}, {Signal: "own_time", Value: 1.0 / 3, Median: new(1.0 / 4)}}, n.Signals[1:], "of ranks")
	assert.InDelta(t, 0.05, *n.Signals[0].Median, 0)
	assert.InDelta(t, 0.04, *n.Signals[0].Threshold, 0)
	require.Len(t, n.GPUs, 2)
	assert.Equal(t, []string{"GPU-a", "GPU-b"}, []string{n.GPUs[0].UUID, n.GPUs[1].UUID}, "in the order of their indices")
	g := n.GPUs[1]
	assert.False(t, *g.Up)
	assert.Equal(t, "lost", g.UpReason)
	assert.Equal(t, []fleetstate.HealthReason{{Reason: "lost", Action: "reboot"}}, g.Reasons)
	assert.Equal(t, []fleetstate.Xid{{Code: 79, Class: "fatal", Count: 1}}, g.Xids)
	assert.Equal(t, []string{"hw_thermal"}, n.GPUs[0].Throttles)
	assert.Nil(t, g.Temperature)
	assert.Equal(t, t0, g.LastReported)
	a.o.Now = func() time.Time { return t0.Add(time.Minute) }
	assert.InDelta(t, 60, get200[Node](t, a, "/api/v1/nodes/n1?cluster=c1").GPUs[1].ReportedAgeSeconds, 1e-9)
	a.o.Now = func() time.Time { return t0 }

	assert.Len(t, get200[Node](t, a, "/api/v1/nodes/n2").GPUs, 1, "the only one of its name")
	assert.Equal(t, n.GPUs, get200[NodeGPUs](t, a, "/api/v1/nodes/n1/gpus?cluster=c1").GPUs)
	missing := get200[Node](t, a, "/api/v1/nodes/n1?cluster=c2")
	assert.Equal(t, "missing", missing.State)
	assert.InDelta(t, 3600, missing.AgeSeconds, 1e-9)
}

func TestGPUs(t *testing.T) {
	a := newAPI(nil)
	fleet(a)
	for query, want := range map[string]string{
		"":                           "GPU-a GPU-b GPU-c of 3",
		"?limit=1&page=2":            "GPU-b of 3, more",
		"?health=unhealthy":          "GPU-b of 1",
		"?min_utilization=0.6":       "GPU-a of 1",
		"?node=n2":                   "GPU-c of 1",
		"?cluster=c2":                "of 0",
		"?cluster=c1&health=unknown": "GPU-c of 1",
	} {
		t.Run(query, func(t *testing.T) {
			out := get200[GPUPage](t, a, "/api/v1/gpus"+query)
			var names []string
			for _, g := range out.GPUs {
				names = append(names, g.UUID)
				assert.NotZero(t, g.AgeSeconds)
			}
			assert.Equal(t, want, pageText(names, out.Page))
		})
	}
}

// TestOpenEpisodeOfANode: its own, or else that of many nodes which names it.
func TestOpenEpisodeOfANode(t *testing.T) {
	a := newAPI(nil)
	fleet(a)
	assert.Nil(t, get200[Node](t, a, "/api/v1/nodes/n2").Episode, "the one it had is over")
	a.o.Store.PutEpisode(&episode.Episode{
		ID: "many", Subject: episode.SubjectGroup, Cluster: "c1", Group: "g", Nodes: []string{"n1", "n2"}, Since: t0.Add(-time.Hour), Updated: t0,
	})
	for node, want := range map[string]string{"n1?cluster=c1": "e1", "n2": "many"} {
		n := get200[Node](t, a, "/api/v1/nodes/"+node)
		require.NotNil(t, n.Episode, node)
		assert.Equal(t, want, n.Episode.ID)
		assert.Equal(t, new(0.98), n.GroupMedian)
	}
	for _, s := range get200[StragglerList](t, a, "/api/v1/stragglers?cluster=c1").Stragglers {
		require.NotNil(t, s.Episode)
		assert.Equal(t, map[string]string{"n1": "e1", "n2": "many"}[s.Node.Node], s.Episode.ID)
	}
	assert.Nil(t, get200[Node](t, a, "/api/v1/nodes/n1?cluster=c2").Episode, "the name of another cluster's node")
}

func TestFleet(t *testing.T) {
	a := newAPI(nil)
	fleet(a)
	ranking := get200[StragglerList](t, a, "/api/v1/stragglers?limit=1")
	assert.Equal(t, 2, ranking.Total)
	require.Len(t, ranking.Stragglers, 1)
	first := ranking.Stragglers[0]
	assert.Equal(t, []any{1, "n1", 0.98, "e1"}, []any{first.Place, first.Node.Node, *first.GroupMedian, first.Episode.ID})

	for query, want := range map[string]string{"": "e1 e0", "?open=true": "e1", "?open=false": "e0", "?node=n2": "e0", "?cluster=c2": "", "?since=2026-01-02T02:30:00Z": "e1"} {
		var ids []string
		for _, e := range get200[EpisodePage](t, a, "/api/v1/episodes"+query).Episodes {
			ids = append(ids, e.ID)
		}
		assert.Equal(t, want, strings.Join(ids, " "), query)
	}
	list := get200[EpisodePage](t, a, "/api/v1/episodes").Episodes
	assert.InDelta(t, 60, list[0].Duration, 1e-9)
	assert.InDelta(t, 600, list[1].Duration, 1e-9)
	assert.Equal(t, []episode.Evidence{{Fact: "hot"}}, list[0].Evidence)

	groups := get200[GroupPage](t, a, "/api/v1/groups").Groups
	require.Len(t, groups, 1)
	assert.True(t, groups[0].QuorumMet)
	assert.Equal(t, []GroupSignal{{"throughput", 0.05, new(0.01), new(0.04)}}, groups[0].Signals)
	assert.Empty(t, get200[GroupPage](t, a, "/api/v1/groups?cluster=c2").Groups)

	// The last report of a missing node does not count.
	put(a, "c2", "n1", t0.Add(-time.Hour), func(u *fleetstate.Update) {
		u.Set(reading.NodeStraggler, 1)
		g := u.GPU("GPU-d")
		u.SetGPU(g, reading.Utilization, 1)
		u.SetGPU(g, reading.Power, 700)
		u.SetHealth(g, fleetstate.Unhealthy, true)
		u.SetUp(g, 0, "lost")
	})
	put(a, "c1", "n2", t0, func(u *fleetstate.Update) {
		g := u.GPU("MIG-a")
		u.SetParent(g, "GPU-a")
		u.SetUp(g, 0, "lost")
	})
	assert.False(t, get200[Node](t, a, "/api/v1/nodes/n1?cluster=c2").Straggler)
	assert.Equal(t, 1, get200[NodePage](t, a, "/api/v1/nodes?straggler=true").Total)
	sum := get200[Summary](t, a, "/api/v1/stats/summary")
	usage, watts := 0.9, 300.0
	assert.Equal(t, Summary{
		At: t0, Clusters: 2, Groups: 1, Nodes: 3, GPUs: 3, NodesByState: map[string]int{"active": 2, "missing": 1},
		GPUsByHealth: map[string]int{"unknown": 1, "healthy": 1, "degraded": 0, "unhealthy": 1}, GPUsDown: 1,
		Stragglers: 1, OpenEpisodes: 1, Utilization: &usage, Power: &watts, MaxAge: 3600,
	}, sum)
	assert.Equal(t, 2, get200[Summary](t, a, "/api/v1/stats/summary?cluster=c1").Nodes)

	assert.Equal(t, 1, get200[GPUPage](t, a, "/api/v1/gpus?min_utilization=0.6").Total)
	sum = get200[Summary](t, a, "/api/v1/stats/summary?cluster=c2")
	assert.Equal(t, []any{1, 0, 3600.0}, []any{sum.Nodes, sum.GPUs, sum.MaxAge})

	h := get200[Health](t, a, "/api/v1/health")
	assert.Equal(t, []any{"ok", "v1", 3, "none"}, []any{h.Status, h.Version, h.Nodes, h.History.Storage})
}

// TestSummaryOfWhatIsKnown has usage and power reported one without the other.
func TestSummaryOfWhatIsKnown(t *testing.T) {
	for field, want := range map[reading.Field][]*float64{
		reading.Utilization: {new(0.5), nil}, reading.Power: {nil, new(1.0)}, reading.Temperature: {nil, nil},
	} {
		a := newAPI(nil)
		for i, node := range []string{"n", "m"} {
			put(a, "c", node, t0, func(u *fleetstate.Update) { u.SetGPU(u.GPU("GPU-a"), field, 0.25+0.5*float64(i)) })
		}
		sum := get200[Summary](t, a, "/api/v1/stats/summary")
		assert.Equal(t, want, []*float64{sum.Utilization, sum.Power})
	}
}

// TestBadParameters asks with every kind of mistake: each answer names the
// parameter and what would be right.
func TestBadParameters(t *testing.T) {
	a := newAPI(nil)
	fleet(a)
	for target, want := range map[string][]string{
		"nodes?page=0":                            {"query.page", ">= 1"},
		"nodes?min_utilization=NaN":               {"query.min_utilization"},
		"nodes?straggler=maybe":                   {"query.straggler", "boolean"},
		"nodes?state=asleep":                      {"query.state", "active"},
		"nodes?helth=healthy":                     {"query.helth", "must be one of", "health"},
		"nodes?cluster=%zz":                       {"query: ", "%zz", "hexadecimal"},
		"nodes?cluster=c1;state=idle":             {"query: ", "semicolon", "joined by &"},
		"nodes?page=1&page=2":                     {"query.page", "once"},
		"nodes/n1":                                {"query.cluster", "must be one of c1, c2"},
		"nodes/n1/gpus":                           {"query.cluster", "must be one of c1, c2"},
		"gpus?health=fine":                        {"query.health", "unhealthy"},
		"episodes?since=yesterday":                {"query.since", "RFC 3339, such as 2026-01-02T03:04:05Z", "24h"},
		"episodes?open=2":                         {"query.open", "boolean"},
		"stats/summary?x=1":                       {"query.x", "must be one of cluster"},
		"health?x=1":                              {"query.x", "this operation has none"},
		"telemetry?since=2026-01-03T00:00:00Z":    {"query.since", "must not be after `until`"},
		"telemetry/aggregations?group_by=x":       {"query.group_by", "host"},
		"telemetry/aggregations?since=1":          {"query.since", "30m"},
		"telemetry/aggregations?since=999999999d": {"query.since", "3650d"},
		"telemetry/hosts/" + strings.Repeat("x", 254) + "/gpus": {"path.host", "253"},
	} {
		t.Run(target[:min(len(target), 60)], func(t *testing.T) {
			w := ask(a, "/api/v1/"+target)
			assert.Equal(t, http.StatusUnprocessableEntity, w.Code)
			assert.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
			var p huma.ErrorModel
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p), w.Body)
			require.NotEmpty(t, p.Errors)
			text := p.Errors[0].Location + ": " + p.Errors[0].Message
			for _, s := range want {
				assert.Contains(t, text, s)
			}
		})
	}
}

func TestNotThere(t *testing.T) {
	a := newAPI(func(o *Options) { o.Pages = http.NotFoundHandler() })
	for _, tt := range []struct {
		method, target string
		status         int
		detail         string
	}{
		{"GET", "/api/v1/nodes/n9", 404, "no node n9 is known"},
		{"GET", "/api/v1/nodes/n9?cluster=c", 404, `no cluster "c" is known`},
		{"GET", "/api/v1/nope", 404, "/docs/ and /api/v1/ list"},
		{"GET", "/api/v2/nodes", 404, "/docs/ and /api/v1/ list"},
		{"GET", "/api", 404, "/docs/ and /api/v1/ list"},
		{"POST", "/api/v1/nodes", 405, "only GET"},
		{"GET", "/api/v1/telemetry", 404, "`history::storage`"},
		{"GET", "/api/v1/telemetry/hosts", 404, "`history::storage`"},
		{"GET", "/api/v1/telemetry/hosts/n/gpus", 404, "`history::storage`"},
		{"GET", "/api/v1/nodes/n9/past", 404, "no node n9 is known"},
		{"GET", "/api/v1/nodes/n9/past?cluster=c", 404, "`history::storage`"},
		{"GET", "/api/v1/telemetry/aggregations?since=7d", 404, "`history::storage`"},
	} {
		w := httptest.NewRecorder()
		a.ServeHTTP(w, httptest.NewRequest(tt.method, tt.target, http.NoBody))
		assert.Equal(t, tt.status, w.Code, tt.target)
		assert.Equal(t, "application/problem+json", w.Header().Get("Content-Type"), tt.target)
		var p huma.ErrorModel
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p), w.Body)
		assert.Contains(t, p.Detail, tt.detail)
		assert.Equal(t, tt.status, p.Status)
	}
}

// history answers with what it has, and notes what it was asked.
type history struct {
	fleethistory.None
	samples []fleethistory.Sample
	q       *fleethistory.Query
	err     error
}

func (h *history) Samples(_ context.Context, q *fleethistory.Query, f func(*fleethistory.Sample) bool) error {
	h.q = q
	for i := range h.samples {
		if !f(&h.samples[i]) {
			break
		}
	}
	return h.err
}

func (h *history) Status() fleethistory.Status {
	return fleethistory.Status{Storage: "sqlite", Err: h.err, Dropped: 4, Oldest: t0}
}

func TestTelemetry(t *testing.T) {
	sample := func(v float64) fleethistory.Sample {
		return fleethistory.Sample{Cluster: "c", Node: "n", GPU: "g", Metric: "m", Attributes: `{"a":"1","b":"2"}`, At: t0.UnixMilli(), Value: v}
	}
	h := &history{samples: []fleethistory.Sample{sample(-1.7e308), sample(1.7e308), sample(1.7e308), sample(1.7e308)}}
	a := newAPI(func(o *Options) { o.History = h })
	out := get200[SamplePage](t, a, "/api/v1/telemetry?host=n,m&metric=x&page=3&limit=1&until=2026-01-01T00:00:00Z")
	end := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	assert.Equal(t, &fleethistory.Query{Hosts: []string{"n", "m"}, Metrics: []string{"x"}, Start: end.Add(-time.Hour), End: end, Offset: 2, Limit: 1}, h.q)
	assert.Equal(t, Page{Page: 3, Limit: 1, Total: 4, More: true}, out.Page)
	assert.Equal(t, []Sample{{At: t0, Cluster: "c", Host: "n", GPU: "g", Metric: "m", Attributes: map[string]string{"a": "1", "b": "2"}, Value: 1.7e308}}, out.Samples)

	sums := get200[AggregationList](t, a, "/api/v1/telemetry/aggregations?group_by=metric").Aggregations
	require.Len(t, sums, 1)
	assert.Equal(t, []any{int64(4), -1.7e308, 1.7e308, math.MaxFloat64}, []any{sums[0].Count, sums[0].Min, sums[0].Max, sums[0].Sum}, "JSON has no infinity")

	h.err = fleethistory.ErrTooMuch
	out = get200[SamplePage](t, a, "/api/v1/telemetry?limit=1")
	assert.Equal(t, Page{Page: 1, Limit: 1, Total: -1, More: true}, out.Page, "the page is known, the rest is not")
	assert.Equal(t, http.StatusUnprocessableEntity, ask(a, "/api/v1/telemetry?limit=5").Code)
	h.err = errors.New("disk is full")
	w := ask(a, "/api/v1/telemetry")
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.Contains(t, w.Body.String(), "disk is full")
	health := get200[Health](t, a, "/api/v1/health")
	assert.Equal(t, "degraded", health.Status)
	assert.Equal(t, HistoryHealth{Storage: "sqlite", Error: "disk is full", Dropped: 4, Oldest: &t0}, health.History)
}

func TestPagesLoadNothingFromElsewhere(t *testing.T) {
	a := newAPI(nil)
	for _, path := range []string{"/docs/", "/docs/docs.js", "/docs/docs.css"} {
		w := ask(a, path)
		require.Equal(t, http.StatusOK, w.Code, path)
		assert.NotContains(t, w.Body.String(), "://", path)
		assert.NotContains(t, w.Body.String(), "<script>", "the policy forbids scripts in the page")
		assert.Contains(t, w.Header().Get("Content-Security-Policy"), "default-src 'self'")
		assert.NotContains(t, w.Header().Get("Content-Security-Policy"), "unsafe")
	}
}

// A GPU that does not answer has no reading of before as one of now, in its node's figures
// neither: its limits, and when it last answered.
func TestALostGPUHasNoReadings(t *testing.T) {
	a := newAPI(nil)
	report := func(at time.Time, up float64) {
		put(a, "c", "n", at, func(u *fleetstate.Update) {
			g := u.GPU("GPU-0")
			for _, f := range fleetstate.GPUNumbers {
				u.SetGPU(g, f, 50)
			}
			u.SetThrottle(g, "power_cap", true)
			u.SetUp(g, up, "lost")
		})
	}
	report(t0.Add(-time.Minute), 1)
	report(t0.Add(-time.Second), 0)
	n := get200[Node](t, a, "/api/v1/nodes/n")
	got, limit := n.GPUs[0], new(50.0)
	assert.Equal(t, []*float64{nil, nil, nil}, []*float64{n.Utilization, n.MaxTemperature, n.Power})
	want := GPU{
		UUID: "GPU-0", Up: new(false), UpReason: "lost", DownSince: new(t0), Health: "unknown",
		LastReported: got.LastReported, Reasons: []fleetstate.HealthReason{}, Throttles: []string{}, Xids: []fleetstate.Xid{},
		HealthScore: limit, TemperatureLimit: limit, PowerLimit: limit, SMClockLimit: limit, MemoryLimit: limit, PCIeWidthMax: limit,
	}
	assert.Equal(t, want, got)
}
