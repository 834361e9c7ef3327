// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/service/telemetry"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
)

// lastUpload has the collector's own telemetry end without an error. It ends last, when this
// very process, which may be where it goes, takes no pushes any more: an end that was asked
// for would be a failure, and a reload the end.
type lastUpload struct{ telemetry.Factory }

func withLastUpload(factories func() (otelcol.Factories, error)) func() (otelcol.Factories, error) {
	return func() (otelcol.Factories, error) {
		all, err := factories()
		all.Telemetry = lastUpload{all.Telemetry}
		return all, err
	}
}

// CreateLogger implements telemetry.Factory.
func (f lastUpload) CreateLogger(ctx context.Context, set telemetry.LoggerSettings, cfg component.Config) (*zap.Logger, component.ShutdownFunc, error) {
	logger, shutdown, err := f.Factory.CreateLogger(ctx, set, cfg)
	return logger, logged(logger, "logs", shutdown.Shutdown), err
}

// CreateMeterProvider implements telemetry.Factory.
func (f lastUpload) CreateMeterProvider(ctx context.Context, set telemetry.MeterSettings, cfg component.Config) (telemetry.MeterProvider, error) {
	provider, err := f.Factory.CreateMeterProvider(ctx, set, cfg)
	return meterProvider{provider, set.Logger}, err
}

// CreateTracerProvider implements telemetry.Factory.
func (f lastUpload) CreateTracerProvider(ctx context.Context, set telemetry.TracerSettings, cfg component.Config) (telemetry.TracerProvider, error) {
	provider, err := f.Factory.CreateTracerProvider(ctx, set, cfg)
	return tracerProvider{provider, set.Logger}, err
}

type meterProvider struct {
	telemetry.MeterProvider
	logger *zap.Logger
}

func (p meterProvider) Shutdown(ctx context.Context) error {
	return logged(p.logger, "metrics", p.MeterProvider.Shutdown)(ctx)
}

type tracerProvider struct {
	telemetry.TracerProvider
	logger *zap.Logger
}

func (p tracerProvider) Shutdown(ctx context.Context) error {
	return logged(p.logger, "traces", p.TracerProvider.Shutdown)(ctx)
}

// Unwrap leads zpages to the SDK.
func (p tracerProvider) Unwrap() trace.TracerProvider { return p.TracerProvider }

// lastUploadTimeout is how long an end waits for the upload: gRPC tries for ten seconds and
// more, whatever its context says, and Kubernetes kills after thirty.
const lastUploadTimeout = 2 * time.Second

func logged(logger *zap.Logger, what string, shutdown component.ShutdownFunc) component.ShutdownFunc {
	return func(ctx context.Context) error {
		ended := make(chan error, 1)
		go func() { ended <- shutdown(ctx) }()
		late := time.NewTimer(lastUploadTimeout)
		defer late.Stop()
		var err error
		select {
		case err = <-ended:
		case <-late.C:
			err = fmt.Errorf("nobody took it within %v", lastUploadTimeout)
		}
		if err != nil {
			logger.Warn("the last of the collector's own "+what+" did not go out", zap.Error(err))
		}
		return nil
	}
}
