// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/procfs"

	"github.com/gpu-collector/gpu-collector/internal/fleetapi"
	"github.com/gpu-collector/gpu-collector/test/bench/harness"
	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// collector is a process of the distribution under a shipped configuration, on
// ports of its own.
type collector struct {
	*harness.Collector

	pprof string
	view  string // a gateway's fleet view
}

// The root overlay is what a gateway of ten thousand nodes runs with.
func startGateway(ctx context.Context, binary string) (*collector, error) {
	view, err := loopback.Addr(ctx)
	if err != nil {
		return nil, err
	}
	c, err := start(ctx, "gateway", binary, nil,
		[]string{"configs/gateway.yaml", "configs/overlays/root.yaml"},
		"extensions::exposition::http::endpoint: %s", "extensions::straggler_threshold::api::endpoint: %s", "extensions::fleet_view::http::endpoint: "+view,
		"service::extensions: [admission, straggler_threshold, exposition, fleet_view, healthcheckv2, pprof]")
	if err != nil {
		return nil, err
	}
	c.view = view
	return c, nil
}

func startShard(ctx context.Context, binary, gateway string) (*collector, error) {
	return start(ctx, "shard", binary, []string{"GPU_COLLECTOR_GATEWAY=" + gateway, "GPU_COLLECTOR_INSECURE=true"},
		[]string{"configs/shard.yaml"},
		"service::extensions: [admission, straggler_threshold, wire_diff, healthcheckv2, pprof]")
}

func start(ctx context.Context, name, binary string, env, configs []string, overrides ...string) (*collector, error) {
	pprof, err := loopback.Addr(ctx)
	if err != nil {
		return nil, err
	}
	c, err := harness.Start(ctx, harness.Setup{
		Name: name, Binary: binary, Configs: configs, Metrics: true, Env: append(env, "GOGC=100", "GOMEMLIMIT=off"),
		Overrides: append(overrides, "extensions::pprof::endpoint: "+pprof,
			"receivers::otlp::protocols::http::endpoint: %s", "extensions::healthcheckv2::http::endpoint: %s"),
	})
	return &collector{Collector: c, pprof: pprof}, err
}

// seen returns the seconds of CPU so far, and the values of measures.
func (c *collector) seen(ctx context.Context) (cpu float64, values [4]float64, err error) {
	cpu, resident, err := c.Usage()
	if err != nil {
		return 0, values, err
	}
	proc, err := procfs.NewProc(c.PID())
	if err != nil {
		return 0, values, err
	}
	files, err := proc.FileDescriptorsLen()
	if err != nil {
		return 0, values, err
	}
	// The next collection of garbage begins at twice what the last found alive, with
	// GOGC at its 100.
	next, err := c.profile(ctx, "heap", "# NextGC = ")
	if err != nil {
		return 0, values, err
	}
	goroutines, err := c.profile(ctx, "goroutine", "goroutine profile: total ")
	return cpu, [...]float64{resident / 1e6, next / 2 / 1e6, goroutines, float64(files)}, err
}

// profile reads the number that a line of a profile ends with.
func (c *collector) profile(ctx context.Context, name, line string) (n float64, err error) {
	body, err := process.Get(ctx, "http://"+c.pprof+"/debug/pprof/"+name+"?debug=1")
	if err != nil {
		return 0, err
	}
	text, err := io.ReadAll(body)
	if err = errors.Join(err, body.Close()); err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(string(text), line)
	if !ok {
		return 0, fmt.Errorf("its profile %s has no %q", name, line)
	}
	_, err = fmt.Sscan(rest, &n)
	return n, err
}

// episodes is how many events of stragglers and groups a gateway has told of, and how
// many of silent nodes, which there are where the machine skips their pushes.
func (c *collector) episodes(ctx context.Context) (n, silent float64, err error) {
	families, err := c.Families(ctx)
	if err != nil {
		return 0, 0, err
	}
	compares := false
	for name, f := range families {
		compares = compares || strings.HasPrefix(name, "otelcol_processor_straggler_tick_duration")
		if strings.HasPrefix(name, "otelcol_processor_straggler_episodes") && !strings.Contains(name, "dropped") {
			for _, m := range f.GetMetric() {
				if of := m.GetCounter().GetValue(); of > 0 {
					if slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetValue() == "missing" }) {
						silent += of
					} else {
						n += of
					}
					fmt.Fprintf(os.Stderr, "%s told of %v: %v\n", c.Name, of, m.GetLabel())
				}
			}
		}
	}
	if !compares {
		return 0, 0, errors.New("its telemetry does not tell of any comparison")
	}
	return n, silent, nil
}

// whole counts the GPUs whose constants a gateway knows. A node says these once, so
// only a resync brings back a lost constant. whole prints some GPUs that lack one.
func (c *collector) whole(ctx context.Context) (gpus int, err error) {
	const maxNamed = 10
	named := 0
	for page := 1; ; page++ {
		body, err := process.Get(ctx, fmt.Sprintf("http://%s/api/v1/nodes?gpus=true&page_size=1000&page=%d", c.view, page))
		if err != nil {
			return 0, err
		}
		var nodes fleetapi.NodePage
		if err = errors.Join(json.NewDecoder(body).Decode(&nodes), body.Close()); err != nil {
			return 0, err
		}
		for i := range nodes.Nodes {
			for _, g := range nodes.Nodes[i].GPUs {
				whole := g.Model != "" && g.MemoryLimit != nil && g.PowerLimit != nil && g.SMClockLimit != nil && g.PCIeWidthMax != nil
				switch {
				case whole:
					gpus++
				case named < maxNamed:
					named++
					known, _ := json.Marshal(g)
					fmt.Fprintf(os.Stderr, "%s: not all is known of a GPU of %s: %s\n", c.Name, nodes.Nodes[i].Node, known)
				}
			}
		}
		if !nodes.More {
			return gpus, nil
		}
	}
}
