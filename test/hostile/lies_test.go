// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// TestInventedEpisodes tells of stragglers that are none, ten times as many as a cluster
// may have: open ones and ended ones, of nodes that nobody knows, at times to come. The
// honest cluster's straggler stays in the API, and a new one gets there.
func TestInventedEpisodes(t *testing.T) {
	g := gateway(t, options{})
	b := beside(t, alone(g), "episodes")
	b.tenant.slow.Store(true)
	b.tenant.grown.Store(true)
	known := func(node string) bool {
		for _, ep := range g.episodes("open=true&cluster=" + bystander) {
			if ep.Node == node {
				return true
			}
		}
		return false
	}
	eventually(t, "the honest straggler has its episode", func() bool { return known("node3") })
	const share, each = 10_000 / 2, 1000 // half of max_episodes
	future := time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
	for push := range 10 * share / each {
		ld := plog.NewLogs()
		for i := range each {
			id := strconv.Itoa(push*each + i)
			rl := ld.ResourceLogs().AppendEmpty()
			rl.Resource().Attributes().PutStr("k8s.cluster.name", []string{"greedy", "made up " + id}[i%2])
			rl.Resource().Attributes().PutStr("host.name", "n"+id)
			r := rl.ScopeLogs().AppendEmpty().LogRecords().AppendEmpty()
			r.SetEventName(gpusemconv.EventStraggler)
			r.SetTimestamp(pcommon.NewTimestampFromTime(future))
			for name, value := range map[string]string{
				gpusemconv.AttrEpisodeID: id, gpusemconv.AttrEpisodeSubject: "node", gpusemconv.AttrEpisodePhase: []string{"onset", "onset", "end", "end"}[i%4],
				gpusemconv.AttrEpisodeSince: future.Format(time.RFC3339), gpusemconv.AttrEpisodeReason: strings.Repeat("x", 500),
			} {
				r.Attributes().PutStr(name, value)
			}
		}
		body, err := plogotlp.NewExportRequestFromLogs(ld).MarshalProto()
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, g.post(httpClient, "/v1/logs", protobufType, body, "gpu-cluster", "greedy"))
		require.True(t, known("node3"), "after %d pushes", push+1)
	}
	now := time.Now().Add(time.Second)
	for _, ep := range g.episodes("cluster=greedy&limit=500") {
		assert.False(t, ep.Since.After(now) || ep.Updated.After(now), "%+v", ep)
	}
	b.tenant.slowNew.Store(true)
	eventually(t, "the next honest straggler has its episode", func() bool { return known("new") })
	b.end()
	assert.True(t, known("node3"))
}

type episode struct {
	Node           string
	Since, Updated time.Time
}

func (g *target) episodes(query string) []episode {
	g.t.Helper()
	code, body := g.get("http://" + g.fleet + "/api/v1/episodes?" + query)
	require.Equal(g.t, http.StatusOK, code, "%s", body)
	var page struct{ Episodes []episode }
	require.NoError(g.t, json.Unmarshal(body, &page))
	return page.Episodes
}

// TestNumbersThatJSONCannotSay pushes readings whose sums overflow, and asks the API
// all that adds up or repeats them.
func TestNumbersThatJSONCannotSay(t *testing.T) {
	g := gateway(t, options{})
	b := beside(t, alone(g), "numbers")
	for _, value := range []float64{1.7e308, -1.7e308, 5e-324} {
		md := pmetric.NewMetrics()
		for i := range 10 {
			metrics := node(md, "greedy", nodeName(i))
			for gpu := range 2 {
				for _, name := range []string{"hw.power", "hw.energy", "hw.temperature", "hw.gpu.utilization", "hw.gpu.memory.usage", "hw.gpu.clock.frequency", "hw.made.up"} {
					p := gauge(metrics, name, time.Now(), value)
					p.Attributes().PutStr("hw.id", fmt.Sprint("GPU-", i, gpu))
					p.Attributes().PutStr("hw.type", "gpu")
				}
			}
			for _, name := range []string{"gpu.node.health_score", "gpu.node.signal", "gpu.straggler.median", "gpu.node.heartbeat"} {
				gauge(metrics, name, time.Now(), value).Attributes().PutStr("gpu.signal", "throughput")
			}
		}
		_, err := g.push(t.Context(), "greedy", md)
		require.NoError(t, err)
		for _, path := range []string{
			"stats/summary", "nodes?gpus=true", "nodes/node1?cluster=greedy", "nodes/node1/gpus?cluster=greedy", "gpus", "groups", "stragglers", "episodes",
			"telemetry?cluster=greedy", "telemetry/hosts?cluster=greedy", "telemetry/aggregations?group_by=cluster", "telemetry/aggregations?group_by=host&cluster=greedy",
		} {
			code, body := g.get("http://" + g.fleet + "/api/v1/" + path)
			assert.Equal(t, http.StatusOK, code, "%s: %.300s", path, body)
			assert.True(t, json.Valid(body), "%s: %.300s", path, body)
		}
		g.requireSnapshot("/api/v1/observe?gpus=true")
	}
	b.endCalm(16*mib, 64<<10)
}

