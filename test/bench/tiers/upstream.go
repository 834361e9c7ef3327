// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/processor"
	"go.yaml.in/yaml/v3"

	"github.com/gpu-collector/gpu-collector/processor/diffprocessor"
	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
)

// upstream makes what the shards of one cluster send: its nodes' reports, through
// one diff processor for each shard, with the settings of configs/shard.yaml.
type upstream struct {
	fleet  *fleetpush.Fleet
	shards []*shardDiff
	// batch is the size in bytes from which on shards begin another message.
	batch int
}

// shardDiff is the table of one shard. Its nodes are from..to.
type shardDiff struct {
	from, to int
	diff     processor.Metrics
	batch    pmetric.Metrics
	size     int // of the batch, in bytes
	buf      []byte
}

func (s *shardDiff) nodes() []int {
	all := make([]int, s.to-s.from)
	for i := range all {
		all[i] = s.from + i
	}
	return all
}

// message is what a shard sends at once. Times, beats and clusters are the places of
// the points' times, of the heartbeats' values, and of the clusters' names.
type message struct {
	body                   []byte
	times, beats, clusters []int
}

func newUpstream(ctx context.Context, nodes, shards int) (*upstream, error) {
	u := &upstream{}
	var err error
	if u.fleet, err = newFleet(nodes); err != nil {
		return nil, err
	}
	cfg, err := shardDiffConfig()
	if err != nil {
		return nil, err
	}
	u.batch = cfg.MaxBatchBytes
	factory := diffprocessor.NewFactory()
	var sizer pmetric.ProtoMarshaler
	for i := range shards {
		s := &shardDiff{from: i * nodes / shards, to: (i + 1) * nodes / shards, batch: pmetric.NewMetrics()}
		next, err := consumer.NewMetrics(func(_ context.Context, md pmetric.Metrics) error {
			s.size += sizer.MetricsSize(md)
			md.ResourceMetrics().MoveAndAppendTo(s.batch.ResourceMetrics())
			return nil
		}, consumer.WithCapabilities(consumer.Capabilities{MutatesData: true}))
		if err != nil {
			return nil, err
		}
		s.diff, err = factory.CreateMetrics(ctx, processor.Settings{
			ID: component.NewID(factory.Type()), TelemetrySettings: componenttest.NewNopTelemetrySettings(),
		}, cfg, next)
		if err != nil {
			return nil, err
		}
		if err := s.diff.Start(ctx, componenttest.NewNopHost()); err != nil {
			return nil, errors.Join(err, u.stop(ctx))
		}
		u.shards = append(u.shards, s)
	}
	return u, nil
}

// shardDiffConfig is that of the shipped shard, but for who gathers a second's
// changes, which is done here: time runs faster than that.
func shardDiffConfig() (*diffprocessor.Config, error) {
	text, err := os.ReadFile(shardConfig)
	if err != nil {
		return nil, err
	}
	var all map[string]any
	if err = yaml.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", shardConfig, err)
	}
	sub, err := confmap.NewFromStringMap(all).Sub("processors::diff")
	if err != nil {
		return nil, err
	}
	cfg, ok := diffprocessor.NewFactory().CreateDefaultConfig().(*diffprocessor.Config)
	if !ok {
		return nil, errors.New("the configuration of diff has another type")
	}
	if err := sub.Unmarshal(cfg); err != nil {
		return nil, err
	}
	cfg.FlushInterval, cfg.ThresholdExtension, cfg.FrontDoor = 0, nil, nil
	return cfg, nil
}

func (u *upstream) stop(ctx context.Context) error {
	var errs []error
	for _, s := range u.shards {
		errs = append(errs, s.diff.Shutdown(ctx))
	}
	return errors.Join(errs...)
}

// each calls f for each shard, for some at a time.
func (u *upstream) each(f func(i int, s *shardDiff) error) error {
	due := make(chan int)
	var wg sync.WaitGroup
	errs := make([]error, len(u.shards))
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := range due {
				errs[i] = f(i, u.shards[i])
			}
		})
	}
	for i := range u.shards {
		due <- i
	}
	close(due)
	wg.Wait()
	return errors.Join(errs...)
}

