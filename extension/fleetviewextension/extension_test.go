// SPDX-License-Identifier: Apache-2.0

package fleetviewextension

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap/confmaptest"
	"go.opentelemetry.io/collector/confmap/xconfmap"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"

	"github.com/gpu-collector/gpu-collector/extension/fleetviewextension/internal/metadata"
	"github.com/gpu-collector/gpu-collector/extension/fleetviewextension/internal/metadatatest"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetapi"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/test/loopback"
)

func newTestExtension(t *testing.T, change func(*Config)) (*fleetViewExtension, *componenttest.Telemetry) {
	t.Helper()
	tel := componenttest.NewTelemetry()
	t.Cleanup(func() { require.NoError(t, tel.Shutdown(context.WithoutCancel(t.Context()))) })
	cfg := createDefaultConfig().(*Config)
	cfg.HTTP.NetAddr.Endpoint = "127.0.0.1:0"
	cfg.History.SQLite.Path = filepath.Join(t.TempDir(), "fleet_view.db")
	if change != nil {
		change(cfg)
	}
	require.NoError(t, xconfmap.Validate(cfg))
	set := extension.Settings{ID: component.NewID(metadata.Type), TelemetrySettings: tel.NewTelemetrySettings()}
	e, err := newExtension(set, cfg)
	require.NoError(t, err)
	return e, tel
}

// TestServesWhatIsWritten asks through confighttp's server, and shuts down
// while a client watches.
func TestServesWhatIsWritten(t *testing.T) {
	addr := loopback.FreeAddr(t)
	e, tel := newTestExtension(t, func(c *Config) {
		c.HTTP.NetAddr.Endpoint = addr
		c.MaxBytes = minBytes
		c.Stream.Interval = minInterval
	})
	require.NoError(t, e.Start(t.Context(), componenttest.NewNopHost()))
	nodes := 0
	for ; ; nodes++ {
		u, ok := e.State().Begin(fleetstate.Key{Cluster: "c", Node: strconv.Itoa(nodes)}, time.Now())
		if !ok {
			break
		}
		u.Commit(time.Now())
	}

	resp, err := http.Get("http://" + addr + "/api/v1/nodes")
	require.NoError(t, err)
	var page fleetapi.NodePage
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&page))
	require.NoError(t, resp.Body.Close())
	require.Equal(t, nodes, page.Total)

	for _, path := range []string{"/", "/docs/"} {
		resp, err = http.Get("http://" + addr + path)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, http.StatusOK, resp.StatusCode, path)
	}

	stream, err := http.Get("http://" + addr + "/api/v1/observe")
	require.NoError(t, err)
	buf := make([]byte, 15)
	_, err = stream.Body.Read(buf)
	require.NoError(t, err)
	assert.Equal(t, "event: snapshot", string(buf))

	metadatatest.AssertEqualExtensionFleetViewHistoryOk(t, tel, []metricdata.DataPoint[int64]{{Value: 1}}, metricdatatest.IgnoreTimestamp())
	metadatatest.AssertEqualExtensionFleetViewNodes(t, tel, []metricdata.DataPoint[int64]{{Value: int64(nodes)}}, metricdatatest.IgnoreTimestamp())
	metadatatest.AssertEqualExtensionFleetViewStreamClients(t, tel, []metricdata.DataPoint[int64]{{Value: 1}}, metricdatatest.IgnoreTimestamp())
	metadatatest.AssertEqualExtensionFleetViewStreamCuts(t, tel, []metricdata.DataPoint[int64]{{Value: 0}}, metricdatatest.IgnoreTimestamp())
	got, err := tel.GetMetric("otelcol_extension_fleet_view_dropped")
	require.NoError(t, err)
	for _, p := range got.Data.(metricdata.Sum[int64]).DataPoints {
		reason, _ := p.Attributes.Value("reason")
		want := int64(0)
		if reason.AsString() == "max_bytes" {
			want = 1
		}
		assert.Equal(t, want, p.Value, reason.AsString())
	}

	// The stream does not hold the shutdown up.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	require.NoError(t, e.Shutdown(ctx))
	require.NoError(t, stream.Body.Close())
	http.DefaultClient.CloseIdleConnections()
}

