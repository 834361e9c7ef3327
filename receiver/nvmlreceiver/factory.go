// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"context"
	"fmt"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/scraper"
	"go.opentelemetry.io/collector/scraper/scraperhelper"

	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/nvml"
)

// NewFactory returns the factory of the receiver. In a binary that cannot load
// NVML the receiver starts, says so once and emits nothing.
func NewFactory() receiver.Factory {
	return receiver.NewFactory(
		metadata.Type,
		createDefaultConfig,
		receiver.WithMetrics(createMetrics, metadata.MetricsStability),
	)
}

func createMetrics(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Metrics) (receiver.Metrics, error) {
	config, ok := cfg.(*Config)
	if !ok {
		return nil, fmt.Errorf("configuration is a %T, not a *nvmlreceiver.Config", cfg)
	}
	return newReceiver(config, set, next, nvml.NewLibrary)
}

// nvmlReceiver is the scraper helper's controller with a shutdown that does
// not wait for a hanging scrape.
type nvmlReceiver struct {
	receiver.Metrics
	scraper *gpuScraper
}

// newLibrary is nvml.NewLibrary or a test's stand-in.
type newLibrary func(path string, failure nvml.Failure) nvml.Library

func newReceiver(cfg *Config, set receiver.Settings, next consumer.Metrics, library newLibrary, options ...scraperhelper.ControllerOption) (*nvmlReceiver, error) {
	telemetry, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	s := newScraper(cfg, set, telemetry, library)
	metrics, err := scraper.NewMetrics(s.scrape, scraper.WithStart(s.start), scraper.WithShutdown(s.shutdown))
	if err != nil {
		return nil, err
	}
	controller, err := scraperhelper.NewMetricsController(&cfg.ControllerConfig, set, next,
		append(options, scraperhelper.AddMetricsScraper(metadata.Type, metrics))...)
	if err != nil {
		return nil, err
	}
	return &nvmlReceiver{Metrics: controller, scraper: s}, nil
}

// Shutdown ends a scrape that is under way before the controller waits for it.
func (r *nvmlReceiver) Shutdown(ctx context.Context) error {
	r.scraper.interrupt()
	return r.Metrics.Shutdown(ctx)
}
