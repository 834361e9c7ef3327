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
	acquire := func(set processor.Settings, cfg *Config) (*gatewayHandle, error) {
		return shared.Acquire(cfg, func() (*gateway, error) { return newGateway(set, cfg) })
	}
	return processor.NewFactory(metadata.Type, createDefaultConfig,
		processor.WithMetrics(func(_ context.Context, set processor.Settings, cfg component.Config, next consumer.Metrics) (processor.Metrics, error) {
			if cfg := cfg.(*Config); cfg.Mode == modeAgent {
				return newAgent(set, cfg, next)
			}
			h, err := acquire(set, cfg.(*Config))
			if err != nil {
				return nil, err
			}
			return newGatewayMetrics(h, next), nil
		}, metadata.MetricsStability),
		processor.WithLogs(func(_ context.Context, set processor.Settings, cfg component.Config, next consumer.Logs) (processor.Logs, error) {
			if cfg.(*Config).Mode == modeAgent {
				return nil, errors.New("`mode` is \"agent\", which adds nothing to a logs pipeline: only a processor in mode \"gateway\" belongs there")
			}
			h, err := acquire(set, cfg.(*Config))
			if err != nil {
				return nil, err
			}
			return newGatewayLogs(h, next), nil
		}, metadata.LogsStability))
}
