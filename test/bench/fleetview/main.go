// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command fleetview measures what the fleet view and its history cost and hold,
// and prints figures: all, or those of the parts that its arguments name.
package main // import "github.com/gpu-collector/gpu-collector/test/bench/fleetview"

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exportertest"
	"go.opentelemetry.io/collector/extension/extensiontest"

	"github.com/gpu-collector/gpu-collector/exporter/fleetviewexporter"
	"github.com/gpu-collector/gpu-collector/extension/fleetviewextension"
	"github.com/gpu-collector/gpu-collector/internal/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/fleethistory/sqlite"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// A report is of 8 GPUs with 40 metrics each.
const (
	gpus    = 8
	metrics = 40
	nodes   = 1000
	// writing is how long the file is written to without a pause.
	writing = 20 * time.Second
	batch   = 20_000
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run measures the parts that are named, all without names.
func run(ctx context.Context, parts []string) error {
	dir, err := os.MkdirTemp("", "fleetview-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for _, part := range []struct {
		name    string
		measure func() error
	}{
		{"pages", func() error { return pages(ctx, os.Stdout) }},
		{"ingest", func() error { return ingestRatio(ctx, os.Stdout) }},
		{"streams", func() error { return streams(ctx, os.Stdout) }},
		{"rows", func() error { return rows(ctx, filepath.Join(dir, "rows.db")) }},
		{"history", func() error { return ingest(ctx, filepath.Join(dir, "ingest.db")) }},
	} {
		if len(parts) > 0 && !slices.Contains(parts, part.name) {
			continue
		}
		if err := part.measure(); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// rows writes 320,000 series in turn, as fast as the file takes them, and asks
// what a page of plots asks.
func rows(ctx context.Context, path string) error {
	// Times are those of polls each 10 s.
	at := time.Now().Add(-time.Hour).Truncate(time.Second)
	s := sqlite.New(sqlite.Config{Path: path, Retention: 24 * time.Hour, MaxBytes: 4 << 30, MaxSeries: 1e6, QueryTimeout: time.Minute})
	defer func() { _ = s.Close() }()
	series := make([]fleethistory.Sample, 0, nodes*gpus*metrics)
	for n := range nodes {
		for g := range gpus {
			for m := range metrics {
				series = append(series, fleethistory.Sample{
					Cluster: "c", Node: fmt.Sprintf("node-%04d", n), GPU: fmt.Sprintf("GPU-%04d-%d", n, g), Metric: fmt.Sprintf("hw.gpu.metric_%d", m),
				})
			}
		}
	}
	var written int64
	round := func() error {
		for i := range series {
			series[i].At, series[i].Value = at.UnixMilli(), float64(at.Unix()%1000)+float64(i)/8
		}
		for part := range slices.Chunk(series, batch) {
			if err := s.Append(ctx, part, nil); err != nil {
				return err
			}
			written += int64(len(part))
		}
		at = at.Add(10 * time.Second)
		_, err := s.Maintain(ctx)
		return err
	}
	began := time.Now()
	if err := round(); err != nil {
		return err
	}
	figure.FprintOnly(os.Stdout, "history_new_series_per_second", float64(written)/time.Since(began).Seconds(), "rows/s")
	written, began = 0, time.Now()
	for time.Since(began) < writing {
		if err := round(); err != nil {
			return err
		}
	}
	figure.FprintOnly(os.Stdout, "history_rows_per_second", float64(written)/time.Since(began).Seconds(), "rows/s")
	figure.FprintOnly(os.Stdout, "history_bytes_per_row", float64(s.Status().Bytes)/float64(written+int64(len(series))), "B")
	var took []time.Duration
	for n := range 50 {
		asked := time.Now()
		if _, _, err := s.Telemetry(ctx, &fleethistory.Query{
			Hosts: []string{fmt.Sprintf("node-%04d", n*19)}, Metrics: []string{"hw.gpu.metric_7"}, Start: at.Add(-time.Hour), End: at, Limit: 1000,
		}); err != nil {
			return err
		}
		took = append(took, time.Since(asked))
	}
	figure.FprintOnly(os.Stdout, "history_page_ms", figure.Quantile(took, 0.5).Seconds()*1e3, "ms")
	return nil
}

// ingest is the time of a report in the exporter with the history off and on,
// in turns.
func ingest(ctx context.Context, path string) error {
	off, stopOff, err := gateway(ctx, map[string]any{"storage": "none"})
	if err != nil {
		return err
	}
	defer stopOff()
	on, stopOn, err := gateway(ctx, map[string]any{"sqlite": map[string]any{"path": path}})
	if err != nil {
		return err
	}
	defer stopOn()
	var viewOff, viewOn []time.Duration
	for tick := range 40 {
		for n := range 100 {
			md := fleetNode(n, tick)
			for _, turn := range []struct {
				e    exporter.Metrics
				into *[]time.Duration
			}{{off, &viewOff}, {on, &viewOn}} {
				began := time.Now()
				if err := turn.e.ConsumeMetrics(ctx, md); err != nil {
					return err
				}
				*turn.into = append(*turn.into, time.Since(began))
			}
		}
	}
	figure.FprintOnly(os.Stdout, "history_off_report_us", figure.Quantile(viewOff, 0.5).Seconds()*1e6, "us")
	figure.FprintOnly(os.Stdout, "history_on_report_us", figure.Quantile(viewOn, 0.5).Seconds()*1e6, "us")
	figure.FprintOnly(os.Stdout, "history_on_off_ratio", figure.Quantile(viewOn, 0.5).Seconds()/figure.Quantile(viewOff, 0.5).Seconds(), "ratio")
	return nil
}

type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

func gateway(ctx context.Context, history map[string]any) (exporter.Metrics, func(), error) {
	return gatewayAt(ctx, "127.0.0.1:0", history)
}

// gatewayAt is the exporter and the extension that serves what it keeps.
func gatewayAt(ctx context.Context, endpoint string, history map[string]any) (exporter.Metrics, func(), error) {
	id := component.MustNewID("fleet_view")
	extensions, exporters := fleetviewextension.NewFactory(), fleetviewexporter.NewFactory()
	cfg := extensions.CreateDefaultConfig()
	// All clients of the bench have one address.
	settings := map[string]any{"http": map[string]any{"endpoint": endpoint}, "history": history, "stream": map[string]any{"reader_share": 1}}
	if err := confmap.NewFromStringMap(settings).Unmarshal(cfg); err != nil {
		return nil, nil, err
	}
	ext, err := extensions.Create(ctx, extensiontest.NewNopSettings(id.Type()), cfg)
	if err != nil {
		return nil, nil, err
	}
	if err := ext.Start(ctx, host{}); err != nil {
		return nil, nil, err
	}
	exp, err := exporters.CreateMetrics(ctx, exportertest.NewNopSettings(exporters.Type()), exporters.CreateDefaultConfig())
	if err != nil {
		return nil, nil, err
	}
	return exp, func() { _ = ext.Shutdown(ctx) }, exp.Start(ctx, host{id: ext})
}
