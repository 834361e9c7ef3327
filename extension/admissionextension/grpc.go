// SPDX-License-Identifier: Apache-2.0

package admissionextension

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gpu-collector/gpu-collector/internal/admission"
	"github.com/gpu-collector/gpu-collector/internal/undecoded"
)

// maxHeaderList bounds the headers of a call. gRPC's own bound is 16 MiB, and a client may
// name one value thousands of times with a byte each.
const maxHeaderList = 64 << 10

// GetGRPCServerOptions implements extensionmiddleware.GRPCServer.
//
// gRPC receives and decodes a message before the first interceptor runs, so
// the permit is taken by the tap, from the headers, on the transport's reader.
// The tap has no counterpart for the end of a call: that is what the stats
// handler tells. The interceptor runs behind the authentication and counts the
// permit for who the client turned out to be; then it has the message decoded,
// unless wire_diff, behind this one, decodes what is left of it. gRPC takes one tap
// only; a second middleware with one would panic at start.
func (e *admissionExtension) GetGRPCServerOptions(context.Context) ([]grpc.ServerOption, error) {
	codec, err := undecoded.NewCodec()
	if err != nil {
		return nil, fmt.Errorf("admission must be removed from the receiver's `middlewares`: %w", err)
	}
	return append(codec.Options(),
		grpc.InTapHandle(e.tap),
		grpc.MaxHeaderListSize(maxHeaderList),
		grpc.StatsHandler(statsHandler{}),
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			return e.intercept(ctx, req, info, handler, codec)
		}),
	), nil
}

// call is the permit on its way through a call. It is released by whoever
// learns first that the call is over.
type call struct {
	permit *admission.Permit
	phase  atomic.Int32
	unhook func() bool
	late   *time.Timer // ends the call unless its message comes
}

// Phases of a call.
const (
	phaseHeaders int32 = iota // the tap let it in, no handler yet
	phaseHandler              // the message is being received, decoded or consumed
	phaseOver
)

type callKey struct{}

// tap takes the permit, or refuses.
func (e *admissionExtension) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	if !isExport(info.FullMethodName) {
		return ctx, nil
	}
	cluster := ""
	if values := info.Header[e.header]; len(values) > 0 {
		cluster = claimed(values[0])
	}
	permit, err := e.enter(ctx, info.Header, cluster)
	if err != nil {
		return ctx, err
	}
	c := &call{permit: permit}
	// The stream's context ends the wait for the message, and then the stream
	// with a status after which senders try again.
	ctx, cancel := context.WithCancel(ctx)
	c.late = time.AfterFunc(e.cfg.ReceiveTimeout, func() {
		e.telemetry.ExtensionAdmissionReceiveTimeouts.Add(context.WithoutCancel(ctx), 1)
		cancel()
	})
	// A call may end before a handler: its deadline has passed, or no pipeline
	// serves its signal. Then its context is all that ends.
	c.unhook = context.AfterFunc(ctx, func() { c.end(phaseHeaders) })
	return context.WithValue(ctx, callKey{}, c), nil
}

// end releases the permit if the call is in the phase.
func (c *call) end(phase int32) {
	if c.phase.CompareAndSwap(phase, phaseOver) {
		c.late.Stop()
		c.permit.Release()
	}
}

// statsHandler follows a call from where its message is read to its end,
// whatever ends it: an answer, an error, a cancelled client or a panic.
type statsHandler struct{}

// HandleRPC implements stats.Handler.
func (statsHandler) HandleRPC(ctx context.Context, s stats.RPCStats) {
	switch s.(type) {
	case *stats.Begin:
		if c, ok := ctx.Value(callKey{}).(*call); ok && c.phase.CompareAndSwap(phaseHeaders, phaseHandler) {
			c.unhook()
		}
	case *stats.InPayload:
		if c, ok := ctx.Value(callKey{}).(*call); ok {
			c.late.Stop()
		}
	case *stats.End:
		if c, ok := ctx.Value(callKey{}).(*call); ok {
			c.end(phaseHandler)
		}
	}
}

// TagRPC implements stats.Handler.
func (statsHandler) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn implements stats.Handler.
func (statsHandler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (statsHandler) HandleConn(context.Context, stats.ConnStats) {}

// intercept lets no push into the pipeline that holds no permit, and has none
// decoded that there is no memory for.
func (e *admissionExtension) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler, codec *undecoded.Codec) (any, error) {
	if !isExport(info.FullMethod) {
		return handler(ctx, req)
	}
	c, ok := ctx.Value(callKey{}).(*call)
	if !ok || c.phase.Load() != phaseHandler || ctx.Err() != nil {
		// The call was cancelled before its handler began, and its permit may have
		// gone to another; nobody waits for an answer.
		return nil, status.Error(codes.Canceled, "the call ended before it was handled")
	}
	if cluster, ok := e.authenticated(ctx); ok {
		if err := c.permit.Move(cluster); err != nil {
			return nil, grpcError(err)
		}
	}
	message := undecoded.From(ctx)
	if message == nil {
		return nil, status.Error(codes.Internal, "admission: another middleware has decoded the message")
	}
	if err := e.pay(c.permit, len(message.Bytes()), 0); errors.Is(err, errTooLarge) {
		e.reject(ctx, "large")
		return nil, status.Error(codes.InvalidArgument, err.Error())
	} else if err != nil {
		return nil, grpcError(err)
	}
	if own := codec.Owned(ctx); own != nil {
		if err := own.DecodeWhole(); err != nil {
			return nil, err
		}
	}
	return handler(ctx, req)
}

// grpcError is the refusal as OTLP/gRPC has it: without RetryInfo the sender
// would have to drop the data.
// https://opentelemetry.io/docs/specs/otlp/#otlpgrpc-throttling
func grpcError(err error) error { return refusalStatus(err).Err() }

func refusalStatus(err error) *status.Status {
	s := status.New(codes.ResourceExhausted, err.Error())
	var refused *admission.RefusedError
	if errors.As(err, &refused) {
		// Fails for the code OK only.
		if d, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(refused.RetryAfter)}); err == nil {
			return d
		}
	}
	return s
}
