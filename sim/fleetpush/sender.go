// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/configgrpc"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// Compressions of requests, as agents may have them.
var Compressions = []string{"none", "gzip", "zstd", "snappy"}

type sender interface {
	// send pushes one report over one of the connections.
	send(ctx context.Context, connection int, h Headers, md pmetric.Metrics) result
	close() error
}

type result struct {
	headers  metadata.MD
	answered bool // a server answered
	err      error
	wait     time.Duration
	// rejected are points of an accepted push that were not taken.
	rejected int64
}

// reconnectDelay bounds the pause between two attempts to connect, as agents do.
const reconnectDelay = 5 * time.Second

type grpcSender struct{ conns []*grpc.ClientConn }

// newGRPCSender connects by the Collector's settings of clients, as agents do.
func newGRPCSender(cfg *PushConfig) (*grpcSender, error) {
	client := configgrpc.NewDefaultClientConfig()
	client.Endpoint, client.TLS = cfg.Endpoint, cfg.TLS
	if err := client.Compression.UnmarshalText([]byte(cfg.Compression)); err != nil {
		return nil, err
	}
	reconnect := backoff.DefaultConfig
	reconnect.MaxDelay = reconnectDelay
	params := grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: reconnectDelay})
	silent := component.TelemetrySettings{Logger: zap.NewNop(), MeterProvider: metricnoop.NewMeterProvider(), TracerProvider: tracenoop.NewTracerProvider()}
	s := &grpcSender{}
	for range cfg.Connections {
		conn, err := client.ToClientConn(context.Background(), nil, silent, configgrpc.WithGrpcDialOption(params))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("endpoint %q: %w", cfg.Endpoint, err), s.close())
		}
		s.conns = append(s.conns, conn)
	}
	return s, nil
}

func (s *grpcSender) close() error {
	var errs []error
	for _, c := range s.conns {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

func (s *grpcSender) send(ctx context.Context, connection int, h Headers, md pmetric.Metrics) result {
	ctx = metadata.NewOutgoingContext(ctx, metadata.Pairs(
		gpusemconv.HeaderCluster, h.Cluster, gpusemconv.HeaderNode, h.Node, gpusemconv.HeaderGroup, h.Group))
	r := result{}
	client := pmetricotlp.NewGRPCClient(s.conns[connection])
	response, err := client.Export(ctx, pmetricotlp.NewExportRequestFromMetrics(md), grpc.Header(&r.headers))
	code := status.Code(err)
	// As in the agents' extension: without a header no server has answered.
	r.err, r.answered = err, len(r.headers) > 0 || code != codes.Unavailable && code != codes.DeadlineExceeded && code != codes.Canceled
	if err == nil {
		r.rejected = response.PartialSuccess().RejectedDataPoints()
		return r
	}
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			r.wait = info.GetRetryDelay().AsDuration()
		}
	}
	return r
}
