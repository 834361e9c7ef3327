// SPDX-License-Identifier: Apache-2.0

package fleetotlpreceiver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/config/configgrpc"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"

	"github.com/gpu-collector/gpu-collector/internal/admission"
	"github.com/gpu-collector/gpu-collector/internal/serverguard"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
)

func (r *fleetReceiver) startGRPC(ctx context.Context, host component.Host) error {
	if !r.cfg.Protocols.GRPC.HasValue() {
		return nil
	}
	cfg, extensions := *r.cfg.Protocols.GRPC.Get(), host.GetExtensions()
	if cfg.Auth.HasValue() {
		extensions = r.queue(extensions, cfg.Auth.Get().AuthenticatorID)
	}
	guard, err := serverguard.New(r.set.TelemetrySettings, r.set.ID.String()+"/grpc", r.connections(grpcPercent, serverguard.GRPCBytes))
	if err != nil {
		return err
	}
	var options []configgrpc.ToServerOption
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
		receive: func(_ *admission.Permit, read func([]byte) error) error {
			return r.receive(ss, read)
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
	return ss.SendMsg(&response{s.empty})
}

// receive has the message of a call read, or ends the call once that takes too long: gRPC
// has no deadline of a server's own.
func (r *fleetReceiver) receive(ss grpc.ServerStream, read func([]byte) error) error {
	late := time.NewTimer(r.cfg.Admission.ReceiveTimeout)
	defer late.Stop()
	m := &received{message: make(chan []byte), done: make(chan struct{})}
	defer close(m.done)
	failed := make(chan error, 1)
	go func() {
		if err := ss.RecvMsg(m); err != nil { // at the latest when the handler has returned
			failed <- err
		}
	}()
	select {
	case msg := <-m.message:
		return read(msg)
	case err := <-failed:
		return err
	case <-late.C:
		return errLate
	}
}

// received is what gRPC's codec, pdata's, reads a message into: it lends the bytes to
// receive, until that is done.
type received struct {
	message chan []byte
	done    chan struct{}
}

// UnmarshalProto has no error: gRPC would give it a status of its own.
func (m *received) UnmarshalProto(msg []byte) error {
	select {
	case m.message <- msg:
		<-m.done
	case <-m.done: // given up
	}
	return nil
}

func (*received) SizeProto() int          { return 0 }
func (*received) MarshalProto([]byte) int { return 0 }

// response is what the codec writes.
type response struct{ message }

func (*response) SizeProto() int              { return 0 } // all responses without a partial success are empty
func (*response) MarshalProto([]byte) int     { return 0 }
func (*response) UnmarshalProto([]byte) error { return nil }
