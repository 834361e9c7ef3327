// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command push measures the CPU time of a whole server for a push of one node's
// report, 320 points, gRPC and zstd included. One server drops the report, one has
// the diff processor behind its OTLP receiver, one the wire_diff extension in front.
// The servers are processes of their own with one core each, and take turns. Several
// nodes at once keep them busy.
package main // import "github.com/gpu-collector/gpu-collector/test/bench/push"

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/bench/harness"
)

const (
	maxPushRatio      = 0.6
	maxUnchangedRatio = 0.12
	maxChanged10Ratio = 0.30
	maxHTTPRatio      = 1.5

	nodes = 16 // that push at once
)

func main() {
	serve := flag.String("serve", "", "be a server: plain, diff, wire_diff or front (for the command itself)")
	rounds := flag.Int("rounds", 12, "how often the servers take turns")
	pushes := flag.Int("pushes", 50, "pushes of a node in a turn")
	flag.Parse()
	figure.Main(func(ctx context.Context) error {
		if *serve != "" {
			return runServer(ctx, *serve, os.Stdin, os.Stdout)
		}
		return errors.Join(push(ctx, os.Stdout, *rounds, *pushes), front(ctx, os.Stdout, *rounds, *pushes))
	})
}

// push lets the servers take turns, compares each turn with the one beside it,
// and takes the median: on a shared machine a turn now and then pays for others.
func push(ctx context.Context, w io.Writer, rounds, pushes int) error {
	var servers []*server
	defer func() {
		for _, s := range servers {
			s.stop()
		}
	}()
	for _, kind := range []string{kindPlain, kindDiff, kindWireDiff} {
		s, err := startServer(ctx, kind)
		if err != nil {
			return err
		}
		servers = append(servers, s)
	}
	plain, diff, wired := servers[0], servers[1], servers[2]

	var reports [nodes]*report
	for i := range reports {
		reports[i] = newReport(i)
	}
	change := func(on bool) {
		for _, r := range reports {
			r.changes = on
		}
	}
	for _, s := range servers { // to warm up
		if _, err := s.turn(ctx, reports[:], pushes); err != nil {
			return err
		}
	}
	var wireRatio, plainMicros, wireMicros, unchanged, unchangedMicros, changed10 []float64
	for range rounds {
		p, err := plain.turn(ctx, reports[:], pushes)
		if err != nil {
			return err
		}
		x, err := wired.turn(ctx, reports[:], pushes)
		if err != nil {
			return err
		}
		wireRatio = append(wireRatio, float64(x.cpu)/float64(p.cpu))
		plainMicros, wireMicros = append(plainMicros, p.micros(pushes)), append(wireMicros, x.micros(pushes))

		d, err := diff.turn(ctx, reports[:], pushes)
		if err != nil {
			return err
		}
		unchanged = append(unchanged, d.innerRatio())
		unchangedMicros = append(unchangedMicros, float64(d.inner.Nanoseconds())/1e3/float64(nodes*pushes))
		change(true)
		d, err = diff.turn(ctx, reports[:], pushes)
		change(false)
		if err != nil {
			return err
		}
		changed10 = append(changed10, d.innerRatio())
		for _, s := range []*server{diff, wired} { // to get used to the last change
			if _, err := s.turn(ctx, reports[:], 1); err != nil {
				return err
			}
		}
	}
	figure.FprintOnly(w, "push_plain", figure.Median(plainMicros), "us")
	figure.Fprint(w, "diff_unchanged_ratio", figure.Median(unchanged), "x", maxUnchangedRatio, true)
	figure.FprintOnly(w, "diff_unchanged", figure.Median(unchangedMicros), "us")
	figure.Fprint(w, "diff_changed10_ratio", figure.Median(changed10), "x", maxChanged10Ratio, true)
	figure.Fprint(w, "wire_diff_push_ratio", figure.Median(wireRatio), "x", maxPushRatio, true)
	figure.FprintOnly(w, "wire_diff_push", figure.Median(wireMicros), "us")
	return nil
}

// server is a process that receives.
type server struct {
	cmd   *exec.Cmd
	ask   io.WriteCloser
	says  *bufio.Scanner
	conns []*grpc.ClientConn // one for each node
	posts []*poster          // the same over HTTP, where the server has it
}

