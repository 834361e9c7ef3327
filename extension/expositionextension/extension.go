// SPDX-License-Identifier: Apache-2.0

package expositionextension // import "github.com/gpu-collector/gpu-collector/extension/expositionextension"

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/klauspost/compress/gzhttp"
	"github.com/klauspost/compress/gzip"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensioncapabilities"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/extension/expositionextension/internal/metadata"
	"github.com/gpu-collector/gpu-collector/internal/delta"
	"github.com/gpu-collector/gpu-collector/internal/webguard"
)

var (
	_ extension.Extension = (*exposition)(nil)
	_ delta.Exposition    = (*exposition)(nil)

	_ extensioncapabilities.ConfigWatcher = (*exposition)(nil)
)

// exposition serves the tables of the engines that are registered.
type exposition struct {
	cfg       *Config
	set       extension.Settings
	telemetry *metadata.TelemetryBuilder
	places    *places
	registry  *prometheus.Registry

	mu         sync.Mutex
	registered []table
	pipelines  map[string]pipeline // of metrics, by name; since the start

	server  *http.Server
	serving sync.WaitGroup
}

func newExtension(set extension.Settings, cfg *Config) (*exposition, error) {
	tb, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	return &exposition{
		cfg: cfg, set: set, telemetry: tb, places: &places{all: make(chan struct{}, cfg.MaxScrapes), readers: map[string]*reader{}}, registry: prometheus.NewRegistry(),
	}, nil
}

// handler is what the server serves.
func (e *exposition) handler() (http.Handler, error) {
	compress, err := gzhttp.NewWrapper(gzhttp.CompressionLevel(gzip.BestSpeed))
	if err != nil {
		return nil, err
	}
	// Within the compression, which ends an answer of its own accord.
	serve := webguard.Recover(http.HandlerFunc(e.serve), func(what any) {
		e.telemetry.ExtensionExpositionPanics.Add(context.Background(), 1)
		e.set.Logger.Error("A scrape made the exposition panic: please report it.", zap.Any("panic", what), zap.Stack("stack"))
	})
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.InstrumentMetricHandler(
		prometheus.WrapRegistererWithPrefix(ownPrefix, e.registry), e.places.inTurn(compress(serve), e.refuse)))
	if e.cfg.HTTP.Auth.HasValue() {
		return mux, nil
	}
	return webguard.Hosts(mux, append([]string{e.cfg.HTTP.NetAddr.Endpoint}, e.cfg.AllowedHosts...)...), nil
}

// Start implements component.Component.
func (e *exposition) Start(ctx context.Context, host component.Host) error {
	ln, err := e.cfg.HTTP.ToListener(ctx)
	if err != nil {
		return fmt.Errorf("`http::endpoint` %s cannot be listened on: %w", e.cfg.HTTP.NetAddr.Endpoint, err)
	}
	handler, err := e.handler()
	if err == nil {
		e.server, err = e.cfg.HTTP.ToServer(ctx, host.GetExtensions(), e.set.TelemetrySettings, handler)
	}
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	webguard.EndUnasked(e.server)
	e.serving.Go(func() {
		if err := e.server.Serve(ln); err != nil && !errors.Is(err, http.ErrServerClosed) {
			componentstatus.ReportStatus(host, componentstatus.NewPermanentErrorEvent(err))
		}
	})
	e.set.Logger.Info("exposition listens", zap.String("endpoint", ln.Addr().String()))
	return nil
}

// Shutdown implements component.Component.
func (e *exposition) Shutdown(ctx context.Context) error {
	var err error
	if e.server != nil {
		if err = e.server.Shutdown(ctx); err != nil {
			err = errors.Join(err, e.server.Close())
		}
		e.serving.Wait()
	}
	e.telemetry.Shutdown()
	return err
}
