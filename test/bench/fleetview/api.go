// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/collector/exporter"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/loopback"
)

// The product's promises.
const (
	maxPageMillis  = 5
	maxIngestRatio = 0.20
	// "Nothing measurable" is what medians of such runs differ by anyway.
	maxStreamRatio = 1.05
)

var noHistory = map[string]any{"storage": "none"}

// ingestRatio is what the views add to a report that a gateway decodes anyway.
func ingestRatio(ctx context.Context, w io.Writer) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^BenchmarkReport$", "-benchtime", "5000x", "-count", "5", "./exporter/fleetviewexporter")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	var shares []float64
	for line := range bytes.Lines(out) {
		f := strings.Fields(string(line))
		if i := slices.Index(f, "view-%"); i > 0 {
			v, err := strconv.ParseFloat(f[i-1], 64)
			if err != nil {
				return err
			}
			shares = append(shares, v/100)
		}
	}
	if len(shares) == 0 {
		return errors.New("the benchmark says nothing of its share")
	}
	figure.Fprint(w, "fleetview_ingest_ratio", slices.Min(shares), "ratio", maxIngestRatio, true)
	return nil
}

// The clients of the stream: each selects ten nodes.
const (
	watched        = 1000
	clients        = 1000
	streamRounds   = 3
	streamMeasured = 6 * time.Second
)

// streams measures what the views add to a report that a gateway decodes
// anyway while clients watch, and while nobody does, in turns.
func streams(ctx context.Context, w io.Writer) error {
	best := map[int]float64{}
	for range streamRounds {
		for _, n := range []int{0, clients} {
			ratio, err := streamRound(ctx, n)
			if err != nil {
				return err
			}
			if old, ok := best[n]; !ok || ratio < old {
				best[n] = ratio
			}
		}
	}
	figure.FprintOnly(w, "fleetview_small_report_ratio", best[0], "ratio")
	figure.Fprint(w, "fleetview_stream_ingest_ratio", best[clients]/best[0], "ratio", maxStreamRatio, true)
	return nil
}

// streamRound returns the ratio of the medians.
func streamRound(ctx context.Context, clients int) (float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	addr, e, stop, err := serveFleet(ctx, watched)
	if err != nil {
		return 0, err
	}
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	started := make(chan error, clients)
	client := &http.Client{Transport: &http.Transport{}}
	for c := range clients {
		wg.Go(func() {
			started <- watch(ctx, client, fmt.Sprintf("http://%s/api/v1/observe?names=node-%04d*", addr, c%100), started)
		})
	}
	for range clients {
		if err := <-started; err != nil {
			return 0, err
		}
	}
	span, end := context.WithTimeout(ctx, streamMeasured)
	defer end()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	receive, view, err := load(span, e, watched, watched)
	if err != nil {
		return 0, err
	}
	return figure.Quantile(view, 0.5).Seconds() / figure.Quantile(receive, 0.5).Seconds(), nil
}

// watch follows a stream until ctx ends. It says when the stream has begun.
func watch(ctx context.Context, client *http.Client, url string, started chan<- error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	started <- nil
	_, err = bufio.NewReader(resp.Body).WriteTo(io.Discard)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// serveFleet is a gateway at an address that knows the nodes.
func serveFleet(ctx context.Context, nodes int) (addr string, e exporter.Metrics, stop func(), err error) {
	if addr, err = loopback.Addr(ctx); err != nil {
		return "", nil, nil, err
	}
	if e, stop, err = gatewayAt(ctx, addr, noHistory); err != nil {
		return "", nil, nil, err
	}
	for n := range nodes {
		if err := e.ConsumeMetrics(ctx, fleetNode(n, 0)); err != nil {
			stop()
			return "", nil, nil, err
		}
	}
	return addr, e, stop, nil
}

const (
	fleetSize  = 50_000
	pageRounds = 50
	pageAsks   = 200
	// Each node reports once in ten seconds.
	reportsPerSecond = fleetSize / 10
)

// pages asks for pages of 100 of 50,000 nodes over HTTP while the nodes report
// on, and shows the round with the best p99.
func pages(ctx context.Context, w io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	addr, e, stop, err := serveFleet(ctx, fleetSize)
	if err != nil {
		return err
	}
	defer stop()
	loaded := make(chan error, 1)
	go func() {
		_, _, err := load(ctx, e, fleetSize, reportsPerSecond)
		loaded <- err
	}()
	queries := []string{
		"?limit=100", "?limit=100&page=500", "?limit=100&page=50&cluster=cluster-2", "?limit=100&names=node-049*",
		"?limit=100&straggler=true", "?limit=100&page=100&min_usage=0.5",
	}
	var p50, p99 time.Duration
	all := make([]time.Duration, 0, pageRounds*pageAsks)
	for range pageRounds {
		took := make([]time.Duration, 0, pageAsks)
		for i := range pageAsks {
			d, err := ask(ctx, "http://"+addr+"/api/v1/nodes"+queries[i%len(queries)])
			if err != nil {
				return err
			}
			took = append(took, d)
		}
		all = append(all, took...)
		if at := figure.Quantile(took, 0.99); p99 == 0 || at < p99 {
			p50, p99 = figure.Quantile(took, 0.5), at
		}
	}
	cancel()
	if err := <-loaded; err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	figure.FprintOnly(w, "fleetview_nodes_page_p50", p50.Seconds()*1e3, "ms")
	figure.FprintOnly(w, "fleetview_nodes_page_p99_all_rounds", figure.Quantile(all, 0.99).Seconds()*1e3, "ms")
	figure.Fprint(w, "fleetview_nodes_page_p99", p99.Seconds()*1e3, "ms", maxPageMillis, true)
	return nil
}

// ask reads an answer to its end.
func ask(ctx context.Context, url string) (time.Duration, error) {
	began := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	took := time.Since(began)
	if err = errors.Join(err, resp.Body.Close()); err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return took, err
}
