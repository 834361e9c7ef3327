// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpu-collector/gpu-collector/test/bench/harness"
)

// tiers are a gateway and the shards in front of it.
type tiers struct {
	binary  string
	gateway *harness.Collector
	view    string // address of its API

	mu     sync.Mutex
	shards []*shard
}

// shard is one process with its own way to the gateway, which counts bytes.
type shard struct {
	*harness.Collector
	up   *harness.Relay
	gone bool
}

func newTiers(ctx context.Context, binary string, interval time.Duration, shards int) (_ *tiers, err error) {
	addrs, err := harness.Addresses(ctx, 3)
	if err != nil {
		return nil, err
	}
	t := &tiers{binary: binary, view: addrs[0]}
	t.gateway, err = harness.Start(ctx, harness.Setup{
		Name: "gateway", Binary: binary, Configs: []string{"configs/gateway.yaml"}, Metrics: true, Overrides: []string{
			"receivers::otlp::protocols::http::endpoint: %s",
			"extensions::straggler_threshold::api::endpoint: " + addrs[1],
			"extensions::fleet_view::http::endpoint: " + t.view,
			"extensions::exposition::http::endpoint: " + addrs[2],
			"extensions::healthcheckv2::http::endpoint: %s",
			// Nodes do not expire on a busy machine.
			fmt.Sprintf("processors::straggler: {push_interval: %s, ttl_multiplier: 30}", interval),
		},
	})
	if err != nil {
		return nil, err
	}
	for range shards {
		if _, err := t.join(ctx); err != nil {
			return nil, errors.Join(err, t.close())
		}
	}
	return t, nil
}

// join starts a shard.
func (t *tiers) join(ctx context.Context) (s *shard, err error) {
	s = &shard{}
	if s.up, err = harness.NewRelay(ctx, t.gateway.Endpoint); err != nil {
		return nil, err
	}
	s.Collector, err = harness.Start(ctx, harness.Setup{
		Name: fmt.Sprintf("shard %d", len(t.shards)), Binary: t.binary, Configs: []string{"configs/shard.yaml"},
		Env:       []string{"GPU_COLLECTOR_GATEWAY=" + s.up.Addr, "GPU_COLLECTOR_INSECURE=true"},
		Overrides: []string{"receivers::otlp::protocols::http::endpoint: %s", "extensions::healthcheckv2::http::endpoint: %s"},
		Metrics:   true,
	})
	if err != nil {
		return nil, errors.Join(err, s.up.Close())
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shards = append(t.shards, s)
	return s, nil
}

// leave ends a shard in order, or kills it, and returns its address.
func (*tiers) leave(s *shard, kill bool) (string, error) {
	s.gone = true
	if !kill {
		return s.Endpoint, s.Close()
	}
	err := s.Kill()
	_ = s.Close() // says that it has ended
	return s.Endpoint, err
}

// names are the addresses of the shards that are there.
func (t *tiers) names() (addrs []string) {
	for _, s := range t.shards {
		if !s.gone {
			addrs = append(addrs, s.Endpoint)
		}
	}
	return addrs
}

// bytes are those that all shards have sent to the gateway.
func (t *tiers) bytes() (sum int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.shards {
		sum += s.up.Up.Load()
	}
	return sum
}

func (t *tiers) close() error {
	var errs []error
	for _, s := range t.shards {
		if !s.gone {
			errs = append(errs, s.Close())
		}
		errs = append(errs, s.up.Close())
	}
	return errors.Join(append(errs, t.gateway.Close())...)
}
