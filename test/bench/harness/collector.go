// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package harness runs the collectors of this tree and of another commit's as black
// boxes, each by its own shipped configuration, and measures what they take.
package harness // import "github.com/gpu-collector/gpu-collector/test/bench/harness"

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/prometheus/procfs"

	"github.com/gpu-collector/gpu-collector/test/fakenvml"
	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// Tree is a checkout of a commit, with its binaries in bin.
type Tree struct{ Name, Dir string }

// Trees are this one, and the base where there is one.
func Trees(base string) []Tree {
	trees := []Tree{{"this", "."}}
	if base != "" {
		trees = append(trees, Tree{"base", base})
	}
	return trees
}

// The tiers. Plain is the least that a Collector can do with a push.
const (
	Plain   = "plain"
	Agent   = "agent"
	Shard   = "shard"
	Gateway = "gateway"
)

const plainConfig = `yaml:{receivers: {otlp: {protocols: {grpc: {}, http: {}}}}, exporters: {nop: {}},
service: {pipelines: {metrics: {receivers: [otlp], exporters: [nop]}}}}`

// Setup is how a tier is run.
type Setup struct {
	Tree Tree
	Tier string
	// Next is the address of the next hop; a Hop of its own takes everything without.
	Next string
	// GPUs of an agent's node, which a fake library plays.
	GPUs int
	// Overlays are files of the tree's configs, Overrides YAML over them.
	Overlays, Overrides []string
	// Env is added to this process's.
	Env []string
}

// Collector is a process of the distribution.
type Collector struct {
	*process.Process
	Name string
	// GRPC and HTTP take OTLP; Scrape is a gateway's and an agent's, View a gateway's.
	GRPC, HTTP, Scrape, View string
	// Hop is nil where the Setup has another.
	Hop *Hop

	dir string
}

// Start returns a collector that is ready, on ports of its own.
func Start(ctx context.Context, s *Setup) (_ *Collector, err error) {
	c := &Collector{Name: s.Tier + " of " + s.Tree.Name}
	for _, to := range []*string{&c.GRPC, &c.HTTP, &c.Scrape, &c.View} {
		if *to, err = loopback.Addr(ctx); err != nil {
			return nil, err
		}
	}
	if c.dir, err = os.MkdirTemp("", "bench-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%s: %w", c.Name, err), c.clean())
		}
	}()
	next := s.Next
	if next == "" {
		if c.Hop, err = NewHop(ctx); err != nil {
			return nil, err
		}
		next = c.Hop.Addr
	}
	state := filepath.Join(c.dir, "fakenvml.state")
	receiver := "otlp"
	if text, err := os.ReadFile(filepath.Join(s.Tree.Dir, "configs", s.Tier+".yaml")); err == nil && bytes.Contains(text, []byte(" fleet_otlp:")) {
		receiver = "fleet_otlp" // a base may be older
	}
	overrides := []string{
		"receivers::" + receiver + "::protocols::grpc::endpoint: " + c.GRPC,
		"receivers::" + receiver + "::protocols::http::endpoint: " + c.HTTP,
		"service::telemetry::metrics::readers: [{pull: {exporter: {prometheus: {host: 127.0.0.1, port: 0}}}}]",
	}
	binary, configs := "gpu-collector", []string{filepath.Join(s.Tree.Dir, "configs", s.Tier+".yaml")}
	switch s.Tier {
	case Plain:
		configs = []string{plainConfig}
	case Agent:
		binary = "gpu-collector-agent"
		library, err := fakenvml.Build(c.dir)
		if err = errors.Join(err, fakenvml.NewH100(s.GPUs).Write(state)); err != nil {
			return nil, err
		}
		overrides = append(overrides, "extensions::exposition::http::endpoint: "+c.Scrape, "receivers::nvml::library_path: "+library)
	case Gateway:
		overrides = append(overrides, "extensions::exposition::http::endpoint: "+c.Scrape, "extensions::fleet_view::http::endpoint: "+c.View,
			"extensions::straggler_threshold::api::endpoint: 127.0.0.1:0")
	}
	if s.Tier != Plain {
		overrides = append(overrides, "extensions::healthcheckv2::http::endpoint: 127.0.0.1:0")
	}
	for _, file := range s.Overlays {
		configs = append(configs, filepath.Join(s.Tree.Dir, "configs", file))
	}
	for _, o := range append(overrides, s.Overrides...) {
		configs = append(configs, "yaml:"+o)
	}
	var args []string
	for _, config := range configs {
		args = append(args, "--config", config)
	}
	env := append(os.Environ(), "STATE_DIRECTORY="+c.dir, "GODEBUG=gctrace=1", "GPU_COLLECTOR_GATEWAY="+next, "GPU_COLLECTOR_INSECURE=true",
		fakenvml.StateEnv+"="+state)
	c.Process = process.New(process.Command{Path: filepath.Join(s.Tree.Dir, "bin", binary), Args: args, Env: append(env, s.Env...)})
	if err := c.Start(); err != nil {
		return nil, err
	}
	return c, nil
}

// clean removes what a collector that has ended leaves.
func (c *Collector) clean() error {
	if c.Hop != nil {
		c.Hop.Stop()
	}
	return os.RemoveAll(c.dir)
}

// Close ends the collector and its Hop. A collector that had ended before is an error.
func (c *Collector) Close() error {
	return errors.Join(c.Alive(), c.Stop(), c.clean())
}

// Alive returns why the collector does not run.
func (c *Collector) Alive() error {
	if c.Ended() {
		return fmt.Errorf("the %s ended; it said:\n%s", c.Name, c.Log.Tail(20))
	}
	return nil
}

// Look is what a process took so far (CPU, in seconds) or holds now: bytes, resident and
// its own part of them, those that the last garbage collection left, and open files.
type Look struct{ CPU, Resident, Own, Live, Files float64 }

// https://pkg.go.dev/runtime#hdr-Environment_Variables, gctrace
var gcLine = regexp.MustCompile(`->(\d+) MB, \d+ MB goal`)

// Look looks at the process.
func (c *Collector) Look() (l Look, err error) {
	if err := c.Alive(); err != nil {
		return l, err
	}
	proc, err := procfs.NewProc(c.PID())
	if err != nil {
		return l, err
	}
	stat, err := proc.Stat()
	if err != nil {
		return l, err
	}
	status, err := proc.NewStatus()
	if err != nil {
		return l, err
	}
	files, err := proc.FileDescriptorsLen()
	l = Look{CPU: stat.CPUTime(), Resident: float64(stat.ResidentMemory()), Own: float64(status.RssAnon), Files: float64(files)}
	if lines := c.Log.Lines("gc ", " MB goal"); len(lines) > 0 {
		if m := gcLine.FindStringSubmatch(lines[len(lines)-1]); m != nil {
			megabytes, _ := strconv.ParseFloat(m[1], 64) // the expression lets nothing else pass
			l.Live = megabytes * (1 << 20)
		}
	}
	return l, err
}
