// SPDX-License-Identifier: Apache-2.0

package fleetotlpreceiver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/config/configgrpc"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"github.com/gpu-collector/gpu-collector/internal/admission"
	"github.com/gpu-collector/gpu-collector/internal/serverguard"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
)

// defaultRecvMiB is gRPC's own bound of a message.
const defaultRecvMiB = 4

func (r *fleetReceiver) startGRPC(ctx context.Context, host component.Host) error {
	if !r.cfg.Protocols.GRPC.HasValue() {
		return nil
	}
	cfg, extensions := *r.cfg.Protocols.GRPC.Get(), host.GetExtensions()
	if cfg.Auth.HasValue() {
		extensions = r.queue(extensions, cfg.Auth.Get().AuthenticatorID)
	}
	r.largest = cmp.Or(cfg.MaxRecvMsgSizeMiB, defaultRecvMiB) << 20
	guard, err := serverguard.New(r.set.TelemetrySettings, r.set.ID.String()+"/grpc", r.connections(grpcPercent, serverguard.GRPCBytes))
	if err != nil {
		return err
	}
	options := []configgrpc.ToServerOption{configgrpc.WithGrpcServerOption(grpc.ForceServerCodecV2(codec{r}))}
	for _, o := range guard.ServerOptions() {
		options = append(options, configgrpc.WithGrpcServerOption(o))
	}
	if r.grpc, err = cfg.ToServer(ctx, extensions, r.set.TelemetrySettings, options...); err != nil {
		return err
	}
	for _, s := range r.signals() {
		r.grpc.RegisterService(s.description(r), struct{}{})
	}
	ln, err := cfg.NetAddr.Listen(ctx)
	if err != nil {
		return fmt.Errorf("`protocols::grpc::endpoint` %s cannot be listened on: %w", cfg.NetAddr.Endpoint, err)
	}
	r.set.Logger.Info("OTLP/gRPC is served", zap.String("endpoint", ln.Addr().String()))
	r.serving.Go(func() {
		if err := r.grpc.Serve(guard.Listener(ln)); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			componentstatus.ReportStatus(host, componentstatus.NewPermanentErrorEvent(err))
		}
	})
	return nil
}

// description is the signal's service. On the wire a call of its unary method is that of a
// stream. As a stream it runs behind the authenticator and before its message is received.
func (s *signal) description(r *fleetReceiver) *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: "opentelemetry.proto.collector." + s.service,
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: "Export", ClientStreams: true, // or RecvMsg would wait for a second message
			Handler: func(_ any, ss grpc.ServerStream) error {
				if !s.served {
					return s.refusal().Err()
				}
				return r.export(ss, s)
			},
		}},
	}
}

func (r *fleetReceiver) export(ss grpc.ServerStream, s *signal) error {
	ctx := ss.Context()
	headers, _ := metadata.FromIncomingContext(ctx)
	answer, err := r.push(ctx, s, &request{
		transport: threshold.GRPC,
		header:    headers.Get,
		receive: func(permit *admission.Permit, read func([]byte) error) error {
			arrived, err := permit.Expect(r.largest)
			if err != nil {
				return err
			}
			return r.receive(ss, func(msg []byte) error {
				arrived()
				return read(msg)
			})
		},
	})
	if len(answer) > 0 {
		out := make(metadata.MD, len(answer))
		for _, h := range answer {
			out.Set(h.Name, h.Value)
		}
		if err := ss.SetHeader(out); err != nil {
			return err
		}
	}
	if err != nil {
		return r.status(ctx, threshold.GRPC, err).Err()
	}
	// gRPC compresses an answer like the request; one of two bytes gains nothing by it.
	if err := grpc.SetSendCompressor(ctx, encoding.Identity); err != nil {
		return err
	}
	return ss.SendMsg(nil)
}

// receive has the message of a call read, or ends the call once that takes too long: gRPC
// has no deadline of a server's own.
func (r *fleetReceiver) receive(ss grpc.ServerStream, read func([]byte) error) error {
	late := time.NewTimer(r.cfg.Admission.ReceiveTimeout)
	defer late.Stop()
	m, done := &received{read: read}, make(chan error, 1)
	go func() {
		err := ss.RecvMsg(m) // ends at the latest when the handler has returned
		done <- cmp.Or(m.err, err)
	}()
	select {
	case err := <-done:
		return err
	case <-late.C:
		if m.begun.Swap(true) {
			return <-done
		}
		return errLate
	}
}

// received has a message read when it is there, unless it has been given up.
type received struct {
	read  func([]byte) error
	begun atomic.Bool
	err   error // not gRPC's, which would give it a status of its own
}

// codec reads messages as bytes and writes empty ones: such are all responses of OTLP
// without a partial success. pdata's would clear 512 KiB for a report of 50 kB.
type codec struct{ *fleetReceiver }

// Name implements encoding.CodecV2.
func (codec) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (codec) Marshal(any) (mem.BufferSlice, error) { return nil, nil }

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	buffer := c.buffers.Get().(*[]byte)
	defer c.free(buffer)
	*buffer = slices.Grow((*buffer)[:0], data.Len())[:data.Len()]
	data.CopyTo(*buffer)
	if m := v.(*received); !m.begun.Swap(true) {
		m.err = m.read(*buffer)
	}
	return nil
}
