// SPDX-License-Identifier: Apache-2.0

package ncclreceiver

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/scraper"
	"go.opentelemetry.io/collector/scraper/scraperhelper"

	"github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/metadata"
)

// NewFactory returns the factory of the receiver.
func NewFactory() receiver.Factory {
	return receiver.NewFactory(metadata.Type, createDefaultConfig, receiver.WithMetrics(createMetrics, metadata.MetricsStability))
}

func createMetrics(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Metrics) (receiver.Metrics, error) {
	config := cfg.(*Config)
	s, err := newScraper(config, set)
	if err != nil {
		return nil, err
	}
	metrics, err := scraper.NewMetrics(s.scrape, scraper.WithShutdown(s.shutdown))
	if err != nil {
		return nil, err
	}
	return scraperhelper.NewMetricsController(&config.ControllerConfig, set, next, scraperhelper.AddMetricsScraper(metadata.Type, metrics))
}
