// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"

	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/bench/harness"
)

const (
	shardConfig   = "configs/shard.yaml"
	gatewayConfig = "configs/gateway.yaml"
	rootOverlay   = "configs/overlays/root.yaml"
	// An older tree has the front door in a file of its own.
	wireOverlay = "configs/overlays/wire-diff.yaml"
)

// plainConfig is the least that a Collector can do with a push.
const plainConfig = `
receivers:
  otlp:
    protocols:
      grpc: {max_recv_msg_size_mib: 16}
exporters:
  nop:
service:
  pipelines:
    metrics: {receivers: [otlp], exporters: [nop]}
`

// The tiers that are compared.
const (
	plain   = "plain"
	shard   = "shard_wire_diff"
	gateway = "gateway"
	// Those of the other commit.
	shardBase   = "shard_base"
	gatewayBase = "gateway_base"
)

// tier is one of the compared at one number of nodes.
type tier struct {
	name  string
	nodes int
	fleet *fleetpush.Fleet
	proc  *collector
	// points of a report.
	points int

	resident, live float64
	cpu            []float64 // seconds per report, of each turn
	p50, p99       []float64 // seconds
}

// compare puts a plain Collector beside ours, with few nodes and with many.
func compare(ctx context.Context, b *bench, w io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "bench-tiers-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	configs, err := b.comparedConfigs(dir)
	if err != nil {
		return err
	}
	next, stopNext, err := harness.NextHop(ctx, 0)
	if err != nil {
		return err
	}
	defer stopNext()
	few, err := b.compareAt(ctx, b.few, next, configs)
	if err != nil {
		return err
	}
	many, err := b.compareAt(ctx, b.many, next, configs)
	if err != nil {
		return err
	}
	base := many[0]
	for i, t := range many {
		cpu, p99 := figure.Median(t.cpu), figure.Median(t.p99)
		figure.FprintOnly(w, "tiers_"+t.name+"_cpu_per_report", 1e6*cpu, "us")
		figure.FprintOnly(w, "tiers_"+t.name+"_cpu_ratio", ratioOf(t.cpu, base.cpu), "x")
		figure.FprintOnly(w, "tiers_"+t.name+"_push_p50", 1e3*figure.Median(t.p50), "ms")
		figure.FprintOnly(w, "tiers_"+t.name+"_push_p99", 1e3*p99, "ms")
		figure.FprintOnly(w, "tiers_"+t.name+"_push_p99_ratio", ratioOf(t.p99, base.p99), "x")
		nodes := float64(b.many - b.few)
		figure.FprintOnly(w, "tiers_"+t.name+"_resident_per_node", (t.resident-few[i].resident)/nodes/1e3, "kB")
		figure.FprintOnly(w, "tiers_"+t.name+"_live_per_node", (t.live-few[i].live)/nodes/1e3, "kB")
		if t.name == shard {
			// A fleet of 50,000 nodes asks this of all shards together.
			points := float64(t.points)
			figure.Fprint(w, "shard_cores_for_50000_nodes", cpu*50_000/interval.Seconds(), "cores", maxCores, true)
			figure.Fprint(w, "wire_front_door_reports_per_second_core", 1/cpu, "reports/s", minPerCore, false)
			figure.FprintOnly(w, "wire_front_door_points", points, "points")
			figure.Fprint(w, "wire_front_door_points_per_second_core", points/cpu, "points/s", minPoints, false)
			figure.Fprint(w, "shard_front_door_cpu_vs_plain", ratioOf(t.cpu, base.cpu), "x", maxOfPlain, true)
		}
		if b.base == "" || t.name != shard && t.name != gateway {
			continue
		}
		before := many[i+1] // see comparedConfigs
		live, cpuOfBase := (t.live-few[i].live)/(before.live-few[i+1].live), ratioOf(t.cpu, before.cpu)
		if t.name == shard {
			b.besideBase(w, "shard_front_door_live_vs_base", live, maxLive)
			b.besideBase(w, "shard_front_door_cpu_vs_base", cpuOfBase, maxCPU)
			continue
		}
		figure.Fprint(w, "gateway_live_vs_base", live, "x", maxWorse, true)
		figure.Fprint(w, "gateway_cpu_vs_base", cpuOfBase, "x", maxWorse, true)
	}
	return nil
}

