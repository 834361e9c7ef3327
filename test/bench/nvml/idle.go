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
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	_ "go.opentelemetry.io/collector/config/configgrpc" // registers the compressions
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
)

// What the product promises of an agent that has eight GPUs and no job.
const (
	maxIdleMegabytes  = 45
	maxIdleCPUPercent = 0.5
)

// gateway takes what the agent pushes.
type gateway struct {
	pmetricotlp.UnimplementedGRPCServer
	pushes atomic.Int64
}

func (g *gateway) Export(context.Context, pmetricotlp.ExportRequest) (pmetricotlp.ExportResponse, error) {
	g.pushes.Add(1)
	return pmetricotlp.NewExportResponse(), nil
}

// agent is the lean distribution, and how long it is looked at.
type agent struct {
	binary, config string
	warmup, span   time.Duration
}

// idle measures the agent under its own configuration, on ports of its own, on
// nodes of several sizes.
func (a *agent) idle(ctx context.Context, w io.Writer) error {
	for _, gpus := range []int{1, 8, 16} {
		fmt.Fprintf(os.Stderr, "running the lean agent with %d GPUs for %s\n", gpus, a.warmup+a.span)
		if err := a.node(ctx, w, gpus); err != nil {
			return err
		}
	}
	return nil
}

func (a *agent) node(ctx context.Context, w io.Writer, gpus int) error {
	dir, err := os.MkdirTemp("", "bench-nvml-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	library, err := fakenvml.Build(dir)
	if err != nil {
		return err
	}
	state := filepath.Join(dir, "state")
	if err = fakenvml.NewH100(gpus).Write(state); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server, sink := grpc.NewServer(), &gateway{}
	pmetricotlp.RegisterGRPCServer(server, sink)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	args := []string{"--config", a.config}
	for _, override := range []string{
		"receivers::nvml::library_path: " + library,
		"receivers::otlp::protocols::grpc::endpoint: 127.0.0.1:0",
		"receivers::otlp::protocols::http::endpoint: 127.0.0.1:0",
		"extensions::healthcheckv2::http::endpoint: 127.0.0.1:0",
		"service::telemetry::metrics::readers: [{pull: {exporter: {prometheus: {host: 127.0.0.1, port: 0}}}}]",
	} {
		args = append(args, "--config", "yaml:"+override)
	}
	cmd := exec.CommandContext(ctx, a.binary, args...)
	cmd.Env = append(os.Environ(), fakenvml.StateEnv+"="+state,
		"GPU_COLLECTOR_GATEWAY="+listener.Addr().String(), "GPU_COLLECTOR_INSECURE=true")
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err = cmd.Start(); err != nil {
		return err
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()

	err = a.measure(ctx, w, gpus, cmd.Process.Pid, exited, sink)
	if err == nil {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		err = <-exited
	}
	if err != nil {
		return fmt.Errorf("%w; the agent said:\n%s", err, log.Bytes())
	}
	return nil
}

var errExited = errors.New("the agent ended before it was measured")

func (a *agent) measure(ctx context.Context, w io.Writer, gpus, pid int, exited <-chan error, sink *gateway) error {
	wait := func(d time.Duration) error {
		select {
		case <-time.After(d):
			return nil
		case err := <-exited:
			return errors.Join(errExited, err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := wait(a.warmup); err != nil {
		return err
	}
	before, err := stat(pid)
	if err != nil {
		return err
	}
	began := time.Now()
	if err = wait(a.span); err != nil {
		return err
	}
	after, err := stat(pid)
	if err != nil {
		return err
	}
	if sink.pushes.Load() == 0 {
		return errors.New("the agent pushed nothing")
	}
	percent := 100 * (after.CPUTime() - before.CPUTime()) / time.Since(began).Seconds()
	if gpus != 8 { // which the promise is of
		suffix := fmt.Sprintf("_%dgpu", gpus)
		figure.FprintOnly(w, "agent_idle_rss"+suffix, float64(after.ResidentMemory())/1e6, "MB")
		figure.FprintOnly(w, "agent_idle_cpu"+suffix, percent, "%")
		return nil
	}
	figure.Fprint(w, "agent_idle_rss", float64(after.ResidentMemory())/1e6, "MB", maxIdleMegabytes, true)
	status, err := status(pid)
	if err != nil {
		return err
	}
	// The rest is the binary and the libraries, which the kernel may drop.
	figure.FprintOnly(w, "agent_idle_rss_anon", float64(status.RssAnon)/1e6, "MB")
	figure.Fprint(w, "agent_idle_cpu", percent, "%", maxIdleCPUPercent, true)
	return nil
}

func stat(pid int) (procfs.ProcStat, error) {
	proc, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}, err
	}
	return proc.Stat()
}

func status(pid int) (procfs.ProcStatus, error) {
	proc, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStatus{}, err
	}
	return proc.NewStatus()
}
