// SPDX-License-Identifier: Apache-2.0

// Command demo shows the product on one machine: a collector that replays a real
// training run, and a small fleet of simulated GPU nodes that push to it. It tells of
// the faults that the collector finds, and of nothing else.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
)

// options are the command line's.
type options struct {
	collector, config, log string
	duration               time.Duration
	// healthy is how long the simulated fleet is before its faults begin.
	healthy time.Duration
}

func main() { os.Exit(play()) }

// play returns the status of the process.
func play() int {
	var o options
	flag.StringVar(&o.collector, "collector", "bin/gpu-collector", "`file` of the collector")
	flag.StringVar(&o.config, "config", "configs/demo.yaml", "`file` of its configuration")
	flag.StringVar(&o.log, "log", ".cache/demo.log", "`file` for the collector's whole log")
	flag.DurationVar(&o.duration, "duration", 0, "of the demo; 0 for until Ctrl-C")
	flag.DurationVar(&o.healthy, "healthy", 12*time.Second, "time before the faults of the simulated fleet")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.duration)
		defer cancel()
	}
	if err := run(ctx, &o, os.Stdout, isTerminal(os.Stdout)); err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		return 1
	}
	return 0
}

// run plays the demo until ctx ends, or the collector does.
func run(ctx context.Context, o *options, out io.Writer, terminal bool) error {
	ports := portsOf(os.Getenv)
	if err := os.MkdirAll(filepath.Dir(o.log), 0o750); err != nil {
		return err
	}
	log, err := os.Create(o.log)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	// Its own end comes after the last words of the demo.
	collector := exec.Command(o.collector, "--config", o.config, "--config", "yaml:service::telemetry::logs::encoding: json") //nolint:gosec // the caller's own
	collector.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}                                                               // Ctrl-C is for the demo alone
	lines, write := io.Pipe()
	collector.Stdout, collector.Stderr = write, write
	if err := collector.Start(); err != nil {
		return fmt.Errorf("the collector does not start: %w; `make bin/gpu-collector` builds it", err)
	}
	s := newScreen(out, terminal, ports.page())
	s.print(fmt.Sprintf(intro, westNodes+eastNodes, o.healthy, west, east, ports.page(), o.log))
	read := make(chan error, 1)
	go func() { read <- s.follow(io.TeeReader(lines, log)) }()
	ended := make(chan error, 1)
	go func() {
		err := collector.Wait()
		_ = write.Close()
		ended <- errors.Join(err, <-read)
	}()
	pushing, stopPushing := context.WithCancel(ctx)
	defer stopPushing()
	var pushers sync.WaitGroup
	pushers.Go(func() {
		// From the first push on: a fault that is there before is told apart from nothing.
		if listens(pushing, ports.otlp) {
			simulate(pushing, s, ports, o.healthy)
		}
	})
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.progress()
		case err := <-ended:
			stopPushing()
			pushers.Wait()
			return fmt.Errorf("the collector ended: %w; its log is %s", err, o.log)
		case <-ctx.Done():
			s.end()
			stopPushing()
			pushers.Wait()
			_ = collector.Process.Signal(syscall.SIGTERM)
			return <-ended
		}
	}
}

const intro = `A real training run of 16 workers replays, one of which was slowed on purpose.
Beside it two simulated clusters train, with %d nodes of eight GPUs in all. After %s
a GPU in cluster %s gets hot, and another falls off the bus. In cluster %s seven of the
eight nodes in one rack lose clock speed.
  the page          %s
  the whole log     %s
  Ctrl-C ends it.
`

// The simulated clusters, with racks of eight nodes. What happens to many nodes of a job
// is one incident, so the rack is in a cluster of its own.
const west, westNodes, east, eastNodes = "west", 16, "east", 24

// The nodes at fault: two of the west, and the first of a rack of the east.
const hotNode, lostNode, slowRack = 5, 11, 16

// recordedNode is the worker that was slowed in the recording, rackName the slow rack.
const recordedNode, rackName = "dp0-pp0", "rack-2"

// listens waits until somebody takes connections on a port.
func listens(ctx context.Context, port string) bool {
	var dialer net.Dialer
	for ctx.Err() == nil {
		if conn, err := dialer.DialContext(ctx, "tcp", "127.0.0.1:"+port); err == nil {
			_ = conn.Close()
			return true
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	return false
}

// simulate plays the fleets until ctx ends.
func simulate(ctx context.Context, s *screen, p ports, healthy time.Duration) {
	fleets, err := simulated(p, healthy)
	if err != nil {
		s.print(fmt.Sprintf("the simulated clusters cannot push: %v\n", err))
	}
	var wg sync.WaitGroup
	for _, f := range fleets {
		wg.Go(func() { _ = f.Run(ctx) }) // ends with ctx
	}
	wg.Wait()
}

// simulated are the fleets that push beside the recording.
func simulated(p ports, healthy time.Duration) ([]*fleetpush.Pusher, error) {
	fault := func(kind fleetsim.Kind, node, gpu int, severity float64) fleetpush.Fault {
		return fleetpush.Fault{
			Target: fleetsim.Target{Node: node},
			Fault:  fleetsim.Fault{Kind: kind, GPU: gpu, From: healthy, Severity: severity},
		}
	}
	rack := make([]fleetpush.Fault, 0, 7)
	for node := range 7 {
		rack = append(rack, fault(fleetsim.ClockLock, slowRack+node, fleetsim.AllGPUs, 0.25))
	}
	var pushers []*fleetpush.Pusher
	for _, cfg := range [...]fleetpush.Config{
		{Cluster: west, Nodes: westNodes, Faults: []fleetpush.Fault{
			fault(fleetsim.ThermalThrottle, hotNode, 3, 0.8), fault(fleetsim.LostGPU, lostNode, 2, 1),
		}},
		{Cluster: east, Nodes: eastNodes, Faults: rack},
	} {
		cfg.GPUs, cfg.Clusters, cfg.Jobs, cfg.Load = 8, 1, 1, fleetsim.Training
		cfg.Seed, cfg.Step, cfg.Start = uint64(cfg.Nodes), time.Second, time.Now()
		fleet, err := fleetpush.New(cfg)
		if err != nil {
			return nil, err
		}
		push := fleetpush.DefaultPushConfig()
		push.Endpoint, push.Interval, push.Connections = "127.0.0.1:"+p.otlp, time.Second, 1
		pusher, err := fleetpush.NewPusher(push, fleet)
		if err != nil {
			return nil, err
		}
		pushers = append(pushers, pusher)
	}
	return pushers, nil
}

// ports are those of configs/demo.yaml.
type ports struct{ otlp, fleet string }

func portsOf(env func(string) string) ports {
	p := ports{otlp: "14317", fleet: "8086"}
	if v := env("DEMO_OTLP_PORT"); v != "" {
		p.otlp = v
	}
	if v := env("DEMO_FLEET_PORT"); v != "" {
		p.fleet = v
	}
	return p
}

func (p ports) page() string { return "http://127.0.0.1:" + p.fleet + "/" }

func nodeName(node int) string { return fleetpush.NodeName(node) }

// isTerminal reports whether a line can move in a file.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}
