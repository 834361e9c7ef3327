// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"os"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleetapi"
	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/bench/harness"
	"github.com/gpu-collector/gpu-collector/test/process"
)

const (
	// Of so many nodes one is slow, by a sixth to a third.
	slowEach = 100
	// perKill is about how long a kill takes. The second half of the slow nodes begin to be
	// so while kills are under way.
	perKill = 5 * time.Second
	// againWithin is how soon the gateway that took over shows the open episodes.
	againWithin = 30 * time.Second
)

// truth is which nodes are slow, and what the gateways said of them. A slow node stays so:
// it has one episode from its onset on, and no other node has any.
type truth struct {
	faults []fleetpush.Fault
	first  map[string]bool            // slow from the start
	slow   map[string]bool            // all of them
	ids    map[string]map[string]bool // the episodes that each node has had
	since  map[string]time.Time       // of each episode
	now    map[string]string          // the open episodes and their nodes, as last asked
	lost   map[string]bool            // episodes
	moved  int                        // episodes that got another `since`
	zeros  int                        // answers with a threshold of 0
	kills  int                        // of either gateway, those in order included
	active int                        // and of the active one
	took   []time.Duration
}

func newTruth(draw *rand.Rand, nodes, kills int) *truth {
	t := &truth{
		first: map[string]bool{}, slow: map[string]bool{}, ids: map[string]map[string]bool{}, since: map[string]time.Time{}, lost: map[string]bool{},
	}
	for i, node := range draw.Perm(nodes)[:max(nodes/slowEach, 4)] {
		f := fleetpush.Fault{Target: fleetsim.Target{Node: node}, Fault: fleetsim.Fault{
			Kind: fleetsim.SlowNode, GPU: fleetsim.AllGPUs, From: 12 * time.Second, Severity: 1./6 + draw.Float64()/6,
		}}
		if i%2 == 1 { // under way
			f.From = 25*time.Second + time.Duration(draw.Int64N(int64(perKill)*int64(max(kills, 1))))
		}
		t.faults = append(t.faults, f)
	}
	return t
}

// lastBegins is when the last node begins to be slow. On a fast machine the kills are over
// before.
func (t *truth) lastBegins() (last time.Duration) {
	for i := range t.faults {
		last = max(last, t.faults[i].From)
	}
	return last
}

// name learns what the nodes are called.
func (t *truth) name(f *fleetpush.Fleet) {
	for i, fault := range t.faults {
		node := f.Headers(fault.Node).Node
		t.slow[node] = true
		if i%2 == 0 {
			t.first[node] = true
		}
	}
}

// open asks a gateway for the open episodes of nodes.
func (t *truth) open(ctx context.Context, p *pair, i int) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	body, err := process.Get(ctx, "http://"+p.at[i].fleet+"/api/v1/episodes?limit=1000&open=true&cluster="+cluster)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	var page fleetapi.EpisodePage
	if err := json.NewDecoder(body).Decode(&page); err != nil {
		return err
	}
	t.now = map[string]string{}
	for i := range page.Episodes {
		e := &page.Episodes[i]
		if e.Subject != "node" {
			continue
		}
		t.now[e.ID] = e.Node
		if t.ids[e.Node] == nil {
			t.ids[e.Node] = map[string]bool{}
		}
		t.ids[e.Node][e.ID] = true
		if before, known := t.since[e.ID]; known && !before.Equal(e.Since) {
			t.moved++
		}
		t.since[e.ID] = e.Since
	}
	return nil
}

func (t *truth) foundFirst() bool {
	for node := range t.first {
		if len(t.ids[node]) == 0 {
			return false
		}
	}
	return true
}

// missing are the slow nodes that have no open episode.
func (t *truth) missing() (list []string) {
	found := map[string]bool{}
	for _, node := range t.now {
		found[node] = true
	}
	for node := range t.slow {
		if !found[node] {
			list = append(list, node)
		}
	}
	return list
}

