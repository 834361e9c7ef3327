// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	_ "go.opentelemetry.io/collector/config/configgrpc" // registers the compressions
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	_ "github.com/gpu-collector/gpu-collector/internal/grpczstd"
	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/process"
)

const (
	service      = "opentelemetry.proto.collector.metrics.v1.MetricsService"
	method       = "Export"
	exportMethod = "/" + service + "/" + method
)

// shard is a collector with one core, a next hop that takes everything behind it,
// and connections to it.
type shard struct {
	cmd       *exec.Cmd
	read      chan struct{}
	dir       string
	next      *grpc.Server
	served    chan struct{}
	conns     []*grpc.ClientConn
	onWire    *counter
	pushed    int // so far
	points    atomic.Int64
	pprof     string // where it serves its profile, if it does
	telemetry string // where it tells of itself, if it does
}

// own is what the bench needs of the shard's configuration.
const own = `
receivers:
  otlp:
    protocols:
      grpc: {endpoint: %q}
      http: {endpoint: %q}
extensions:
  healthcheckv2: {http: {endpoint: %q}}
service:
  telemetry: {metrics: {readers: [{pull: {exporter: {prometheus: {host: 127.0.0.1, port: %s}}}}]}}
`

func startShard(ctx context.Context, s *settings, k *kind) (_ *shard, err error) {
	d := &shard{onWire: new(counter), read: make(chan struct{}), served: make(chan struct{})}
	var addr [4]string
	for i := range addr {
		if addr[i], err = loopback.Addr(ctx); err != nil {
			return nil, err
		}
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d.next = grpc.NewServer(grpc.ForceServerCodecV2(raw{}), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		var m []byte
		if err := s.RecvMsg(&m); err != nil {
			return err
		}
		return s.SendMsg(&m)
	}))
	go func() { defer close(d.served); _ = d.next.Serve(ln) }()
	if d.dir, err = os.MkdirTemp("", "bench-frontdoor-"); err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(addr[3])
	if err != nil {
		return nil, err
	}
	file := filepath.Join(d.dir, "own.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, own, addr[0], addr[1], addr[2], port), 0o600); err != nil {
		return nil, err
	}
	args := []string{"--config", "configs/shard.yaml"}
	if k.alone {
		args = append(args, "--config", "yaml:receivers::otlp::protocols::grpc::middlewares: [{id: admission}, {id: straggler_threshold}]")
	}
	if s.cpuProfile != "" && !k.alone {
		if d.pprof, err = loopback.Addr(ctx); err != nil {
			return nil, err
		}
		args = append(args, "--config", fmt.Sprintf("yaml:{extensions: {pprof: {endpoint: %q}}, service: {extensions: [admission, straggler_threshold, wire_diff, healthcheckv2, pprof]}}", d.pprof))
	}
	binary, args := s.binary, append(args, "--config", file)
	if k.dropped {
		if binary, err = os.Executable(); err != nil {
			return nil, err
		}
		args = []string{"-drop", addr[0]}
	} else {
		d.telemetry = addr[3]
	}
	d.cmd = exec.CommandContext(ctx, binary, args...)
	d.cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GPU_COLLECTOR_GATEWAY="+ln.Addr().String(), "GPU_COLLECTOR_INSECURE=true")
	d.cmd.Cancel = func() error { return d.cmd.Process.Signal(syscall.SIGTERM) }
	d.cmd.WaitDelay = 10 * time.Second
	stderr, err := d.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err = d.cmd.Start(); err != nil {
		return nil, err
	}
	var log bytes.Buffer
	listens := make(chan struct{})
	go func() {
		defer close(d.read)
		seen := false
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			switch {
			case seen:
			case strings.Contains(lines.Text(), ready):
				seen = true
				close(listens)
			default:
				fmt.Fprintln(&log, lines.Text())
			}
		}
	}()
	select {
	case <-listens:
	case <-d.read:
		return nil, fmt.Errorf("the collector did not start:\n%s", log.String())
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for range s.senders {
		conn, err := grpc.NewClient(addr[0], grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{})), grpc.WithStatsHandler(d.onWire))
		if err != nil {
			return nil, err
		}
		d.conns = append(d.conns, conn)
	}
	return d, nil
}

// ready is what a server says when it listens.
const ready = "Everything is ready"

// serveDropping is what gRPC alone costs: it receives and decompresses pushes as a
// shard does, with the options of wire_diff, and throws them away.
func serveDropping(ctx context.Context, addr string) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	srv := grpc.NewServer(grpc.ForceServerCodecV2(raw{}), grpc.NumStreamWorkers(16),
		grpc.InitialWindowSize(1<<20), grpc.InitialConnWindowSize(1<<20))
	srv.RegisterService(&grpc.ServiceDesc{
		ServiceName: service, HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: method, Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var nothing []byte
			return &nothing, decode(&nothing)
		}}},
	}, nil)
	go func() {
		<-ctx.Done()
		srv.Stop()
	}()
	fmt.Fprintln(os.Stderr, ready)
	return srv.Serve(ln)
}

