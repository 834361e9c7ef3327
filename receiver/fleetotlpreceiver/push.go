// SPDX-License-Identifier: Apache-2.0

package fleetotlpreceiver

import (
	"context"
	"iter"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/gpu-collector/gpu-collector/internal/admission"
	"github.com/gpu-collector/gpu-collector/internal/clientidentity"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

// request is a push as its transport has it.
type request struct {
	transport threshold.Transport
	header    func(name string) []string
	query     string // of the URL
	json      bool
	// receive waits for the message, and calls read with it once. The bytes are read's for
	// the time of the call.
	receive func(permit *admission.Permit, read func(msg []byte) error) error
}

// push works on one push: identity, permit, bytes, comparison, decoding, the pipeline, and
// the answer.
func (r *fleetReceiver) push(ctx context.Context, s *signal, req *request) ([]wire.Header, error) {
	client, p, err := r.identify(ctx, req)
	if err != nil {
		return nil, err
	}
	permit, err := r.limiter.Acquire(p.Caller.Cluster)
	if err != nil {
		return nil, err
	}
	defer permit.Release()
	answer := func() []wire.Header { return nil }
	if r.answers != nil && s.answered {
		ctx, answer = r.answers.Push(ctx, p)
	} else {
		ctx = wire.ContextWithCaller(ctx, p.Caller)
	}
	var data *batch
	if err := req.receive(permit, func(msg []byte) (err error) {
		data, err = r.read(ctx, s, client, permit, msg, req.json)
		return err
	}); err != nil {
		return nil, err
	}
	if data.items > 0 || data.compared {
		err = data.consume(ctx, r.observers[req.transport])
	}
	return answer(), err
}

// identify returns for whom the client of a push may speak, and what the answer needs to
// know of it.
func (r *fleetReceiver) identify(ctx context.Context, req *request) (clientidentity.Identity, *threshold.Push, error) {
	client, err := r.rule.Of(ctx)
	if err != nil {
		return client, nil, err
	}
	var cluster, node string
	if r.answers != nil {
		cluster, node = r.answers.Claim(req.transport, req.header, req.query)
	} else if names := req.header(gpusemconv.HeaderCluster); len(names) > 0 {
		cluster = names[0]
	}
	p := &threshold.Push{Transport: req.transport, Header: req.header, Node: client.NodeOr(node)}
	p.Caller, p.Invalid = client.Caller(cluster)
	return client, p, nil
}

// read makes a batch of a message. Where the message is compared with the table, only what
// is left of it is decoded.
func (r *fleetReceiver) read(ctx context.Context, s *signal, client clientidentity.Identity, permit *admission.Permit, msg []byte, json bool) (*batch, error) {
	if s.answered && r.engine != nil && !json {
		if data, err := r.compare(ctx, client, permit, msg); data != nil || err != nil {
			return data, err
		}
		r.telemetry.ReceiverFleetOtlpPushes.Add(ctx, 1, readWhole)
	}
	if err := reserve(permit, s.size, msg, json); err != nil {
		return nil, err
	}
	data, err := s.decode(msg, json)
	if err != nil {
		return nil, &malformedError{err}
	}
	for resource := range data.resources {
		if foreign := client.Settle(resource.Attributes()); foreign != nil && err == nil && r.cfg.Identity.Foreign == foreignRefuse {
			err = foreign
		}
	}
	return data, err
}

// compare returns nil for a message that is to be decoded whole.
func (r *fleetReceiver) compare(ctx context.Context, client clientidentity.Identity, permit *admission.Permit, msg []byte) (*batch, error) {
	buffer := r.buffers.Get().(*[]byte)
	defer r.free(buffer)
	push, left := r.engine.Compare(client, msg, (*buffer)[:0])
	*buffer = left
	if push == nil {
		return nil, nil
	}
	r.telemetry.ReceiverFleetOtlpPushes.Add(ctx, 1, readBytes)
	data, err := r.rest(push, permit, left)
	if err != nil {
		push.Discard()
	}
	return data, err
}

// keepBytes is how large a buffer may be to be used again: the largest reports of a node,
// and not the odd message of many megabytes.
const keepBytes = 1 << 20

func (r *fleetReceiver) free(buffer *[]byte) {
	if cap(*buffer) <= keepBytes {
		r.buffers.Put(buffer)
	}
}

// reserve takes the memory of a message, and of what it becomes when it is decoded.
func reserve(permit *admission.Permit, signal admission.Signal, msg []byte, json bool) error {
	size := func() (int, error) { return admission.Decoded(signal, msg) }
	if json {
		size = func() (int, error) { return admission.DecodedJSON(msg) }
	}
	n, err := size()
	if err != nil {
		return err
	}
	return permit.Reserve(len(msg) + n)
}

// How a push was read, see metadata.yaml.
var (
	readBytes = option("read", "bytes")
	readWhole = option("read", "whole")
)

func option(key, value string) metric.AddOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String(key, value)))
}

// batch is what a message holds.
type batch struct {
	items     int
	compared  bool // also without items it belongs to the table
	resources iter.Seq[pcommon.Resource]
	consume   func(context.Context, *observer) error
}
