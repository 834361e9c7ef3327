// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// early is a group some of whose nodes turn slow while it is still young: the first of them,
// each by a loss of its own.
type early struct {
	Nodes, Slow      int
	Tick             time.Duration
	Sigma, Phi, Bias float64
	Labelled         bool
	Calibrates       time.Duration // for how long a node that has come tells no value
	losses           []float64
	begin, first     []time.Duration // of each slow node's loss, and of each node's first report
	found            []time.Duration // after so long, of each slow node; 0 is never
	wrong            int             // onsets of healthy nodes
}

const earlyFor = 10 * time.Minute

func drawEarly(d *rand.Rand) *early {
	uniform := func(a, b float64) float64 { return a + (b-a)*d.Float64() }
	span := func(most time.Duration) time.Duration { return time.Duration(d.Float64() * float64(most)) }
	e := &early{
		Nodes: 30 + d.IntN(171), Sigma: 0.003 * math.Pow(10, d.Float64()), Phi: uniform(0, 0.85), Bias: uniform(0, 0.01),
		Labelled: d.IntN(3) == 0, Tick: []time.Duration{time.Second, 5 * time.Second, 10 * time.Second}[d.IntN(3)],
	}
	if e.Slow = 1; d.IntN(4) > 0 {
		e.Slow = max(1, int(uniform(0.01, 0.06)*float64(e.Nodes)+0.5))
	}
	for range e.Slow {
		e.losses, e.begin = append(e.losses, uniform(0.08, 0.2)), append(e.begin, span(time.Minute))
	}
	within := 2 * e.Tick
	if d.IntN(3) == 0 {
		within = span(time.Minute) // they come one by one
	}
	if d.IntN(3) == 0 {
		e.Calibrates = span(time.Minute)
	}
	for range e.Nodes {
		e.first = append(e.first, span(within))
	}
	return e
}

// play plays the group, or the same without slow nodes.
func (p *early) play(t *testing.T, rng *rand.Rand, clean bool) {
	f := newFleet(t, nil)
	noise, bias := make([]float64, p.Nodes), make([]float64, p.Nodes)
	for i := range noise {
		bias[i], noise[i] = p.Bias*rng.NormFloat64(), p.Sigma*rng.NormFloat64()
	}
	p.found = make([]time.Duration, p.Slow)
	peers := []string{"job", "", "model"}
	if p.Labelled {
		peers[1] = "worker"
	}
	slow := func(i int) bool { return i < p.Slow && !clean }
	for at := time.Duration(0); at < earlyFor; at += p.Tick {
		for i := range p.Nodes {
			noise[i] = p.Phi*noise[i] + p.Sigma*math.Sqrt(1-p.Phi*p.Phi)*rng.NormFloat64()
			if at < p.first[i] {
				continue
			}
			o := Observation{Cluster: "c", Node: fmt.Sprintf("n%04d", i), Peers: peers, State: StateCalibrating, HasState: true}
			if at >= p.first[i]+p.Calibrates {
				x := 10 * (1 + noise[i]) * (1 + bias[i])
				if slow(i) && at >= p.begin[i] {
					x *= 1 - p.losses[i]
				}
				o.State, o.Values = StateActive, throughput(x)
			}
			require.NoError(t, f.e.Observe(&o, f.now))
		}
		r := f.e.Tick(f.now)
		f.now = f.now.Add(p.Tick)
		for _, n := range r.Nodes {
			if i := indexOf(n.Node); n.Straggler && slow(i) && p.found[i] == 0 {
				p.found[i] = max(at-max(p.begin[i], p.first[i]+p.Calibrates), 1)
			}
		}
		for _, ev := range onsets(r.Events, SubjectNode) {
			if !slow(indexOf(ev.Node)) {
				p.wrong++
			}
		}
	}
}

// TestSlowInAYoungGroup plays drawn groups. Nobody healthy is accused. At noise of 1 % and less
// 98 of a hundred slow nodes are found within five minutes of their first value, and 9 of ten at
// noise up to 3 %, where 98 of a hundred are within ten. Of those that are missed, most lie as
// close together as the nodes of a small job do.
func TestSlowInAYoungGroup(t *testing.T) {
	const seed, runs = 2026, 60
	type tally struct{ slow, soon, ever float64 }
	var quiet, noisy tally
	for run := range runs {
		d := rand.New(rand.NewPCG(seed, uint64(run)))
		p := drawEarly(d)
		noises := d.Uint64()
		p.play(t, rand.New(rand.NewPCG(noises, 0)), true)
		require.Zero(t, p.wrong, "without slow nodes: run %d, %+v", run, p)
		p.play(t, rand.New(rand.NewPCG(noises, 0)), false)
		require.Zero(t, p.wrong, "run %d, %+v", run, p)
		of := &quiet
		if p.Sigma > 0.01 {
			of = &noisy
		}
		for _, after := range p.found {
			of.slow++
			if after > 0 {
				of.ever++
			}
			if after > 0 && after <= 5*time.Minute {
				of.soon++
			}
		}
	}
	t.Logf("slow nodes, found in five minutes, in ten: %+v, under noise of more than 1 %%: %+v", quiet, noisy)
	require.Greater(t, min(quiet.slow, noisy.slow), float64(runs)/2)
	assert.GreaterOrEqual(t, quiet.soon, 0.98*quiet.slow)
	assert.GreaterOrEqual(t, noisy.soon, 0.9*noisy.slow)
	assert.GreaterOrEqual(t, noisy.ever, 0.98*noisy.slow)
}
