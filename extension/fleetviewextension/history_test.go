// SPDX-License-Identifier: Apache-2.0

package fleetviewextension

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
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
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
	"github.com/gpu-collector/gpu-collector/test/loopback"
)

// report puts a node into the views, with one number.
func report(e *fleetViewExtension) {
	u, _ := e.State().Begin(fleetstate.Key{Cluster: "c", Node: "n"}, time.Now())
	u.Set(reading.NodeHealthScore, 0.9)
	u.Commit(time.Now())
}

// TestPastOutlivesTheProcess: episodes of two clusters, that may share IDs.
func TestPastOutlivesTheProcess(t *testing.T) {
	path, now := filepath.Join(t.TempDir(), "fleet_view.db"), time.Now().UTC().Truncate(time.Millisecond)
	run := func(f func(*fleetViewExtension)) {
		e, _ := newTestExtension(t, func(c *Config) { c.History.SQLite.Path = path })
		require.NoError(t, e.Start(t.Context(), componenttest.NewNopHost()))
		f(e)
		require.NoError(t, e.Shutdown(t.Context()))
	}
	put := func(e *fleetViewExtension, cluster string, updated, ended time.Time) {
		require.True(t, e.State().PutEpisode(&episode.Episode{
			ID: "e", Subject: episode.SubjectNode, Cluster: cluster, Node: "n", Since: now, Updated: updated, Ended: ended, Reason: "thermal in " + cluster,
		}))
	}
	run(func(e *fleetViewExtension) {
		report(e)
		put(e, "open", now, time.Time{})
		put(e, "over", now, time.Time{})
		put(e, "over", now.Add(time.Second), now.Add(time.Second))
	})
	run(func(e *fleetViewExtension) {
		samples, _, err := fleethistory.Telemetry(t.Context(), e.history, &fleethistory.Query{Start: now, End: time.Now(), Limit: 10})
		require.NoError(t, err)
		require.Len(t, samples, 1)
		assert.Equal(t, "gpu.node.health_score", samples[0].Metric)
		for cluster, ended := range map[string]time.Time{"over": now.Add(time.Second), "open": now} {
			list := e.State().Episodes(&fleetstate.EpisodeFilter{Clusters: []string{cluster}})
			require.Len(t, list, 1, cluster)
			assert.Equal(t, "thermal in "+cluster, list[0].Reason)
			assert.Equal(t, ended, list[0].Ended)
		}
	})
}

// TestHistoryThatCannotBeWritten: the views are served, and the API reports the error.
func TestHistoryThatCannotBeWritten(t *testing.T) {
	blocked := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(blocked, nil, 0o600))
	addr := loopback.FreeAddr(t)
	e, tel := newTestExtension(t, func(c *Config) {
		c.HTTP.NetAddr.Endpoint, c.History.SQLite.Path, c.History.SQLite.Interval = addr, filepath.Join(blocked, "x.db"), time.Second
	})
	require.NoError(t, e.Start(t.Context(), componenttest.NewNopHost()))
	report(e)
	require.Eventually(t, func() bool { return e.history.Status().Dropped > 0 }, time.Minute, time.Millisecond)
	resp, err := http.Get("http://" + addr + "/api/v1/health")
	require.NoError(t, err)
	var health fleetapi.Health
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&health))
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, "degraded", health.Status)
	metadatatest.AssertEqualExtensionFleetViewHistoryOk(t, tel, []metricdata.DataPoint[int64]{{Value: 0}}, metricdatatest.IgnoreTimestamp())
	got, err := tel.GetMetric("otelcol_extension_fleet_view_dropped")
	require.NoError(t, err)
	points := got.Data.(metricdata.Sum[int64]).DataPoints
	assert.True(t, slices.ContainsFunc(points, func(p metricdata.DataPoint[int64]) bool {
		reason, _ := p.Attributes.Value("reason")
		return reason.AsString() == "history" && p.Value > 0
	}))
	assert.Contains(t, health.History.Error, "`history::sqlite::path` "+blocked)
	http.DefaultClient.CloseIdleConnections()
	require.Error(t, e.Shutdown(t.Context()), "the last round is lost")
}

func TestStateDirectory(t *testing.T) {
	t.Setenv("STATE_DIRECTORY", "/run/one:/run/two")
	assert.Equal(t, "/run/one/fleet_view.db", createDefaultConfig().(*Config).History.SQLite.Path)
	t.Setenv("STATE_DIRECTORY", "")
	assert.Equal(t, "/var/lib/gpu-collector/fleet_view.db", createDefaultConfig().(*Config).History.SQLite.Path)
}
