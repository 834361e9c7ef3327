// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleetapi"
	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/bench/harness"
	"github.com/gpu-collector/gpu-collector/test/process"
)

const (
	// lookEvery is how often the gateway is asked what it sees.
	lookEvery = 500 * time.Millisecond
	// slowFrom is when nodes become slow, after all of them have begun.
	slowFrom = 12 * time.Second
)

// slowNodes become slow by a third after a few pushes, and stay so.
func slowNodes(nodes int, begin time.Duration) (faults []fleetpush.Fault) {
	for _, node := range []int{nodes / 5, nodes / 2, nodes * 4 / 5} {
		faults = append(faults, fleetpush.Fault{
			Target: fleetsim.Target{Node: node}, Fault: fleetsim.Fault{Kind: fleetsim.SlowNode, GPU: fleetsim.AllGPUs, From: begin + slowFrom, Severity: 1. / 3},
		})
	}
	return faults
}

// watch is what the gateway said of the nodes. A slow node has one episode, which stays
// open, and no other node has any.
type watch struct {
	view    string
	nodes   int
	slow    map[string]bool
	open    map[string]string // episodes that have been open, and their nodes
	lost    map[string]bool   // those of them that were not at some look
	there   int               // nodes, at the last look
	missing int               // the most of them since all were there
	all     bool              // nodes have been there
	looks   int
}

func newWatch(view string, f *fleetpush.Fleet, faults []fleetpush.Fault) *watch {
	w := &watch{view: view, nodes: f.Nodes(), slow: map[string]bool{}, open: map[string]string{}, lost: map[string]bool{}}
	for _, fault := range faults {
		w.slow[f.Headers(fault.Node).Node] = true
	}
	return w
}

// look asks once.
func (w *watch) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var sum fleetapi.Summary
	if err := w.get(ctx, "stats/summary", &sum); err != nil {
		return err
	}
	var page fleetapi.EpisodePage
	if err := w.get(ctx, "episodes?limit=1000&open=true&cluster="+cluster, &page); err != nil {
		return err
	}
	w.take(&sum, page.Episodes)
	return nil
}

func (w *watch) get(ctx context.Context, what string, into any) error {
	body, err := process.Get(ctx, "http://"+w.view+"/api/v1/"+what)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	return json.NewDecoder(body).Decode(into)
}

// take compares an answer with those before.
func (w *watch) take(sum *fleetapi.Summary, episodes []fleetapi.Episode) {
	w.looks++
	w.there = sum.Nodes - sum.NodesByState["missing"]
	missing := w.nodes - w.there
	w.all = w.all || missing == 0
	if w.all {
		w.missing = max(w.missing, missing)
	}
	now := map[string]bool{}
	for i := range episodes {
		e := &episodes[i]
		w.open[e.ID], now[e.ID] = e.Node, true // "" where it is not of a node
	}
	for id := range w.open {
		if !now[id] {
			w.lost[id] = true
		}
	}
}

// ready is true once all nodes are there, and one of the slow ones is found: more may be
// at any time.
func (w *watch) ready() bool { return w.all && len(w.open) > 0 }

func (w *watch) episodes(node string) (n int) {
	for _, of := range w.open {
		if of == node {
			n++
		}
	}
	return n
}

// follow looks until ctx ends. A look that fails is told, and is none.
func (w *watch) follow(ctx context.Context) {
	for harness.Wait(ctx, lookEvery) == nil {
		if err := w.look(ctx); err != nil && ctx.Err() == nil {
			harness.Progress("the gateway's view: %v", err)
		}
	}
}

// report prints the figures, and counts those that break a promise.
func (w *watch) report() (broken int) {
	doubled, wrong := 0, 0
	for node := range w.slow {
		doubled += max(0, w.episodes(node)-1)
	}
	for _, node := range w.open {
		if !w.slow[node] {
			wrong++
		}
	}
	for _, f := range []struct {
		name string
		n    int
		unit string
	}{
		{"nodes_missing", w.missing, "nodes"},
		{"episodes_lost", len(w.lost), "episodes"},
		{"episodes_doubled", doubled, "episodes"},
		{"episodes_false", wrong, "episodes"},
	} {
		figure.Print("reshard_"+f.name, float64(f.n), f.unit, 0, true)
		broken += f.n
	}
	figure.FprintOnly(os.Stdout, "reshard_episodes", float64(len(w.open)), "episodes")
	figure.FprintOnly(os.Stdout, "reshard_looks", float64(w.looks), "looks")
	return broken
}

// found are the nodes with an episode, for messages.
func (w *watch) found() []string {
	var nodes []string
	for _, node := range w.open {
		nodes = append(nodes, node)
	}
	slices.Sort(nodes)
	return nodes
}
