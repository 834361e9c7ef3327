// SPDX-License-Identifier: Apache-2.0

package wirediffextension // import "github.com/gpu-collector/gpu-collector/extension/wirediffextension"

import (
	"context"
	"encoding/binary"
	"errors"
	"reflect"
	"slices"
	"sync"

	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/internal/nesting"
)

// message is what the receiver decodes a request into. Its type is internal to
// pdata; these are the methods by which pdata's own codec uses it.
type message interface {
	Reset()
	SizeProto() int
	MarshalProto(buf []byte) int
	UnmarshalProto(buf []byte) error
}

// metricsType is the type of messages that carry metrics, nil when it is not
// what it was when this was written.
var metricsType = findMetricsType()

func findMetricsType() reflect.Type {
	orig, ok := reflect.TypeFor[pmetricotlp.ExportRequest]().FieldByName("orig")
	if !ok || !orig.Type.Implements(reflect.TypeFor[message]()) {
		return nil
	}
	return orig.Type
}

// asMetrics returns v if it is a message of metrics.
func asMetrics(v any) (message, bool) {
	if reflect.TypeOf(v) != metricsType {
		return nil, false
	}
	m, ok := v.(message)
	return m, ok
}

// GetGRPCServerOptions implements extensionmiddleware.GRPCServer.
//
// gRPC decodes a request before any interceptor runs, that of auth included. So
// the codec decodes nothing: it puts the bytes away in the message itself (see
// wrap), and the interceptor, which runs after auth, takes them out, compares
// them, decodes what is left into that message and passes it on. Of a request
// that is refused on the way, nothing remains but garbage for the collector.
func (e *wireDiff) GetGRPCServerOptions(context.Context) ([]grpc.ServerOption, error) {
	inner := encoding.GetCodecV2("proto")
	if metricsType == nil || inner == nil {
		return nil, errors.New("the wire_diff extension does not know how this version of the Collector decodes metrics: remove it from the receiver's `middlewares`")
	}
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{inner}),
		grpc.ChainUnaryInterceptor(e.intercept),
	}, nil
}

func (e *wireDiff) intercept(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	m, ok := asMetrics(req)
	if !ok {
		return handler(ctx, req)
	}
	p := e.begin()
	accepted := false
	// Also when the handler panics: a report that never ends would keep its nodes.
	defer func() { p.end(ctx, accepted) }()

	size := m.SizeProto()
	p.in = slices.Grow(p.in[:0], size)[:size]
	raw, ok := unwrap(p.in[size-m.MarshalProto(p.in):])
	if !ok {
		// Another wire_diff was before this one.
		return handler(ctx, req)
	}
	m.Reset()
	if err := m.UnmarshalProto(p.shrink(ctx, raw)); err != nil {
		// What gRPC answers when its codec fails.
		return nil, status.Errorf(codes.Internal, "grpc: error unmarshalling request: %v", err)
	}
	resp, err := handler(ctx, req)
	accepted = err == nil
	return resp, err
}

// codec is gRPC's codec for protobuf, but for metrics.
type codec struct{ encoding.CodecV2 }

// Unmarshal puts the bytes of a message of metrics away in it.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := asMetrics(v)
	if !ok {
		return nesting.Codec{CodecV2: c.CodecV2}.Unmarshal(data, v)
	}
	if err := nesting.Check(data); err != nil {
		return err
	}
	buf := wrapping.Get().(*[]byte)
	*buf = wrap((*buf)[:0], data)
	err := m.UnmarshalProto(*buf)
	if cap(*buf) <= keepBytes {
		wrapping.Put(buf)
	}
	return err
}

var wrapping = sync.Pool{New: func() any { return new([]byte) }}

const (
	tagResourceMetrics = 0x0a // ExportMetricsServiceRequest.resource_metrics
	tagResource        = 0x0a // ResourceMetrics.resource
	tagSchemaURL       = 0x1a // ResourceMetrics.schema_url
)

// wrap appends a request whose bytes are data, as the schema URL of an
// otherwise empty request. A string is the one thing in a message that holds
// any bytes as they are, and in one piece.
func wrap(buf []byte, data mem.BufferSlice) []byte {
	size := uint64(data.Len())
	var header [1 + binary.MaxVarintLen64]byte
	header[0] = tagSchemaURL
	n := 1 + binary.PutUvarint(header[1:], size)
	buf = append(buf, tagResourceMetrics)
	buf = binary.AppendUvarint(buf, uint64(n)+size)
	buf = append(buf, header[:n]...)
	for _, part := range data {
		buf = append(buf, part.ReadOnlyData()...)
	}
	return buf
}

// unwrap returns what wrap was given, and false for any other message. It has
// to look around the resource that pdata writes even when there is none.
func unwrap(msg []byte) (data []byte, ok bool) {
	msg, rest, ok := field(msg, tagResourceMetrics)
	if !ok || len(rest) > 0 {
		return nil, false
	}
	for len(msg) > 0 {
		if resource, rest, ok := field(msg, tagResource); ok && len(resource) == 0 {
			msg = rest
			continue
		}
		if data != nil {
			return nil, false
		}
		if data, msg, ok = field(msg, tagSchemaURL); !ok {
			return nil, false
		}
	}
	return data, true // nothing at all is an empty string, which is not written
}

// field returns the content of the field that b begins with, and what follows.
func field(b []byte, tag byte) (content, rest []byte, ok bool) {
	if len(b) == 0 || b[0] != tag {
		return nil, nil, false
	}
	size, n := binary.Uvarint(b[1:])
	if n <= 0 || size > uint64(len(b)-1-n) {
		return nil, nil, false
	}
	b = b[1+n:]
	return b[:size], b[size:], true
}
