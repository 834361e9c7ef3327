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

	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
)

// instances are the receivers of the process. The service makes a receiver
// for each signal and gives all of one component the same configuration.
type instances struct {
	mu  sync.Mutex
	all map[*Config]*instance
}

// acquire returns a new handle on the configuration's instance.
func (r *instances) acquire(cfg *Config, set receiver.Settings, library newLibrary) (*nvmlReceiver, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	in, ok := r.all[cfg]
	if !ok {
		var err error
		if in, err = newInstance(cfg, set, library); err != nil {
			return nil, err
		}
		if r.all == nil {
			r.all = map[*Config]*instance{}
		}
		r.all[cfg] = in
	}
	in.handles++
	return &nvmlReceiver{instance: in, drop: func() bool { return r.drop(cfg) }}, nil
}

// drop gives a handle back and reports whether it was the last.
func (r *instances) drop(cfg *Config) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	in, ok := r.all[cfg]
	if !ok {
		return false
	}
	if in.handles--; in.handles > 0 {
		return false
	}
	delete(r.all, cfg)
	return true
}

// instance is what the signals of one component share: one NVML session.
type instance struct {
	cfg     *Config
	set     receiver.Settings
	scraper *gpuScraper
	metrics consumer.Metrics
	options []scraperhelper.ControllerOption

	handles    int // guarded by instances.mu
	start      sync.Once
	startErr   error
	controller receiver.Metrics
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
	drop func() bool
	once sync.Once
}

// Start starts the instance when it is the first.
func (r *nvmlReceiver) Start(ctx context.Context, host component.Host) error {
	r.start.Do(func() { r.startErr = r.run(ctx, host) })
	return r.startErr
}

// Shutdown ends the instance when it is the last, after it has ended a scrape
// that is under way: that may be waiting for a call that hangs.
func (r *nvmlReceiver) Shutdown(ctx context.Context) error {
	var err error
	r.once.Do(func() {
		if !r.drop() {
			return
		}
		r.scraper.interrupt()
		if r.controller == nil {
			err = r.scraper.shutdown(ctx)
			return
		}
		err = r.controller.Shutdown(ctx)
	})
	return err
}