// take adds a node's next report of now to the batch, as far as it is news.
func (u *upstream) take(ctx context.Context, s *shardDiff, node int, now time.Time) (err error) {
	if s.buf, err = u.fleet.Next(node, 1, now, s.buf[:0]); err != nil {
		return err
	}
	req := pmetricotlp.NewExportRequest()
	if err := req.UnmarshalProto(s.buf); err != nil {
		return err
	}
	return s.diff.ConsumeMetrics(ctx, req.Metrics())
}

// flush returns the batch, of reports of now, as a request.
func (s *shardDiff) flush(now time.Time) (m message, points int, err error) {
	points = s.batch.DataPointCount()
	m.body, err = pmetricotlp.NewExportRequestFromMetrics(s.batch).MarshalProto()
	s.batch, s.size = pmetric.NewMetrics(), 0
	// As a fixed64 of protobuf.
	m.times = find(m.body, binary.LittleEndian.AppendUint64(nil, uint64(now.UnixNano())))
	m.beats = find(m.body, binary.LittleEndian.AppendUint64(nil, uint64(now.Unix())))
	m.clusters = find(m.body, []byte(clusterName(0)))
	return m, points, err
}

// recording is what the shards send over some seconds: the messages of each
// shard and second.
type recording struct {
	shards [][][]message

	points, reports, messages, bytes int
}

// record plays the seconds from a moment on, which is after all reports so far
// and not to come: a time ahead is not believed. In each a tenth of the nodes report.
func (u *upstream) record(ctx context.Context, from time.Time, seconds int) (*recording, error) {
	rec := &recording{shards: make([][][]message, len(u.shards))}
	var mu sync.Mutex
	err := u.each(func(i int, s *shardDiff) error {
		for second := range seconds {
			now := from.Add(time.Duration(second) * time.Second)
			var due []int
			for _, node := range s.nodes() {
				if (node+second)%int(interval/time.Second) == 0 {
					due = append(due, node)
				}
			}
			var sent []message
			points, bytes := 0, 0
			err := u.report(ctx, s, due, now, func(m *message, n int) error {
				sent = append(sent, *m)
				points, bytes = points+n, bytes+len(m.body)
				return ctx.Err()
			})
			if err != nil {
				return err
			}
			rec.shards[i] = append(rec.shards[i], sent)
			mu.Lock()
			rec.reports, rec.messages = rec.reports+len(due), rec.messages+len(sent)
			rec.points, rec.bytes = rec.points+points, rec.bytes+bytes
			mu.Unlock()
		}
		return nil
	})
	return rec, err
}

// report gives send what comes of the next reports of some nodes, and how many
// points that is.
func (u *upstream) report(ctx context.Context, s *shardDiff, nodes []int, now time.Time, send func(m *message, points int) error) error {
	for i, node := range nodes {
		if err := u.take(ctx, s, node, now); err != nil {
			return err
		}
		if s.size < u.batch && i < len(nodes)-1 {
			continue
		}
		m, points, err := s.flush(now)
		if err != nil {
			return err
		}
		if err := send(&m, points); err != nil {
			return err
		}
	}
	return nil
}

// find finds a text in a message.
func find(body, text []byte) (all []int) {
	for from := 0; ; {
		i := bytes.Index(body[from:], text)
		if i < 0 {
			return all
		}
		all = append(all, from+i)
		from += i + len(text)
	}
}

// write writes the message over dst as if it came from a cluster, now.
func (m *message) write(dst []byte, cluster string, now time.Time) []byte {
	dst = append(dst[:0], m.body...)
	for _, at := range m.times {
		binary.LittleEndian.PutUint64(dst[at:], uint64(now.UnixNano()))
	}
	for _, at := range m.beats {
		binary.LittleEndian.PutUint64(dst[at:], uint64(now.Unix()))
	}
	for _, at := range m.clusters {
		copy(dst[at:], cluster)
	}
	return dst
}
