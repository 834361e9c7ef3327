// SPDX-License-Identifier: Apache-2.0

//go:build linux

package harness

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
)

// ExportMethod is OTLP's for metrics.
const ExportMethod = fleetpush.ExportMethod

// Wait returns after the time, or with the context's error.
func Wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Within asks until the answer is yes, or returns the context's error after the span.
func Within(ctx context.Context, span time.Duration, condition func() bool) error {
	limited, cancel := context.WithTimeout(ctx, span)
	defer cancel()
	for !condition() {
		if err := Wait(limited, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// Progress tells the person who waits how far a benchmark is.
func Progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// Raw is fleetpush's codec without the answers: senders and next hops share the
// machine with the measured process.
type Raw struct{ fleetpush.Raw }

// Unmarshal drops the bytes.
func (Raw) Unmarshal(mem.BufferSlice, any) error { return nil }

// NextHop takes everything, each push after a delay.
func NextHop(ctx context.Context, delay time.Duration) (addr string, stop func(), err error) {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	srv := grpc.NewServer(grpc.ForceServerCodecV2(Raw{}), grpc.MaxRecvMsgSize(16<<20),
		grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
			var m []byte
			if err := s.RecvMsg(&m); err != nil {
				return err
			}
			if delay > 0 {
				select {
				case <-time.After(delay):
				case <-s.Context().Done():
				}
			}
			return s.SendMsg(&m)
		}))
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	return ln.Addr().String(), func() { srv.Stop(); <-done }, nil
}

// ReportTime is the timestamp of each point of a report. Nothing else in a report
// has its bytes.
const ReportTime = 1_700_000_000_123_456_789

// Report is the report of a node: 8 GPUs with 40 metrics each, whose values are
// those of value.
func Report(node int, value func() float64) pmetric.Metrics {
	name := fmt.Sprintf("gpu-node-%04d", node)
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	for _, attr := range [...][2]string{
		{"k8s.cluster.name", "research-west"}, {"k8s.node.name", name}, {"host.name", name}, {"host.id", fmt.Sprintf("7c0bbb52f1d24eb9a4f16d6a8a2f%04x", node)},
	} {
		rm.Resource().Attributes().PutStr(attr[0], attr[1])
	}
	sm := rm.ScopeMetrics().AppendEmpty()
	sm.Scope().SetName("github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver")
	for i := range 40 {
		m := sm.Metrics().AppendEmpty()
		m.SetName(fmt.Sprintf("hw.gpu.metric_%02d", i))
		m.SetDescription("A metric of a GPU.")
		m.SetUnit("1")
		points := m.SetEmptyGauge().DataPoints()
		for gpu := range 8 {
			dp := points.AppendEmpty()
			dp.SetTimestamp(ReportTime)
			dp.SetDoubleValue(value())
			dp.Attributes().PutStr("hw.id", fmt.Sprintf("GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a%02d", gpu))
			dp.Attributes().PutInt("gpu.index", int64(gpu))
		}
	}
	return md
}