func TestStartUndoesItself(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, ln.Close()) }()
	e, _ := newTestExtension(t, func(c *Config) { c.HTTP.NetAddr.Endpoint = ln.Addr().String() })
	require.ErrorContains(t, e.Start(t.Context(), componenttest.NewNopHost()), "`http::endpoint`")
	require.NoError(t, e.Shutdown(context.WithoutCancel(t.Context())))
}

func TestShutdownWithoutStart(t *testing.T) {
	e, _ := newTestExtension(t, nil)
	require.NoError(t, e.Shutdown(context.WithoutCancel(t.Context())))
}

func TestConfig(t *testing.T) {
	conf, err := confmaptest.LoadConf(filepath.Join("testdata", "config.yaml"))
	require.NoError(t, err)
	load := func(id string) *Config {
		cfg := createDefaultConfig().(*Config)
		sub, err := conf.Sub(id)
		require.NoError(t, err)
		require.NoError(t, sub.Unmarshal(cfg))
		return cfg
	}
	standard := load("fleet_view")
	require.NoError(t, xconfmap.Validate(standard))
	assert.Equal(t, "127.0.0.1:8086", standard.HTTP.NetAddr.Endpoint)
	all := load("fleet_view/all")
	require.NoError(t, xconfmap.Validate(all))
	want := createDefaultConfig().(*Config)
	want.HTTP.NetAddr.Endpoint = "0.0.0.0:8000"
	want.MaxGPUsPerNode, want.MaxEpisodes, want.MaxBytes = 8, 4, 2_000_000
	want.ClusterShare = 0.8
	want.MissingAfter, want.NodeExpiry, want.GPUExpiry = 30*time.Second, time.Hour, 5*time.Minute
	want.Stream.MaxClients, want.Stream.ReaderShare, want.Stream.Interval = 7, 0.3, 2*time.Second
	want.Stream.WriteTimeout, want.Stream.NodesPerEvent = 3*time.Second, 10
	want.History.Storage = "prometheus"
	want.History.SQLite = SQLiteConfig{
		Path: "/data/history.db", Interval: 2 * time.Second, Retention: 24 * time.Hour, MaxSizeMiB: 100, QueryTimeout: 3 * time.Second,
	}
	want.History.Prometheus.HTTP.Endpoint = "http://prometheus:9090"
	want.History.Prometheus.ClusterLabel, want.History.Prometheus.HostLabel, want.History.Prometheus.GPULabel = "cluster", "node", "uuid"
	want.History.Prometheus.DefaultCluster, want.History.Prometheus.MaxSamples, want.History.Prometheus.QueryTimeout = "main", 5000, 5*time.Second
	assert.Equal(t, want, all)

	err = xconfmap.Validate(load("fleet_view/mistakes"))
	for _, key := range []string{
		"max_gpus_per_node", "cluster_share", "max_episodes", "max_bytes", "missing_after", "node_expiry", "gpu_expiry",
		"stream::max_clients", "stream::interval", "stream::write_timeout", "stream::nodes_per_event",
	} {
		require.ErrorContains(t, err, "`"+key+"` is ")
	}
	for _, key := range []string{"path", "interval", "retention", "max_size_mib", "query_timeout"} {
		require.ErrorContains(t, err, "`history::sqlite::"+key+"` is ")
	}
	err = xconfmap.Validate(load("fleet_view/mistakes_prometheus"))
	for _, key := range []string{"http::endpoint", "cluster_label", "host_label", "gpu_label", "max_samples", "query_timeout"} {
		require.ErrorContains(t, err, "`history::prometheus::"+key+"` is ")
	}
	require.ErrorContains(t, xconfmap.Validate(load("fleet_view/mistakes_storage")), "`history::storage` is \"mysql\", must be sqlite, prometheus or none")
	require.ErrorContains(t, xconfmap.Validate(load("fleet_view/expiry")), "must not be less than `missing_after`, 2h0m0s")
}

// TestUnchangedGPUOutlivesResyncs: the default outlasts two resyncs of the shipped tiers, between
// which a lost or idle GPU has no points.
func TestUnchangedGPUOutlivesResyncs(t *testing.T) {
	conf, err := confmaptest.LoadConf(filepath.Join("..", "..", "configs", "shard.yaml"))
	require.NoError(t, err)
	resync, err := time.ParseDuration(conf.Get("processors::diff::resync_interval").(string))
	require.NoError(t, err)
	assert.Greater(t, createDefaultConfig().(*Config).GPUExpiry, 2*resync)
}
