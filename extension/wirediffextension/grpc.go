// SPDX-License-Identifier: Apache-2.0

package wirediffextension // import "github.com/gpu-collector/gpu-collector/extension/wirediffextension"

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"

	"github.com/gpu-collector/gpu-collector/internal/undecoded"
)

const metricsMethod = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"

// GetGRPCServerOptions implements extensionmiddleware.GRPCServer. The interceptor
// runs after auth, compares the bytes of a push, and decodes what is left of them.
func (e *wireDiff) GetGRPCServerOptions(context.Context) ([]grpc.ServerOption, error) {
	codec, err := undecoded.NewCodec()
	if err != nil {
		return nil, fmt.Errorf("wire_diff must be removed from the receiver's `middlewares`: %w", err)
	}
	return append(codec.Options(),
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			return e.intercept(ctx, req, info, handler, codec)
		}),
	), nil
}

func (e *wireDiff) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler, codec *undecoded.Codec) (any, error) {
	c := codec.Owned(ctx)
	if c == nil {
		// No push, or another wire_diff behind this one has it.
		return handler(ctx, req)
	}
	if info.FullMethod != metricsMethod {
		if err := c.DecodeWhole(); err != nil {
			return nil, err
		}
		return handler(ctx, req)
	}
	b := e.buffers.Get().(*buffers)
	p, ctx, msg := e.judge(ctx, c.Bytes(), &b.out)
	accepted := false
	// Also when the handler panics: a report that never ends would keep its nodes.
	defer func() {
		p.end(ctx, accepted)
		c.Free()
		e.free(b)
	}()
	if err := c.Decode(msg); err != nil {
		return nil, err
	}
	// gRPC compresses an answer like the request; one of two bytes gains nothing by
	// it. It fails outside of a server only.
	_ = grpc.SetSendCompressor(ctx, encoding.Identity)
	resp, err := handler(ctx, req)
	accepted = err == nil
	return resp, err
}
