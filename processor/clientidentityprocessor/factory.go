// SPDX-License-Identifier: Apache-2.0

package clientidentityprocessor

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/processor"

	"github.com/gpu-collector/gpu-collector/processor/clientidentityprocessor/internal/metadata"
)

// NewFactory returns the factory of the client_identity processor.
func NewFactory() processor.Factory {
	return processor.NewFactory(metadata.Type, createDefaultConfig,
		processor.WithMetrics(func(_ context.Context, set processor.Settings, cfg component.Config, next consumer.Metrics) (processor.Metrics, error) {
			g, err := newGuard(set, cfg.(*Config))
			return &metricsGuard{guard: g, next: next}, err
		}, metadata.MetricsStability),
		processor.WithLogs(func(_ context.Context, set processor.Settings, cfg component.Config, next consumer.Logs) (processor.Logs, error) {
			g, err := newGuard(set, cfg.(*Config))
			return &logsGuard{guard: g, next: next}, err
		}, metadata.LogsStability),
		processor.WithTraces(func(_ context.Context, set processor.Settings, cfg component.Config, next consumer.Traces) (processor.Traces, error) {
			g, err := newGuard(set, cfg.(*Config))
			return &tracesGuard{guard: g, next: next}, err
		}, metadata.TracesStability))
}
