// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golang/snappy"
	"github.com/open-telemetry/opentelemetry-collector-contrib/pkg/translator/prometheusremotewrite"
	"github.com/prometheus/procfs"
	"github.com/prometheus/prometheus/prompb"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/loopback"
)

const (
	fleetNodes = 400
	fleetSteps = 4 // reports of each node in a turn, 10 s apart
	// settles is what a relay that gathers for a second takes for what came last.
	settles = 1500 * time.Millisecond
)

// recording is the reports of a fleet for one turn of each relative, as OTLP and as
// remote write.
type recording struct {
	fleet   *fleetpush.Fleet
	at      time.Time // of the next reports
	headers []metadata.MD
	otlp    [][fleetSteps][]byte
	write   [][fleetSteps][]byte // compressed, as remote write always is
	points  int                  // of a report
}

// newRecording begins so long ago that the reports of so many turns are none of the
// time to come.
func newRecording(turns int) (*recording, error) {
	const step = 10 * time.Second
	began := time.Now().Add(-time.Duration(turns*fleetSteps) * step)
	fleet, err := fleetpush.New(fleetpush.Config{
		Nodes: fleetNodes, Load: fleetsim.Training, Seed: 1, Step: step, Start: began,
	})
	if err != nil {
		return nil, err
	}
	r := &recording{
		fleet: fleet, at: began, headers: make([]metadata.MD, fleetNodes),
		otlp: make([][fleetSteps][]byte, fleetNodes), write: make([][fleetSteps][]byte, fleetNodes),
	}
	for node := range fleetNodes {
		h := fleet.Headers(node)
		r.headers[node] = metadata.Pairs("gpu-cluster", h.Cluster, "gpu-node", h.Node)
	}
	return r, nil
}

// advance makes the next turn's reports: what came before would be dropped as old.
func (f *recording) advance() error {
	for step := range fleetSteps {
		for node := range fleetNodes {
			msg, err := f.fleet.Next(node, 1, f.at, nil)
			if err != nil {
				return err
			}
			f.otlp[node][step] = msg
			if f.write[node][step], err = remoteWrite(msg, fleetpush.NodeName(node), &f.points); err != nil {
				return err
			}
		}
		f.at = f.at.Add(f.fleet.Step())
	}
	return nil
}

// remoteWrite is the same report in Prometheus's protocol.
func remoteWrite(msg []byte, node string, points *int) ([]byte, error) {
	req := pmetricotlp.NewExportRequest()
	if err := req.UnmarshalProto(msg); err != nil {
		return nil, err
	}
	series, err := prometheusremotewrite.FromMetrics(req.Metrics(), prometheusremotewrite.Settings{
		AddMetricSuffixes: true, DisableTargetInfo: true, ExternalLabels: map[string]string{"host_name": node},
	})
	if err != nil {
		return nil, err
	}
	write := prompb.WriteRequest{}
	for _, s := range series {
		write.Timeseries = append(write.Timeseries, *s)
	}
	*points = len(write.Timeseries)
	body, err := write.Marshal()
	if err != nil {
		return nil, err
	}
	return snappy.Encode(nil, body), nil
}

// relative is a program that takes the fleet's reports.
type relative struct {
	name string
	push func(ctx context.Context, node, step int) error
	// passed is how many points have come out of it, nil where it is not known.
	passed  func() (int64, error)
	pid     int
	stop    func()
	micros  []float64
	resting float64 // memory before the fleet came
}

func (r *relative) usage() (cpu, resident float64, err error) {
	proc, err := procfs.NewProc(r.pid)
	if err != nil {
		return 0, 0, err
	}
	stat, err := proc.Stat()
	return stat.CPUTime(), float64(stat.ResidentMemory()), err
}

// turn pushes a report of each node and step.
func (r *relative) turn(ctx context.Context) error {
	before, _, err := r.usage()
	if err != nil {
		return err
	}
	var (
		senders sync.WaitGroup
		next    atomic.Int64
		failed  = make([]error, nodes)
	)
	for i := range failed {
		senders.Go(func() {
			for failed[i] == nil {
				n := int(next.Add(1)) - 1
				if n >= fleetNodes*fleetSteps {
					return
				}
				failed[i] = r.push(ctx, n%fleetNodes, n/fleetNodes)
			}
		})
	}
	senders.Wait()
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("%s: %w", r.name, err)
	}
	select {
	case <-time.After(settles):
	case <-ctx.Done():
		return ctx.Err()
	}
	after, _, err := r.usage()
	r.micros = append(r.micros, (after-before)*1e6/(fleetNodes*fleetSteps))
	return err
}

