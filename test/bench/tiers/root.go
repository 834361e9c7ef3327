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
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/bench/harness"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// The promises for the root of 50,000 nodes with 8 GPUs each.
const (
	maxRootCores     = 1
	maxRootMegabytes = 2000
	maxRootPush      = 20 // ms, the 99th percentile
)

// maxGroups is how many peer groups a shard asks for in a push.
const maxGroups = 16

// root measures the root behind the shards of a fleet: what they send in some
// seconds is made first, and then played to the root alone.
func root(ctx context.Context, b *bench, out io.Writer) (err error) {
	p, err := start(ctx, b.binary, "root", "", gatewayConfig, rootOverlay)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	b.say("root: %d clusters of %d nodes behind %d shards each: first reports", b.clusters, b.nodes, b.shards)
	u, err := newUpstream(ctx, b.nodes, b.shards)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, u.stop(context.WithoutCancel(ctx))) }()
	l, err := newLinks(p.Endpoint, u, b.clusters)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	// Of odd nanoseconds, which nothing else in a message is.
	at := time.Now().Add(-time.Hour).Truncate(time.Second).Add(123_456_789)
	if err = l.fill(ctx, u, at); err != nil {
		return err
	}
	peak, err := p.Peak()
	if err != nil {
		return err
	}
	seconds := int(b.record / time.Second)
	b.say("root: %d seconds of the shards' changes are made", seconds)
	rec, err := u.record(ctx, at.Add(interval), seconds)
	if err != nil {
		return err
	}
	b.say("root: of each cluster %d reports with %d points of news in %d messages, %.0f MB, are sent at their pace",
		rec.reports, rec.points, rec.messages, float64(rec.bytes)/megabyte)
	ready, err := l.prepare(ctx, rec)
	if err != nil {
		return err
	}
	priority, end := undisturbed(b)
	defer end()
	ended := b.profileOf(ctx, p, b.record)
	var (
		latency *hdrhistogram.Histogram
		late    time.Duration
	)
	w, err := watch(ctx, p, b.clusters*b.nodes, func(ctx context.Context) error {
		var err error
		latency, late, err = ready.play(ctx)
		return err
	})
	if err = errors.Join(err, <-ended); err != nil {
		return err
	}
	most, err := p.Peak()
	if err != nil {
		return err
	}
	b.say("root: %d ticks, %d scrapes of %d bytes, %d pushes, which took %s", w.ticks, w.scrapes, w.scraped, latency.TotalCount(), w.span.Round(time.Second))
	quantile := func(q float64) float64 { return float64(latency.ValueAtQuantile(q)) / 1e3 }
	figure.FprintOnly(out, "root_nodes", float64(b.nodes*b.clusters), "nodes")
	figure.FprintOnly(out, "root_player_priority", priority, "nice")
	figure.FprintOnly(out, "root_points", float64(rec.points*b.clusters)/float64(seconds), "points/s")
	figure.FprintOnly(out, "root_points_per_report", float64(rec.points)/float64(rec.reports), "points")
	figure.Fprint(out, "root_cores", w.cpu/b.record.Seconds(), "cores", maxRootCores, true)
	figure.FprintOnly(out, "root_push_p50", quantile(50), "ms")
	figure.Fprint(out, "root_push_p99", quantile(99), "ms", maxRootPush, true)
	figure.FprintOnly(out, "root_push_max", quantile(100), "ms")
	figure.FprintOnly(out, "root_late_max", late.Seconds(), "s")
	figure.Fprint(out, "root_memory", w.resident/megabyte, "MB", maxRootMegabytes, true)
	figure.Fprint(out, "root_memory_peak", most/megabyte, "MB", maxRootMegabytes, true)
	figure.FprintOnly(out, "root_memory_first_reports", peak/megabyte, "MB")
	w.print(out, "root")
	return nil
}

// undisturbed has this process wait for nothing while it measures how long others
// take: it has nothing collected, since it makes little garbage by then, and the
// cores before the others where that is permitted: it returns with which priority.
// The end is to be called.
func undisturbed(b *bench) (priority float64, end func()) {
	runtime.GC()
	percent := debug.SetGCPercent(-1)
	nice := func(n int) error {
		// The priority is a thread's own, which those it begins inherit.
		threads, err := os.ReadDir("/proc/self/task")
		for _, t := range threads {
			id, _ := strconv.Atoi(t.Name())
			err = errors.Join(err, unix.Setpriority(unix.PRIO_PROCESS, id, n))
		}
		return err
	}
	const first = -10
	if err := nice(first); err != nil {
		b.say("root: the player waits for cores as others do: %v", err)
	} else {
		priority = first
	}
	return priority, func() {
		debug.SetGCPercent(percent)
		_ = nice(0)
	}
}

