// SPDX-License-Identifier: Apache-2.0

package fleetview

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/exporter/prometheusremotewriteexporter"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/xconfmap"
	"go.opentelemetry.io/collector/exporter/exportertest"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/exporter/fleetviewexporter"
	"github.com/gpu-collector/gpu-collector/extension/fleetviewextension"
	"github.com/gpu-collector/gpu-collector/test/loopback"
)

// deadline ends a suite whose storage hangs.
const deadline = 2 * time.Minute

type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

// gateway is the extension and what is in front of it in a pipeline.
type gateway struct {
	t         *testing.T
	api       string
	consumers []func(context.Context, pmetric.Metrics) error
}

// startGateway runs the components as a gateway does, with that configuration
// of the history. Metrics go to the server too where there is one.
func startGateway(t *testing.T, history map[string]any, write string) *gateway {
	t.Helper()
	addr := loopback.FreeAddr(t)
	g := &gateway{t: t, api: "http://" + addr + "/api/v1"}
	id := component.MustNewID("fleet_view")
	extensions := fleetviewextension.NewFactory()
	cfg := load(t, extensions.CreateDefaultConfig(), map[string]any{"http": map[string]any{"endpoint": addr}, "history": history})
	ext, err := extensions.Create(t.Context(), extensiontest.NewNopSettings(id.Type()), cfg)
	require.NoError(t, err)
	require.NoError(t, ext.Start(t.Context(), componenttest.NewNopHost()))
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		assert.NoError(t, ext.Shutdown(context.WithoutCancel(t.Context())))
	})
	h := host{id: ext}

	factory := fleetviewexporter.NewFactory()
	exp, err := factory.CreateMetrics(t.Context(), exportertest.NewNopSettings(factory.Type()), factory.CreateDefaultConfig())
	require.NoError(t, err)
	require.NoError(t, exp.Start(t.Context(), h))
	t.Cleanup(func() { assert.NoError(t, exp.Shutdown(context.WithoutCancel(t.Context()))) })
	g.consumers = append(g.consumers, exp.ConsumeMetrics)
	if write == "" {
		return g
	}
	factory = prometheusremotewriteexporter.NewFactory()
	cfg = load(t, factory.CreateDefaultConfig(), map[string]any{
		"endpoint": write, "resource_to_telemetry_conversion": map[string]any{"enabled": true}, "remote_write_queue": map[string]any{"enabled": false},
	})
	remote, err := factory.CreateMetrics(t.Context(), exportertest.NewNopSettings(factory.Type()), cfg)
	require.NoError(t, err)
	require.NoError(t, remote.Start(t.Context(), h))
	t.Cleanup(func() { assert.NoError(t, remote.Shutdown(context.WithoutCancel(t.Context()))) })
	g.consumers = append(g.consumers, remote.ConsumeMetrics)
	return g
}

func load(t *testing.T, cfg component.Config, keys map[string]any) component.Config {
	t.Helper()
	require.NoError(t, confmap.NewFromStringMap(keys).Unmarshal(cfg))
	require.NoError(t, xconfmap.Validate(cfg))
	return cfg
}

func (g *gateway) push(md pmetric.Metrics) {
	g.t.Helper()
	for _, consume := range g.consumers {
		require.NoError(g.t, consume(g.t.Context(), md))
	}
}
