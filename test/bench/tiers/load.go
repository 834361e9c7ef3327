// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/encoding"

	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
)

const gpus = 8

// newFleet makes nodes in training, at a working temperature, whose counters began
// a day ago.
func newFleet(nodes int) (*fleetpush.Fleet, error) {
	f, err := fleetpush.New(fleetpush.Config{
		Nodes: nodes, GPUs: gpus, Cluster: clusterName(0), Load: fleetsim.Training, Seed: 2026,
		Step: interval, Start: time.Now().Add(-24 * time.Hour),
	})
	if err != nil {
		return nil, err
	}
	var body []byte
	past := time.Now().Add(-2 * time.Hour)
	for i := range nodes {
		if body, err = f.Next(i, int(warmUp/interval), past, body[:0]); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// clusterName returns names of one length, so that one may be written over another.
func clusterName(i int) string { return fmt.Sprintf("cluster-%03d", i) }

// warmUp is how long a GPU takes to its temperature, and more.
const warmUp = 10 * time.Minute

// interval is that of the agents' reports.
const interval = 10 * time.Second

// push pushes the fleet's reports for so long: each node once in every, or as
// fast as answers come where that is 0.
func push(ctx context.Context, f *fleetpush.Fleet, endpoint string, every, span time.Duration, inFlight int) (fleetpush.Report, error) {
	cfg := fleetpush.DefaultPushConfig()
	cfg.Endpoint, cfg.Interval, cfg.InFlight = endpoint, every, inFlight
	cfg.Compression = fleetpush.CompressionSnappy // as configs/agent.yaml
	cfg.Timeout = 30 * time.Second                // what is late is measured, not repeated
	p, err := fleetpush.NewPusher(cfg, f)
	if err != nil {
		return fleetpush.Report{}, err
	}
	run, cancel := context.WithTimeout(ctx, span)
	defer cancel()
	if err := p.Run(run); err != nil {
		return fleetpush.Report{}, err
	}
	r := p.Report()
	if ctx.Err() != nil {
		return r, ctx.Err()
	}
	if r.Accepted == 0 {
		return r, fmt.Errorf("%d of %d pushes were accepted: %s", r.Accepted, r.Pushes, r.LastError)
	}
	return r, nil
}

// fill pushes until each node has had its turn, and a little more.
func fill(ctx context.Context, f *fleetpush.Fleet, endpoint string, inFlight int) error {
	cfg := fleetpush.DefaultPushConfig()
	cfg.Endpoint, cfg.Interval, cfg.InFlight = endpoint, 0, inFlight
	cfg.Compression, cfg.Timeout = fleetpush.CompressionSnappy, 30*time.Second
	p, err := fleetpush.NewPusher(cfg, f)
	if err != nil {
		return err
	}
	run, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- p.Run(run) }()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-look.C:
			r := p.Report()
			if r.Accepted >= int64(f.Nodes()) {
				cancel()
				return <-done
			}
			if r.Pushes > 100 && r.Accepted == 0 {
				cancel()
				<-done
				return fmt.Errorf("%d of %d pushes were accepted: %s", r.Accepted, r.Pushes, r.LastError)
			}
		}
	}
}

func init() {
	encoding.RegisterCompressor(compressOnce{encoding.GetCompressor(fleetpush.CompressionZstd)})
}

// zstdMagic begins each frame (RFC 8878, 3.1.1), and no OTLP message.
var zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}

// compressOnce leaves what is compressed already as it is.
type compressOnce struct{ encoding.Compressor }

func (c compressOnce) Compress(w io.Writer) (io.WriteCloser, error) {
	return &onceWriter{compressor: c.Compressor, to: w}, nil
}

type onceWriter struct {
	compressor encoding.Compressor
	to         io.Writer
	writer     io.WriteCloser // nil before the first byte, and for what is compressed
	begun      bool
}

func (w *onceWriter) Write(p []byte) (int, error) {
	if !w.begun && !bytes.HasPrefix(p, zstdMagic) {
		var err error
		if w.writer, err = w.compressor.Compress(w.to); err != nil {
			return 0, err
		}
	}
	w.begun = true
	if w.writer == nil {
		return w.to.Write(p)
	}
	return w.writer.Write(p)
}

func (w *onceWriter) Close() error {
	if w.writer == nil {
		return nil
	}
	return w.writer.Close()
}
