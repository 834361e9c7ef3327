// SPDX-License-Identifier: Apache-2.0

package fabricreceiver

import (
	"context"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/counterstart"
	"github.com/gpu-collector/gpu-collector/internal/fabric"
	"github.com/gpu-collector/gpu-collector/internal/hostfacts"
	"github.com/gpu-collector/gpu-collector/internal/ownnode"
	"github.com/gpu-collector/gpu-collector/receiver/fabricreceiver/internal/metadata"
)

// nearInterval is how often the bus is looked at: it changes when somebody swaps a card.
const nearInterval = time.Minute

// maxLogged bounds the failures that are remembered to be logged.
const maxLogged = 1024

// fabricScraper turns readings into metrics. The controller calls its methods one at a
// time.
type fabricScraper struct {
	cfg       *Config
	log       *zap.Logger
	telemetry *metadata.TelemetryBuilder
	builder   *metadata.MetricsBuilder
	resource  pcommon.Resource
	reader    *fabric.Reader
	times     hostfacts.Times
	starts    counterstart.Times
	changes   changes
	endings   endings
	now       func() time.Time

	begun  map[series]bool // counts that were above 0, and counters that were full
	near   []fabric.Near
	looked time.Time
	logged map[string]bool
}

// series is a kind of a port.
type series struct {
	port string
	kind *fabric.Kind
	full bool
}

func newScraper(cfg *Config, set receiver.Settings) (*fabricScraper, error) {
	telemetry, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	rb := metadata.NewResourceBuilder(cfg.ResourceAttributes)
	ownnode.Describe(rb, cfg.NodeName, cfg.Cluster)
	return &fabricScraper{
		cfg: cfg, log: set.Logger, telemetry: telemetry, now: time.Now,
		builder:  metadata.NewMetricsBuilder(cfg.MetricsBuilderConfig, set),
		resource: rb.Emit(),
		reader:   fabric.New(fabric.Config{Sys: cfg.SysPath, Exclude: cfg.Exclude, Management: cfg.ManagementPorts, Deadline: cfg.Deadline}),
		begun:    map[series]bool{},
		logged:   map[string]bool{},
	}, nil
}

func (s *fabricScraper) shutdown(context.Context) error {
	s.telemetry.Shutdown()
	return nil
}

func (s *fabricScraper) scrape(ctx context.Context) (pmetric.Metrics, error) {
	now := s.now()
	ts := pcommon.NewTimestampFromTime(now)
	s.host(ctx, ts)
	report := s.reader.Read(ctx)
	s.tell(ctx, &report)
	route, err := fabric.DefaultRoute(s.cfg.ProcPath, s.cfg.SysPath)
	if err != nil {
		s.fail(ctx, "route", fabric.Failure{Cause: fabric.Unreadable, Err: err}, "nobody knows which port carries the default route")
	}
	if now.Sub(s.looked) >= nearInterval && len(report.Ports) > 0 {
		s.looked, s.near = now, fabric.FindNear(s.cfg.SysPath, report.Ports, route)
	}
	for i := range report.Ports {
		s.port(ts, &report.Ports[i], route)
	}
	for i := range s.near {
		s.relate(ts, &s.near[i], report.Ports)
	}
	metrics := s.builder.Emit(metadata.WithResource(s.resource))
	s.starts.Apply(metrics)
	s.endings.apply(metrics, s.resource, ts, report.Silent)
	return metrics, nil
}

// tell logs and counts what was not read, and what cannot be trusted.
func (s *fabricScraper) tell(ctx context.Context, report *fabric.Report) {
	for _, f := range report.Failures {
		s.fail(ctx, f.Device+"/"+f.File, f, "a port of the network was not read")
	}
	// One line a device: a driver that is loaded anew resets all of its counters.
	for _, f := range s.changes.apply(report) {
		message := "a counter of the network cannot be trusted"
		if f.Cause == fabric.Gone {
			message = "a port of the network has vanished"
		}
		s.fail(ctx, f.Device, f, message)
	}
	for _, e := range report.Excluded {
		s.telemetry.ReceiverFabricExcludedDevices.Add(ctx, 1)
		s.log.Info("a device is not read", zap.String("device", e.Device), zap.String("why", e.Why))
	}
}

// fail counts a failure, and logs the first of its sort.
func (s *fabricScraper) fail(ctx context.Context, what string, f fabric.Failure, message string) {
	s.telemetry.ReceiverFabricReadFailures.Add(ctx, 1, metric.WithAttributes(attribute.String("cause", string(f.Cause))))
	if key := what + "/" + string(f.Cause); !s.logged[key] && len(s.logged) < maxLogged {
		s.logged[key] = true
		s.log.Warn(message, zap.String("device", f.Device), zap.String("file", f.File), zap.String("cause", string(f.Cause)), zap.Error(f.Err))
	}
}
