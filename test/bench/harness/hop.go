// SPDX-License-Identifier: Apache-2.0

//go:build linux

package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/gpu-collector/gpu-collector/test/process"
)

type counting struct {
	process.Raw
	hop *Hop
}

func (c counting) Unmarshal(data mem.BufferSlice, _ any) error {
	c.hop.Messages.Add(1)
	c.hop.Bytes.Add(int64(data.Len()))
	return nil
}

// Hop is a next hop that takes everything.
type Hop struct {
	Addr            string
	Messages, Bytes atomic.Int64 // the latter decompressed
	srv             *grpc.Server
	done            chan struct{}
}

// NewHop returns a hop that serves, by the settings of the Collector: it reads what agents send.
func NewHop(ctx context.Context) (*Hop, error) {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	h := &Hop{Addr: ln.Addr().String(), done: make(chan struct{})}
	server := configgrpc.NewDefaultServerConfig()
	server.MaxRecvMsgSizeMiB = 16
	takes := func(_ any, s grpc.ServerStream) error {
		var m []byte
		if err := s.RecvMsg(&m); err != nil {
			return err
		}
		return s.SendMsg(&m)
	}
	h.srv, err = server.ToServer(ctx, nil, componenttest.NewNopTelemetrySettings(),
		configgrpc.WithGrpcServerOption(grpc.ForceServerCodecV2(counting{hop: h})), configgrpc.WithGrpcServerOption(grpc.UnknownServiceHandler(takes)))
	if err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	go func() { defer close(h.done); _ = h.srv.Serve(ln) }()
	return h, nil
}

// Stop ends the hop.
func (h *Hop) Stop() { h.srv.Stop(); <-h.done }

// Wait returns after the time, or with the context's error.
func Wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Progress writes to the standard error how far a command is.
func Progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format(time.TimeOnly)+" "+format+"\n", args...)
}

// Table writes rows of cells with tabs between, the first the head.
func Table(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	var errs []error
	for _, row := range rows {
		_, err := fmt.Fprintln(t, strings.Join(row, "\t")+"\t")
		errs = append(errs, err)
	}
	return errors.Join(append(errs, t.Flush())...)
}
