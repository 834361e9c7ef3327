// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gpu-collector/gpu-collector/test/bench/harness"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// readyWithin is how soon a gateway that was started again has to be there.
const readyWithin = time.Minute

// pair are two gateways, and what a Service of Kubernetes is in front of them.
type pair struct {
	dir   string
	gates [2]*process.Process
	at    [2]addresses
	front net.Listener
	next  atomic.Int64
}

// addresses of a gateway: OTLP over gRPC and HTTP, thresholds, fleet view, copies.
type addresses struct{ grpc, http, api, fleet, copies string }

func newPair(ctx context.Context, binary string) (_ *pair, err error) {
	p := &pair{}
	if p.dir, err = os.MkdirTemp("", "bench-standby-"); err != nil {
		return nil, err
	}
	for i := range p.at {
		a, err := harness.Addresses(ctx, 5)
		if err != nil {
			return nil, err
		}
		p.at[i] = addresses{a[0], a[1], a[2], a[3], a[4]}
	}
	for i, a := range p.at {
		other, err := harness.Addresses(ctx, 2)
		if err != nil {
			return nil, err
		}
		over := fmt.Sprintf(`yaml:
receivers: {otlp: {protocols: {grpc: {endpoint: %q}, http: {endpoint: %q}}}}
processors: {straggler: {push_interval: %s, ttl_multiplier: 30}}
extensions:
  straggler_threshold: {api: {endpoint: %q}}
  fleet_view: {http: {endpoint: %q}}
  exposition: {http: {endpoint: %q}}
  healthcheckv2: {http: {endpoint: %q}}
  standby:
    lock: {file: %q}
    http: {endpoint: %q}
    peers: [{endpoint: "http://%s", timeout: 5s}, {endpoint: "http://%s", timeout: 5s}]
    relay: [%q, %q, %q, %q]
service: {telemetry: {metrics: {level: none}}}
`, a.grpc, a.http, interval, a.api, a.fleet, other[0], other[1], filepath.Join(p.dir, "lock"), a.copies, p.at[0].copies, p.at[1].copies, a.grpc, a.http, a.api, a.fleet)
		state := filepath.Join(p.dir, strconv.Itoa(i))
		if err := os.Mkdir(state, 0o700); err != nil {
			return nil, err
		}
		p.gates[i] = process.New(process.Command{
			Path: binary, Args: []string{"--config", "configs/gateway.yaml", "--config", "configs/overlays/standby.yaml", "--config", over},
			Env: append(os.Environ(), "STATE_DIRECTORY="+state),
		})
	}
	if p.front, err = (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	go p.serve()
	if err := p.gates[0].Start(); err != nil {
		return nil, errors.Join(err, p.close())
	}
	if err := p.start(1); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// start has a gateway stand by.
func (p *pair) start(i int) error { return p.gates[i].StartUntil("This gateway stands by.") }

// serve hands each connection to one of the gateways in turn, or to the other one where
// that is gone, as a Service does.
func (p *pair) serve() {
	for {
		conn, err := p.front.Accept()
		if err != nil {
			return
		}
		go p.hand(conn)
	}
}

func (p *pair) hand(from net.Conn) {
	defer func() { _ = from.Close() }()
	first := int(p.next.Add(1) % 2)
	for _, i := range [...]int{first, 1 - first} {
		to, err := net.DialTimeout("tcp", p.at[i].grpc, time.Second)
		if err != nil {
			continue
		}
		go func() {
			_, _ = io.Copy(to, from)
			_ = to.Close()
		}()
		_, _ = io.Copy(from, to)
		_ = to.Close()
		return
	}
}

// role asks a gateway what it is.
func (p *pair) role(ctx context.Context, i int) (ready, active bool) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	body, err := process.Get(ctx, "http://"+p.at[i].copies+"/ready")
	if err != nil {
		return false, false
	}
	defer func() { _ = body.Close() }()
	var r struct{ Active bool }
	return json.NewDecoder(body).Decode(&r) == nil, r.Active
}

// bothReady waits until one gateway is active and the other one stands by.
func (p *pair) bothReady(ctx context.Context) error {
	err := harness.Within(ctx, readyWithin, func() bool {
		one, first := p.role(ctx, 0)
		other, second := p.role(ctx, 1)
		return one && other && first != second
	})
	if err != nil {
		return fmt.Errorf("the two gateways are not ready: %w; they said:\n%s\n%s", err, p.gates[0].Log.Tail(10), p.gates[1].Log.Tail(10))
	}
	return nil
}

// activeOne is the one that is active, or 0.
func (p *pair) activeOne(ctx context.Context) int {
	if _, active := p.role(ctx, 1); active {
		return 1
	}
	return 0
}

func (p *pair) count(text string) int {
	return p.gates[0].Log.Count(text) + p.gates[1].Log.Count(text)
}

func (p *pair) close() error {
	err := p.front.Close()
	for _, g := range p.gates {
		if g != nil && !g.Ended() {
			err = errors.Join(err, g.Kill())
		}
	}
	return errors.Join(err, os.RemoveAll(p.dir))
}
