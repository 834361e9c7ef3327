// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// TestHeldIdle plays drawn reports beside a model that keeps every one of them.
func TestHeldIdle(t *testing.T) {
	pods := []Pod{{"ml", "train", "main"}, {"ml", "train", "sidecar"}, {"ml", "notebook", "main"}, {"web", "train", "main"}}
	type gpu struct {
		since time.Time // zero while it works, or does not tell
		first bool      // idle since it was first heard of
		known bool
		pods  map[Pod]bool
	}
	rapid.Check(t, func(t *rapid.T) {
		cfg := DefaultConfig()
		cfg.MissingAfter = cfg.NodeExpiry
		s := New(cfg)
		model := map[Key]map[string]*gpu{}
		now := t0
		for range rapid.IntRange(1, 40).Draw(t, "reports") {
			now = now.Add(time.Duration(rapid.IntRange(1, 60).Draw(t, "seconds")) * time.Second)
			k := Key{"c", fmt.Sprintf("n%d", rapid.IntRange(0, 1).Draw(t, "node"))}
			id := fmt.Sprintf("GPU-%s-%d", k.Node, rapid.IntRange(0, 2).Draw(t, "gpu"))
			use := rapid.SampledFrom([]float64{0, 0.009, 0.01, 0.5, 1, math.NaN()}).Draw(t, "utilisation")
			pod := rapid.SampledFrom(pods).Draw(t, "pod")
			holds := rapid.Bool().Draw(t, "holds")

			u, ok := s.Begin(k, now)
			require.True(t, ok)
			i := u.GPU(id)
			u.SetUp(i, 1, "ok")
			u.SetGPU(i, reading.Utilization, use)
			u.SetPod(i, pod, holds, false)
			u.Commit(now)

			if model[k] == nil {
				model[k] = map[string]*gpu{}
			}
			g := model[k][id]
			if g == nil {
				g = &gpu{pods: map[Pod]bool{}}
				model[k][id] = g
			}
			g.pods[pod] = holds
			switch {
			case !(use < 0.01):
				g.since, g.first = time.Time{}, false
			case g.since.IsZero():
				g.since, g.first = now, !g.known
			}
			g.known = true
		}

		least := time.Duration(rapid.IntRange(0, 5).Draw(t, "minutes")) * time.Minute
		type row struct {
			node, namespace, pod string
			held                 int
			idle                 time.Duration
			gpus                 []string
		}
		var want, got []row
		for k, gpus := range model {
			of := map[[2]string]*row{}
			for id, g := range gpus {
				seen := map[[2]string]bool{}
				for p, holds := range g.pods {
					name := [2]string{p.Namespace, p.Name}
					if !holds || seen[name] {
						continue
					}
					seen[name] = true
					if of[name] == nil {
						of[name] = &row{node: k.Node, namespace: p.Namespace, pod: p.Name}
					}
					of[name].held++
					if idle := now.Sub(g.since); !g.since.IsZero() && idle >= least {
						of[name].idle += idle
						of[name].gpus = append(of[name].gpus, fmt.Sprintf("%s %v", id, g.first))
					}
				}
			}
			for _, r := range of {
				if len(r.gpus) > 0 {
					slices.Sort(r.gpus)
					want = append(want, *r)
				}
			}
		}
		list := s.HeldIdle(&Filter{}, now, least)
		for i, h := range list {
			r := row{node: h.Node, namespace: h.Namespace, pod: h.Pod, held: h.Held, idle: h.Idle}
			for _, g := range h.GPUs {
				r.gpus = append(r.gpus, fmt.Sprintf("%s %v", g.UUID, g.IdleBefore))
			}
			slices.Sort(r.gpus)
			got = append(got, r)
			if i > 0 {
				require.LessOrEqual(t, h.Idle, list[i-1].Idle, "the longest first")
			}
		}
		require.ElementsMatch(t, want, got)
	})
}

// TestASilentNodeIsNotIdle: a silent node may still work.
func TestASilentNodeIsNotIdle(t *testing.T) {
	s := New(DefaultConfig())
	u, _ := s.Begin(Key{"c", "n"}, t0)
	i := u.GPU("GPU-a")
	u.SetGPU(i, reading.Utilization, 0)
	u.SetPod(i, Pod{"ml", "train", "main"}, true, true)
	u.Commit(t0)
	require.Len(t, s.HeldIdle(&Filter{}, t0.Add(20*time.Second), 10*time.Second), 1)
	require.Empty(t, s.HeldIdle(&Filter{}, t0.Add(time.Hour), 10*time.Minute))
}
