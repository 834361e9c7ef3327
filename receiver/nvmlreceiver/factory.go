// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"context"
	"errors"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/scraper"
	"go.opentelemetry.io/collector/scraper/scraperhelper"

	"github.com/gpu-collector/gpu-collector/internal/platform/logsink"
	"github.com/gpu-collector/gpu-collector/internal/platform/sharedinstance"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
)

// NewFactory returns the factory of the receiver. In a binary that cannot load
// NVML the receiver starts, logs it once and emits nothing.
func NewFactory() receiver.Factory {
	shared := &instances{}
	return receiver.NewFactory(
		metadata.Type,
		createDefaultConfig,
		receiver.WithMetrics(func(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Metrics) (receiver.Metrics, error) {
			return createMetrics(shared, set, cfg, next)
		}, metadata.MetricsStability),
		receiver.WithLogs(func(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Logs) (receiver.Logs, error) {
			return createLogs(shared, set, cfg, next)
		}, metadata.LogsStability),
	)
}

// instances are the receivers of the process.
type instances = sharedinstance.Instances[*Config, *instance]

func createMetrics(shared *instances, set receiver.Settings, cfg component.Config, next consumer.Metrics, options ...scraperhelper.ControllerOption) (*nvmlReceiver, error) {
	r, err := acquire(shared, set, cfg)
	if err != nil {
		return nil, err
	}
	r.metrics = next
	r.options = options
	return r, nil
}

func createLogs(shared *instances, set receiver.Settings, cfg component.Config, next consumer.Logs) (*nvmlReceiver, error) {
	r, err := acquire(shared, set, cfg)
	if err != nil {
		return nil, err
	}
	r.scraper.logs.sink = logsink.New(next, set.Logger, maxLogsQueued, r.scraper.countDropped)
	return r, nil
}

func acquire(shared *instances, set receiver.Settings, cfg component.Config) (*nvmlReceiver, error) {
	config := cfg.(*Config)
	h, err := shared.Acquire(config, func() (*instance, error) { return newInstance(config, set) })
	if err != nil {
		return nil, err
	}
	r := &nvmlReceiver{instance: h.Get(), handle: h}
	r.pending++
	return r, nil
}

// instance is what the signals of one component share: one NVML session.
type instance struct {
	cfg     *Config
	set     receiver.Settings
	scraper *gpuScraper
	metrics consumer.Metrics
	options []scraperhelper.ControllerOption
	pending int // pipelines whose receiver has not started

	controller receiver.Metrics
	ended      sync.Once
}

func newInstance(cfg *Config, set receiver.Settings) (*instance, error) {
	telemetry, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	s, err := newScraper(cfg, set, telemetry)
	if err != nil {
		return nil, err
	}
	return &instance{cfg: cfg, set: set, scraper: s}, nil
}

func (in *instance) run(ctx context.Context, host component.Host) error {
	next := in.metrics
	if next == nil {
		// Only logs are asked for: the GPUs are read all the same.
		in.scraper.logsOnly = true
		var err error
		if next, err = consumer.NewMetrics(func(context.Context, pmetric.Metrics) error { return nil }); err != nil {
			return err
		}
	}
	metrics, err := scraper.NewMetrics(in.scraper.scrape, scraper.WithStart(in.scraper.start), scraper.WithShutdown(in.scraper.shutdown))
	if err != nil {
		return err
	}
	controller, err := scraperhelper.NewMetricsController(&in.cfg.ControllerConfig, in.set, next,
		append(in.options, scraperhelper.AddMetricsScraper(metadata.Type, metrics))...)
	if err != nil {
		return err
	}
	if err = controller.Start(ctx, host); err != nil {
		return errors.Join(err, in.scraper.shutdown(ctx))
	}
	in.controller = controller
	return nil
}

// nvmlReceiver is one signal's handle on the instance.
type nvmlReceiver struct {
	*instance
	handle *sharedinstance.Handle[*instance]
}

// Start starts the instance when it is the last: the service starts what is behind a
// pipeline's receiver before that receiver, and the first scrape goes to all pipelines.
func (r *nvmlReceiver) Start(ctx context.Context, host component.Host) error {
	if r.pending--; r.pending != 0 {
		return nil
	}
	return r.run(ctx, host)
}

// Shutdown ends the instance for all signals, as the service ends them together:
// what is behind one of them takes no more from here on. It ends a scrape that is
// under way first, which may be waiting for a call that hangs.
func (r *nvmlReceiver) Shutdown(ctx context.Context) error {
	var err error
	r.ended.Do(func() {
		r.scraper.interrupt()
		if r.controller == nil {
			err = r.scraper.shutdown(ctx)
		} else {
			err = r.controller.Shutdown(ctx)
		}
	})
	return errors.Join(err, r.handle.Shutdown(func() error { return nil }))
}
