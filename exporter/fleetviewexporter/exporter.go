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
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
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
	history   fleethistory.History
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
	sink, err := hostextension.Find[fleetstate.Sink](host, "extension", "fleet_view", e.cfg.Extension)
	if err != nil {
		return err
	}
	e.state, e.history = sink.State(), sink.History()
	e.reader.Join()
	return nil
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// pushMetrics takes each resource into the view of its node, or of its cluster's groups. The
// store counts refusals, which are no errors: a retry would not help.
func (e *fleetExporter) pushMetrics(ctx context.Context, md pmetric.Metrics) error {
	caller := pushheaders.CallerFromContext(ctx).Cluster
	s := scratches.Get().(*scratch)
	s.now, s.records = e.now(), e.history.Enabled()
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
	if len(s.samples) > 0 {
		e.history.Write(s.samples)
	}
	clear(s.samples)
	*s = scratch{vague: s.vague, samples: s.samples[:0]} // no pdata is kept
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
