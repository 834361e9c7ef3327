// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command restart kills a gateway that compares many nodes, starts it again, and measures
// how soon it answers with the thresholds of before.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/bench/harness"
	"github.com/gpu-collector/gpu-collector/test/process"
)

const (
	cluster  = "prod"
	interval = 10 * time.Second
	kills    = 3
	maxReady = 2 // seconds
)

func main() { figure.Main(run) }

func run(ctx context.Context) (err error) {
	nodes := flag.Int("nodes", 10_000, "nodes of one cluster")
	span := flag.Duration("span", 2*time.Minute, "how long they push before the first kill")
	binary := flag.String("binary", "bin/gpu-collector", "the gateway")
	flag.Parse()
	// A GPU each: the state is of nodes.
	f, err := fleetpush.New(fleetpush.Config{
		Nodes: *nodes, GPUs: 1, Cluster: cluster, Load: fleetsim.Training, Seed: 2026, Step: interval, Start: time.Now().Add(-24 * time.Hour),
	})
	if err != nil {
		return err
	}
	addrs, err := harness.Addresses(ctx, 4)
	if err != nil {
		return err
	}
	gateway, err := harness.Start(ctx, harness.Setup{
		Name: "gateway", Binary: *binary, Configs: []string{"configs/gateway.yaml"}, Overrides: []string{
			"receivers::otlp::protocols::http::endpoint: %s",
			"extensions::straggler_threshold::api::endpoint: " + addrs[0],
			"extensions::fleet_view::http::endpoint: " + addrs[1],
			"extensions::fleet_view::history::storage: none",
			"extensions::exposition::http::endpoint: " + addrs[2],
			"extensions::healthcheckv2::http::endpoint: " + addrs[3],
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, gateway.Close()) }()
	asked := "http://" + addrs[0] + "/api/v1/threshold?cluster_id=" + url.QueryEscape(cluster)
	var took []float64
	for range kills {
		if err := push(ctx, f, gateway.Endpoint, *span); err != nil {
			return err
		}
		*span = 4 * interval // another state is written
		before, err := threshold(ctx, asked)
		if err != nil {
			return err
		}
		if err := gateway.Kill(); err != nil {
			return err
		}
		began := time.Now()
		started := make(chan error, 1)
		go func() { started <- gateway.Start() }()
		after := 0.0
		for ; after == 0; err = harness.Wait(ctx, time.Millisecond) {
			if err != nil {
				return err
			}
			switch x, err := threshold(ctx, asked); {
			case err == nil:
				after = x
			case errors.Is(err, errZero):
				return err
			}
			if time.Since(began) > time.Minute {
				return fmt.Errorf("the gateway does not answer: %s", gateway.Log.Tail(5))
			}
		}
		took = append(took, time.Since(began).Seconds())
		if err := <-started; err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "the threshold was %.3f, and is %.3f %.2f s after the start\n", before, after, took[len(took)-1])
		if d := after - before; d > 0.01 || d < -0.01 {
			return errors.New("that is another one")
		}
	}
	figure.Print("restart_ready_s", figure.Median(took), "s", maxReady, true)
	return nil
}

// push has the nodes push for so long.
func push(ctx context.Context, f *fleetpush.Fleet, endpoint string, span time.Duration) error {
	cfg := fleetpush.DefaultPushConfig()
	cfg.Endpoint, cfg.Interval, cfg.InFlight = endpoint, interval, 32
	cfg.Compression, cfg.Timeout = fleetpush.CompressionSnappy, 30*time.Second
	p, err := fleetpush.NewPusher(cfg, f)
	if err != nil {
		return err
	}
	run, cancel := context.WithTimeout(ctx, span)
	defer cancel()
	if err := p.Run(run); err != nil {
		return err
	}
	if r := p.Report(); r.Accepted < r.Pushes*9/10 {
		return fmt.Errorf("%d of %d pushes were accepted: %s", r.Accepted, r.Pushes, r.LastError)
	}
	return ctx.Err()
}

var errZero = errors.New("the gateway answered a threshold of 0")

// threshold is the cluster's; that of a gateway which knows none is an error.
func threshold(ctx context.Context, from string) (float64, error) {
	body, err := process.Get(ctx, from)
	if err != nil {
		return 0, err
	}
	defer func() { _ = body.Close() }()
	var answer struct {
		Threshold float64 `json:"threshold"`
	}
	if err := json.NewDecoder(body).Decode(&answer); err != nil {
		return 0, err
	}
	if answer.Threshold == 0 {
		return 0, errZero
	}
	return answer.Threshold, nil
}
