// SPDX-License-Identifier: Apache-2.0

package serverguard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/config/configgrpc"
	"google.golang.org/grpc"
)

// GRPCServer is a gRPC server of ours. Its services are registered before Start.
type GRPCServer struct {
	*grpc.Server
	ln      net.Listener
	serving sync.WaitGroup
}

// ListenGRPC takes the server's endpoint. The key is that of cfg, for errors.
func ListenGRPC(
	ctx context.Context, extensions map[component.ID]component.Component, set component.TelemetrySettings, name, key string,
	cfg *configgrpc.ServerConfig, maxConnections int, options ...grpc.ServerOption,
) (*GRPCServer, error) {
	guard, err := New(set, name, maxConnections)
	if err != nil {
		return nil, err
	}
	var with []configgrpc.ToServerOption
	for _, o := range slices.Concat(headers, options) {
		with = append(with, configgrpc.WithGrpcServerOption(o))
	}
	server, err := cfg.ToServer(ctx, extensions, set, with...)
	if err != nil {
		return nil, err
	}
	ln, err := cfg.NetAddr.Listen(ctx)
	if err != nil {
		return nil, fmt.Errorf("`%s::endpoint` %s cannot be listened on: %w", key, cfg.NetAddr.Endpoint, err)
	}
	return &GRPCServer{Server: server, ln: guard.Listener(ln)}, nil
}

// Start answers until Shutdown.
func (s *GRPCServer) Start(host component.Host) {
	s.serving.Go(func() {
		if err := s.Serve(s.ln); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			componentstatus.ReportStatus(host, componentstatus.NewPermanentErrorEvent(err))
		}
	})
}

// Addr is where it listens.
func (s *GRPCServer) Addr() net.Addr { return s.ln.Addr() }

// Shutdown waits for the calls under way, and no longer than that. A nil server has nothing
// to end.
func (s *GRPCServer) Shutdown(longest time.Duration) {
	if s == nil {
		return
	}
	late := time.AfterFunc(longest, s.Stop)
	s.GracefulStop()
	late.Stop()
	s.serving.Wait()
}

// headers bound those of calls. Keepalive pings bound the time of a header block, since a client
// cannot answer one within it: grpc-go reads a block as one frame.
var headers = []grpc.ServerOption{
	grpc.ConnectionTimeout(headerTime), // for TLS and the preface
	grpc.MaxHeaderListSize(headerBytes),
	grpc.SharedWriteBuffer(true),
}
