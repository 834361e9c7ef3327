// SPDX-License-Identifier: Apache-2.0

package verdictactionsexporter

import (
	"context"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exporterhelper"

	"github.com/gpu-collector/gpu-collector/exporter/verdictactionsexporter/internal/metadata"
	"github.com/gpu-collector/gpu-collector/internal/sharedinstance"
	"github.com/gpu-collector/gpu-collector/internal/steadytime"
)

// NewFactory returns the factory of the verdict_actions exporter.
func NewFactory() exporter.Factory {
	return newFactory(new(steadytime.Clock).Now, tick, defaultLease)
}

// newFactory has the actor's time from now, and lets it pass at each tick.
func newFactory(now func() time.Time, tick time.Duration, times leaseTimes) exporter.Factory {
	f := &factory{now: now, tick: tick, times: times}
	return exporter.NewFactory(metadata.Type, createDefaultConfig,
		exporter.WithMetrics(f.metrics, metadata.MetricsStability),
		exporter.WithLogs(f.logs, metadata.LogsStability))
}

// factory has one actor for both signals of a configuration.
type factory struct {
	now    func() time.Time
	tick   time.Duration
	times  leaseTimes
	actors sharedinstance.Instances[*Config, *actor]
}

func (f *factory) acquire(set exporter.Settings, cfg component.Config) (a *actor, options []exporterhelper.Option, err error) {
	c := cfg.(*Config)
	handle, err := f.actors.Acquire(c, func() (*actor, error) { return newActor(c, set, f.now, f.tick, f.times) })
	if err != nil {
		return nil, nil, err
	}
	a = handle.Get()
	return a, []exporterhelper.Option{
		exporterhelper.WithStart(func(ctx context.Context, host component.Host) error {
			return handle.Start(func() error { return a.start(ctx, host) })
		}),
		exporterhelper.WithShutdown(func(ctx context.Context) error {
			return handle.Shutdown(func() error { return a.shutdown(ctx) })
		}),
		exporterhelper.WithTimeout(exporterhelper.TimeoutConfig{}),
		exporterhelper.WithCapabilities(consumer.Capabilities{MutatesData: false}),
	}, nil
}

func (f *factory) metrics(ctx context.Context, set exporter.Settings, cfg component.Config) (exporter.Metrics, error) {
	a, options, err := f.acquire(set, cfg)
	if err != nil {
		return nil, err
	}
	return exporterhelper.NewMetrics(ctx, set, cfg, a.pushMetrics, options...)
}

func (f *factory) logs(ctx context.Context, set exporter.Settings, cfg component.Config) (exporter.Logs, error) {
	a, options, err := f.acquire(set, cfg)
	if err != nil {
		return nil, err
	}
	return exporterhelper.NewLogs(ctx, set, cfg, a.pushLogs, options...)
}
