// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/bench/harness"
)

const (
	// maxRate is how many reports per second the simulator pushes at most beside
	// what it measures on two cores.
	maxRate = 1000
	// scrapeEvery is Prometheus' pace.
	scrapeEvery = 15 * time.Second
	megabyte    = 1e6
	// maxCPUGrowth is what a node may cost of 50,000 for what it costs of 10,000: as
	// much, and a quarter more since less of it is in caches.
	maxCPUGrowth = 1.25

	// maxTick is what a tick of maxTickNodes may take, in milliseconds; of fewer it
	// may take their share, if they are manyNodes.
	maxTick      = 20
	maxTickNodes = 100_000
	manyNodes    = 50_000
)

// window is what a process did over a span of time.
type window struct {
	nodes          int
	compared       float64 // of the nodes: fewer where the machine skipped pushes
	span           time.Duration
	cpu            float64 // seconds
	full           float64 // cores, if all nodes pushed at their own pace
	resident, live float64 // bytes, at its end
	gcShare        float64 // of cpu
	gcPause        time.Duration
	tick           float64 // seconds each
	ticks          uint64
	scrapes, late  int   // late are those that were given up
	scraped        int64 // bytes of the last scrape
}

// watch measures the process, to which so many nodes push, while f runs, and scrapes
// it as Prometheus would.
func watch(ctx context.Context, p *collector, nodes int, f func(context.Context) error) (*window, error) {
	before, err := p.usage()
	if err != nil {
		return nil, err
	}
	past, err := p.compared(ctx)
	if err != nil {
		return nil, err
	}
	w := &window{nodes: nodes}
	began := time.Now()
	scraping, stop := context.WithCancel(ctx)
	scraped := make(chan struct{})
	go func() { defer close(scraped); p.scrapeUntil(scraping, w) }()
	err = f(ctx)
	stop()
	<-scraped
	if err != nil {
		return nil, err
	}
	w.span = time.Since(began)
	after, err := p.usage()
	if err != nil {
		return nil, err
	}
	w.cpu = after.cpu - before.cpu
	w.resident, w.live = after.resident, after.gc.live
	w.gcShare = (after.gc.cpu - before.gc.cpu) / w.cpu
	w.gcPause = after.gc.longest(len(before.gc.pauses))
	now, err := p.compared(ctx)
	if err != nil {
		return nil, err
	}
	w.compared = now.nodes
	if w.ticks = now.ticks - past.ticks; w.ticks > 0 {
		w.tick = (now.seconds - past.seconds) / float64(w.ticks)
	}
	return w, nil
}

// scrapeUntil scrapes as Prometheus does: what takes longer than until the next
// is given up.
func (c *collector) scrapeUntil(ctx context.Context, w *window) {
	every := time.NewTicker(scrapeEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
			limited, cancel := context.WithTimeout(ctx, scrapeEvery)
			n, err := c.scrape(limited)
			cancel()
			switch {
			case err == nil:
				w.scrapes++
				w.scraped = n
			case ctx.Err() == nil:
				w.late++
			}
		}
	}
}

func (w *window) print(out io.Writer, name string) {
	figure.Fprint(out, name+"_compared", w.compared, "nodes", float64(w.nodes), false)
	figure.FprintOnly(out, name+"_resident", w.resident/megabyte, "MB")
	figure.FprintOnly(out, name+"_live", w.live/megabyte, "MB")
	if tick := 1e3 * w.tick; w.nodes < manyNodes {
		figure.FprintOnly(out, name+"_tick", tick, "ms")
	} else {
		figure.Fprint(out, name+"_tick", tick, "ms", maxTick*float64(w.nodes)/maxTickNodes, true)
	}
	figure.FprintOnly(out, name+"_gc_share", 100*w.gcShare, "%")
	figure.FprintOnly(out, name+"_gc_pause", w.gcPause.Seconds()*1e3, "ms")
}

