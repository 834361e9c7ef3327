// SPDX-License-Identifier: Apache-2.0

package expositionextension // import "github.com/gpu-collector/gpu-collector/extension/expositionextension"

import (
	"context"
	"net/http"
	"sync"

	"github.com/klauspost/compress/gzhttp"
	"github.com/klauspost/compress/gzip"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensioncapabilities"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue/otlp"
	"github.com/gpu-collector/gpu-collector/internal/serverguard"
	"github.com/gpu-collector/gpu-collector/internal/webguard"
)

var (
	_ extension.Extension = (*exposition)(nil)
	_ otlp.Owner          = (*exposition)(nil)

	_ extensioncapabilities.ConfigWatcher = (*exposition)(nil)
)

// exposition keeps the table of one diff processor, and serves it.
type exposition struct {
	cfg      *Config
	set      extension.Settings
	places   *places
	registry *prometheus.Registry

	mu        sync.Mutex
	table     table
	pipelines map[string]pipeline // of metrics, by name; since the start

	server *serverguard.Server
}

func newExtension(set extension.Settings, cfg *Config) *exposition {
	return &exposition{
		cfg: cfg, set: set, places: &places{all: make(chan struct{}, cfg.MaxScrapes), readers: map[string]*reader{}}, registry: prometheus.NewRegistry(),
	}
}

// handler is what the server serves.
func (e *exposition) handler() (http.Handler, error) {
	compress, err := gzhttp.NewWrapper(gzhttp.CompressionLevel(gzip.BestSpeed))
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.InstrumentMetricHandler(
		prometheus.WrapRegistererWithPrefix(ownPrefix, e.registry), e.places.inTurn(compress(http.HandlerFunc(e.serve)), e.refuse)))
	server := e.cfg.HTTP.Get()
	if server.Auth.HasValue() {
		return mux, nil
	}
	return webguard.Hosts(mux, append([]string{server.NetAddr.Endpoint}, e.cfg.AllowedHosts...)...), nil
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
	server, err := serverguard.Listen(ctx, e.set.TelemetrySettings, "exposition", "http", e.cfg.HTTP.Get(), serverguard.Readers())
	if err != nil {
		return err
	}
	if err := server.ServeReaders(ctx, host, handler); err != nil {
		return err
	}
	e.server = server
	e.set.Logger.Info("exposition listens", zap.Stringer("endpoint", server.Addr()))
	return nil
}

// Shutdown implements component.Component.
func (e *exposition) Shutdown(ctx context.Context) error { return e.server.Shutdown(ctx) }
