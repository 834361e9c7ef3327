// SPDX-License-Identifier: Apache-2.0

package fleetotlpreceiver

import (
	"context"
	"errors"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"

	"github.com/gpu-collector/gpu-collector/internal/platform/sharedinstance"
	"github.com/gpu-collector/gpu-collector/receiver/fleetotlpreceiver/internal/metadata"
)

// NewFactory returns the factory of the fleet_otlp receiver. All signals of one receiver
// share its servers.
func NewFactory() receiver.Factory {
	var receivers sharedinstance.Instances[*Config, *fleetReceiver]
	acquire := func(set receiver.Settings, cfg component.Config, feed func(*fleetReceiver)) (*handle, error) {
		c := cfg.(*Config)
		h, err := receivers.Acquire(c, func() (*fleetReceiver, error) { return newReceiver(set, c) })
		if err != nil {
			return nil, err
		}
		feed(h.Get())
		h.Get().pipelines++
		return &handle{h}, nil
	}
	return receiver.NewFactory(metadata.Type, createDefaultConfig,
		receiver.WithMetrics(func(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Metrics) (receiver.Metrics, error) {
			return acquire(set, cfg, func(r *fleetReceiver) { r.metrics = next })
		}, metadata.MetricsStability),
		receiver.WithLogs(func(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Logs) (receiver.Logs, error) {
			return acquire(set, cfg, func(r *fleetReceiver) { r.logs = next })
		}, metadata.LogsStability),
		receiver.WithTraces(func(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Traces) (receiver.Traces, error) {
			return acquire(set, cfg, func(r *fleetReceiver) { r.traces = next })
		}, metadata.TracesStability))
}

// handle is one signal's on the receiver.
type handle struct {
	*sharedinstance.Handle[*fleetReceiver]
}

// Start implements component.Component. The servers start with the last signal: only then
// have the processors of all signals started.
func (h *handle) Start(ctx context.Context, host component.Host) error {
	r := h.Get()
	if r.pipelines--; r.pipelines > 0 {
		return nil
	}
	return r.start(ctx, host)
}

// Shutdown implements component.Component. The servers end with the first signal: after
// it the processors behind it end.
func (h *handle) Shutdown(ctx context.Context) error {
	r := h.Get()
	r.end.Do(func() { r.endErr = r.shutdown(ctx) })
	return errors.Join(r.endErr, h.Handle.Shutdown(func() error { return nil }))
}