// grow measures a gateway with fleets of growing size: the shipped one with the
// first, and with all of them that of large fleets.
func grow(ctx context.Context, b *bench, out io.Writer) error {
	if _, err := b.gatewayOf(ctx, out, "shipped", b.fleets[0], gatewayConfig); err != nil {
		return err
	}
	var all []*window
	for _, nodes := range b.fleets {
		w, err := b.gatewayOf(ctx, out, "gateway", nodes, gatewayConfig, rootOverlay)
		if err != nil {
			return err
		}
		all = append(all, w)
	}
	last := len(b.fleets) - 1
	a, z := all[0], all[last]
	n, m := float64(b.fleets[0]), float64(b.fleets[last])
	// Where as many pushes come in a second, or what a process needs anyway is a
	// larger part of each.
	same := slices.IndexFunc(b.fleets, func(nodes int) bool {
		return every(nodes)*float64(b.fleets[last]) == every(b.fleets[last])*float64(nodes)
	})
	if same < last {
		from, nodes := all[same], float64(b.fleets[same])
		figure.Fprint(out, "gateway_cpu_per_node_growth", (z.full/m)/(from.full/nodes), "x", maxCPUGrowth, true)
		figure.Fprint(out, "gateway_tick_growth_over_n_log_n", (z.tick/from.tick)/(m*math.Log(m)/(nodes*math.Log(nodes))), "x", 1, true)
	}
	figure.FprintOnly(out, "gateway_live_per_node", (z.live-a.live)/(m-n)/1e3, "kB")
	return nil
}

// every is the time between two pushes of a node in units of the agents'.
func every(nodes int) float64 {
	return math.Max(1, float64(nodes)/maxRate/interval.Seconds())
}

// gatewayOf measures a gateway to which so many nodes push.
func (b *bench) gatewayOf(ctx context.Context, out io.Writer, name string, nodes int, configs ...string) (w *window, err error) {
	name += "_" + strconv.Itoa(nodes)
	b.say("%s: first reports", name)
	f, err := newFleet(nodes)
	if err != nil {
		return nil, err
	}
	p, err := start(ctx, b.binary, name, "", configs...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	if err = fill(ctx, f, p.Endpoint, b.inFlight); err != nil {
		return nil, err
	}
	if err = b.settle(ctx, p); err != nil {
		return nil, err
	}
	pace := time.Duration(every(nodes) * float64(interval))
	span := max(b.span, pace)
	b.say("%s: each node once in %s, for %s", name, pace, span)
	var r fleetpush.Report
	w, err = watch(ctx, p, nodes, func(ctx context.Context) error {
		var err error
		r, err = push(ctx, f, p.Endpoint, pace, span, b.inFlight)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	b.say("%s: %d pushes accepted, %d ticks, %d scrapes of %d bytes", name, r.Accepted, w.ticks, w.scrapes, w.scraped)
	skipped := int64(0)
	for _, n := range r.Skipped {
		skipped += n
	}
	// The pushes that were skipped would have been the slowest.
	figure.Fprint(out, name+"_not_pushed", float64(skipped+r.Pushes-r.Accepted), "pushes", 0, true)
	if pace > interval {
		figure.FprintOnly(out, name+"_interval", pace.Seconds(), "s")
	}
	// In proportion to the reports, for agents' own pace.
	w.full = w.cpu / float64(r.Accepted) * float64(nodes) / interval.Seconds()
	figure.FprintOnly(out, name+"_cores", w.full, "cores")
	figure.FprintOnly(out, name+"_push_p50", 1e3*r.Latency.P50, "ms")
	figure.FprintOnly(out, name+"_push_p99", 1e3*r.Latency.P99, "ms")
	w.print(out, name)
	return w, nil
}

// settle waits until the process rests: a history takes each series that is new
// for longer than its report.
func (b *bench) settle(ctx context.Context, p *collector) error {
	const most, resting = 90, 0.1
	for range most {
		before, err := p.usage()
		if err != nil {
			return err
		}
		if err := harness.Wait(ctx, time.Second); err != nil {
			return err
		}
		after, err := p.usage()
		if err != nil || after.cpu-before.cpu < resting {
			return err
		}
	}
	b.say("%s: not at rest after %d s", p.Name, most)
	return nil
}
