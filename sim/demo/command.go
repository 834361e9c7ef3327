// SPDX-License-Identifier: Apache-2.0

// Package demo is the command `demo`: a collector, a recorded training run and a
// simulated fleet in one process, and a screen with what the collector finds.
package demo // import "github.com/gpu-collector/gpu-collector/sim/demo"

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/collector/otelcol"

	"github.com/gpu-collector/gpu-collector/configs"
	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

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
		Long: fmt.Sprintf("Replays a recorded training run of 16 workers beside 32 simulated nodes of eight GPUs, and tells of the "+
			"%d faults that the collector finds in them. It needs no GPU and leaves nothing behind. Ctrl-C ends it.", len(faults)),
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
			return run(ctx, set, &o, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.port, "port", 8086, "of the page; where it is taken, a free one is used")
	f.StringVar(&o.listen, "listen", "127.0.0.1", "`address` that the page listens on, such as 0.0.0.0 in a container")
	f.BoolVar(&o.noBrowser, "no-browser", false, "do not open the page in a browser")
	f.DurationVar(&o.duration, "duration", 0, "of the demo; 0 for until Ctrl-C")
	return cmd
}

type demo struct {
	collector *otelcol.Collector
	ended     chan error // what the collector ended with
	ports     [numPorts]int
	client    *fleetclient.ClientWithResponses
	screen    *screen
	browse    bool
}

// run plays the demo until ctx ends, or the collector does. Nothing of an earlier demo
// is known to it, nor left by it.
func run(ctx context.Context, set otelcol.CollectorSettings, o *options, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "gpu-collector-demo-")
	if err != nil {
		return fmt.Errorf("no folder for the demo's state: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ports, moved, err := findPorts(o)
	if err != nil {
		return err
	}
	d := demo{ended: make(chan error, 1), ports: ports}
	if d.collector, err = newCollector(set, o, dir, ports); err != nil {
		return err
	}
	url := fmt.Sprintf("http://127.0.0.1:%d/", ports[page])
	if d.client, err = fleetclient.NewClientWithResponses(url); err != nil {
		return err
	}
	terminal := isTerminal(out)
	d.screen, d.browse = newScreen(out, terminal, url), terminal && !o.noBrowser
	d.screen.begin(moved)
	// The collector ends after the fleet, whose last pushes would have no answer.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	go func() { d.ended <- d.collector.Run(running) }()
	alone, err := d.play(ctx)
	if stop(); !alone {
		if end := <-d.ended; !errors.Is(end, context.Canceled) { // else it had not begun
			err = errors.Join(err, end)
		}
		return err
	}
	log, _ := os.ReadFile(filepath.Join(dir, logFile)) //nolint:gosec // G304: of this process
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	return fmt.Errorf("the collector ended by itself: %w\n%s", err, strings.Join(lines[max(0, len(lines)-5):], "\n"))
}

// play shows what is found until ctx ends, or the collector does alone.
func (d *demo) play(ctx context.Context) (alone bool, err error) {
	began := time.Now()
	pushing, stop := context.WithCancel(ctx)
	var pushers sync.WaitGroup
	defer pushers.Wait()
	defer stop()
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	for started := false; ; {
		select {
		case <-ticker.C:
		case err := <-d.ended:
			return true, err
		case <-ctx.Done():
			d.screen.end()
			return false, nil
		}
		// From the first push on: a fault that is there before differs from nothing.
		if !started && d.collector.GetState() == otelcol.StateRunning {
			started = true
			fleets, err := simulated(d.ports[otlp])
			if err != nil {
				return false, err
			}
			for _, f := range fleets {
				pushers.Go(func() { _ = f.Run(pushing) }) // ends with its context
			}
			if d.browse {
				openBrowser(ctx, d.screen.page)
			}
		}
		answer, err := d.client.ListAttentionWithResponse(ctx, nil)
		if err == nil && answer.JSON200 != nil { // else it does not listen yet
			d.screen.show(answer.JSON200, time.Since(began))
		}
		d.screen.progress(time.Since(began))
	}
}

// logFile has the collector's log: the terminal has the screen alone.
const logFile = "collector.log"

// newCollector returns a collector of the demo's configuration, which keeps everything in dir.
func newCollector(set otelcol.CollectorSettings, o *options, dir string, ports [numPorts]int) (*otelcol.Collector, error) {
	recording, log := filepath.Join(dir, "recording.csv"), filepath.Join(dir, logFile)
	if err := os.WriteFile(recording, configs.DemoRecording, 0o600); err != nil {
		return nil, fmt.Errorf("the recording: %w", err)
	}
	env := map[string]string{"DEMO_DATA": recording, "STATE_DIRECTORY": dir, "GPU_COLLECTOR_LISTEN": o.listen}
	for i, port := range ports {
		env[servers[i].env] = strconv.Itoa(port)
	}
	for name, value := range env {
		if err := os.Setenv(name, value); err != nil {
			return nil, fmt.Errorf("the environment: %w", err)
		}
	}
	set.DisableGracefulShutdown = true // Ctrl-C is the demo's
	set.ConfigProviderSettings.ResolverSettings.URIs = []string{
		"yaml:" + configs.Demo, fmt.Sprintf("yaml:service::telemetry::logs: {output_paths: [%q], error_output_paths: [%q]}", log, log),
	}
	return otelcol.NewCollector(set)
}

func openBrowser(ctx context.Context, url string) {
	if os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return
	}
	if open := exec.CommandContext(ctx, "xdg-open", url); open.Start() == nil { //nolint:gosec // G204: our own page
		go func() { _ = open.Wait() }() // it reports its own errors
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
