// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/test/bench/harness"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// tier is a collector whose cost outlives its restarts.
type tier struct {
	*harness.Collector

	cpu, peak float64 // of the processes that have ended: seconds, bytes
}

// account takes what the process has cost, before it ends.
func (t *tier) account() error {
	cpu, _, err := t.Usage()
	if err != nil {
		return err
	}
	peak, err := t.Peak()
	t.cpu, t.peak = t.cpu+cpu, max(t.peak, peak)
	return err
}

// again ends the process, as a crash or an upgrade does, and starts it.
func (t *tier) again(kill bool, path string) error {
	if err := t.account(); err != nil {
		return err
	}
	end := t.Stop
	if kill {
		end = t.Kill
	}
	if err := end(); err != nil {
		return err
	}
	c := t.Command()
	c.Path = path
	t.Replace(c)
	return t.Start()
}

// result is what a run came to.
type result struct {
	setup
	speed   int64
	played  time.Duration // of the fleet
	seconds float64       // of the machine
	faults  []outcome
	alerts  []alert
	rolls   []roll
	looks   int
	fleet   fleetpush.Report
	shard   tier
	gateway tier
	in, out int64 // bytes between the nodes and the shard, and between that and the gateway
}

// run plays the plan: fleetsim pushes through a shard to a gateway, all of whose clocks
// run `speed` times as fast.
func (w *week) run(ctx context.Context) (_ *result, err error) {
	r := &result{setup: w.setup, speed: w.speed}
	faults, rolls := draw(&w.setup)
	r.rolls = rolls
	began := time.Now()
	clock := fmt.Sprintf("FAST_CLOCK=%d %d", w.speed, began.UnixNano())
	fast := func(t time.Time) time.Duration { return t.Sub(began) * time.Duration(w.speed) }

	addrs, err := harness.Addresses(ctx, 4)
	if err != nil {
		return nil, err
	}
	before := w.binary
	if w.before != "" {
		before = w.before
	}
	start := func(name string, to *tier, env, overrides []string) (err error) {
		to.Collector, err = harness.Start(ctx, harness.Setup{
			Name: name, Binary: before, Configs: []string{"configs/" + name + ".yaml"}, Metrics: true, Env: append(env, clock),
			Overrides: append(overrides, "receivers::otlp::protocols::http::endpoint: %s", "extensions::healthcheckv2::http::endpoint: %s"),
		})
		return err
	}
	if err := start("gateway", &r.gateway, nil, []string{
		"extensions::straggler_threshold::api::endpoint: " + addrs[0], "extensions::fleet_view::http::endpoint: " + addrs[1],
		"extensions::exposition::http::endpoint: " + addrs[2],
	}); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.gateway.Close()) }()
	up, err := harness.NewRelay(ctx, r.gateway.Endpoint)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, up.Close()) }()
	if err := start("shard", &r.shard, []string{"GPU_COLLECTOR_GATEWAY=" + up.Addr, "GPU_COLLECTOR_INSECURE=true"}, nil); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.shard.Close()) }()
	in, err := harness.NewRelay(ctx, r.shard.Endpoint)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()

	report, log := filepath.Join(w.dir, "fleet.json"), &process.Log{}
	fleet := exec.CommandContext(ctx, w.fleetsim, w.arguments(in.Addr, report, faults)...)
	fleet.Env, fleet.Stdout, fleet.Stderr = append(os.Environ(), clock), log, log
	fleet.Cancel = func() error { return fleet.Process.Signal(syscall.SIGTERM) }
	from := time.Now()
	if err := fleet.Start(); err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() { done <- fleet.Wait() }()

	watch := &watch{view: addrs[1], began: began.Add(fast(from)), told: map[string]*alert{}, last: map[string]time.Duration{}}
	if err := w.follow(ctx, r, watch, from, rolls, done); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, log.Tail(5))
	}
	r.seconds = time.Since(from).Seconds()
	for _, t := range []*tier{&r.shard, &r.gateway} {
		if err := t.account(); err != nil {
			return nil, err
		}
	}
	text, err := os.ReadFile(report)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &r.fleet); err != nil {
		return nil, err
	}
	r.played = time.Duration(r.fleet.Seconds * float64(time.Second))
	r.alerts, r.looks, r.in, r.out = watch.alerts(), watch.looks, in.Up.Load()+in.Down.Load(), up.Up.Load()+up.Down.Load()
	// A process of fleetsim takes a moment until its first push.
	r.faults = match(faults, r.alerts, time.Duration(w.speed)*time.Second)
	for i := range r.faults {
		if d := r.fleet.Faults[i].Delay; d != nil {
			r.faults[i].agent = time.Duration(*d * float64(time.Second))
		}
	}
	return r, nil
}

func (w *week) arguments(endpoint, report string, faults []fault) []string {
	args := []string{
		"-endpoint", endpoint, "-nodes", strconv.Itoa(w.Nodes), "-gpus", strconv.Itoa(w.GPUs), "-cluster", "week", "-compression", fleetpush.CompressionSnappy,
		"-runs", w.Runs.String(), "-pause", "10m", "-seed", strconv.FormatUint(w.Seed, 10), "-duration", w.length().String(), "-json", report,
	}
	for i := range faults {
		args = append(args, "-fault", faults[i].flag())
	}
	return args
}

// follow looks at the gateway and restarts tiers until the fleet has done. from is when
// the fleet began, by the machine's clock.
func (w *week) follow(ctx context.Context, r *result, watch *watch, from time.Time, rolls []roll, done <-chan error) error {
	// Each minute of the fleet, and no more than four times a second.
	tick := time.NewTicker(max(time.Minute/time.Duration(w.speed), 250*time.Millisecond))
	defer tick.Stop()
	told := time.Time{}
	for {
		select {
		case err := <-done:
			return errors.Join(err, watch.look(ctx))
		case <-ctx.Done():
			<-done
			return ctx.Err()
		case <-tick.C:
		}
		at := time.Since(from) * time.Duration(w.speed)
		for len(rolls) > 0 && at >= rolls[0].at {
			t := &r.gateway
			if rolls[0].tier == "shard" {
				t = &r.shard
			}
			// The upgrade brings the binary that every later start has.
			path := t.Command().Path
			if !rolls[0].kill {
				path = w.binary
			}
			if err := t.again(rolls[0].kill, path); err != nil {
				return err
			}
			rolls = rolls[1:]
		}
		if err := watch.look(ctx); err != nil {
			return err
		}
		// A look may take a while, and the clocks differ by that.
		if off := time.Since(from)*time.Duration(w.speed) - watch.now; off.Abs() > 5*time.Second*time.Duration(w.speed) {
			return fmt.Errorf("the gateway's clock is %s off: -binary must be of scripts/fastclock.sh", off.Round(time.Second))
		}
		if time.Since(told) > 15*time.Second {
			told = time.Now()
			fmt.Fprintf(os.Stderr, "%s of %s: %d alerts\n", at.Round(time.Minute), w.length().Round(time.Minute), len(watch.told))
		}
	}
}
