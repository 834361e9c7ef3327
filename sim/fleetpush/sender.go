// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	_ "go.opentelemetry.io/collector/config/configgrpc" // registers snappy
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/internal/platform/grpczstd"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// Compressions of requests.
const (
	CompressionNone   = "none"
	CompressionGzip   = gzip.Name
	CompressionZstd   = grpczstd.Name
	CompressionSnappy = "snappy"
)

// Compressions returns all of them.
func Compressions() []string {
	return []string{CompressionNone, CompressionGzip, CompressionZstd, CompressionSnappy}
}

// sender carries requests to the other end.
type sender interface {
	// send pushes one report over one of the connections.
	send(ctx context.Context, connection int, h Headers, md pmetric.Metrics) result
	close() error
}

// result is how a push ended.
type result struct {
	Answer
	// code names the refusal or failure, empty for a push that was accepted.
	code string
	err  error
	// wait is how long the other end asks to be left alone.
	wait time.Duration
	// rejected are points of an accepted push that were not taken.
	rejected int64
}

// reconnectDelay bounds the pause between two attempts to connect, as agents do.
const reconnectDelay = 5 * time.Second

type grpcSender struct {
	conns   []*grpc.ClientConn
	clients []pmetricotlp.GRPCClient
}

func newGRPCSender(endpoint string, connections int, compression string, tlsConfig *tls.Config) (*grpcSender, error) {
	creds := insecure.NewCredentials()
	if tlsConfig != nil {
		creds = credentials.NewTLS(tlsConfig)
	}
	s := &grpcSender{}
	var options []grpc.CallOption
	if compression != CompressionNone {
		options = append(options, grpc.UseCompressor(compression))
	}
	reconnect := backoff.DefaultConfig
	reconnect.MaxDelay = reconnectDelay
	for range connections {
		conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(creds),
			grpc.WithDefaultCallOptions(options...), grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: reconnectDelay}))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("endpoint %q: %w", endpoint, err), s.close())
		}
		s.conns, s.clients = append(s.conns, conn), append(s.clients, pmetricotlp.NewGRPCClient(conn))
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
	var header metadata.MD
	response, err := s.clients[connection].Export(ctx, pmetricotlp.NewExportRequestFromMetrics(md), grpc.Header(&header))
	code := status.Code(err)
	r := result{Answer: Answer{Accepted: err == nil, Headers: header.Get}, err: err}
	// As in the agents' extension: without a header nobody has spoken.
	r.Answered = len(header) > 0 || code != codes.Unavailable && code != codes.DeadlineExceeded && code != codes.Canceled
	if err == nil {
		r.rejected = response.PartialSuccess().RejectedDataPoints()
		return r
	}
	r.code = code.String()
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			r.wait = info.GetRetryDelay().AsDuration()
		}
	}
	return r
}
