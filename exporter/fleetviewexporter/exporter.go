// SPDX-License-Identifier: Apache-2.0

package fleetviewexporter

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/steadytime"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
)

// fleetExporter writes into the views of an extension.
type fleetExporter struct {
	cfg     *Config
	set     component.TelemetrySettings
	now     func() time.Time
	state   *fleetstate.Store
	history fleethistory.History
}

func newExporter(cfg *Config, set component.TelemetrySettings) *fleetExporter {
	return &fleetExporter{cfg: cfg, set: set, now: new(steadytime.Clock).Now}
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

// pushMetrics takes what each resource says of its node, or of its cluster.
// What there is no room for is counted by the store; it is never an error, as
// sending it again would not help.
func (e *fleetExporter) pushMetrics(ctx context.Context, md pmetric.Metrics) error {
	now := e.now()
	cluster := e.cfg.DefaultCluster
	if c := threshold.CallerFromContext(ctx); c.Cluster != "" {
		cluster = c.Cluster
	}
	for _, rm := range md.ResourceMetrics().All() {
		id := readIdentity(rm.Resource().Attributes(), cluster)
		if id.Node != "" {
			e.node(rm, &id, now)
		} else {
			e.cluster(rm, id.Cluster, now)
		}
	}
	if e.history.Enabled() {
		e.record(md, cluster, now)
	}
	return nil
}

func (e *fleetExporter) pushLogs(_ context.Context, ld plog.Logs) error {
	now := e.now()
	for _, rl := range ld.ResourceLogs().All() {
		id := readIdentity(rl.Resource().Attributes(), e.cfg.DefaultCluster)
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

// readIdentity names the node as the straggler processor does. On Kubernetes
// host.name is often the pod's and changes with it.
func readIdentity(attrs pcommon.Map, defaultCluster string) identity {
	var id identity
	var k8sNode, hostName string
	id.Cluster = defaultCluster
	for name, v := range attrs.All() {
		switch name {
		case gpusemconv.AttrK8sNodeName:
			k8sNode = text(v)
		case gpusemconv.AttrHostName:
			hostName = text(v)
		case gpusemconv.AttrHostID:
			id.HostID = text(v)
		case gpusemconv.AttrClusterName:
			id.Cluster = text(v)
		case gpusemconv.AttrJobID:
			id.JobID = text(v)
		case gpusemconv.AttrJobRole:
			id.JobRole = text(v)
		}
	}
	switch {
	case k8sNode != "":
		id.Node = k8sNode
	case hostName != "":
		id.Node = hostName
	default:
		id.Node = id.HostID
	}
	return id
}

// text returns a string value without a copy, numbers and flags as text, and
// "" for what is not worth a name.
func text(v pcommon.Value) string {
	switch v.Type() {
	case pcommon.ValueTypeStr:
		return v.Str()
	case pcommon.ValueTypeInt, pcommon.ValueTypeBool:
		return v.AsString()
	default:
		return ""
	}
}
