// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/nvml"
)

// closeTimeout is what a hanging call may delay a shutdown by. It leaves most
// of the five seconds that a shutdown may take to the pipeline.
const closeTimeout = 2 * time.Second

// gpuScraper turns the poller's reports into metrics. The controller calls its
// methods one at a time.
type gpuScraper struct {
	set       receiver.Settings
	poller    *nvml.Poller
	telemetry *metadata.TelemetryBuilder
	builder   *metadata.MetricsBuilder
	resource  pcommon.Resource
	starts    startTimes
	news      news
	now       func() time.Time

	generation uint64
}

func newScraper(cfg *Config, set receiver.Settings, telemetry *metadata.TelemetryBuilder, library newLibrary) *gpuScraper {
	s := &gpuScraper{
		set:       set,
		telemetry: telemetry,
		builder:   metadata.NewMetricsBuilder(cfg.MetricsBuilderConfig, set),
		resource:  nodeResource(cfg),
		news:      news{log: set.Logger},
		now:       time.Now,
	}
	s.poller = nvml.NewPoller(nvml.Config{
		Library:  library(cfg.LibraryPath, s.countFailure),
		Deadline: cfg.Deadline,
		Retry:    cfg.RetryInterval,
	})
	return s
}

// start does not touch NVML: nvmlInit may take long, and a receiver without a
// driver is no failure.
func (*gpuScraper) start(context.Context, component.Host) error { return nil }

// interrupt makes a scrape that is under way return.
func (s *gpuScraper) interrupt() { s.poller.Interrupt() }

func (s *gpuScraper) shutdown(context.Context) error {
	err := s.poller.Close(closeTimeout)
	s.telemetry.Shutdown()
	if err != nil {
		// Nothing that anyone could do, and no reason to fail the shutdown.
		s.set.Logger.Warn("NVML was left as it is", zap.Error(err))
	}
	return nil
}

func (s *gpuScraper) scrape(ctx context.Context) (pmetric.Metrics, error) {
	// Read before the poll: nearly all readings are of that moment, also when
	// one GPU holds the report up until the deadline.
	ts := pcommon.NewTimestampFromTime(s.now())
	report := s.poller.Poll(ctx)

	if errors.Is(report.Err, nvml.ErrClosed) {
		return pmetric.NewMetrics(), nil
	}
	if n := report.Generation - s.generation; n > 0 {
		s.generation = report.Generation
		s.telemetry.ReceiverNvmlDriverGenerations.Add(ctx, int64(n))
	}
	s.news.report(&report)
	if len(report.Samples) == 0 {
		return pmetric.NewMetrics(), nil
	}

	for i := range report.Samples {
		sample := &report.Samples[i]
		rejected := sample.Validate()
		for _, field := range rejected {
			s.telemetry.ReceiverNvmlRejectedFields.Add(ctx, 1, metric.WithAttributes(attribute.String("field", string(field))))
		}
		if len(rejected) > 0 && rejected[0] == gpuhealth.FieldUUID {
			continue
		}
		record(s.builder, ts, sample)
	}
	metrics := s.builder.Emit(metadata.WithResource(s.resource))
	s.starts.apply(metrics)
	return metrics, nil
}

func (s *gpuScraper) countFailure(function string, code nvml.Code) {
	s.telemetry.ReceiverNvmlCallFailures.Add(context.Background(), 1, metric.WithAttributes(
		attribute.String("function", function), attribute.String("return", code.String())))
}