// profileOf takes profiles of the process where that is wished, while it is measured.
func (b *bench) profileOf(ctx context.Context, p *collector, span time.Duration) <-chan error {
	ended := make(chan error, 1)
	if b.profile == "" {
		ended <- nil
		return ended
	}
	go func() {
		err := save(ctx, filepath.Join(b.profile, "cpu.pprof"), fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%.0f", p.pprof, (span/2).Seconds()))
		ended <- errors.Join(err, save(ctx, filepath.Join(b.profile, "heap.pprof"), fmt.Sprintf("http://%s/debug/pprof/heap?gc=1", p.pprof)))
	}()
	return ended
}

func save(ctx context.Context, file, url string) error {
	body, err := process.Get(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, body)
	return errors.Join(err, f.Close())
}

// link is a shard's connection to the root.
type link struct {
	shard   int // of its cluster
	cluster string
	conn    *grpc.ClientConn
	headers metadata.MD
	body    []byte
}

type links []*link

func newLinks(endpoint string, u *upstream, clusters int) (links, error) {
	var all links
	for c := range clusters {
		for i, s := range u.shards {
			conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				return nil, errors.Join(err, all.close())
			}
			all = append(all, &link{shard: i, cluster: clusterName(c), conn: conn, headers: askFor(u.fleet, s, clusterName(c))})
		}
	}
	return all, nil
}

// askFor is what a shard's push says in its headers: the groups of its nodes, as
// many as it may ask for.
func askFor(f *fleetpush.Fleet, s *shardDiff, cluster string) metadata.MD {
	md := metadata.MD{}
	var groups []string
	for node, last, n := s.from, "", 0; node < s.to && n < maxGroups; node++ {
		h := f.Headers(node)
		if h.Group == last {
			continue
		}
		last = h.Group
		groups = append(groups, h.Group)
		n++
	}
	md.Set(gpusemconv.HeaderCluster, cluster)
	md.Set(gpusemconv.HeaderGroup, strings.Join(groups, ", "))
	return md
}

func (l links) close() error {
	var errs []error
	for _, k := range l {
		errs = append(errs, k.conn.Close())
	}
	return errors.Join(errs...)
}

// send sends a message as one of the link's cluster, of now.
func (k *link) send(ctx context.Context, m *message) error {
	k.body = m.write(k.body, k.cluster, time.Now())
	_, err := k.push(ctx, k.body)
	return err
}

// push sends a body, compressed already or not, and returns how long that took.
func (k *link) push(ctx context.Context, body []byte) (time.Duration, error) {
	ctx = metadata.NewOutgoingContext(ctx, k.headers)
	var answer []byte
	began := time.Now()
	err := k.conn.Invoke(ctx, harness.ExportMethod, &body, &answer, grpc.ForceCodecV2(harness.Raw{}), grpc.UseCompressor(fleetpush.CompressionZstd))
	return time.Since(began), err
}

// fill sends the whole state of all nodes.
func (l links) fill(ctx context.Context, u *upstream, at time.Time) error {
	return u.each(func(i int, s *shardDiff) error {
		return u.report(ctx, s, s.nodes(), at, func(m *message, _ int) error {
			for _, k := range l {
				if k.shard != i {
					continue
				}
				if err := k.send(ctx, m); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// lead is how long before they are sent the messages are made that are played: what
// that costs would be taken from the root, and be in the times of the pushes. What is
// made too late is sent late, which root_late_max tells.
const lead = 15 * time.Second

// played is what was recorded as each link sends it.
type played struct {
	links  links
	began  time.Time
	bodies [][][][]byte // compressed, by link and second
}

// due is each shard's own moment of each second.
func (p *played) due(link, second int) time.Time {
	return p.began.Add(time.Duration(second)*time.Second + time.Duration(link)*time.Second/time.Duration(len(p.links)))
}

// prepare makes what the links send, and returns when it is time to send it.
func (l links) prepare(ctx context.Context, rec *recording) (*played, error) {
	p := &played{links: l, began: time.Now().Add(lead), bodies: make([][][][]byte, len(l))}
	err := l.each(func(i int, k *link) error {
		z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
		if err != nil {
			return err
		}
		for second, messages := range rec.shards[k.shard] {
			var bodies [][]byte
			for m := range messages {
				k.body = messages[m].write(k.body, k.cluster, p.due(i, second))
				bodies = append(bodies, z.EncodeAll(k.body, nil))
			}
			p.bodies[i] = append(p.bodies[i], bodies)
		}
		return z.Close()
	})
	return p, errors.Join(err, harness.Wait(ctx, time.Until(p.began)))
}

// play sends it and returns how long the pushes took, in microseconds. Late is how long
// after a second's end its last message came at most: a shard sends a message when the
// one before was taken.
func (p *played) play(ctx context.Context) (took *hdrhistogram.Histogram, late time.Duration, err error) {
	took = hdrhistogram.New(1, int64(time.Minute/time.Microsecond), 3)
	var mu sync.Mutex
	err = p.links.each(func(i int, k *link) error {
		for second, bodies := range p.bodies[i] {
			if err := harness.Wait(ctx, time.Until(p.due(i, second))); err != nil {
				return err
			}
			for _, body := range bodies {
				d, err := k.push(ctx, body)
				if err != nil {
					return err
				}
				mu.Lock()
				_ = took.RecordValue(max(1, d.Microseconds())) // a minute is more than it may take
				mu.Unlock()
			}
			mu.Lock()
			late = max(late, time.Since(p.due(i, second))-time.Second)
			mu.Unlock()
		}
		return nil
	})
	return took, late, err
}

// each calls f for all links at once.
func (l links) each(f func(i int, k *link) error) error {
	errs := make([]error, len(l))
	var all sync.WaitGroup
	for i, k := range l {
		all.Go(func() { errs[i] = f(i, k) })
	}
	all.Wait()
	return errors.Join(errs...)
}
