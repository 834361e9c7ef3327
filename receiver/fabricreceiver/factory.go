// SPDX-License-Identifier: Apache-2.0

package fabricreceiver

import (
	"context"
	"fmt"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/scraper"
	"go.opentelemetry.io/collector/scraper/scraperhelper"

	"github.com/gpu-collector/gpu-collector/receiver/fabricreceiver/internal/metadata"
)

// NewFactory returns the factory of the receiver. Where there is neither /sys nor /proc of
// Linux the receiver starts, says so once and emits nothing.
func NewFactory() receiver.Factory {
	return receiver.NewFactory(metadata.Type, createDefaultConfig, receiver.WithMetrics(createMetrics, metadata.MetricsStability))
}

func createMetrics(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Metrics) (receiver.Metrics, error) {
	return newReceiver(set, cfg, next)
}

func newReceiver(set receiver.Settings, cfg component.Config, next consumer.Metrics, options ...scraperhelper.ControllerOption) (receiver.Metrics, error) {
	config, ok := cfg.(*Config)
	if !ok {
		return nil, fmt.Errorf("configuration is a %T, not a *fabricreceiver.Config", cfg)
	}
	s, err := newScraper(config, set)
	if err != nil {
		return nil, err
	}
	metrics, err := scraper.NewMetrics(s.scrape, scraper.WithShutdown(s.shutdown))
	if err != nil {
		return nil, err
	}
	return scraperhelper.NewMetricsController(&config.ControllerConfig, set, next,
		append(options, scraperhelper.AddMetricsScraper(metadata.Type, metrics))...)
}
