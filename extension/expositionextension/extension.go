// SPDX-License-Identifier: Apache-2.0

package expositionextension // import "github.com/gpu-collector/gpu-collector/extension/expositionextension"

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"github.com/klauspost/compress/gzhttp"
	"github.com/klauspost/compress/gzip"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/extension"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/delta"
	"github.com/gpu-collector/gpu-collector/internal/fairshare"
)

var (
	_ extension.Extension = (*exposition)(nil)
	_ delta.Exposition    = (*exposition)(nil)
)

// exposition serves the tables of the engines that are registered.
type exposition struct {
	cfg      *Config
	set      extension.Settings
	slots    *fairshare.Ledger[string] // of the scrapes under way, by reader
	registry *prometheus.Registry

	mu      sync.Mutex
	engines []*delta.Engine

	server  *http.Server
	serving sync.WaitGroup
}

func newExtension(set extension.Settings, cfg *Config) *exposition {
	return &exposition{
		cfg: cfg, set: set, slots: fairshare.New[string](cfg.MaxScrapes, fairshare.Half), registry: prometheus.NewRegistry(),
	}
}

// Register implements delta.Exposition.
func (e *exposition) Register(engine *delta.Engine) (cancel func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.engines = append(e.engines, engine)
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.engines = slices.DeleteFunc(slices.Clone(e.engines), func(have *delta.Engine) bool { return have == engine })
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
		prometheus.WrapRegistererWithPrefix(ownPrefix, e.registry), compress(http.HandlerFunc(e.serve))))
	return mux, nil
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
	if e.server == nil {
		return nil
	}
	err := e.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, e.server.Close())
	}
	e.serving.Wait()
	return err
}
