// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/bench/harness"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
)

const (
	agentConfig = "configs/agent.yaml"
	// agentPace is far from an agent's 10 s: the kernel counts CPU in hundredths of
	// a second, and a poll takes less.
	agentPace = "100ms"
	// longer is how many turns one of the agents lasts, for the same reason.
	longer = 4
	// looks is how often memory is read in a turn: it goes up and down with garbage.
	looks = 20
)

// beside is an agent that runs at the same time as another commit's.
type beside struct {
	*harness.Collector
	cpu, memory []float64 // seconds and bytes of each turn
}

// compareAgents runs the agent and the other commit's at once, each on a node of its
// own with eight GPUs of the fake library.
func compareAgents(ctx context.Context, b *bench, w io.Writer) (err error) {
	if b.base == "" {
		return nil
	}
	dir, err := os.MkdirTemp("", "bench-tiers-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	next, stopNext, err := harness.NextHop(ctx, 0)
	if err != nil {
		return err
	}
	defer stopNext()
	library, err := fakenvml.Build(dir)
	if err != nil {
		return err
	}
	state := filepath.Join(dir, "state")
	if err = fakenvml.NewH100(gpus).Write(state); err != nil {
		return err
	}
	var agents [2]beside
	for i, tree := range [2]string{"", b.base} {
		a := &agents[i]
		a.Collector, err = harness.Start(ctx, harness.Setup{
			Name: "agent", Binary: filepath.Join(tree, b.binary), Configs: []string{filepath.Join(tree, agentConfig)}, Metrics: true,
			Overrides: []string{
				"receivers::nvml: {library_path: " + library + ", collection_interval: " + agentPace + ", deadline: " + agentPace + "}",
				"receivers::otlp::protocols::http::endpoint: 127.0.0.1:0",
				"extensions::healthcheckv2::http::endpoint: 127.0.0.1:0",
			},
			Env: []string{fakenvml.StateEnv + "=" + state, "GPU_COLLECTOR_GATEWAY=" + next, "GPU_COLLECTOR_INSECURE=true"},
		})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, a.Close()) }()
	}
	for turn := -1; turn < b.turns; turn++ {
		b.say("agents: turn %d of %d", turn+1, b.turns)
		if err := b.turnOf(ctx, agents[:]); err != nil {
			return err
		}
		if turn < 0 { // in which they start
			agents[0].cpu, agents[0].memory, agents[1].cpu, agents[1].memory = nil, nil, nil, nil
		}
	}
	for i := range agents {
		if err := agents[i].Pushed(ctx); err != nil {
			return err
		}
	}
	figure.Fprint(w, "agent_memory_vs_base", ratioOf(agents[0].memory, agents[1].memory), "x", maxWorse, true)
	figure.Fprint(w, "agent_cpu_vs_base", ratioOf(agents[0].cpu, agents[1].cpu), "x", maxWorse, true)
	return nil
}

// turnOf measures the agents for a turn.
func (b *bench) turnOf(ctx context.Context, agents []beside) error {
	before := make([]float64, len(agents))
	memory := make([][]float64, len(agents))
	var err error
	for i := range agents {
		if before[i], _, err = agents[i].Usage(); err != nil {
			return err
		}
	}
	for range looks {
		if err := harness.Wait(ctx, longer*b.turn/looks); err != nil {
			return err
		}
		for i := range agents {
			bytes, err := agents[i].Anonymous()
			if err != nil {
				return err
			}
			memory[i] = append(memory[i], bytes)
		}
	}
	for i := range agents {
		after, _, err := agents[i].Usage()
		if err != nil {
			return err
		}
		agents[i].cpu = append(agents[i].cpu, after-before[i])
		agents[i].memory = append(agents[i].memory, figure.Median(memory[i]))
	}
	return nil
}
