// SPDX-License-Identifier: Apache-2.0

// Package demo is the command `demo`: a collector, a recorded training run and a
// simulated fleet in one process, and a screen that tells what the collector finds.
package demo // import "github.com/gpu-collector/gpu-collector/sim/demo"

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/collector/otelcol"

	"github.com/gpu-collector/gpu-collector/configs"
)

// options are the command line's.
type options struct {
	listen    string
	port      int
	noBrowser bool
	duration  time.Duration
}

// Command returns `demo`, which runs a collector made of set.
func Command(set otelcol.CollectorSettings) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show what is found in a recorded training run and a simulated fleet",
		Long: "Replays a recorded training run of 16 workers beside 32 simulated nodes of eight GPUs, and tells of the " +
			strconv.Itoa(len(faults)) + " faults that the collector finds in them. It needs no GPU, and leaves nothing behind. Ctrl-C ends it.",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			if o.duration > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, o.duration)
				defer cancel()
			}
			return play(ctx, set, &o, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.port, "port", 8086, "of the page; where it is taken, a free port is used")
	f.StringVar(&o.listen, "listen", "127.0.0.1", "address that the page listens on, such as 0.0.0.0 in a container")
	f.BoolVar(&o.noBrowser, "no-browser", false, "do not open the page in a browser")
	f.DurationVar(&o.duration, "duration", 0, "of the demo; 0 for until Ctrl-C")
	return cmd
}

// play plays the demo until ctx ends, or the collector does.
func play(ctx context.Context, set otelcol.CollectorSettings, o *options, out io.Writer) (err error) {
	began := time.Now()
	dir, err := os.MkdirTemp("", "gpu-collector-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ports, moved, err := findPorts(o)
	if err != nil {
		return err
	}
	collector, err := newCollector(set, o, dir, ports)
	if err != nil {
		return err
	}
	terminal := isTerminal(out)
	s := newScreen(out, terminal, fmt.Sprintf("http://127.0.0.1:%d/", ports[page]))
	s.begin(moved)
	// The collector is told to end after the fleet, which would be without an answer.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- collector.Run(running) }()
	pushing, stopPushing := context.WithCancel(ctx)
	defer stopPushing()
	var pushers sync.WaitGroup
	defer pushers.Wait()
	client, err := newClient(s.page)
	if err != nil {
		return err
	}
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	for started := false; ; {
		select {
		case <-ticker.C:
			// A failure of the fleet ends the demo as one of the collector does.
			if !started && collector.GetState() == otelcol.StateRunning {
				started = true
				fleets, err := simulated(ports[otlp])
				if err != nil {
					return err
				}
				for _, f := range fleets {
					pushers.Go(func() { _ = f.Run(pushing) }) // ends with its context
				}
				if terminal && !o.noBrowser {
					openBrowser(ctx, s.page)
				}
			}
			list, err := client.attention(ctx)
			if err == nil {
				s.show(list)
			}
			s.progress(time.Since(began))
		case err := <-ended:
			log, _ := os.ReadFile(filepath.Join(dir, logFile)) //nolint:gosec // G304: of this process
			return fmt.Errorf("the collector ended by itself: %w\n%s", cmp.Or(err, errors.New("its log says why")), lastLines(log))
		case <-ctx.Done():
			s.end()
			stopPushing()
			pushers.Wait()
			stop()
			return <-ended
		}
	}
}

// logFile has the collector's log, so that the terminal has the screen alone.
const logFile = "collector.log"

// newCollector returns a collector of the demo's configuration, which keeps everything in dir.
func newCollector(set otelcol.CollectorSettings, o *options, dir string, ports [numPorts]int) (*otelcol.Collector, error) {
	recording := filepath.Join(dir, "recording.csv")
	if err := os.WriteFile(recording, configs.DemoRecording, 0o600); err != nil {
		return nil, err
	}
	env := map[string]string{"DEMO_DATA": recording, "STATE_DIRECTORY": dir, "DEMO_LISTEN": o.listen}
	for i, port := range ports {
		env[servers[i].env] = strconv.Itoa(port)
	}
	for name, value := range env {
		if err := os.Setenv(name, value); err != nil {
			return nil, err
		}
	}
	set.DisableGracefulShutdown = true // Ctrl-C is the demo's
	set.ConfigProviderSettings.ResolverSettings.URIs = []string{
		"yaml:" + configs.Demo,
		fmt.Sprintf("yaml:service::telemetry::logs: {output_paths: [%q], error_output_paths: [%q]}", filepath.Join(dir, logFile), filepath.Join(dir, logFile)),
	}
	return otelcol.NewCollector(set)
}

// The demo's servers.
const (
	page = iota
	otlp
	thresholds
	exposition
	numPorts
)

var servers = [numPorts]struct {
	what, env string
	port      int
}{
	page:       {"the page", "DEMO_FLEET_PORT", 0}, // a flag's
	otlp:       {"OTLP", "DEMO_OTLP_PORT", 14317},
	thresholds: {"the thresholds' API", "DEMO_API_PORT", 8085},
	exposition: {"Prometheus' endpoint", "DEMO_PROMETHEUS_PORT", 9464},
}

// findPorts returns the ports of all servers, and which are not the usual ones.
func findPorts(o *options) (ports [numPorts]int, moved []string, err error) {
	for i, server := range servers {
		host, port := "127.0.0.1", server.port
		if i == page {
			host, port = o.listen, o.port
		}
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EACCES) {
			if l, err = net.Listen("tcp", net.JoinHostPort(host, "0")); err == nil {
				moved = append(moved, fmt.Sprintf("Port %d is taken: %s has %s.", port, server.what, portOf(l)))
			}
		}
		if err != nil {
			return ports, nil, fmt.Errorf("%s: %w", server.what, err)
		}
		// All are held until all are found, or one would be found twice.
		defer func() { _ = l.Close() }()
		if ports[i], err = strconv.Atoi(portOf(l)); err != nil {
			return ports, nil, err
		}
	}
	return ports, moved, nil
}

func portOf(l net.Listener) string {
	_, port, _ := net.SplitHostPort(l.Addr().String()) // it has one
	return port
}

// openBrowser opens the page where somebody can see it.
func openBrowser(ctx context.Context, url string) {
	if os.Getenv("DISPLAY") != "" || os.Getenv("WAYLAND_DISPLAY") != "" {
		_ = exec.CommandContext(ctx, "xdg-open", url).Start() //nolint:gosec // G204: our own page
	}
}

// isTerminal reports whether a line can move in it.
func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