// turn lets the nodes push one after the other, waits until all of it has been
// forwarded, and returns the shard's CPU time for each push, in microseconds.
func (d *shard) turn(ctx context.Context, k *kind, s *settings, pushes int) (float64, error) {
	before, err := d.cpu()
	if err != nil {
		return 0, err
	}
	var (
		senders sync.WaitGroup
		next    atomic.Int64
		failed  = make([]error, len(d.conns))
		first   = d.pushed
	)
	for i, conn := range d.conns {
		senders.Go(func() {
			var msg []byte
			for {
				n := int(next.Add(1)) - 1
				if n >= pushes {
					return
				}
				n += first
				node := n % s.nodes
				if msg, failed[i] = k.reports.next(node, time.Now(), msg[:0]); failed[i] != nil {
					return
				}
				if n == 0 {
					d.points.Store(int64(pointsOf(msg)))
				}
				h := k.reports.headers(node)
				ctx := metadata.AppendToOutgoingContext(ctx, gpusemconv.HeaderCluster, h.Cluster,
					gpusemconv.HeaderNode, h.Node, gpusemconv.HeaderGroup, h.Group)
				opts := []grpc.CallOption{grpc.WaitForReady(true)}
				if k.compression != encoding.Identity {
					opts = append(opts, grpc.UseCompressor(k.compression))
				}
				if failed[i] = conn.Invoke(ctx, exportMethod, &msg, nil, opts...); failed[i] != nil {
					return
				}
			}
		})
	}
	senders.Wait()
	d.pushed += pushes
	if err := errors.Join(failed...); err != nil {
		return 0, err
	}
	if err := d.forwarded(ctx); err != nil {
		return 0, err
	}
	after, err := d.cpu()
	return float64((after - before).Nanoseconds()) / 1e3 / float64(pushes), err
}

// forwarded waits until nothing is left to be forwarded. It asks seldom, since the
// answer costs the shard as much as some pushes.
func (d *shard) forwarded(ctx context.Context) error {
	const every, most = 500 * time.Millisecond, time.Minute
	if d.telemetry == "" {
		return nil
	}
	for began := time.Now(); time.Since(began) < most; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(every):
		}
		points, err := d.pending(ctx)
		if err != nil {
			return err
		}
		if points == 0 {
			return nil
		}
	}
	return fmt.Errorf("not all was forwarded within %s", most)
}

// pending is how many points the shard has yet to forward.
func (d *shard) pending(ctx context.Context) (float64, error) {
	const name = "otelcol_processor_diff_pending_points"
	body, err := process.Get(ctx, "http://"+d.telemetry+"/metrics")
	if err != nil {
		return 0, err
	}
	defer func() { _ = body.Close() }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(body)
	if err != nil {
		return 0, err
	}
	found := false
	points := 0.0
	for family, f := range families {
		if strings.HasPrefix(family, name) {
			found = true
			for _, m := range f.GetMetric() {
				points += m.GetGauge().GetValue()
			}
		}
	}
	if !found {
		return 0, fmt.Errorf("the shard does not tell %s", name)
	}
	return points, nil
}

// cpu is the CPU time of the collector: its process has a clock, see
// clock_getcpuclockid(3).
func (d *shard) cpu() (time.Duration, error) {
	const sched = 2 // CPUCLOCK_SCHED in the kernel's posix-timers.h
	var ts unix.Timespec
	err := unix.ClockGettime(int32(^d.cmd.Process.Pid<<3|sched), &ts)
	return time.Duration(ts.Nano()), err
}

// profile writes a CPU profile of some seconds from now on.
func (d *shard) profile(ctx context.Context, file string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.pprof+"/debug/pprof/profile?seconds=20", http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, resp.Body)
	return errors.Join(err, f.Close())
}

func (d *shard) bytesPerPush() int64 {
	return d.onWire.bytes.Load() / max(1, d.onWire.pushes.Load())
}

func pointsOf(msg []byte) int {
	req := pmetricotlp.NewExportRequest()
	if req.UnmarshalProto(msg) != nil {
		return 0
	}
	return req.Metrics().DataPointCount()
}

// pointsPerPush is what the first push had.
func (d *shard) pointsPerPush() int64 { return d.points.Load() }

func (d *shard) stop() error {
	for _, conn := range d.conns {
		_ = conn.Close()
	}
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // ended already: Wait says so
	<-d.read
	err := d.cmd.Wait()
	d.next.Stop()
	<-d.served
	return errors.Join(err, os.RemoveAll(d.dir))
}

// raw passes messages as the bytes they are.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (raw) Unmarshal(mem.BufferSlice, any) error { return nil }

// counter counts what leaves: messages without their HTTP/2 frames.
type counter struct{ pushes, bytes atomic.Int64 }

func (c *counter) HandleRPC(_ context.Context, s stats.RPCStats) {
	if out, ok := s.(*stats.OutPayload); ok {
		c.pushes.Add(1)
		c.bytes.Add(int64(out.WireLength))
	}
}

func (*counter) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (*counter) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (*counter) HandleConn(context.Context, stats.ConnStats) {}
