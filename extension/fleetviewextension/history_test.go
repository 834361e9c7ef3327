// SPDX-License-Identifier: Apache-2.0

package fleetviewextension

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"

	"github.com/gpu-collector/gpu-collector/extension/fleetviewextension/internal/metadatatest"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetapi"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
	"github.com/gpu-collector/gpu-collector/test/loopback"
)

func ask[T any](t *testing.T, addr, path string) (answer T) {
	t.Helper()
	resp, err := http.Get("http://" + addr + "/api/v1" + path)
	require.NoError(t, err)
	defer func() { require.NoError(t, resp.Body.Close()) }()
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&answer))
	return answer
}

// TestPastOutlivesTheProcess also shows what becomes of an episode that was open.
func TestPastOutlivesTheProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fleet_view.db")
	now := time.Now().UTC().Truncate(time.Millisecond)
	run := func(f func(*fleetViewExtension, string)) {
		addr := loopback.FreeAddr(t)
		e, _ := newTestExtension(t, func(c *Config) {
			c.HTTP.NetAddr.Endpoint, c.History.SQLite.Path, c.MaxEpisodes = addr, path, 4
			c.ClusterShare = 1
		})
		require.NoError(t, e.Start(t.Context(), componenttest.NewNopHost()))
		f(e, addr)
		http.DefaultClient.CloseIdleConnections()
		require.NoError(t, e.Shutdown(t.Context()))
	}
	episode := func(id string, since, ended time.Time) *episode.Episode {
		ep := &episode.Episode{ID: id, Subject: "node", Cluster: "c", Node: "n", Since: since, Updated: since, Ended: ended, Reason: "thermal " + id}
		if !ended.IsZero() {
			ep.Updated = ended
		}
		return ep
	}
	run(func(e *fleetViewExtension, _ string) {
		e.History().Write([]fleethistory.Sample{{Cluster: "c", Node: "n", GPU: "g", Metric: "hw.power", At: now.UnixMilli(), Value: 300}})
		for i, id := range []string{"a", "b", "open", "goes-on"} {
			at := now.Add(time.Duration(i-10) * time.Minute)
			require.True(t, e.State().PutEpisode(episode(id, at, time.Time{})))
			if id < "c" {
				ended := episode(id, at, at.Add(30*time.Minute))
				ended.Reason = "" // known from before
				require.True(t, e.State().PutEpisode(ended))
			}
			if id == "b" {
				other := episode(id, at, at.Add(32*time.Minute))
				other.Cluster, other.Reason = "other", "of another cluster"
				require.True(t, e.State().PutEpisode(other))
			}
		}
	})
	run(func(e *fleetViewExtension, addr string) {
		samples := ask[fleetapi.SamplePage](t, addr, "/telemetry?host=n")
		require.Len(t, samples.Samples, 1)
		assert.InDelta(t, 300, samples.Samples[0].Value, 0)
		health := ask[fleetapi.Health](t, addr, "/health")
		assert.True(t, health.History.OK)
		assert.Positive(t, health.History.Bytes)

		page := ask[fleetapi.EpisodePage](t, addr, "/episodes")
		require.Len(t, page.Episodes, 4, "`max_episodes`, the newest")
		require.True(t, e.State().PutEpisode(episode("goes-on", now, time.Time{})))
		page = ask[fleetapi.EpisodePage](t, addr, "/episodes?open=true")
		require.Len(t, page.Episodes, 1)
		assert.Equal(t, "goes-on", page.Episodes[0].ID)
		assert.Equal(t, now.Add(-7*time.Minute), page.Episodes[0].Since, "since before the restart")
		page = ask[fleetapi.EpisodePage](t, addr, "/episodes?cluster=other")
		require.Len(t, page.Episodes, 1)
		assert.Equal(t, "of another cluster", page.Episodes[0].Reason)
		page = ask[fleetapi.EpisodePage](t, addr, "/episodes?open=false&cluster=c")
		require.Len(t, page.Episodes, 2)
		assert.Equal(t, "b", page.Episodes[0].ID)
		assert.Equal(t, "a", page.Episodes[1].ID)
		for _, ep := range page.Episodes {
			assert.Equal(t, "thermal "+ep.ID, ep.Reason)
			if ep.ID == "b" {
				assert.Equal(t, now.Add(21*time.Minute), ep.Ended)
			}
		}
	})
}

// TestHistoryThatCannotBeWritten: the views are served, the API says what is wrong.
func TestHistoryThatCannotBeWritten(t *testing.T) {
	blocked := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(blocked, nil, 0o600))
	addr := loopback.FreeAddr(t)
	e, tel := newTestExtension(t, func(c *Config) {
		c.HTTP.NetAddr.Endpoint, c.History.SQLite.Path, c.History.SQLite.FlushInterval = addr, filepath.Join(blocked, "x.db"), 10*time.Millisecond
	})
	require.NoError(t, e.Start(t.Context(), componenttest.NewNopHost()))
	e.History().Write([]fleethistory.Sample{{Node: "n", Metric: "m", At: time.Now().UnixMilli()}, {Node: "n", At: time.Now().UnixMilli()}})
	require.Eventually(t, func() bool { return e.History().Status().Err != nil }, time.Minute, time.Millisecond)
	health := ask[fleetapi.Health](t, addr, "/health")
	assert.Equal(t, "degraded", health.Status)
	metadatatest.AssertEqualExtensionFleetViewHistoryOk(t, tel, []metricdata.DataPoint[int64]{{Value: 0}}, metricdatatest.IgnoreTimestamp())
	got, err := tel.GetMetric("otelcol_extension_fleet_view_dropped")
	require.NoError(t, err)
	drops := map[string]int64{}
	for _, p := range got.Data.(metricdata.Sum[int64]).DataPoints {
		reason, _ := p.Attributes.Value("reason")
		drops[reason.AsString()] = p.Value
	}
	assert.Equal(t, int64(1), drops["history_text"], "a sample without a name")
	assert.Zero(t, drops["history"], "the other one waits")
	assert.Contains(t, health.History.Error, "`history::sqlite::path` "+blocked)
	assert.Empty(t, ask[fleetapi.NodePage](t, addr, "/nodes").Nodes)
	http.DefaultClient.CloseIdleConnections()
	require.Error(t, e.Shutdown(t.Context()), "what waited is lost, and that is said")
	assert.EqualValues(t, 1, e.History().Status().Dropped)
}

func TestStateDirectory(t *testing.T) {
	t.Setenv("STATE_DIRECTORY", "/run/one:/run/two")
	assert.Equal(t, "/run/one/fleet_view.db", createDefaultConfig().(*Config).History.SQLite.Path)
	t.Setenv("STATE_DIRECTORY", "")
	assert.Equal(t, "/var/lib/gpu-collector/fleet_view.db", createDefaultConfig().(*Config).History.SQLite.Path)
}
