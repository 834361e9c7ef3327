// SPDX-License-Identifier: Apache-2.0

package fleetotlpreceiver

import (
	"context"
	"iter"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receiverhelper"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/internal/admission"
	"github.com/gpu-collector/gpu-collector/internal/delta"
)

type observer = receiverhelper.ObsReport

// format is what the Collector's own receiver calls all of OTLP in its spans.
const format = "protobuf"

// signal is what differs from one signal of OTLP to the other.
type signal struct {
	name    string
	service string // of gRPC, in opentelemetry.proto.collector
	path    otlpreceiver.SanitizedURLPath
	served  bool // a pipeline takes it
	size    admission.Signal
	// answered is set for pushes of state: threshold and epoch are about metrics.
	answered bool
	decode   func(msg []byte, json bool) (*batch, error)
	// empty is the response to a push that was taken whole.
	empty message
}

// message is a request or response of OTLP.
type message interface {
	MarshalProto() ([]byte, error)
	MarshalJSON() ([]byte, error)
}

// signals are those of OTLP.
func (r *fleetReceiver) signals() []*signal {
	var paths otlpreceiver.HTTPConfig
	if r.cfg.Protocols.HTTP.HasValue() {
		paths = *r.cfg.Protocols.HTTP.Get()
	}
	return []*signal{
		{
			name: "metrics", service: "metrics.v1.MetricsService", path: paths.MetricsURLPath, served: r.metrics != nil,
			size: admission.Metrics, answered: true, decode: r.decodeMetrics, empty: pmetricotlp.NewExportResponse(),
		},
		{
			name: "logs", service: "logs.v1.LogsService", path: paths.LogsURLPath, served: r.logs != nil,
			size: admission.Logs, decode: r.decodeLogs, empty: plogotlp.NewExportResponse(),
		},
		{
			name: "traces", service: "trace.v1.TraceService", path: paths.TracesURLPath, served: r.traces != nil,
			size: admission.Traces, decode: r.decodeTraces, empty: ptraceotlp.NewExportResponse(),
		},
		{name: "profiles", service: "profiles.v1development.ProfilesService", path: "/v1development/profiles"},
	}
}

// refusal says why a signal is not taken.
func (s *signal) refusal() *status.Status {
	text := "no pipeline takes the " + s.name + " of this receiver: add it to the `receivers` of one in `service::pipelines`"
	if s.decode == nil {
		text = "fleet_otlp takes no " + s.name + ": send them to an otlp receiver"
	}
	return status.New(codes.Unimplemented, text)
}

type unmarshaler interface {
	UnmarshalProto([]byte) error
	UnmarshalJSON([]byte) error
}

func unmarshal(into unmarshaler, msg []byte, json bool) error {
	if json {
		return into.UnmarshalJSON(msg)
	}
	return into.UnmarshalProto(msg)
}

func (r *fleetReceiver) decodeMetrics(msg []byte, json bool) (*batch, error) {
	req := pmetricotlp.NewExportRequest()
	err := unmarshal(req, msg, json)
	md := req.Metrics()
	return &batch{
		items: md.DataPointCount(), resources: resources(md.ResourceMetrics().All()),
		consume: func(ctx context.Context, obs *observer) error { return r.consumeMetrics(ctx, obs, md) },
	}, err
}

func (r *fleetReceiver) consumeMetrics(ctx context.Context, obs *observer, md pmetric.Metrics) error {
	items := md.DataPointCount()
	ctx = obs.StartMetricsOp(ctx)
	err := r.metrics.ConsumeMetrics(ctx, md)
	obs.EndMetricsOp(ctx, format, items, err)
	return err
}

// rest is what is left of a push that was compared with the table.
func (r *fleetReceiver) rest(push *delta.Push, permit *admission.Permit, left []byte) (*batch, error) {
	if err := reserve(permit, admission.Metrics, left, false); err != nil {
		return nil, err
	}
	req := pmetricotlp.NewExportRequest()
	if err := req.UnmarshalProto(left); err != nil {
		return nil, &malformedError{err}
	}
	return &batch{compared: true, consume: func(ctx context.Context, obs *observer) error {
		return push.Consume(ctx, req.Metrics(), func(ctx context.Context, md pmetric.Metrics) error {
			return r.consumeMetrics(ctx, obs, md)
		})
	}}, nil
}

func (r *fleetReceiver) decodeLogs(msg []byte, json bool) (*batch, error) {
	req := plogotlp.NewExportRequest()
	err := unmarshal(req, msg, json)
	ld := req.Logs()
	items := ld.LogRecordCount()
	return &batch{items: items, resources: resources(ld.ResourceLogs().All()), consume: func(ctx context.Context, obs *observer) error {
		ctx = obs.StartLogsOp(ctx)
		err := r.logs.ConsumeLogs(ctx, ld)
		obs.EndLogsOp(ctx, format, items, err)
		return err
	}}, err
}

func (r *fleetReceiver) decodeTraces(msg []byte, json bool) (*batch, error) {
	req := ptraceotlp.NewExportRequest()
	err := unmarshal(req, msg, json)
	td := req.Traces()
	items := td.SpanCount()
	return &batch{items: items, resources: resources(td.ResourceSpans().All()), consume: func(ctx context.Context, obs *observer) error {
		ctx = obs.StartTracesOp(ctx)
		err := r.traces.ConsumeTraces(ctx, td)
		obs.EndTracesOp(ctx, format, items, err)
		return err
	}}, err
}

func resources[E interface{ Resource() pcommon.Resource }](all iter.Seq2[int, E]) iter.Seq[pcommon.Resource] {
	return func(yield func(pcommon.Resource) bool) {
		for _, e := range all {
			if !yield(e.Resource()) {
				return
			}
		}
	}
}
