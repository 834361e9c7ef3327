// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/gzip"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/test/bench/harness"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// workers push at once, each for nodes of its own over connections of its own.
const workers = 16

// step is the time between two reports of an agent. A node lives by it, however fast it
// is pushed: only the times of its points are those of now.
const step = 10 * time.Second

// way is how a report travels. An empty compression of gRPC is none.
type way struct {
	name, compression string
	http              bool
}

var ways = []way{
	{"gRPC snappy", "snappy", false}, // as configs/agent.yaml
	{"gRPC zstd", "zstd", false},
	{"HTTP gzip", "gzip", true}, // as OpenTelemetry's exporters
}

type load struct {
	fleet   *fleetpush.Fleet
	life    []time.Time // of each node
	reports [][]byte    // the last of each
	conns   [workers]*grpc.ClientConn
	client  http.Client
	url     string
	bytes   atomic.Int64 // before compression
	now     func() time.Time
}

func newLoad(nodes int, c *harness.Collector) (*load, error) {
	began := time.Now().Add(-24 * time.Hour).Truncate(time.Second).Add(123_456_789) // found in a message by its rare bytes
	l := &load{
		life: make([]time.Time, nodes), reports: make([][]byte, nodes), url: "http://" + c.HTTP + "/v1/metrics", now: time.Now,
		client: http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: workers}},
	}
	var err error
	if l.fleet, err = fleetpush.New(fleetpush.Config{Nodes: nodes, Cluster: "bench", Seed: 2026, Step: step, Start: began}); err != nil {
		return nil, err
	}
	for node := range nodes {
		l.life[node] = began
		const warm = 60 // reports until a GPU has its temperature
		if _, err := l.next(node, true, warm); err != nil {
			return nil, err
		}
	}
	for i := range l.conns {
		if l.conns[i], err = grpc.NewClient(c.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
			return nil, errors.Join(err, l.close())
		}
	}
	return l, nil
}

func (l *load) close() error {
	l.client.CloseIdleConnections()
	var errs []error
	for _, c := range l.conns {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

// next is a node's next report, of now: with values of their own, or with those of its
// last report.
func (l *load) next(node int, realistic bool, steps int) ([]byte, error) {
	if realistic {
		l.life[node] = l.life[node].Add(time.Duration(steps) * step)
		var err error
		if l.reports[node], err = l.fleet.Next(node, steps, l.life[node], l.reports[node][:0]); err != nil {
			return nil, err
		}
	}
	stamp := binary.LittleEndian.AppendUint64(nil, uint64(l.life[node].UnixNano()))
	now := binary.LittleEndian.AppendUint64(nil, uint64(l.now().UnixNano()))
	return bytes.ReplaceAll(l.reports[node], stamp, now), nil
}

// turn has the nodes push one after the other until it is over, each once at least, and
// returns how often they did.
func (l *load) turn(ctx context.Context, w *way, realistic bool, d time.Duration) (int, error) {
	var (
		all    errgroup.Group
		pushes atomic.Int64
		end    = time.Now().Add(d)
	)
	for i := range workers {
		all.Go(func() error {
			for first := true; first || time.Now().Before(end); first = false {
				for node := i; node < len(l.life); node += workers {
					body, err := l.next(node, realistic, 1)
					if err == nil {
						err = l.push(ctx, w, i, node, body)
					}
					if err != nil {
						return fmt.Errorf("%s: %w", w.name, err)
					}
					l.bytes.Add(int64(len(body)))
					pushes.Add(1)
				}
			}
			return nil
		})
	}
	err := all.Wait()
	return int(pushes.Load()), err
}

func (l *load) push(ctx context.Context, w *way, worker, node int, body []byte) error {
	h := l.fleet.Headers(node)
	names := []string{gpusemconv.HeaderCluster, h.Cluster, gpusemconv.HeaderNode, h.Node, gpusemconv.HeaderGroup, h.Group}
	if !w.http {
		return process.ExportRaw(metadata.AppendToOutgoingContext(ctx, names...), l.conns[worker], process.MetricsMethod, body,
			grpc.UseCompressor(w.compression), grpc.WaitForReady(true))
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(body); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	names = append(names, "Content-Type", process.Protobuf, "Content-Encoding", w.compression)
	answer, err := process.Send(ctx, &l.client, http.MethodPost, l.url, packed.Bytes(), names...)
	if err == nil && answer.Status != http.StatusOK {
		err = fmt.Errorf("status %d: %q", answer.Status, answer.Body)
	}
	return err
}
