// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/verdict/attention"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// TestNamesOfOtherServices asks twice, by the own names and by those that clients of
// telemetry pipelines use.
func TestNamesOfOtherServices(t *testing.T) {
	for _, tt := range [][2]string{
		{"nodes?limit=2&page=2", "nodes?page_size=2&page=2"},
		{"nodes?cluster=c1", "nodes?cluster_id=c1"},
		{"nodes?node=n1", "nodes?host_id=n1"},
		{"gpus?node=n1", "gpus?names=n1"},
		{"gpus?min_utilization=0.5", "gpus?min_usage=0.5"},
		{"episodes?node=n1", "episodes?host_id=n1"},
		{"telemetry?host=n1&gpu=GPU-a&since=2025-12-31T00:00:00Z&until=2026-01-01T00:00:00Z", "telemetry?host_id=n1&gpu_id=GPU-a&start_time=2025-12-31T00:00:00Z&end_time=2026-01-01T00:00:00Z"},
		{"telemetry?since=24h&limit=3", "telemetry?time_range=1d&page_size=3"},
		{"telemetry/aggregations?since=24h&group_by=gpu", "telemetry/aggregations?time_range=24h&group_by=gpu_id"},
		{"telemetry?since=40m&until=30m", "telemetry?time_range=10m&end_time=30m"},
		{"health", "../../health"},
	} {
		t.Run(tt[1], func(t *testing.T) {
			var answers [2]string
			var asked [2]*fleethistory.Query
			for i, target := range tt {
				h := &history{}
				a := newAPI(func(o *Options) { o.History = h })
				fleet(a)
				target = strings.TrimPrefix("/api/v1/"+target, "/api/v1/../..")
				w := ask(a, target)
				require.Equal(t, http.StatusOK, w.Code, "%s\n%s", target, w.Body)
				answers[i], asked[i] = w.Body.String(), h.q
			}
			assert.Equal(t, answers[0], answers[1])
			assert.Equal(t, asked[0], asked[1])
		})
	}
	a := newAPI(nil)
	w := ask(a, "/swagger/index.html")
	assert.Equal(t, http.StatusFound, w.Code)
	assert.Equal(t, "../docs/", w.Header().Get("Location"))
	w = ask(a, "/api/v1/nodes?limit=1&page_size=2")
	assert.Equal(t, http.StatusUnprocessableEntity, w.Code)
	assert.Contains(t, w.Body.String(), "another name of `limit`")
	a = newAPI(func(o *Options) { o.History = &history{} })
	for target, want := range map[string]string{
		"telemetry?host_id=a&node=b":            "is another name of `host`",
		"telemetry?start_time=noon":             `"query.start_time"`,
		"telemetry?time_range=noon":             `"query.time_range"`,
		"telemetry?time_range=1h&start_time=2h": "is another name of `since`: give one of them",
	} {
		w := ask(a, "/api/v1/"+target)
		assert.Equal(t, http.StatusUnprocessableEntity, w.Code, target)
		assert.Contains(t, w.Body.String(), want, target)
	}
}

func TestAnUnknownClusterIsNotFound(t *testing.T) {
	a := newAPI(func(o *Options) { o.History = &history{} })
	fleet(a)
	for _, target := range []string{"nodes", "gpus", "stragglers", "episodes", "groups", "stats/summary", "attention", "observe", "nodes/n1", "episodes/e1", "telemetry", "telemetry/hosts", "nodes/n1/past", "telemetry/aggregations"} {
		w := ask(a, "/api/v1/"+target+"?cluster=nowhere")
		assert.Equal(t, http.StatusNotFound, w.Code, target)
		assert.Contains(t, w.Body.String(), `no cluster \"nowhere\" is known, known are c1, c2`, target)
	}
	assert.Equal(t, http.StatusOK, ask(a, "/api/v1/nodes?cluster=c1").Code)
	empty := newAPI(nil)
	assert.Contains(t, ask(empty, "/api/v1/nodes?cluster=c1").Body.String(), "no node has reported to this gateway yet")
}

// TestIndexListsAll compares the index with the document.
func TestIndexListsAll(t *testing.T) {
	a := newAPI(nil)
	var paths []string
	for _, o := range operations(document(t, a)) {
		paths = append(paths, o.path)
	}
	for _, target := range []string{"/api/v1/", "/api/v1"} {
		out := get200[Index](t, a, target)
		var listed []string
		for _, o := range out.Operations {
			listed = append(listed, o.Path)
			assert.NotEmpty(t, o.Summary)
		}
		assert.ElementsMatch(t, paths, listed)
	}
	assert.Equal(t, http.StatusNotFound, ask(a, "/api/v1/nope").Code)
}

func TestEpisodeByID(t *testing.T) {
	a := newAPI(nil)
	put(a, "c1", "n1", t0, func(*fleetstate.Update) {})
	for _, c := range []string{"c1", "c2"} {
		a.o.Store.PutEpisode(&episode.Episode{ID: "both", Subject: episode.SubjectNode, Cluster: c, Node: "n1", Since: t0, Updated: t0})
	}
	a.o.Store.PutEpisode(&episode.Episode{ID: "e/1", Subject: episode.SubjectGroup, Cluster: "c1", Group: "g", Since: t0, Updated: t0, Text: "slow"})
	assert.Equal(t, "slow", get200[Episode](t, a, "/api/v1/episodes/e%2F1").Text)
	assert.Equal(t, "c2", get200[Episode](t, a, "/api/v1/episodes/both?cluster=c2").Cluster)
	assert.Contains(t, ask(a, "/api/v1/episodes/both").Body.String(), "must be one of")
	w := ask(a, "/api/v1/episodes/none")
	assert.Equal(t, http.StatusNotFound, w.Code)
	assert.Contains(t, w.Body.String(), "no episode none is known")
}

func TestAttention(t *testing.T) {
	a := newAPI(nil)
	put(a, "c1", "n1", t0, func(u *fleetstate.Update) {
		j := u.GPU("GPU-a")
		u.SetInfo(j, fleetstate.Info{Index: 3})
		u.SetUp(j, 0, "lost")
		u.SetGPU(j, reading.Up, 0)
	})
	out := get200[AttentionList](t, a, "/api/v1/attention")
	require.Len(t, out.Items, 1)
	i := out.Items[0]
	assert.Equal(t, []any{attention.LostGPU, episode.SeverityCritical, "n1", "GPU 3", "The GPU does not answer.", "The driver's answer: lost.", true}, []any{i.Kind, i.Severity, i.Node, i.Part, i.What, i.Why, i.SinceBefore})
	assert.Equal(t, 3, *i.GPUs[0].Index)
	assert.Equal(t, AttentionCounts{Nodes: 1, LostGPUs: 1}, out.Counts)
	assert.Empty(t, get200[AttentionList](t, a, "/api/v1/attention?kind=straggler").Items)
	assert.Equal(t, 1, get200[AttentionList](t, a, "/api/v1/attention?kind=straggler").Counts.LostGPUs)
	a.o.Store.PutEpisode(&episode.Episode{ID: "e", Subject: episode.SubjectNode, Cluster: "c1", Node: "n1", Since: t0, Updated: t0, Confidence: new(0.7)})
	slow := get200[AttentionList](t, a, "/api/v1/attention?kind=straggler").Items[0]
	assert.InDelta(t, 0.7, *slow.Confidence, 0)
	assert.Equal(t, t0.UTC(), slow.Updated.UTC())
}
