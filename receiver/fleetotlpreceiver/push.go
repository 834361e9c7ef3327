// SPDX-License-Identifier: Apache-2.0

package fleetotlpreceiver

import (
	"bytes"
	"cmp"
	"context"
	"fmt"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receiverhelper"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/platform/admission"
	"github.com/gpu-collector/gpu-collector/internal/platform/clientidentity"
	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// request is a push as its transport has it.
type request struct {
	transport threshold.Transport
	header    func(name string) []string
	query     string // of the URL
	json      bool
	// receive waits for the message.
	receive func(permit *admission.Permit, into *bytes.Buffer) error
}

// push works on one push: identity, permit, bytes, comparison, decoding, the pipeline, and
// the answer.
func (r *fleetReceiver) push(ctx context.Context, s *signal, req *request) ([]pushheaders.Header, error) {
	if !s.served {
		return nil, status.Error(codes.Unimplemented,
			"no pipeline takes the "+s.name+" of this receiver: add it to the `receivers` of one in `service::pipelines`")
	}
	client, err := r.cfg.Identity.of(ctx)
	if err != nil {
		return nil, err
	}
	p := &threshold.Push{Transport: req.transport, Header: req.header}
	var cluster string
	if r.answers != nil {
		cluster, p.Node = r.answers.Claim(req.transport, req.header, req.query)
	} else if names := req.header(gpusemconv.HeaderCluster); len(names) > 0 {
		cluster = names[0]
	}
	p.Node = cmp.Or(client.Node, p.Node)
	p.Caller, p.Invalid = client.Caller(cluster)
	permit, err := r.limiter.Acquire(p.Caller.Cluster)
	if err != nil {
		return nil, err
	}
	defer permit.Release()
	answer := func() []pushheaders.Header { return nil }
	if r.answers != nil && s.answered {
		ctx, answer = r.answers.Push(ctx, p)
	} else {
		ctx = pushheaders.ContextWithCaller(ctx, p.Caller)
	}
	data, err := r.read(ctx, s, client, permit, req)
	if err != nil {
		return nil, err
	}
	if data.items > 0 {
		err = data.consume(ctx, r.observers[req.transport])
	}
	return answer(), err
}

// read makes a batch of a message, without the points that the table has as they are.
func (r *fleetReceiver) read(
	ctx context.Context, s *signal, client clientidentity.Identity, permit *admission.Permit, req *request,
) (*batch, error) {
	buffer := r.buffers.Get().(*bytes.Buffer)
	defer func() {
		if buffer.Cap() <= keepBytes {
			buffer.Reset()
			r.buffers.Put(buffer)
		}
	}()
	if err := req.receive(permit, buffer); err != nil {
		return nil, err
	}
	msg := buffer.Bytes()
	if s.answered && r.engine != nil && !req.json {
		read := readWhole
		if r.engine.Reduce(client.Owns, msg) {
			read = readBytes
		}
		r.telemetry.ReceiverFleetOtlpPushes.Add(ctx, 1, read)
	}
	size, err := admission.Decoded(s.size, msg, req.json)
	if err == nil {
		err = permit.Reserve(len(msg) + size)
	}
	if err != nil {
		return nil, err
	}
	var foreign error
	data, err := s.decode(msg, req.json, func(resource pcommon.Resource) {
		foreign = cmp.Or(foreign, client.Settle(resource.Attributes()))
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", admission.ErrMalformed, err)
	case foreign != nil && r.cfg.Identity.Foreign == foreignRefuse:
		return nil, foreign
	}
	return data, nil
}

// keepBytes is how large a buffer may be to be used again, as for the largest reports of a node.
const keepBytes = 1 << 20

// How a push was read, see metadata.yaml.
var (
	readBytes = option("read", "bytes")
	readWhole = option("read", "whole")
)

func option(key, value string) metric.AddOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String(key, value)))
}

// signal is what differs from one signal of OTLP to the other.
type signal struct {
	name    string
	service string // of gRPC, in opentelemetry.proto.collector
	path    otlpreceiver.SanitizedURLPath
	served  bool // a pipeline takes it
	size    *admission.Message
	// answered is set for pushes of state: threshold and epoch are about metrics.
	answered bool
	decode   func(msg []byte, json bool, each func(pcommon.Resource)) (*batch, error)
}

// batch is what a message holds.
type batch struct {
	items   int
	consume func(context.Context, *observer) error
}

type observer = receiverhelper.ObsReport

// observed is the batch of some data, which the pipeline next takes between start and end.
func observed[D any](
	data D, items int, start func(*observer, context.Context) context.Context,
	next func(context.Context, D) error, end func(*observer, context.Context, string, int, error),
) *batch {
	return &batch{items, func(ctx context.Context, obs *observer) error {
		ctx = start(obs, ctx)
		err := next(ctx, data)
		end(obs, ctx, "protobuf", items, err) // as the Collector's own receiver calls all of OTLP
		return err
	}}
}

// signals are those of OTLP.
func (r *fleetReceiver) signals() []*signal {
	paths := cmp.Or(r.cfg.Protocols.HTTP.Get(), &otlpreceiver.HTTPConfig{})
	return []*signal{
		{"metrics", "metrics.v1.MetricsService", paths.MetricsURLPath, r.metrics != nil, admission.Metrics, true, r.decodeMetrics},
		{"logs", "logs.v1.LogsService", paths.LogsURLPath, r.logs != nil, admission.Logs, false, r.decodeLogs},
		{"traces", "trace.v1.TraceService", paths.TracesURLPath, r.traces != nil, admission.Traces, false, r.decodeTraces},
	}
}

// whole is the response to a push that was taken whole. That of each signal has this form.
var whole = pmetricotlp.NewExportResponse()

func unmarshal(into interface {
	UnmarshalProto([]byte) error
	UnmarshalJSON([]byte) error
}, msg []byte, json bool,
) error {
	if json {
		return into.UnmarshalJSON(msg)
	}
	return into.UnmarshalProto(msg)
}

func (r *fleetReceiver) decodeMetrics(msg []byte, json bool, each func(pcommon.Resource)) (*batch, error) {
	req := pmetricotlp.NewExportRequest()
	err := unmarshal(req, msg, json)
	md := req.Metrics()
	for _, rm := range md.ResourceMetrics().All() {
		each(rm.Resource())
	}
	return observed(md, md.DataPointCount(), (*observer).StartMetricsOp, r.metrics.ConsumeMetrics, (*observer).EndMetricsOp), err
}

func (r *fleetReceiver) decodeLogs(msg []byte, json bool, each func(pcommon.Resource)) (*batch, error) {
	req := plogotlp.NewExportRequest()
	err := unmarshal(req, msg, json)
	ld := req.Logs()
	for _, rl := range ld.ResourceLogs().All() {
		each(rl.Resource())
	}
	return observed(ld, ld.LogRecordCount(), (*observer).StartLogsOp, r.logs.ConsumeLogs, (*observer).EndLogsOp), err
}

func (r *fleetReceiver) decodeTraces(msg []byte, json bool, each func(pcommon.Resource)) (*batch, error) {
	req := ptraceotlp.NewExportRequest()
	err := unmarshal(req, msg, json)
	td := req.Traces()
	for _, rs := range td.ResourceSpans().All() {
		each(rs.Resource())
	}
	return observed(td, td.SpanCount(), (*observer).StartTracesOp, r.traces.ConsumeTraces, (*observer).EndTracesOp), err
}