// strike ends one gateway, by a kill or in order, and looks at what the other says.
func (t *truth) strike(ctx context.Context, p *pair, active, inOrder bool) error {
	victim := p.activeOne(ctx)
	other := 1 - victim
	if err := t.open(ctx, p, victim); err != nil {
		return err
	}
	before := t.now
	if !active {
		victim, other = other, victim
	}
	began := time.Now()
	end := p.gates[victim].Kill
	if active && inOrder { // one that stands by ends by the signal itself
		end = p.gates[victim].Stop
	}
	if err := end(); err != nil {
		return err
	}
	t.kills++
	if err := t.answered(ctx, p, other); err != nil {
		return err
	}
	if active {
		t.active++
		t.took = append(t.took, time.Since(began))
	}
	if err := p.start(victim); err != nil {
		return err
	}
	gone := func() (list []string) {
		for id := range before {
			if _, there := t.now[id]; !there && !t.lost[id] {
				list = append(list, id)
			}
		}
		return list
	}
	err := harness.Within(ctx, againWithin, func() bool { return t.open(ctx, p, other) == nil && len(gone()) == 0 })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		for _, id := range gone() {
			t.lost[id] = true
			harness.Progress("lost: %s of %s; the gateway said:\n%s", id, before[id], p.gates[other].Log.Tail(15))
		}
	}
	return nil
}

// answered waits for the first threshold of a gateway.
func (t *truth) answered(ctx context.Context, p *pair, i int) error {
	return harness.Within(ctx, readyWithin, func() bool {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.at[i].api+"/api/v1/threshold?cluster_id="+cluster, http.NoBody)
		if err != nil {
			return false
		}
		resp, err := http.DefaultClient.Do(req) //nolint:bodyclose // closed below
		if err != nil {
			return false
		}
		defer func() { _ = resp.Body.Close() }()
		var answer struct{ Threshold float64 }
		if resp.StatusCode != http.StatusOK || json.NewDecoder(resp.Body).Decode(&answer) != nil {
			return false
		}
		if answer.Threshold == 0 {
			t.zeros++
		}
		return answer.Threshold > 0
	})
}

// report prints the figures, and counts those that break a promise.
func (t *truth) report(p *pair, r fleetpush.Report, nodes int) (broken int) {
	doubled, wrong := 0, 0
	for node, ids := range t.ids {
		if t.slow[node] {
			doubled += len(ids) - 1
		} else {
			wrong += len(ids)
		}
	}
	figure.FprintOnly(os.Stdout, "chaos_standby_nodes", float64(nodes), "nodes")
	figure.FprintOnly(os.Stdout, "chaos_standby_kills", float64(t.kills), "kills")
	figure.FprintOnly(os.Stdout, "chaos_standby_active_kills", float64(t.active), "kills")
	figure.FprintOnly(os.Stdout, "chaos_standby_episodes", float64(len(t.since)), "episodes")
	for _, c := range []struct {
		name string
		n    int
		unit string
	}{
		{"lost", len(t.lost) + len(t.missing()), "episodes"},
		{"ended", p.count("no straggler any more"), "episodes"},
		{"doubled", doubled, "episodes"},
		{"false", wrong, "episodes"},
		{"since_moved", t.moved, "episodes"},
		{"zero_thresholds", t.zeros, "answers"},
	} {
		figure.Print("chaos_standby_"+c.name, float64(c.n), c.unit, 0, true)
		broken += c.n
	}
	figure.Print("chaos_standby_fail_over_p50", figure.Quantile(t.took, 0.5).Seconds(), "s", maxFailOver, true)
	figure.Print("chaos_standby_fail_over_max", figure.Quantile(t.took, 1).Seconds(), "s", maxFailOver, true)
	if r.Pushes > 0 {
		figure.FprintOnly(os.Stdout, "chaos_standby_pushes_accepted", float64(r.Accepted)/float64(r.Pushes), "ratio")
	}
	return broken
}