// The limits are the product's promises: the shard's CPU beside a plain Collector's,
// its live memory and CPU beside its base, and what any commit may cost gateway and agent.
const (
	maxWorse   = 1.05
	maxOfPlain = 0.4
	maxCores   = 1
	minPerCore = 10_000
	minPoints  = 3_200_000 // those of 8 GPUs with 40 metrics each
	maxLive    = 0.55
	maxCPU     = 0.95
)

// configured is a tier and its configurations.
type configured struct {
	name   string
	binary string
	files  []string
}

// comparedConfigs are the tiers, plain first, and each with its base behind it.
func (b *bench) comparedConfigs(dir string) ([]configured, error) {
	file := filepath.Join(dir, "plain.yaml")
	if err := os.WriteFile(file, []byte(plainConfig), 0o600); err != nil {
		return nil, err
	}
	// At many times the pace of a fleet the history, which bench-fleetview
	// measures, would be all that is seen.
	noHistory := "yaml:extensions::fleet_view::history::storage: none"
	all := []configured{{plain, b.binary, []string{file}}, {shard, b.binary, []string{shardConfig}}}
	if b.base != "" {
		files := []string{filepath.Join(b.base, shardConfig)}
		if overlay := filepath.Join(b.base, wireOverlay); exists(overlay) {
			files = append(files, overlay)
		}
		all = append(all, configured{shardBase, filepath.Join(b.base, b.binary), files})
	}
	all = append(all, configured{gateway, b.binary, []string{gatewayConfig, noHistory}})
	if b.base != "" {
		all = append(all, configured{gatewayBase, filepath.Join(b.base, b.binary), []string{filepath.Join(b.base, gatewayConfig), noHistory}})
	}
	return all, nil
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

const (
	// pauses is how many turns of the others it takes until they are known as a
	// node's pace: after a pause that is news its whole state is forwarded.
	pauses = 2
	// settles is what a shard's flush_interval of 1 s takes until what came last is
	// forwarded too.
	settles = 2 * time.Second
)

// compareAt runs all tiers at once and pushes to each in turn.
func (b *bench) compareAt(ctx context.Context, nodes int, next string, configs []configured) (tiers []*tier, err error) {
	for _, c := range configs {
		b.say("%s with %d nodes: first reports", c.name, nodes)
		t := &tier{name: c.name, nodes: nodes}
		if t.fleet, err = newFleet(nodes); err != nil {
			return nil, err
		}
		if t.points, err = pointsOf(t.fleet); err != nil {
			return nil, err
		}
		if t.proc, err = start(ctx, c.binary, c.name, next, c.files...); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, t.proc.stop()) }()
		if err = fill(ctx, t.fleet, t.proc.Endpoint, b.inFlight); err != nil {
			return nil, fmt.Errorf("%s: %w", t.name, err)
		}
		tiers = append(tiers, t)
	}
	for turn := -pauses; turn < b.turns; turn++ {
		for _, t := range tiers {
			b.say("%s with %d nodes: turn %d of %d", t.name, nodes, turn+1, b.turns)
			before, err := t.proc.usage()
			if err != nil {
				return nil, err
			}
			r, err := push(ctx, t.fleet, t.proc.Endpoint, 0, b.turn, b.inFlight)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", t.name, err)
			}
			if err := harness.Wait(ctx, settles); err != nil {
				return nil, err
			}
			after, err := t.proc.usage()
			if err != nil {
				return nil, err
			}
			if turn < 0 {
				continue
			}
			t.cpu = append(t.cpu, (after.cpu-before.cpu)/float64(r.Accepted))
			t.p50, t.p99 = append(t.p50, r.Latency.P50), append(t.p99, r.Latency.P99)
			t.resident, t.live = after.resident, after.gc.live
		}
	}
	return tiers, nil
}

// pointsOf is the number of points in a node's report.
func pointsOf(f *fleetpush.Fleet) (int, error) {
	body, err := f.Next(0, 1, time.Now().Add(-time.Hour), nil)
	if err != nil {
		return 0, err
	}
	req := pmetricotlp.NewExportRequest()
	err = req.UnmarshalProto(body)
	return req.Metrics().DataPointCount(), err
}

// ratioOf is the median over the turns, each against the base's same turn: what
// else the machine did then, both have met.
func ratioOf(v, base []float64) float64 {
	r := make([]float64, len(v))
	for i := range v {
		r[i] = v[i] / base[i]
	}
	return figure.Median(r)
}
