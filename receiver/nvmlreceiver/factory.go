// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/scraper/scraperhelper"

	"github.com/gpu-collector/gpu-collector/internal/logsink"
	"github.com/gpu-collector/gpu-collector/internal/sharedinstance"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/nvml"
)

// NewFactory returns the factory of the receiver. In a binary that cannot load
// NVML the receiver starts, says so once and emits nothing.
func NewFactory() receiver.Factory {
	shared := &instances{}
	return receiver.NewFactory(
		metadata.Type,
		createDefaultConfig,
		receiver.WithMetrics(func(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Metrics) (receiver.Metrics, error) {
			return createMetrics(shared, set, cfg, next, nvml.NewLibrary)
		}, metadata.MetricsStability),
		receiver.WithLogs(func(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Logs) (receiver.Logs, error) {
			return createLogs(shared, set, cfg, next, nvml.NewLibrary)
		}, metadata.LogsStability),
	)
}

// instances are the receivers of the process.
type instances = sharedinstance.Instances[*Config, *instance]

// newLibrary is nvml.NewLibrary or a test's stand-in.
type newLibrary func(path string, failure nvml.Failure, timing ...nvml.Timing) nvml.Library

func createMetrics(shared *instances, set receiver.Settings, cfg component.Config, next consumer.Metrics, library newLibrary, options ...scraperhelper.ControllerOption) (*nvmlReceiver, error) {
	r, err := acquire(shared, set, cfg, library)
	if err != nil {
		return nil, err
	}
	r.metrics = next
	r.options = options
	return r, nil
}

func createLogs(shared *instances, set receiver.Settings, cfg component.Config, next consumer.Logs, library newLibrary) (*nvmlReceiver, error) {
	r, err := acquire(shared, set, cfg, library)
	if err != nil {
		return nil, err
	}
	r.scraper.logs.sink = logsink.New(next, set.Logger, maxLogsQueued, r.scraper.countDropped)
	return r, nil
}

func acquire(shared *instances, set receiver.Settings, cfg component.Config, library newLibrary) (*nvmlReceiver, error) {
	config := cfg.(*Config)
	h, err := shared.Acquire(config, func() (*instance, error) { return newInstance(config, set, library) })
	if err != nil {
		return nil, err
	}
	return &nvmlReceiver{instance: h.Get(), handle: h}, nil
}
