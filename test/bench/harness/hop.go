// SPDX-License-Identifier: Apache-2.0

//go:build linux

package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	_ "go.opentelemetry.io/collector/config/configgrpc" // registers snappy, which agents push with
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// Raw is a codec of messages that are encoded, *[]byte, which drops the answers: senders and
// next hops share the machine with the measured process.
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

// Unmarshal drops the bytes.
func (Raw) Unmarshal(mem.BufferSlice, any) error { return nil }

// counting counts a message's bytes and drops them.
type counting struct {
	Raw
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

// NewHop returns a hop that serves.
func NewHop(ctx context.Context) (*Hop, error) {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	h := &Hop{Addr: ln.Addr().String(), done: make(chan struct{})}
	h.srv = grpc.NewServer(grpc.ForceServerCodecV2(counting{hop: h}), grpc.MaxRecvMsgSize(16<<20),
		grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
			var m []byte
			if err := s.RecvMsg(&m); err != nil {
				return err
			}
			return s.SendMsg(&m)
		}))
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

// Number writes a value with three digits, and none for what is not known.
func Number(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return figure.Digits(v)
}
