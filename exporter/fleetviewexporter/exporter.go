// SPDX-License-Identifier: Apache-2.0

package fleetviewexporter

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	otelattribute "go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/gpu-collector/gpu-collector/exporter/fleetviewexporter/internal/metadata"
	"github.com/gpu-collector/gpu-collector/internal/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	nodeidentity "github.com/gpu-collector/gpu-collector/internal/reading/identity"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/internal/steadytime"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

// fleetExporter writes into the views of an extension.
type fleetExporter struct {
	cfg       *Config
	telemetry *metadata.TelemetryBuilder
	refusals  [reading.NumRefusals]metric.MeasurementOption
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
	e := &fleetExporter{cfg: cfg, telemetry: tb, reader: metricreading.New(set.Logger), now: new(steadytime.Clock).Now}
	for why := range reading.NumRefusals {
		e.refusals[why] = metric.WithAttributeSet(otelattribute.NewSet(otelattribute.String("reason", why.String())))
	}
	return e, nil
}

// refused counts what the catalogue refused.
func (e *fleetExporter) refused(ctx context.Context, counts *[reading.NumRefusals]int64) {
	for why, n := range counts {
		if n > 0 {
			e.telemetry.ExporterFleetViewRejected.Add(ctx, n, e.refusals[why])
		}
	}
}

func (e *fleetExporter) shutdown(context.Context) error {
	e.telemetry.Shutdown()
	return nil
}

func (e *fleetExporter) start(_ context.Context, host component.Host) error {
	ext, ok := host.GetExtensions()[e.cfg.Extension]
	if !ok {
		return fmt.Errorf("`extension` is %q, which `service::extensions` does not list", e.cfg.Extension)
	}
	sink, ok := ext.(fleetstate.Sink)
	if !ok {
		return fmt.Errorf("`extension` is %q, must be a fleet_view extension", e.cfg.Extension)
	}
	e.state, e.history = sink.State(), sink.History()
	return nil
}

// scratch is what reading one resource takes; it is used again.
type scratch struct {
	from  metricreading.Resource
	point metricreading.Point
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// pushMetrics takes what each resource says of its node, or of its cluster.
// What there is no room for is counted by the store; it is never an error, as
// sending it again would not help.
func (e *fleetExporter) pushMetrics(ctx context.Context, md pmetric.Metrics) error {
	now := e.now()
	caller := wire.CallerFromContext(ctx).Cluster
	s := scratches.Get().(*scratch)
	for _, rm := range md.ResourceMetrics().All() {
		id := readIdentity(rm.Resource().Attributes(), caller, e.cfg.DefaultCluster)
		s.from = e.reader.Resource(rm.Resource().Attributes())
		if id.Node != "" {
			e.node(rm, s, &id, now)
		} else {
			e.cluster(rm, s, id.Cluster, now)
		}
		e.refused(ctx, &s.from.Refused)
	}
	*s = scratch{} // no pdata is kept
	scratches.Put(s)
	if e.history.Enabled() {
		e.record(md, caller, now)
	}
	return nil
}

func (e *fleetExporter) pushLogs(_ context.Context, ld plog.Logs) error {
	now := e.now()
	for _, rl := range ld.ResourceLogs().All() {
		id := readIdentity(rl.Resource().Attributes(), "", e.cfg.DefaultCluster)
		for _, sl := range rl.ScopeLogs().All() {
			for _, lr := range sl.LogRecords().All() {
				if lr.EventName() == gpusemconv.EventStraggler {
					e.state.PutEpisode(readEpisode(lr, &id, now))
				}
			}
		}
	}
	return nil
}

// identity is who a resource is.
type identity struct {
	fleetstate.Key
	fleetstate.Facts
}

// readIdentity reads who a resource is, and what it says of its node.
func readIdentity(attrs pcommon.Map, caller, defaultCluster string) identity {
	var id identity
	var names nodeidentity.Names
	for name, v := range attrs.All() {
		text := metricreading.Text(v)
		switch name {
		case gpusemconv.AttrJobID:
			id.JobID = text
		case gpusemconv.AttrJobRole:
			id.JobRole = text
		default:
			names.Take(name, text)
		}
	}
	id.Cluster, id.Node, id.HostID = names.Cluster(caller, defaultCluster), names.Node(), names.HostID()
	return id
}
