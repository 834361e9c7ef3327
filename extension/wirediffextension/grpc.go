// SPDX-License-Identifier: Apache-2.0

package wirediffextension // import "github.com/gpu-collector/gpu-collector/extension/wirediffextension"

import (
	"context"
	"errors"
	"reflect"
	"runtime"
	"sync"

	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/internal/nesting"
)

// message is what the receiver decodes a request into. Its type is internal to
// pdata; this is the method by which pdata's own codec reads it.
type message interface {
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

const metricsMethod = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"

// What suits many senders of small messages.
const (
	// streamWorkers, for each core, keep the stack that a push has grown for the
	// next: growing it anew for each takes as long as comparing the push. A push
	// that finds none idle has a goroutine of its own.
	streamWorkers = 16
	// window is what a sender may have on its way, for a stream and for all of its
	// connection. With a fixed one gRPC does not measure, for which it would send
	// a ping with each push, and takes the answer.
	window = 1 << 20
)

// GetGRPCServerOptions implements extensionmiddleware.GRPCServer.
//
// gRPC decodes a request before any interceptor runs, that of auth included. So
// the codec decodes nothing: it puts the bytes aside as they are, and the
// interceptor, which runs after auth, compares them, decodes what is left into
// the message and passes that on. The codec does not know the call, and the stats
// handler, which is called right after it, does: that takes the bytes to where
// the interceptor finds them, and gives them back at the end of a call that was
// refused on the way.
func (e *wireDiff) GetGRPCServerOptions(context.Context) ([]grpc.ServerOption, error) {
	inner := encoding.GetCodecV2("proto")
	if metricsType == nil || inner == nil {
		return nil, errors.New("the wire_diff extension does not know how this version of the Collector decodes metrics: remove it from the receiver's `middlewares`")
	}
	a := &aside{data: make(map[message]mem.BufferSlice)}
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{inner, a}),
		grpc.StatsHandler(follower{a}),
		grpc.ChainUnaryInterceptor(e.intercept),
		grpc.NumStreamWorkers(uint32(streamWorkers * runtime.GOMAXPROCS(0))),
		grpc.InitialWindowSize(window),
		grpc.InitialConnWindowSize(window),
	}, nil
}

func (e *wireDiff) intercept(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	m, isMetrics := asMetrics(req)
	c, followed := ctx.Value(callKey{}).(*call)
	if !isMetrics || !followed || !c.received {
		// Not metrics, or another wire_diff was before this one.
		return handler(ctx, req)
	}
	data := c.take()
	b := e.buffers.Get().(*buffers)
	p, ctx, msg := e.judge(ctx, data[0].ReadOnlyData(), &b.out)
	accepted := false
	// Also when the handler panics: a report that never ends would keep its nodes.
	defer func() {
		p.end(ctx, accepted)
		data.Free()
		e.free(b)
	}()
	if err := m.UnmarshalProto(msg); err != nil {
		// What gRPC answers when its codec fails.
		return nil, status.Errorf(codes.Internal, "grpc: error unmarshalling request: %v", err)
	}
	// gRPC compresses an answer like the request; one of two bytes gains nothing by
	// it. It fails outside of a server only.
	_ = grpc.SetSendCompressor(ctx, encoding.Identity)
	resp, err := handler(ctx, req)
	accepted = err == nil
	return resp, err
}

// codec is gRPC's codec for protobuf, but for metrics.
type codec struct {
	encoding.CodecV2
	aside *aside
}

// Unmarshal puts the bytes of a message of metrics aside.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := asMetrics(v)
	if !ok {
		return nesting.Codec{CodecV2: c.CodecV2}.Unmarshal(data, v)
	}
	whole := data.MaterializeToBuffer(mem.DefaultBufferPool())
	if err := nesting.Check(whole.ReadOnlyData()); err != nil {
		whole.Free()
		return err
	}
	c.aside.put(m, mem.BufferSlice{whole})
	return nil
}

// aside has what the codec was given, by the message it was to be decoded into,
// until the stats handler is called.
type aside struct {
	mu   sync.Mutex
	data map[message]mem.BufferSlice
}

func (a *aside) put(m message, data mem.BufferSlice) {
	a.mu.Lock()
	a.data[m] = data
	a.mu.Unlock()
}

func (a *aside) take(m message) (data mem.BufferSlice, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	data, ok = a.data[m]
	delete(a.data, m)
	return data, ok
}

// call is a push of metrics with the bytes that were received and not taken yet.
// gRPC tells of a call, and handles it, in one goroutine.
type call struct {
	data     mem.BufferSlice
	received bool
}

func (c *call) take() mem.BufferSlice {
	data := c.data
	*c = call{}
	return data
}

type callKey struct{}

// follower follows a call from before its message to its end.
type follower struct{ aside *aside }

// TagRPC implements stats.Handler.
func (follower) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	if info.FullMethodName != metricsMethod {
		return ctx
	}
	return context.WithValue(ctx, callKey{}, new(call))
}

// HandleRPC implements stats.Handler.
func (f follower) HandleRPC(ctx context.Context, s stats.RPCStats) {
	switch s := s.(type) {
	case *stats.InPayload:
		m, isMetrics := asMetrics(s.Payload)
		if !isMetrics {
			return
		}
		c, followed := ctx.Value(callKey{}).(*call)
		data, ok := f.aside.take(m)
		switch {
		case !ok: // another wire_diff's codec has it
		case followed:
			*c = call{data, true}
		default:
			data.Free()
		}
	case *stats.End:
		if c, ok := ctx.Value(callKey{}).(*call); ok {
			c.take().Free()
		}
	}
}

// TagConn implements stats.Handler.
func (follower) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (follower) HandleConn(context.Context, stats.ConnStats) {}
