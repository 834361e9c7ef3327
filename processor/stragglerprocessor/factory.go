// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"errors"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/processor"

	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

// NewFactory returns the factory of the straggler processor.
func NewFactory() processor.Factory {
	shared := &gateways{}
	return processor.NewFactory(metadata.Type, createDefaultConfig,
		processor.WithMetrics(func(_ context.Context, set processor.Settings, cfg component.Config, next consumer.Metrics) (processor.Metrics, error) {
			return createMetrics(shared, set, cfg.(*Config), next)
		}, metadata.MetricsStability),
		processor.WithLogs(func(_ context.Context, set processor.Settings, cfg component.Config, next consumer.Logs) (processor.Logs, error) {
			return createLogs(shared, set, cfg.(*Config), next)
		}, metadata.LogsStability))
}

func createMetrics(shared *gateways, set processor.Settings, cfg *Config, next consumer.Metrics) (processor.Metrics, error) {
	if cfg.Mode == modeAgent {
		return newAgent(set, cfg, next)
	}
	h, err := shared.Acquire(cfg, func() (*gateway, error) { return newGateway(set, cfg) })
	if err != nil {
		return nil, err
	}
	return newGatewayMetrics(h, next), nil
}

func createLogs(shared *gateways, set processor.Settings, cfg *Config, next consumer.Logs) (processor.Logs, error) {
	if cfg.Mode == modeAgent {
		return nil, errors.New("`mode` is \"agent\", which adds nothing to a logs pipeline: only a processor in mode \"gateway\" belongs there")
	}
	h, err := shared.Acquire(cfg, func() (*gateway, error) { return newGateway(set, cfg) })
	if err != nil {
		return nil, err
	}
	return newGatewayLogs(h, next), nil
}
