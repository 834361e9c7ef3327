// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// simulation is a group whose nodes' throughput varies like a job's. test/scenarios
// has the whole set and the figures; these few keep the engine's own tests honest.
type simulation struct {
	nodes    int
	sd, phi  float64
	bias     float64
	hours    float64
	level    func(node, tick int) float64
	mutate   func(node, tick int, x float64) float64
	peers    []string
	faulty   func(node int) bool
	from     int // tick of the fault
	score    bool
	config   func(*Config)
	messages []Event

	last        *Report
	falseOnsets int
	found       map[string]int // ticks from the fault to the event
	flagged     map[string]int // ticks from the fault to the verdict
	healthy     int            // node-ticks a healthy node was flagged
}

func (s *simulation) run(t *testing.T, seed uint64) {
	f := newFleet(t, s.config)
	rng := rand.New(rand.NewPCG(seed, 7))
	noise, bias := make([]float64, s.nodes), make([]float64, s.nodes)
	for i := range bias {
		bias[i] = s.bias * rng.NormFloat64()
		noise[i] = s.sd * rng.NormFloat64()
	}
	s.found, s.flagged = map[string]int{}, map[string]int{}
	names := make([]string, s.nodes)
	for i := range names {
		names[i] = fmt.Sprintf("n%04d", i)
	}
	for tick := range int(s.hours * 360) {
		for i := range s.nodes {
			noise[i] = s.phi*noise[i] + s.sd*math.Sqrt(1-s.phi*s.phi)*rng.NormFloat64()
			x := 0.9
			if s.level != nil {
				x = s.level(i, tick)
			}
			x *= 1 + noise[i] + bias[i]
			if s.mutate != nil {
				x = s.mutate(i, tick, x)
			}
			o := Observation{Cluster: "c", Node: names[i], Peers: s.peers, State: StateActive, HasState: true}
			if s.score {
				o.Score, o.HasScore = min(max(x, 0), 1), true
			} else {
				o.Values = throughput(max(x, 0) * 1000)
			}
			require.NoError(t, f.e.Observe(&o, f.now))
		}
		r := f.tick()
		s.last = r
		for _, ev := range r.Events {
			s.messages = append(s.messages, ev)
			if ev.Kind == EventOnset && ev.Subject == SubjectNode {
				if i := indexOf(ev.Node); s.faulty != nil && s.faulty(i) && tick >= s.from {
					if _, ok := s.found[ev.Node]; !ok {
						s.found[ev.Node] = tick - s.from + 1
					}
				} else {
					s.falseOnsets++
				}
			}
		}
		for _, n := range r.Nodes {
			if !n.Straggler {
				continue
			}
			if s.faulty != nil && s.faulty(indexOf(n.Node)) && tick >= s.from {
				if _, ok := s.flagged[n.Node]; !ok {
					s.flagged[n.Node] = tick - s.from + 1
				}
			} else {
				s.healthy++
			}
		}
	}
}

func indexOf(node string) (i int) {
	_, _ = fmt.Sscanf(node, "n%d", &i)
	return i
}

func onsets(events []Event, s Subject) (of []Event) {
	for _, e := range events {
		if e.Kind == EventOnset && e.Subject == s {
			of = append(of, e)
		}
	}
	return of
}

func slowBy(share float64, faulty func(int) bool, from int) func(int, int, float64) float64 {
	return func(node, tick int, x float64) float64 {
		if tick >= from && faulty(node) {
			return x * (1 - share)
		}
		return x
	}
}

func first(n int) func(int) bool { return func(i int) bool { return i < n } }

func TestSimulated(t *testing.T) {
	const from = 720
	dip := func(_, tick int) float64 {
		if tick%180 < 6 {
			return 0.5
		}
		return 0.9
	}
	twoJobs := func(share float64) func(int, int) float64 {
		return func(i, _ int) float64 {
			if i < int(share*64) {
				return 0.95
			}
			return 0.60
		}
	}
	for name, tc := range map[string]struct {
		sim      simulation
		faults   int
		loss     float64
		maxTicks int
	}{
		"01 iid":        {simulation{sd: 0.01}, 1, 0.10, 4},
		"02 correlated": {simulation{sd: 0.01, phi: 0.8}, 1, 0.10, 6},
		"03 biased":     {simulation{sd: 0.01, phi: 0.8, bias: 0.01}, 1, 0.10, 8},
		// Under 2 % both kinds of mistakes happen: test/scenarios says how often.
		"04 5 % under 1.5 %": {simulation{sd: 0.015, phi: 0.8, hours: 6}, 1, 0.05, 60},
		"06 quantised":       {simulation{sd: 0.01, phi: 0.8, mutate: func(_, _ int, x float64) float64 { return math.Round(x/0.05) * 0.05 }}, 1, 0.10, 10},
		"07 two jobs 50/50":  {simulation{sd: 0.01, phi: 0.8, level: twoJobs(0.5)}, 1, 0.10, 6},
		"08 two jobs 70/30":  {simulation{sd: 0.01, phi: 0.8, level: twoJobs(0.7)}, 1, 0.10, 6},
		"11 checkpoint dips": {simulation{sd: 0.01, phi: 0.8, level: dip}, 1, 0.10, 8},
		"14 five nodes":      {simulation{nodes: 5, sd: 0.01, phi: 0.8, hours: 12}, 1, 0.10, 7},
		"17 many nodes":      {simulation{nodes: 1000, sd: 0.01, phi: 0.8, hours: 2.5}, 1, 0.10, 5},
	} {
		for _, score := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s score=%v", name, score), func(t *testing.T) {
				s := tc.sim
				s.score = score
				if s.nodes == 0 {
					s.nodes = 64
				}
				if s.hours == 0 {
					s.hours = 3
				}
				s.faulty, s.from = first(tc.faults), from
				slow := slowBy(tc.loss, s.faulty, from)
				if quantise := s.mutate; quantise != nil {
					s.mutate = func(i, tick int, x float64) float64 { return quantise(i, tick, slow(i, tick, x)) }
				} else {
					s.mutate = slow
				}
				s.run(t, 1)
				assert.Zero(t, s.falseOnsets)
				assert.Zero(t, s.healthy)
				assert.Empty(t, onsets(s.messages, SubjectGroup))
				require.Len(t, s.found, tc.faults)
				for node, ticks := range s.found {
					assert.LessOrEqual(t, ticks, tc.maxTicks, node)
				}
			})
		}
	}
}

func TestSimulatedMassFaultIsOneEvent(t *testing.T) {
	for name, share := range map[string]float64{"30 %": 0.3, "55 %": 0.55} {
		t.Run(name, func(t *testing.T) {
			const from = 720
			faulty := first(int(share*64 + 0.5))
			s := simulation{nodes: 64, sd: 0.01, phi: 0.8, hours: 4, faulty: faulty, from: from, mutate: slowBy(0.2, faulty, from)}
			s.run(t, 3)
			require.Len(t, s.messages, 1)
			ev := s.messages[0]
			assert.Equal(t, SubjectGroup, ev.Subject)
			assert.Equal(t, nodesignal.Throughput, ev.Signal)
			assert.Equal(t, int(share*64+0.5), ev.NodeCount)
			assert.Zero(t, s.healthy)
			assert.Len(t, s.flagged, ev.NodeCount)
			assert.InDelta(t, 0.2, ev.Gap, 0.05)
		})
	}
}
