// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/bench/harness"
)

// The promises of the gateway as it is shipped, with its history and a Prometheus.
const (
	shippedNodes, shippedFew = 1000, 100

	maxResident    = 700 // MB
	maxResidentFew = 120 // MB
	maxCPUOfBase   = 0.35
	maxScrape      = 2.0 // seconds
	maxScrapeCPU   = 0.5 // seconds
	maxPush        = 20  // ms, the 99th percentile on a quiet machine
	maxPushOfQuiet = 1.5 // of that without scrapes
)

// life is what a shipped gateway did.
type life struct {
	cores, resident      float64 // while it is scraped, and the most of that
	quiet, scraped       fleetpush.Report
	scrapes, late        int     // late are those that Prometheus would give up
	scrape, scrapeCPU    float64 // seconds of one, between pushes
	bytes                int64
	residentAlone, alive float64 // after the quiet span
}

// shipped measures the shipped gateway beside the other commit's, and with few nodes.
func shipped(ctx context.Context, b *bench, out io.Writer) error {
	nodes, few := shippedNodes, shippedFew
	if b.few < few { // -small
		nodes, few = b.many, b.few
	}
	now, err := b.live(ctx, "gateway", b.binary, gatewayConfig, nodes)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("gateway_%d", nodes)
	now.print(out, name, &promised)
	figure.Fprint(out, name+"_push_p99_vs_quiet", now.scraped.Latency.P99/now.quiet.Latency.P99, "x", maxPushOfQuiet, true)
	if b.base != "" {
		before, err := b.live(ctx, "base", filepath.Join(b.base, b.binary), filepath.Join(b.base, gatewayConfig), nodes)
		if err != nil {
			return err
		}
		before.print(out, fmt.Sprintf("base_%d", nodes), nil)
		b.besideBase(out, name+"_cpu_vs_base", now.cores/before.cores, maxCPUOfBase)
		figure.FprintOnly(out, name+"_resident_vs_base", now.resident/before.resident, "x")
		figure.FprintOnly(out, name+"_push_p99_vs_base", now.scraped.Latency.P99/before.scraped.Latency.P99, "x")
	}
	small, err := b.live(ctx, "gateway", b.binary, gatewayConfig, few)
	if err != nil {
		return err
	}
	small.print(out, fmt.Sprintf("gateway_%d", few), &promises{resident: maxResidentFew})
	return nil
}

// promises are limits, 0 for none.
type promises struct{ resident, push, scrape, scrapeCPU float64 }

var promised = promises{maxResident, maxPush, maxScrape, maxScrapeCPU}

func (l *life) print(out io.Writer, name string, to *promises) {
	if to == nil {
		to = &promises{}
	}
	for _, f := range []struct {
		name  string
		value float64
		unit  string
		limit float64
	}{
		{"cores", l.cores, "cores", 0},
		{"resident", l.resident / megabyte, "MB", to.resident},
		{"resident_unscraped", l.residentAlone / megabyte, "MB", 0},
		{"live", l.alive / megabyte, "MB", 0},
		{"push_p50", 1e3 * l.scraped.Latency.P50, "ms", 0},
		{"push_p99", 1e3 * l.scraped.Latency.P99, "ms", to.push},
		{"push_p99_unscraped", 1e3 * l.quiet.Latency.P99, "ms", 0},
		{"scrapes", float64(l.scrapes), "scrapes", 0},
		{"scrapes_late", float64(l.late), "scrapes", 0},
		{"scrape", l.scrape, "s", to.scrape},
		{"scrape_cpu", l.scrapeCPU, "s", to.scrapeCPU},
		{"scrape_bytes", float64(l.bytes) / megabyte, "MB", 0},
	} {
		if f.limit == 0 {
			figure.FprintOnly(out, name+"_"+f.name, f.value, f.unit)
		} else {
			figure.Fprint(out, name+"_"+f.name, f.value, f.unit, f.limit, true)
		}
	}
}

// live runs a gateway under pushes without scrapes, with scrapes, and under scrapes alone.
func (b *bench) live(ctx context.Context, name, binary, config string, nodes int) (l *life, err error) {
	name = fmt.Sprintf("%s_%d", name, nodes)
	b.say("%s: first reports", name)
	f, err := newFleet(nodes)
	if err != nil {
		return nil, err
	}
	p, err := start(ctx, binary, name, "", config)
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
	l = &life{}
	b.say("%s: pushes for %s, without scrapes", name, b.span)
	if l.quiet, err = push(ctx, f, p.Endpoint, interval, b.span, b.inFlight); err != nil {
		return nil, err
	}
	before, err := p.usage()
	if err != nil {
		return nil, err
	}
	l.residentAlone, l.alive = before.resident, before.gc.live
	span := 2 * b.span // holds a few scrapes
	b.say("%s: pushes for %s, scraped each %s", name, span, scrapeEvery)
	watching, stop := context.WithCancel(ctx)
	watched := make(chan error, 1)
	go func() { watched <- l.watch(watching, p) }()
	l.scraped, err = push(ctx, f, p.Endpoint, interval, span, b.inFlight)
	stop()
	if err = errors.Join(err, <-watched); err != nil {
		return nil, err
	}
	after, err := p.usage()
	if err != nil {
		return nil, err
	}
	l.cores = (after.cpu - before.cpu) / span.Seconds()
	if err = b.settle(ctx, p); err != nil {
		return nil, err
	}
	return l, l.scrapeAlone(ctx, p)
}

// watch looks at the memory each second and scrapes at Prometheus' pace.
func (l *life) watch(ctx context.Context, p *collector) error {
	var w window
	scraped := make(chan struct{})
	go func() { defer close(scraped); p.scrapeUntil(ctx, &w) }()
	defer func() { <-scraped; l.scrapes, l.late = w.scrapes, w.late }()
	for {
		u, err := p.usage()
		if err != nil {
			return err
		}
		l.resident = max(l.resident, u.resident)
		if harness.Wait(ctx, time.Second) != nil {
			return nil
		}
	}
}

// scrapeAlone takes the best of a few scrapes: whatever else a process does by the
// clock is not theirs.
func (l *life) scrapeAlone(ctx context.Context, p *collector) error {
	const scrapes = 3
	for i := range scrapes {
		before, err := p.usage()
		if err != nil {
			return err
		}
		began := time.Now()
		if l.bytes, err = p.scrape(ctx); err != nil {
			return err
		}
		took := time.Since(began).Seconds()
		after, err := p.usage()
		if err != nil {
			return err
		}
		if cpu := after.cpu - before.cpu; i == 0 || cpu < l.scrapeCPU {
			l.scrape, l.scrapeCPU = took, cpu
		}
	}
	return nil
}
