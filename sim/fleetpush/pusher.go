// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/collector/config/configtls"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/platform/mistake"
)

// PushConfig of a Pusher.
type PushConfig struct {
	// Endpoint is host:port, or what gRPC resolves.
	Endpoint    string
	Compression string
	TLS         configtls.ClientConfig
	// Interval between two pushes of a node; with 0 it pushes again as soon as answers come.
	Interval time.Duration
	// Connections are shared by all nodes; at most InFlight pushes are on their way.
	Connections, InFlight int
	Timeout               time.Duration
}

// DefaultPushConfig returns what agents do, over few connections without TLS.
func DefaultPushConfig() PushConfig {
	return PushConfig{
		Compression: "none", TLS: configtls.ClientConfig{Insecure: true}, Interval: 10 * time.Second, Connections: 8, InFlight: 256, Timeout: 5 * time.Second,
	}
}

// Validate returns all mistakes of a PushConfig.
func (c *PushConfig) Validate() error {
	return errors.Join(
		mistake.If(c.Endpoint == "", "endpoint is empty, must be host:port"),
		mistake.If(!slices.Contains(Compressions, c.Compression), "compression is %q, must be one of %s", c.Compression, strings.Join(Compressions, ", ")),
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
	stats  *stats
	due    chan turn // has room for all nodes
}

// turn is a push of a node. Slots are the times when it is due, counted from 0.
type turn struct {
	node       int
	slot, last int64 // of this push, and of the one before
}

// NewPusher makes a Pusher. Nothing is sent before Run.
func NewPusher(cfg PushConfig, f *Fleet) (*Pusher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	sender, err := newGRPCSender(&cfg)
	return &Pusher{cfg: cfg, fleet: f, sender: sender, stats: newStats(f.Nodes()), due: make(chan turn, f.Nodes())}, err
}

// Run pushes until ctx ends, and waits for the pushes on their way. It is called
// once.
func (p *Pusher) Run(ctx context.Context) error {
	for node := range p.fleet.Nodes() {
		p.plan(turn{node: node, last: -1}, p.phase(node))
	}
	var workers sync.WaitGroup
	for range min(p.cfg.InFlight, p.fleet.Nodes()) {
		workers.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case t := <-p.due:
					if ctx.Err() == nil {
						p.turn(ctx, t)
					}
				}
			}
		})
	}
	workers.Wait()
	return p.sender.close()
}

// Report returns what has come to pass so far.
func (p *Pusher) Report() Report { return p.stats.report(p.fleet) }

func (p *Pusher) plan(t turn, wait time.Duration) { time.AfterFunc(wait, func() { p.due <- t }) }

// phase is when in its interval a node pushes. By the golden ratio all are spread over it,
// and so are the nodes of one group, which are neighbours by number.
func (p *Pusher) phase(node int) time.Duration {
	const golden = 0.618033988749894848
	_, part := math.Modf(float64(node) * golden)
	return time.Duration(part * float64(p.cfg.Interval))
}

// slot is the last slot of a node before a time.
func (p *Pusher) slot(node int, at time.Time) int64 {
	return int64((at.Sub(p.stats.begin) - p.phase(node)) / p.cfg.Interval)
}

// turn makes a push that is due, and plans the node's next. Slots that pass meanwhile are
// skipped, while the node's world goes on.
func (p *Pusher) turn(ctx context.Context, t turn) {
	if p.cfg.Interval == 0 {
		p.plan(t, p.push(ctx, t.node, 1))
		return
	}
	now := p.slot(t.node, time.Now())
	p.stats.skip(skipLate, now-t.slot)
	wait := p.push(ctx, t.node, int(now-t.last))
	ended := time.Now()
	free, asked := p.slot(t.node, ended), p.slot(t.node, ended.Add(wait))
	p.stats.skip(skipBusy, free-now)
	p.stats.skip(skipAsked, asked-free)
	next := p.stats.begin.Add(time.Duration(asked+1)*p.cfg.Interval + p.phase(t.node))
	p.plan(turn{t.node, asked + 1, now}, time.Until(next))
}

// push makes a node's report and sends it, and returns how long the server asks to wait.
func (p *Pusher) push(ctx context.Context, node, steps int) time.Duration {
	md := p.fleet.metrics(node, steps, time.Now())
	size := new(pmetric.ProtoMarshaler).MetricsSize(md) // before it is sent
	// A push that is on its way is waited for when the run ends.
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.Timeout)
	defer cancel()
	sent := time.Now()
	r := p.sender.send(call, node%p.cfg.Connections, p.fleet.Headers(node), md)
	now := time.Now()
	p.stats.push(now.Sub(sent), size, &r, p.fleet.receive(node, &r, now))
	return r.wait
}
