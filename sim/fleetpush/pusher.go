// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/platform/mistake"
)

// PushConfig of a Pusher.
type PushConfig struct {
	// Endpoint is host:port, or what gRPC resolves.
	Endpoint    string
	Compression string
	TLS         *tls.Config
	// Interval is the time between two pushes of a node; with 0 each node pushes
	// again as soon as answers come.
	Interval time.Duration
	// Connections are shared by all nodes; at most InFlight pushes are on their way.
	Connections, InFlight int
	Timeout               time.Duration
}

// DefaultPushConfig returns what agents do, over few connections.
func DefaultPushConfig() PushConfig {
	return PushConfig{
		Compression: CompressionNone, Interval: 10 * time.Second, Connections: 8, InFlight: 256, Timeout: 5 * time.Second,
	}
}

// Validate returns all mistakes of a PushConfig.
func (c *PushConfig) Validate() error {
	return errors.Join(
		mistake.If(c.Endpoint == "", "endpoint is empty, must be host:port"),
		mistake.If(!slices.Contains(Compressions(), c.Compression), "compression is %q, must be one of %s", c.Compression, strings.Join(Compressions(), ", ")),
		mistake.If(c.Interval < 0, "interval is %s, must be 0s or more", c.Interval),
		mistake.If(c.Connections < 1 || c.Connections > 1000, "connections is %d, must be between 1 and 1000", c.Connections),
		mistake.If(c.InFlight < 1 || c.InFlight > 100_000, "in-flight is %d, must be between 1 and 100000", c.InFlight),
		mistake.If(c.Timeout <= 0, "timeout is %s, must be more than 0s", c.Timeout),
	)
}

// Pusher pushes the reports of a fleet.
type Pusher struct {
	cfg    PushConfig
	fleet  *Fleet
	sender sender
	nodes  []turn
	stats  stats
}

// turn is where a node is in its pushes.
type turn struct {
	busy  atomic.Bool
	round int64        // of its next push; of whoever has it
	until atomic.Int64 // Unix nanoseconds before which it leaves the other end alone
}

// NewPusher makes a Pusher. Nothing is sent before Run.
func NewPusher(cfg PushConfig, f *Fleet) (*Pusher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	p := &Pusher{cfg: cfg, fleet: f, nodes: make([]turn, f.Nodes())}
	p.stats.init(f.Nodes())
	var err error
	p.sender, err = newGRPCSender(cfg.Endpoint, cfg.Connections, cfg.Compression, cfg.TLS)
	return p, err
}

// Run pushes until ctx ends, and waits for the pushes on their way. It is called
// once.
func (p *Pusher) Run(ctx context.Context) error {
	workers := min(p.cfg.InFlight, p.fleet.Nodes())
	p.stats.at(&p.stats.from, time.Now())
	if p.cfg.Interval == 0 {
		p.hurry(ctx, workers)
	} else {
		due := make(chan job)
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for j := range due {
					p.push(ctx, j)
					p.nodes[j.node].busy.Store(false)
				}
			})
		}
		p.pace(ctx, due)
		close(due)
		wg.Wait()
	}
	p.stats.at(&p.stats.to, time.Now())
	return p.sender.close()
}

// job is a push that is due.
type job struct {
	node  int
	round int64
}

// order is that of the nodes in a round. By the golden ratio the nodes of one
// group, which are neighbours by number, are spread over it.
func order(nodes int) []int32 {
	const golden = 0.618033988749894848
	place := func(i int32) float64 { _, f := math.Modf(float64(i) * golden); return f }
	all := make([]int32, nodes)
	for i := range all {
		all[i] = int32(i)
	}
	slices.SortFunc(all, func(a, b int32) int { return cmp.Compare(place(a), place(b)) })
	return all
}

// pace hands out each node once in an interval, evenly spread. A node that is so
// late that its next push is due skips this push.
func (p *Pusher) pace(ctx context.Context, due chan<- job) {
	nodes := order(p.fleet.Nodes())
	start := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for round := int64(0); ; round++ {
		for at, node := range nodes {
			when := start.Add(time.Duration(round)*p.cfg.Interval + time.Duration(int64(at)*int64(p.cfg.Interval)/int64(len(nodes))))
			late := time.Since(when)
			if late < 0 {
				timer.Reset(-late)
				select {
				case <-ctx.Done():
					return
				case <-timer.C:
				}
			} else if late >= p.cfg.Interval {
				if ctx.Err() != nil {
					return
				}
				p.stats.skip(skipLate)
				continue
			}
			if !p.hand(ctx, due, job{int(node), round}) {
				return
			}
		}
	}
}

// hurry pushes each node again once its last push has ended.
func (p *Pusher) hurry(ctx context.Context, workers int) {
	idle := make(chan int, p.fleet.Nodes())
	for i := range p.fleet.Nodes() {
		idle <- i
	}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case node := <-idle:
					if ctx.Err() != nil {
						return
					}
					p.push(ctx, job{node, p.nodes[node].round})
					rest := p.nodes[node].until.Load() - time.Now().UnixNano()
					time.AfterFunc(time.Duration(rest), func() { idle <- node })
				}
			}
		})
	}
	wg.Wait()
}

// hand gives a node to a worker, unless its last push is on its way still or the
// other end wants to be left alone. It reports false when it is over.
func (p *Pusher) hand(ctx context.Context, due chan<- job, j job) bool {
	t := &p.nodes[j.node]
	if until := t.until.Load(); until != 0 && time.Now().UnixNano() < until {
		p.stats.skip(skipTold)
		return ctx.Err() == nil
	}
	if !t.busy.CompareAndSwap(false, true) {
		p.stats.skip(skipBusy)
		return ctx.Err() == nil
	}
	select {
	case due <- j:
		return true
	case <-ctx.Done():
		t.busy.Store(false)
		return false
	}
}

// push makes a node's report and sends it.
func (p *Pusher) push(ctx context.Context, j job) {
	t := &p.nodes[j.node]
	steps := int(j.round-t.round) + 1
	t.round = j.round + 1
	md := p.fleet.metrics(j.node, steps, time.Now())
	size := new(pmetric.ProtoMarshaler).MetricsSize(md) // before it is sent
	// A push that is on its way is waited for when the run ends.
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.Timeout)
	defer cancel()
	sent := time.Now()
	r := p.sender.send(call, j.node%p.cfg.Connections, p.fleet.Headers(j.node), md)
	now := time.Now()
	if r.wait > 0 {
		t.until.Store(now.Add(r.wait).UnixNano())
	}
	h := p.fleet.Hear(j.node, r.Answer, now)
	p.stats.push(j.node, sent, now.Sub(sent), size, &r, &h)
}
