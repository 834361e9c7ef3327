// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/episode"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// rig is a gateway of ranks: a book, and the engine of the nodes.
type rig struct {
	t      *testing.T
	book   *Book
	engine *straggler.Engine
	now    time.Time
	step   time.Duration
	events []episode.Event
	report *straggler.Report
}

func newRig(t *testing.T, step time.Duration) *rig {
	cfg := straggler.DefaultConfig()
	cfg.TTL = 5 * step
	return &rig{t: t, book: New(cfg), engine: straggler.New(cfg), now: noon, step: step}
}

// tick lets an interval pass.
func (r *rig) tick() {
	r.now = r.now.Add(r.step)
	r.events = append(r.events, r.book.Tick(r.engine, r.now)...)
	r.report = r.engine.Tick(r.now)
	r.events = append(r.events, r.report.Events...)
}

// node lets a node report.
func (r *rig) node(name string) {
	require.NoError(r.t, r.engine.Observe(&straggler.Observation{Cluster: "c", Node: name, Heartbeat: true}, r.now))
	r.book.Alive("c", name, r.now)
}

// of is a rank of a job on nodes of so many GPUs.
func of(rank, gpus int64, size int64) *Rank {
	node := fmt.Sprintf("node-%02d", rank/gpus)
	return &Rank{
		Cluster: "c", Node: node, Job: "17", PID: 1000 + rank%gpus,
		Subject:      nodesignal.Subject{GPU: fmt.Sprintf("GPU-%d", rank), Rank: nodesignal.OrdinalOf(rank)},
		Communicator: Communicator{ID: "0xdd281344136a3a", Name: "dp:0", Place: rank, Size: size, Nodes: (size + gpus - 1) / gpus},
	}
}

func TestPlay(t *testing.T) {
	for _, step := range []time.Duration{time.Second, 10 * time.Second} {
		rng := rand.New(rand.NewPCG(1, 2))
		r := newRig(t, step)
		for k := range 60 {
			for i := range int64(8) {
				r.node(of(i, 8, 8).Node)
				s := 0.172 + 0.002*rng.NormFloat64()
				if i == 3 {
					s -= 0.083
				}
				require.NoError(t, r.book.Share(of(i, 8, 8), s, r.now))
			}
			r.tick()
			for _, n := range r.report.Nodes {
				if n.Straggler || k < 12 {
					t.Log(step, k, n.Node, n.Straggler, n.Unjudged, n.Signal, n.Gap, n.Suspicion, n.Since)
				}
			}
			if len(r.events) > 0 {
				t.Logf("%+v", r.events)
				break
			}
		}
	}
}