func startServer(ctx context.Context, name string) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &server{cmd: exec.CommandContext(ctx, self, "-serve", name)}
	s.cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	s.cmd.Stderr = os.Stderr
	if s.ask, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.says = bufio.NewScanner(out)
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := s.line()
	if err != nil {
		return nil, err
	}
	address, overHTTP, _ := strings.Cut(line, " ")
	for range nodes {
		if overHTTP != "" {
			p, err := newPoster("http://" + overHTTP + "/v1/metrics")
			if err != nil {
				return nil, err
			}
			s.posts = append(s.posts, p)
		}
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, err
		}
		s.conns = append(s.conns, conn)
	}
	return s, nil
}

func (s *server) line() (string, error) {
	if !s.says.Scan() {
		return "", errors.Join(errors.New("the server ended"), s.says.Err())
	}
	return s.says.Text(), nil
}

// usage is the CPU time of a server, and of the diff processor in it.
type usage struct {
	cpu, inner time.Duration
	points     int64 // that the pipeline's end has taken
}

func (u usage) micros(pushes int) float64 {
	return float64(u.cpu.Nanoseconds()) / 1e3 / float64(nodes*pushes)
}

// innerRatio is what the processor costs beside all the rest.
func (u usage) innerRatio() float64 { return float64(u.inner) / float64(u.cpu-u.inner) }

// usage asks the server.
func (s *server) usage() (u usage, err error) {
	if _, err = io.WriteString(s.ask, "usage\n"); err != nil {
		return usage{}, err
	}
	text, err := s.line()
	if err != nil {
		return usage{}, err
	}
	_, err = fmt.Sscan(text, (*int64)(&u.cpu), (*int64)(&u.inner), &u.points)
	return u, err
}

// turn lets each node push and returns what the server used for it.
func (s *server) turn(ctx context.Context, reports []*report, pushes int) (usage, error) {
	return s.turnOver(ctx, s.call, reports, pushes)
}

func (s *server) call(ctx context.Context, node int, msg []byte) error {
	return s.conns[node].Invoke(ctx, harness.ExportMethod, &msg, nil,
		grpc.ForceCodecV2(harness.Raw{}), grpc.UseCompressor("zstd"), grpc.WaitForReady(true))
}

func (s *server) turnOver(ctx context.Context, send func(context.Context, int, []byte) error, reports []*report, pushes int) (usage, error) {
	before, err := s.usage()
	if err != nil {
		return usage{}, err
	}
	var (
		senders sync.WaitGroup
		failed  = make([]error, len(reports))
	)
	for i, r := range reports {
		senders.Go(func() {
			for range pushes {
				r.next()
				if failed[i] = send(ctx, i, r.msg); failed[i] != nil {
					return
				}
			}
		})
	}
	senders.Wait()
	if err := errors.Join(failed...); err != nil {
		return usage{}, err
	}
	after, err := s.usage()
	if err != nil {
		return usage{}, err
	}
	if after.points == before.points {
		return usage{}, errors.New("the server took no points at all")
	}
	return usage{cpu: after.cpu - before.cpu, inner: after.inner - before.inner}, nil
}

func (s *server) stop() {
	for _, conn := range s.conns {
		_ = conn.Close()
	}
	for _, p := range s.posts {
		p.client.CloseIdleConnections()
	}
	_ = s.ask.Close() // the server ends with its input
	_ = s.cmd.Wait()
}

// answer serves a server's side of usage until in ends.
func answer(in io.Reader, out io.Writer, inner func() time.Duration, points func() int64) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if strings.TrimSpace(lines.Text()) != "usage" {
			return fmt.Errorf("%q: must be usage", lines.Text())
		}
		if _, err := fmt.Fprintln(out, int64(cpuTime(unix.CLOCK_PROCESS_CPUTIME_ID)), int64(inner()), points()); err != nil {
			return err
		}
	}
	return lines.Err()
}

// cpuTime is the CPU time of this thread or of the process.
func cpuTime(clock int32) time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(clock, &ts)
	return time.Duration(ts.Nano())
}
