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

	"github.com/gpu-collector/gpu-collector/internal/sharedinstance"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
)

// instance is what the signals of one component share: one NVML session.
type instance struct {
	cfg     *Config
	set     receiver.Settings
	scraper *gpuScraper
	metrics consumer.Metrics
	options []scraperhelper.ControllerOption

	controller receiver.Metrics
	ended      sync.Once
}

func newInstance(cfg *Config, set receiver.Settings, library newLibrary) (*instance, error) {
	telemetry, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	s, err := newScraper(cfg, set, telemetry, library)
	if err != nil {
		return nil, err
	}
	return &instance{cfg: cfg, set: set, scraper: s}, nil
}

func (in *instance) run(ctx context.Context, host component.Host) error {
	next := in.metrics
	if next == nil {
		// Only logs are asked for: the GPUs are read all the same.
		in.scraper.silent = true
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

// Start starts the instance when it is the first.
func (r *nvmlReceiver) Start(ctx context.Context, host component.Host) error {
	return r.handle.Start(func() error { return r.run(ctx, host) })
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
