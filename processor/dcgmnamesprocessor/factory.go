// SPDX-License-Identifier: Apache-2.0

package dcgmnamesprocessor

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/processorhelper"

	"github.com/gpu-collector/gpu-collector/processor/dcgmnamesprocessor/internal/metadata"
)

// NewFactory returns the factory of the dcgm_names processor.
func NewFactory() processor.Factory {
	return processor.NewFactory(metadata.Type, createDefaultConfig,
		processor.WithMetrics(func(ctx context.Context, set processor.Settings, cfg component.Config, next consumer.Metrics) (processor.Metrics, error) {
			t := newTranslator(cfg.(*Config))
			return processorhelper.NewMetrics(ctx, set, cfg, next, t.translate, processorhelper.WithCapabilities(consumer.Capabilities{MutatesData: true}))
		}, metadata.MetricsStability))
}
