// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// ExportMethod is OTLP's for metrics.
const ExportMethod = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"

// reconnectDelay bounds the pause between two attempts to connect, as agents do.
const reconnectDelay = 5 * time.Second

type grpcSender struct {
	conns   []*grpc.ClientConn
	options []grpc.CallOption
}

func newGRPCSender(endpoint string, connections int, compression string, tlsConfig *tls.Config) (*grpcSender, error) {
	creds := insecure.NewCredentials()
	if tlsConfig != nil {
		creds = credentials.NewTLS(tlsConfig)
	}
	s := &grpcSender{options: []grpc.CallOption{grpc.ForceCodecV2(Raw{})}}
	if compression != CompressionNone {
		s.options = append(s.options, grpc.UseCompressor(compression))
	}
	reconnect := backoff.DefaultConfig
	reconnect.MaxDelay = reconnectDelay
	for range connections {
		conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(creds),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: reconnectDelay}))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("endpoint %q: %w", endpoint, err), s.close())
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

func (s *grpcSender) send(ctx context.Context, connection int, h Headers, body []byte) result {
	ctx = metadata.NewOutgoingContext(ctx, metadata.Pairs(
		gpusemconv.HeaderCluster, h.Cluster, gpusemconv.HeaderNode, h.Node, gpusemconv.HeaderGroup, h.Group))
	var header metadata.MD
	var response []byte
	options := slices.Concat(s.options, []grpc.CallOption{grpc.Header(&header)})
	err := s.conns[connection].Invoke(ctx, ExportMethod, &body, &response, options...)
	code := status.Code(err)
	r := result{Answer: Answer{Accepted: err == nil, Headers: header.Get}, err: err}
	// As in the agents' extension: without a header nobody has spoken.
	r.Answered = len(header) > 0 || code != codes.Unavailable && code != codes.DeadlineExceeded && code != codes.Canceled
	if err == nil {
		r.rejected = rejected(response)
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

// Raw is a gRPC codec of messages that are encoded: *[]byte.
type Raw struct{}

// Name is that of the codec whose bytes they are.
func (Raw) Name() string { return "proto" }

// Marshal hands the bytes on.
func (Raw) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("%T is no bytes", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*b)}, nil
}

// Unmarshal copies the bytes.
func (Raw) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("%T is no bytes", v)
	}
	*b = data.Materialize()
	return nil
}