// requireSnapshot reads the first event of a live stream.
func (g *target) requireSnapshot(path string) {
	g.t.Helper()
	resp, err := httpClient.Get("http://" + g.fleet + path)
	require.NoError(g.t, err)
	defer func() { _ = resp.Body.Close() }()
	require.Equal(g.t, http.StatusOK, resp.StatusCode)
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 16*mib)
	for lines.Scan() {
		if data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:")); ok {
			require.True(g.t, json.Valid(data), "%.300s", data)
			return
		}
	}
	require.Fail(g.t, "no event", "%v", lines.Err())
}

// TestOneSpeaksForAnother has a tenant push a victim's GPU as well, and be refused, at a
// gateway and at a shard whose front door compares pushes before auth has spoken in the
// pipeline. Neither values nor times nor the heartbeat follow: the GPU's death is told.
func TestOneSpeaksForAnother(t *testing.T) {
	users := []string{bystander, "victim", "greedy"}
	for name, start := range map[string]func(t *testing.T) front{
		"gateway": func(t *testing.T) front {
			t.Helper()
			return alone(gateway(t, options{users: users}))
		},
		"shard": func(t *testing.T) front {
			t.Helper()
			g := gateway(t, options{})
			return front{shard(t, g.grpc, options{users: users}), g}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t)
			b := beside(t, f, "another_"+name)
			report := func(up float64, at time.Time) pmetric.Metrics {
				md := pmetric.NewMetrics()
				for i := range 2 {
					p := gauge(node(md, "victim", nodeName(i)), gpusemconv.MetricGPUUp, at, up)
					p.Attributes().PutStr("hw.id", fmt.Sprint("GPU-", i))
					p.Attributes().PutStr("hw.type", "gpu")
				}
				return md
			}
			seen := func() (up, heartbeat float64) {
				_, text := f.view.get("http://" + f.view.prom + "/metrics?cluster=victim")
				for line := range strings.Lines(string(text)) {
					series, value, _ := strings.Cut(line, "} ")
					v, _ := strconv.ParseFloat(strings.TrimSpace(value), 64)
					switch {
					case !strings.Contains(series, `host_name="node1"`):
					case strings.HasPrefix(series, "gpu_node_heartbeat_seconds{"):
						heartbeat = v
					case strings.HasPrefix(series, "hw_gpu_up"):
						up = v
					}
				}
				return up, heartbeat
			}
			own, as := f.door.as(t.Context(), "victim"), f.door.as(t.Context(), "greedy")
			_, err := f.door.push(own, "victim", report(1, time.Now()))
			require.NoError(t, err)
			eventually(t, "the GPU is up", func() bool { up, _ := seen(); return up == 1 })
			_, before := seen()
			attack := func() {
				for i := range 100 {
					// As it is, as it will be, and as it would be.
					for _, md := range []pmetric.Metrics{report(1, time.Now()), report(1, time.Now().Add(time.Minute)), report(0, time.Now())} {
						_, err := f.door.push(as, []string{"greedy", "victim"}[i%2], md)
						require.Equal(t, codes.PermissionDenied, status.Code(err), "%v", err)
						code := f.door.post(httpClient, "/v1/metrics", protobufType, marshal(t, md), "Authorization", basic("greedy"), "gpu-cluster", "victim")
						require.Equal(t, http.StatusForbidden, code)
					}
				}
			}
			attack()
			up, after := seen()
			assert.InDelta(t, 1, up, 0, "nobody else says that it is down")
			assert.InDelta(t, before, after, 0, "nobody else is its heartbeat")
			_, err = f.door.push(own, "victim", report(0, time.Now()))
			require.NoError(t, err)
			eventually(t, "its death is told", func() bool { up, _ := seen(); return up == 0 })
			attack()
			up, _ = seen()
			assert.Zero(t, up, "nobody else brings it back")
			_, err = f.door.push(own, "victim", report(1, time.Now()))
			require.NoError(t, err)
			eventually(t, "its return is told", func() bool { up, _ := seen(); return up == 1 })
			b.endCalm(16*mib, 64<<10)
		})
	}
}

// TestNodesWithoutCluster pushes nodes that name no cluster beside a tenant of which a
// shard asks above all the time. They are of the default cluster, and none is the tenant's.
func TestNodesWithoutCluster(t *testing.T) {
	g := gateway(t, options{})
	s := shard(t, g.grpc, options{})
	b := beside(t, front{s, g}, "no_cluster")
	for i := range 20 {
		md := pmetric.NewMetrics()
		for n := range honestNodes {
			score(md, "", fmt.Sprint("nobody", n), time.Now(), 0.1)
		}
		for _, rm := range md.ResourceMetrics().All() {
			rm.Resource().Attributes().Remove("k8s.cluster.name")
		}
		require.Equal(t, http.StatusOK, s.post(httpClient, "/v1/metrics", protobufType, marshal(t, md)), i)
		<-time.After(100 * time.Millisecond) // half of a tick
	}
	eventually(t, "they are there", func() bool { return len(g.nodes("default")) == honestNodes })
	assert.Len(t, g.nodes(bystander), honestNodes)
	_, text := g.get("http://" + g.prom + "/metrics")
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "nobody") {
			assert.NotContains(t, line, bystander)
		}
	}
	b.end()
}
