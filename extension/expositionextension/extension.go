// SPDX-License-Identifier: Apache-2.0

package expositionextension // import "github.com/gpu-collector/gpu-collector/extension/expositionextension"

import (
	"context"
	"net/http"
	"sync/atomic"

	"github.com/klauspost/compress/gzhttp"
	"github.com/klauspost/compress/gzip"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensioncapabilities"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue/otlp"
	"github.com/gpu-collector/gpu-collector/internal/platform/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/platform/serverguard"
)

var (
	_ otlp.Owner                          = (*exposition)(nil)
	_ extensioncapabilities.ConfigWatcher = (*exposition)(nil)
)

// exposition keeps the table of one diff processor, and serves it.
type exposition struct {
	cfg      *Config
	set      extension.Settings
	turns    *fairshare.Turns // of scrapes, by address
	registry *prometheus.Registry

	table     atomic.Pointer[table] // nil where no diff names the extension
	pipelines map[string]pipeline   // of metrics, by name; since the start

	server *serverguard.Server
}

func newExtension(set extension.Settings, cfg *Config) *exposition {
	return &exposition{cfg: cfg, set: set, turns: fairshare.NewTurns(cfg.MaxScrapes), registry: prometheus.NewRegistry()}
}

// handler is what the server serves.
func (e *exposition) handler() (http.Handler, error) {
	compress, err := gzhttp.NewWrapper(gzhttp.CompressionLevel(gzip.BestSpeed))
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.InstrumentMetricHandler(
		prometheus.WrapRegistererWithPrefix(ownPrefix, e.registry), e.inTurn(compress(http.HandlerFunc(e.serve)))))
	return mux, nil
}

// Start implements component.Component.
func (e *exposition) Start(ctx context.Context, host component.Host) error {
	if !e.cfg.HTTP.HasValue() {
		return nil
	}
	handler, err := e.handler()
	if err != nil {
		return err
	}
	e.server, err = serverguard.StartReaders(ctx, host, e.set.TelemetrySettings, "exposition", "http",
		e.cfg.HTTP.Get(), e.cfg.AllowedHosts, handler)
	return err
}

// Shutdown implements component.Component.
func (e *exposition) Shutdown(ctx context.Context) error { return e.server.Shutdown(ctx) }
