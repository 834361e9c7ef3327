// SPDX-License-Identifier: Apache-2.0

package serverguard

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
)

// ServerOptions bound the headers of calls and count connections that ended before any.
// Keepalive pings bound the time of a header block, since a client
// cannot answer one within it: grpc-go reads a block as one frame.
func (g *Guard) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ConnectionTimeout(headerTime), // for TLS and the preface
		grpc.MaxHeaderListSize(headerBytes),
		grpc.SharedWriteBuffer(true),
		grpc.StatsHandler(calls{g}),
	}
}

// calls notes on which connections there was one.
type calls struct{ *Guard }

// TagConn implements stats.Handler.
func (calls) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return context.WithValue(ctx, progressKey{}, new(atomic.Int32))
}

// TagRPC implements stats.Handler.
func (calls) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	ctx.Value(progressKey{}).(*atomic.Int32).Store(asked)
	return ctx
}

// HandleConn implements stats.Handler.
func (c calls) HandleConn(ctx context.Context, s stats.ConnStats) {
	if _, ended := s.(*stats.ConnEnd); ended && ctx.Value(progressKey{}).(*atomic.Int32).Load() != asked {
		c.count(noHeaders, 1)
	}
}

// HandleRPC implements stats.Handler.
func (calls) HandleRPC(context.Context, stats.RPCStats) {}
