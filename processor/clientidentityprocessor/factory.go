// SPDX-License-Identifier: Apache-2.0

package clientidentityprocessor

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/processor"

	"github.com/gpu-collector/gpu-collector/processor/clientidentityprocessor/internal/metadata"
)

// NewFactory returns the factory of the client_identity processor.
func NewFactory() processor.Factory {
	return processor.NewFactory(metadata.Type, createDefaultConfig,
		processor.WithMetrics(func(_ context.Context, set processor.Settings, cfg component.Config, next consumer.Metrics) (processor.Metrics, error) {
			g, err := newGuard(set, cfg.(*Config))
			return struct {
				*guard
				consumer.ConsumeMetricsFunc
			}{g, func(ctx context.Context, md pmetric.Metrics) error {
				return settled(ctx, g, md.ResourceMetrics(), func() error { return next.ConsumeMetrics(ctx, md) })
			}}, err
		}, metadata.MetricsStability),
		processor.WithLogs(func(_ context.Context, set processor.Settings, cfg component.Config, next consumer.Logs) (processor.Logs, error) {
			g, err := newGuard(set, cfg.(*Config))
			return struct {
				*guard
				consumer.ConsumeLogsFunc
			}{g, func(ctx context.Context, ld plog.Logs) error {
				return settled(ctx, g, ld.ResourceLogs(), func() error { return next.ConsumeLogs(ctx, ld) })
			}}, err
		}, metadata.LogsStability),
		processor.WithTraces(func(_ context.Context, set processor.Settings, cfg component.Config, next consumer.Traces) (processor.Traces, error) {
			g, err := newGuard(set, cfg.(*Config))
			return struct {
				*guard
				consumer.ConsumeTracesFunc
			}{g, func(ctx context.Context, td ptrace.Traces) error {
				return settled(ctx, g, td.ResourceSpans(), func() error { return next.ConsumeTraces(ctx, td) })
			}}, err
		}, metadata.TracesStability))
}
