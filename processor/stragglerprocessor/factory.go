// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/processor"

	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

// NewFactory returns the factory of the straggler processor.
func NewFactory() processor.Factory {
	return processor.NewFactory(metadata.Type, createDefaultConfig,
		processor.WithMetrics(createMetrics, metadata.MetricsStability))
}

func createMetrics(_ context.Context, set processor.Settings, cfg component.Config, next consumer.Metrics) (processor.Metrics, error) {
	c := cfg.(*Config)
	if c.Mode == modeAgent {
		return newAgent(set, c, next)
	}
	return newGateway(set, c, next)
}
