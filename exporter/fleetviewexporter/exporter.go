// SPDX-License-Identifier: Apache-2.0

package fleetviewexporter

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/exporter/fleetviewexporter/internal/metadata"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/platform/hostextension"
	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/identity"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode/otlp"
)

// fleetExporter writes into the views of an extension.
type fleetExporter struct {
	cfg       *Config
	telemetry *metadata.TelemetryBuilder
	reader    *metricreading.Reader
	now       func() time.Time
	state     *fleetstate.Store
}

func newExporter(cfg *Config, set component.TelemetrySettings) (*fleetExporter, error) {
	tb, err := metadata.NewTelemetryBuilder(set)
	if err != nil {
		return nil, err
	}
	return &fleetExporter{cfg: cfg, telemetry: tb, reader: metricreading.New(set.Logger, tb.ExporterFleetViewRejected), now: new(reading.Clock).Now}, nil
}

func (e *fleetExporter) shutdown(context.Context) error {
	e.reader.Leave()
	e.telemetry.Shutdown()
	return nil
}

func (e *fleetExporter) start(_ context.Context, host component.Host) error {
	source, err := hostextension.Find[fleetstate.Source](host, "extension", "fleet_view", e.cfg.Extension)
	if err != nil {
		return err
	}
	e.state = source.State()
	e.reader.Join()
	return nil
}

// scratch is the memory for reading a push; it is used again.
type scratch struct {
	from  metricreading.Resource
	point metricreading.Point
	vague []pmetric.Metric // of the resource that is being read
	now   time.Time
	of    fleetstate.Key
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// each calls take with the points of a metric of the catalogue, with NaN where a value was
// refused or its series has ended.
func (s *scratch) each(known *reading.Metric, m pmetric.Metric, take func(*metricreading.Point)) {
	points, ok := s.from.Open(known, m)
	if !ok {
		return
	}
	for _, dp := range points.All() {
		if s.from.Read(dp, &s.point) != reading.BadSubject {
			take(&s.point)
		}
	}
}

// pushMetrics takes each resource into the view of its node, or of its cluster's groups. The
// store counts refusals, which are no errors: a retry would not help.
func (e *fleetExporter) pushMetrics(ctx context.Context, md pmetric.Metrics) error {
	caller := pushheaders.CallerFromContext(ctx).Cluster
	s := scratches.Get().(*scratch)
	s.now = e.now()
	for _, rm := range md.ResourceMetrics().All() {
		id := readSender(rm.Resource().Attributes(), caller, e.cfg.DefaultCluster)
		s.of = id.Key
		s.from.Begin(e.reader, rm.Resource().Attributes(), caller, e.cfg.DefaultCluster)
		if id.Node != "" {
			e.node(rm, s, id.Facts)
		} else {
			e.cluster(rm, s)
		}
		s.from.End(ctx)
	}
	*s = scratch{vague: s.vague} // no pdata is kept
	scratches.Put(s)
	return nil
}

func (e *fleetExporter) pushLogs(_ context.Context, ld plog.Logs) error {
	now := e.now()
	for _, rl := range ld.ResourceLogs().All() {
		id := readSender(rl.Resource().Attributes(), "", e.cfg.DefaultCluster)
		for _, sl := range rl.ScopeLogs().All() {
			for _, lr := range sl.LogRecords().All() {
				if lr.EventName() == gpusemconv.EventStraggler {
					e.state.PutEpisode(otlp.Decode(lr, id.Cluster, id.Node, now))
				}
			}
		}
	}
	return nil
}

// sender is the identity of a resource.
type sender struct {
	fleetstate.Key
	fleetstate.Facts
}

// readSender reads the identity of a resource and the facts of its node.
func readSender(attrs pcommon.Map, caller, defaultCluster string) sender {
	var id sender
	var names identity.Names
	for name, v := range attrs.All() {
		text := metricreading.Text(v)
		switch name {
		case gpusemconv.AttrJobID:
			id.JobID = identity.Job(text)
		case gpusemconv.AttrJobRole:
			id.JobRole = text
		default:
			names.Take(name, text)
		}
	}
	id.Cluster, id.Node, id.HostID = names.Cluster(caller, defaultCluster), names.Node(), names.HostID()
	return id
}