// relatives compares what a report costs the diff processor's collector with
// the nearest things that others have: contrib's interval processor, and vmagent
// as a relay of remote write.
func relatives(ctx context.Context, w io.Writer, rounds int) (err error) {
	fleet, err := newRecording(rounds + 1)
	if err != nil {
		return err
	}
	if err := fleet.advance(); err != nil {
		return err
	}
	var all []*relative
	defer func() {
		for _, r := range all {
			r.stop()
		}
	}()
	for _, kind := range []string{kindPlain, kindInterval, kindDiff} {
		r, err := fleet.collector(ctx, kind)
		if err != nil {
			return err
		}
		all = append(all, r)
	}
	agent, relayed, err := fleet.vmagent(ctx)
	if err != nil {
		return err
	}
	all = append(all, agent)
	for _, r := range all {
		if _, r.resting, err = r.usage(); err != nil {
			return err
		}
	}
	passed := make([]int64, len(all)) // as of the end of the first turns
	for round := range rounds + 1 {
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round, rounds)
		if round > 0 {
			if err := fleet.advance(); err != nil {
				return err
			}
		}
		for _, r := range all {
			if err := r.turn(ctx); err != nil {
				return err
			}
		}
		for i, r := range all {
			if round == 0 && r.passed != nil {
				if passed[i], err = r.passed(); err != nil {
					return err
				}
			}
		}
	}
	if relayed.Load() == 0 {
		return errors.New("vmagent relayed nothing")
	}
	figure.FprintOnly(w, "relatives_points", float64(fleet.points), "points")
	base := all[len(all)-2]
	for i, r := range all {
		r.micros = r.micros[1:] // the first is to warm up
		if r.passed != nil {
			now, err := r.passed()
			if err != nil {
				return err
			}
			if now == passed[i] {
				return fmt.Errorf("nothing came out of %s", r.name)
			}
			figure.FprintOnly(w, "relatives_"+r.name+"_passed", float64(now-passed[i])/float64(rounds*fleetSteps*fleetNodes), "points/report")
		}
		_, resident, err := r.usage()
		if err != nil {
			return err
		}
		figure.FprintOnly(w, "relatives_"+r.name, median(slices.Clone(r.micros)), "us")
		figure.FprintOnly(w, "relatives_"+r.name+"_memory", (resident-r.resting)/1e3/fleetNodes, "kB/node")
		if r == base {
			continue
		}
		ratios := make([]float64, len(r.micros))
		for i, v := range r.micros {
			ratios[i] = base.micros[i] / v
		}
		figure.FprintOnly(w, "relatives_diff_to_"+r.name, median(ratios), "x")
	}
	return nil
}

// collector is a server of this command.
func (f *recording) collector(ctx context.Context, kind string) (*relative, error) {
	s, err := startServer(ctx, kind)
	if err != nil {
		return nil, err
	}
	push := func(ctx context.Context, node, step int) error {
		ctx = metadata.NewOutgoingContext(ctx, f.headers[node])
		return s.conns[node%len(s.conns)].Invoke(ctx, exportMethod, f.otlp[node][step], nil,
			grpc.ForceCodecV2(rawCodec{}), grpc.UseCompressor("zstd"), grpc.WaitForReady(true))
	}
	passed := func() (int64, error) {
		u, err := s.usage()
		return u.points, err
	}
	return &relative{name: kind, push: push, passed: passed, pid: s.cmd.Process.Pid, stop: s.stop}, nil
}

// vmagent relays what it gets to a server that counts the bytes.
func (f *recording) vmagent(ctx context.Context) (_ *relative, relayed *atomic.Int64, err error) {
	relayed = new(atomic.Int64)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	sink := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		relayed.Add(n)
		w.WriteHeader(http.StatusNoContent)
	})}
	go func() { _ = sink.Serve(listener) }()
	dir, err := os.MkdirTemp("", "bench-vmagent-")
	if err != nil {
		return nil, nil, errors.Join(err, sink.Close())
	}
	addr, err := loopback.Addr(ctx)
	if err != nil {
		return nil, nil, errors.Join(err, sink.Close(), os.RemoveAll(dir))
	}
	cmd := exec.CommandContext(ctx, "vmagent", "-httpListenAddr="+addr, "-remoteWrite.tmpDataPath="+dir,
		"-remoteWrite.url=http://"+listener.Addr().String()+"/api/v1/write")
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("vmagent, of Debian's package victoria-metrics: %w", err), sink.Close(), os.RemoveAll(dir))
	}
	stop := func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = sink.Close()
		_ = os.RemoveAll(dir)
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: nodes}}
	post := func(ctx context.Context, path string, body []byte) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+path, bytes.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Encoding", "snappy")
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		if resp.StatusCode/100 != 2 {
			err = fmt.Errorf("vmagent answered %s", resp.Status)
		}
		return errors.Join(err, resp.Body.Close())
	}
	for began := time.Now(); post(ctx, "/api/v1/write", f.write[0][0]) != nil; {
		if time.Since(began) > 30*time.Second || ctx.Err() != nil {
			stop()
			return nil, nil, fmt.Errorf("vmagent does not serve:\n%s", log.Bytes())
		}
		time.Sleep(50 * time.Millisecond)
	}
	push := func(ctx context.Context, node, step int) error {
		return post(ctx, "/api/v1/write", f.write[node][step])
	}
	return &relative{name: "vmagent", push: push, pid: cmd.Process.Pid, stop: stop}, relayed, nil
}
