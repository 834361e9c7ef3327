// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package harness runs what the benchmarks share: collectors with ports of their
// own, a next hop, and the report of a node.
package harness // import "github.com/gpu-collector/gpu-collector/test/bench/harness"

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/procfs"

	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// Setup is how a collector is run.
type Setup struct {
	Name, Binary string
	// Configs are files, Overrides YAML that goes over them. A %s in one is an
	// address of its own.
	Configs, Overrides []string
	// Env is added to this process's.
	Env []string
	// Metrics has the collector serve its own telemetry.
	Metrics bool
}

// Collector is a process of the distribution.
type Collector struct {
	*process.Process
	Name, Endpoint string // of OTLP over gRPC
	metrics, dir   string
}

// Start returns a collector that is ready.
func Start(ctx context.Context, s Setup) (*Collector, error) {
	c := &Collector{Name: s.Name}
	addresses, err := Addresses(ctx, 2)
	if err != nil {
		return nil, err
	}
	c.Endpoint, c.metrics = addresses[0], addresses[1]
	overrides := append(slices.Clone(s.Overrides), "receivers::otlp::protocols::grpc::endpoint: "+c.Endpoint)
	if s.Metrics {
		host, port, _ := strings.Cut(c.metrics, ":")
		overrides = append(overrides, fmt.Sprintf("service::telemetry::metrics::readers: [{pull: {exporter: {prometheus: {host: %s, port: %s}}}}]", host, port))
	}
	var args []string
	for _, file := range s.Configs {
		args = append(args, "--config", file)
	}
	for _, o := range overrides {
		if strings.Contains(o, "%s") {
			addr, err := loopback.Addr(ctx)
			if err != nil {
				return nil, err
			}
			o = fmt.Sprintf(o, addr)
		}
		args = append(args, "--config", "yaml:"+o)
	}
	if c.dir, err = os.MkdirTemp("", "bench-"); err != nil {
		return nil, err
	}
	c.Process = process.New(process.Command{
		Path: s.Binary, Args: args, Env: append(append(os.Environ(), "STATE_DIRECTORY="+c.dir), s.Env...),
	})
	if err := c.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", s.Name, err), os.RemoveAll(c.dir))
	}
	return c, nil
}

// Addresses returns so many free ones.
func Addresses(ctx context.Context, n int) (list []string, err error) {
	for range n {
		addr, err := loopback.Addr(ctx)
		if err != nil {
			return nil, err
		}
		list = append(list, addr)
	}
	return list, nil
}

// Close ends the collector. A collector that had ended before is an error.
func (c *Collector) Close() error {
	return errors.Join(c.Alive(), c.Stop(), os.RemoveAll(c.dir))
}

// Alive says why the collector does not run.
func (c *Collector) Alive() error {
	if c.Ended() {
		return fmt.Errorf("the %s ended; it said:\n%s", c.Name, c.Log.Tail(20))
	}
	return nil
}

// Usage is the CPU time so far, in seconds, and the memory that is resident now,
// in bytes.
func (c *Collector) Usage() (cpu, resident float64, err error) {
	if err := c.Alive(); err != nil {
		return 0, 0, err
	}
	proc, err := procfs.NewProc(c.PID())
	if err != nil {
		return 0, 0, err
	}
	stat, err := proc.Stat()
	return stat.CPUTime(), float64(stat.ResidentMemory()), err
}

// Pushed says why the collector has pushed nothing.
func (c *Collector) Pushed(ctx context.Context) error {
	families, err := c.Families(ctx)
	if err != nil {
		return err
	}
	for name := range families {
		if strings.HasPrefix(name, "otelcol_exporter_sent_metric_points") {
			return nil
		}
	}
	return fmt.Errorf("the %s pushed nothing", c.Name)
}

// Anonymous is the resident memory that is the process's own, in bytes. The rest is
// the binary and the libraries, which the kernel may drop.
func (c *Collector) Anonymous() (float64, error) {
	proc, err := procfs.NewProc(c.PID())
	if err != nil {
		return 0, err
	}
	status, err := proc.NewStatus()
	return float64(status.RssAnon), err
}

// Peak is the most that was ever resident, in bytes.
func (c *Collector) Peak() (float64, error) {
	proc, err := procfs.NewProc(c.PID())
	if err != nil {
		return 0, err
	}
	status, err := proc.NewStatus()
	return float64(status.VmHWM), err
}

// Families is the collector's own telemetry.
func (c *Collector) Families(ctx context.Context) (map[string]*dto.MetricFamily, error) {
	body, err := process.Get(ctx, "http://"+c.metrics+"/metrics")
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(body)
}
