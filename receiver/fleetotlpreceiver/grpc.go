// SPDX-License-Identifier: Apache-2.0

package fleetotlpreceiver

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/platform/admission"
	"github.com/gpu-collector/gpu-collector/internal/platform/serverguard"
)

func (r *fleetReceiver) startGRPC(ctx context.Context, host component.Host) (err error) {
	cfg, extensions := r.cfg.Protocols.GRPC.Get(), host.GetExtensions()
	if cfg == nil {
		return nil
	}
	if cfg.Auth.HasValue() {
		extensions = r.queue(extensions, cfg.Auth.Get().AuthenticatorID)
	}
	// Unfinished header blocks may take half of the memory: each agent of a fleet holds a connection.
	most := cmp.Or(r.cfg.MaxConnections, serverguard.Connections(50, serverguard.GRPCBytes))
	if r.grpc, err = serverguard.ListenGRPC(ctx, extensions, r.set.TelemetrySettings, r.set.ID.String()+"/grpc", "protocols::grpc",
		cfg, most, grpc.ForceServerCodecV2(codec{})); err != nil {
		return err
	}
	largest := cmp.Or(cfg.MaxRecvMsgSizeMiB, 4) << 20 // as gRPC has it
	for _, s := range r.signals() {
		// On the connection a call of a unary method is that of a stream. As a stream it runs behind
		// the authenticator and before its message is received.
		r.grpc.RegisterService(&grpc.ServiceDesc{
			ServiceName: "opentelemetry.proto.collector." + s.service, HandlerType: (*any)(nil),
			Streams: []grpc.StreamDesc{{
				StreamName: "Export", ClientStreams: true, // or RecvMsg would wait for a second message
				Handler: func(_ any, ss grpc.ServerStream) error { return r.export(ss, s, largest) },
			}},
		}, struct{}{})
	}
	r.grpc.Start(host)
	r.set.Logger.Info("OTLP/gRPC is served", zap.Stringer("endpoint", r.grpc.Addr()))
	return nil
}

func (r *fleetReceiver) export(ss grpc.ServerStream, s *signal, largest int) error {
	ctx := ss.Context()
	headers, _ := metadata.FromIncomingContext(ctx)
	answer, err := r.push(ctx, s, &request{
		transport: threshold.GRPC, header: headers.Get,
		receive: func(permit *admission.Permit, into *bytes.Buffer) error { return r.receive(ss, largest, permit, into) },
	})
	out := make(metadata.MD, len(answer))
	for _, h := range answer {
		out.Set(h.Name, h.Value)
	}
	if err := ss.SetHeader(out); err != nil {
		return err
	}
	if err != nil {
		s := r.status(ctx, err)
		if errors.Is(err, admission.ErrMalformed) {
			return status.Error(codes.Internal, s.Message()) // as gRPC has it of its own codec
		}
		return s.Err()
	}
	// gRPC compresses an answer like the request; one of two bytes gains nothing by it.
	if err := grpc.SetSendCompressor(ctx, encoding.Identity); err != nil {
		return err
	}
	return ss.SendMsg(nil)
}

// receive waits for the message of a call no longer than the timeout: gRPC has no deadline
// of a server's own.
func (r *fleetReceiver) receive(ss grpc.ServerStream, largest int, permit *admission.Permit, into *bytes.Buffer) error {
	arrived, err := permit.Expect(largest)
	if err != nil {
		return err
	}
	defer arrived()
	late := time.NewTimer(r.cfg.Admission.ReceiveTimeout)
	defer late.Stop()
	var msg mem.BufferSlice
	done := make(chan error, 1)
	go func() { done <- ss.RecvMsg(&msg) }() // ends at the latest when the handler has returned
	select {
	case err := <-done:
		defer msg.Free()
		into.Grow(msg.Len())
		for _, part := range msg {
			into.Write(part.ReadOnlyData())
		}
		return err
	case <-late.C:
		return errLate
	}
}

// codec hands messages on as bytes and writes empty ones: such are all responses of OTLP
// without a partial success. pdata's would clear 512 KiB for a report of 50 kB.
type codec struct{}

// Name implements encoding.CodecV2.
func (codec) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (codec) Marshal(any) (mem.BufferSlice, error) { return nil, nil }

// Unmarshal implements encoding.CodecV2.
func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	data.Ref()
	*v.(*mem.BufferSlice) = data
	return nil
}
