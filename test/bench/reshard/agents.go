// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensionmiddleware"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/gpu-collector/gpu-collector/extension/thresholdextension"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/test/bench/harness"
)

// pushTimeout is that of the shipped agent.
const pushTimeout = 5 * time.Second

// agents push the nodes' reports to shards behind one name. The ring is that of the shipped
// agents, `consistent_hash: node`. The nodes share a connection to each shard.
type agents struct {
	fleet    *fleetpush.Fleet
	interval time.Duration
	name     *manual.Resolver
	conn     *grpc.ClientConn
	zstd     encoding.Compressor

	mu     sync.Mutex
	nodes  []agent
	failed int
	last   string // error
}

// agent is what is known of a node's pushes.
type agent struct {
	shard    string    // that took the last one
	at       time.Time // when
	accepted int
	pauses   int // a shard may have taken the node for one that was elsewhere
	// full is what a report was as zstd, of the last push that went to another shard than
	// the one before it.
	full int
}

func newAgents(ctx context.Context, f *fleetpush.Fleet, interval time.Duration, shards []string) (*agents, error) {
	a := &agents{
		fleet: f, interval: interval, name: manual.NewBuilderWithScheme("shards"), nodes: make([]agent, f.Nodes()),
		zstd: encoding.GetCompressor(fleetpush.CompressionZstd),
	}
	factory := thresholdextension.NewFactory()
	cfg, ok := factory.CreateDefaultConfig().(*thresholdextension.Config)
	if !ok {
		return nil, errors.New("the configuration of straggler_threshold has another type")
	}
	cfg.ConsistentHash = "node"
	ext, err := factory.Create(ctx, extension.Settings{ID: component.NewID(factory.Type()), TelemetrySettings: componenttest.NewNopTelemetrySettings()}, cfg)
	if err != nil {
		return nil, err
	}
	middleware, ok := ext.(extensionmiddleware.GRPCClient)
	if !ok {
		return nil, errors.New("straggler_threshold is no middleware of a gRPC client")
	}
	options, err := middleware.GetGRPCClientOptions(ctx)
	if err != nil {
		return nil, err
	}
	a.name.InitialState(named(shards))
	a.conn, err = grpc.NewClient("shards:///all", append(options, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithResolvers(a.name))...)
	return a, err
}

// named is what the name of the shards resolves to.
func named(shards []string) (s resolver.State) {
	for _, addr := range shards {
		s.Endpoints = append(s.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: addr}}})
	}
	return s
}

// run has each node push at its own moment of each interval, until ctx ends. The nodes
// begin within a span: what runs at the same pace in all of them, such as energy, is not
// to leave the shards' deadbands at the same time.
func (a *agents) run(ctx context.Context, begin time.Duration) error {
	start, places := time.Now(), max(1, int(begin/a.interval))
	var all sync.WaitGroup
	for i := range a.nodes {
		// By the golden ratio the nodes of a job, which are neighbours, are spread.
		_, phase := math.Modf(float64(i) * (math.Phi - 1))
		all.Go(func() { a.beat(ctx, i, start.Add(time.Duration((float64(i%places)+phase)*float64(a.interval)))) })
	}
	all.Wait()
	return a.conn.Close()
}

// beat skips the moments that a push takes too long for.
func (a *agents) beat(ctx context.Context, i int, due time.Time) {
	for steps := 1; harness.Wait(ctx, time.Until(due)) == nil; {
		a.push(ctx, i, steps)
		steps = 1 + int(max(0, time.Since(due))/a.interval)
		due = due.Add(time.Duration(steps) * a.interval)
	}
}

func (a *agents) push(ctx context.Context, i, steps int) {
	body, err := a.fleet.Next(i, steps, time.Now(), nil)
	if err != nil {
		a.fail(err)
		return
	}
	h := a.fleet.Headers(i)
	// A push that is on its way is waited for when the run ends.
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), pushTimeout)
	defer cancel()
	call = metadata.AppendToOutgoingContext(call,
		gpusemconv.HeaderCluster, h.Cluster, gpusemconv.HeaderNode, h.Node, gpusemconv.HeaderGroup, h.Group)
	var header metadata.MD
	var to peer.Peer
	var answer []byte
	err = a.conn.Invoke(call, fleetpush.ExportMethod, &body, &answer, grpc.ForceCodecV2(fleetpush.Raw{}),
		grpc.UseCompressor(fleetpush.CompressionSnappy), grpc.Header(&header), grpc.Peer(&to))
	now := time.Now()
	if err != nil {
		a.fleet.Hear(i, fleetpush.Answer{}, now)
		a.fail(err)
		return
	}
	a.fleet.Hear(i, fleetpush.Answer{Accepted: true, Answered: true, Headers: header.Get}, now)
	a.mu.Lock()
	n := &a.nodes[i]
	moved := n.shard != to.Addr.String()
	if !moved && now.Sub(n.at) > a.interval*5/4 {
		n.pauses++
	}
	n.shard, n.at, n.accepted = to.Addr.String(), now, n.accepted+1
	a.mu.Unlock()
	if moved {
		size := a.encoded(body)
		a.mu.Lock()
		n.full = size
		a.mu.Unlock()
	}
}

func (a *agents) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failed++
	a.last = err.Error()
}

// encoded is the size of a report as a shard sends it, without frames and headers.
func (a *agents) encoded(report []byte) int {
	var n counter
	w, err := a.zstd.Compress(&n)
	if err == nil {
		_, err = w.Write(report)
		err = errors.Join(err, w.Close())
	}
	if err != nil {
		a.fail(fmt.Errorf("a report cannot be encoded: %w", err))
	}
	return int(n)
}

type counter int

func (c *counter) Write(b []byte) (int, error) {
	*c += counter(len(b))
	return len(b), nil
}

// state is what is known of all nodes now.
func (a *agents) state() (nodes []agent, failed int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.nodes), a.failed
}

// pushed waits until each node has had so many more pushes accepted.
func (a *agents) pushed(ctx context.Context, more int) error {
	before, _ := a.state()
	late := 0
	err := harness.Within(ctx, patience, func() bool {
		now, _ := a.state()
		late = 0
		for i := range now {
			if now[i].accepted < before[i].accepted+more {
				late++
			}
		}
		return late == 0
	})
	if err != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		return fmt.Errorf("%d nodes have not had %d pushes accepted: %w; the last error is %q", late, more, err, a.last)
	}
	return nil
}
