// SPDX-License-Identifier: Apache-2.0

// Package scenarios plays fleets whose truth is known to the straggler engine
// and counts what it says: false alarms per node-day, recall and delay. Every
// scenario is a latent model with a seed, so whoever doubts a figure can rerun
// it, with other seeds too.
package scenarios // import "github.com/gpu-collector/gpu-collector/test/scenarios"

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// Interval is how often a node pushes and the engine ticks.
const Interval = 10 * time.Second

// perHour is the number of ticks of an hour.
const perHour = int(time.Hour / Interval)

// Model is how a healthy node's throughput comes about:
//
//	value = level * (1 + bias + noise) * common, rounded to the quantum
//
// All but the levels are fractions. The zero value is a fleet of one job
// without noise at level 0.9.
type Model struct {
	// Sigma is the standard deviation of the noise, Phi its autocorrelation
	// from one tick to the next. A mean over 60 s that is pushed each 10 s has
	// about 0.8.
	Sigma, Phi float64
	// White is the standard deviation of noise without memory on top of that.
	White float64
	// LoudEvery-th nodes have Loud times the noise, and SigmaSpread is the
	// standard deviation of the logarithm of each node's own.
	Loud        float64
	LoudEvery   int
	SigmaSpread float64
	// Others are signals besides the throughput, which no fault touches.
	Others []Other
	// Restless multiplies the noise in every second hour, as when a job goes
	// over to other work; 0 and 1 are none.
	Restless float64
	// Window is the number of ticks that a value is the moving mean of; 0 and 1
	// are the tick's own. A loss too comes to be known over that time.
	Window int
	// Bias is the standard deviation of what a node differs by for good. SC '22
	// ("Not All GPUs Are Created Equal") found 8 % between healthy boards.
	Bias float64
	// RoleBias is the share of the work that every RoleEvery-th node has less
	// time for by design, as ranks 0 that write logs and checkpoints.
	RoleBias  float64
	RoleEvery int
	// Quantum is the step of the values, as utilisation in whole percent; 0 is none.
	Quantum float64
	// Jobs of the nodes; none is one job at level 0.9.
	Jobs []Job
	// Labelled nodes name their job.
	Labelled bool
	// Drift of the whole fleet per day, as with the day's heat: Llama 3 saw 1 to 2 %.
	Drift float64
	// Dip is a pause of the whole fleet, as for a checkpoint.
	Dip Dip
	// Glitch is the probability per node and tick of one lost tick: it takes
	// a uniform 10 to 60 % of the value.
	Glitch float64
}

// Other is a signal of its own noise around a level, at most 1.
type Other struct {
	Signal            nodesignal.Signal
	Level, Sigma, Phi float64
}

// Job is a share of the nodes that work at one level.
type Job struct{ Share, Level float64 }

// Dip takes Depth of every value For this long Every so often. Skewed nodes each
// average over their own 10 s: the edges of a dip lie between their pushes. The dips
// of other nodes begin and end with the tick.
type Dip struct {
	Every, For time.Duration
	Depth      float64
	Skewed     bool
}

// Fault is what goes wrong with some of the nodes at a time.
type Fault struct {
	// Nodes that it hits, or the share of them if it is below 1; none is no fault.
	Nodes float64
	// Loss is the fraction lost from then on, or, of a drift, per hour.
	Loss  float64
	Drift bool
}

// world plays a model: next is each tick's values.
type world struct {
	m      Model
	fault  Fault
	begin  int // first tick of the fault
	end    int // first tick without it
	tick   int
	rng    *rand.Rand
	values []float64
	level  []float64
	bias   []float64
	noise  []float64
	loud   []float64 // factor of the noise
	others [][]float64
	phase  []float64   // of a node's push within the tick, in [0,1)
	past   [][]float64 // ring of the last values where they are averaged
	faulty []bool
	job    []int
}

func newWorld(m Model, f Fault, nodes, begin, end int, rng *rand.Rand) *world {
	w := &world{m: m, fault: f, begin: begin, end: end, rng: rng}
	if len(m.Jobs) == 0 {
		w.m.Jobs = []Job{{Share: 1, Level: 0.9}}
	}
	w.values, w.level, w.bias = make([]float64, nodes), make([]float64, nodes), make([]float64, nodes)
	w.noise, w.phase = make([]float64, nodes), make([]float64, nodes)
	w.loud, w.others = make([]float64, nodes), make([][]float64, len(m.Others))
	for k := range w.others {
		w.others[k] = make([]float64, nodes)
	}
	w.faulty, w.job = make([]bool, nodes), make([]int, nodes)
	share, j := w.m.Jobs[0].Share, 0
	for i := range nodes {
		if float64(i) >= share*float64(nodes) && j+1 < len(w.m.Jobs) {
			j++
			share += w.m.Jobs[j].Share
		}
		w.job[i], w.level[i] = j, w.m.Jobs[j].Level
		w.bias[i] = m.Bias * rng.NormFloat64()
		if m.RoleEvery > 0 && i%m.RoleEvery == 0 {
			w.bias[i] -= m.RoleBias
		}
		w.loud[i] = 1
		if m.LoudEvery > 0 && i%m.LoudEvery == 0 {
			w.loud[i] = m.Loud
		}
		if m.SigmaSpread > 0 {
			w.loud[i] *= math.Exp(m.SigmaSpread * rng.NormFloat64())
		}
		w.noise[i] = m.Sigma * rng.NormFloat64()
		w.phase[i] = rng.Float64()
	}
	for i := range max(m.Window, 1) - 1 {
		w.past = append(w.past, make([]float64, nodes))
		w.fill(w.past[i], -1)
	}
	hit := f.Nodes
	if hit < 1 {
		hit = math.Round(hit * float64(nodes))
	}
	for _, i := range rng.Perm(nodes)[:int(hit)] {
		w.faulty[i] = true
	}
	return w
}

// next returns the values of the next tick; they are valid until the one after.
func (w *world) next() []float64 {
	w.fill(w.values, w.tick)
	if n := len(w.past); n > 0 {
		oldest := w.past[w.tick%n]
		for i, v := range w.values {
			sum := v
			for _, p := range w.past {
				sum += p[i]
			}
			oldest[i] = v
			w.values[i] = sum / float64(n+1)
		}
	}
	if w.m.Quantum > 0 {
		for i, v := range w.values {
			w.values[i] = math.Round(v/w.m.Quantum) * w.m.Quantum
		}
	}
	for k, o := range w.m.Others {
		for i := range w.others[k] {
			w.others[k][i] = o.Phi*w.others[k][i] + o.Sigma*math.Sqrt(1-o.Phi*o.Phi)*w.rng.NormFloat64()
		}
	}
	w.tick++
	return w.values
}

func (w *world) fill(values []float64, tick int) {
	m := &w.m
	fresh := m.Sigma * math.Sqrt(1-m.Phi*m.Phi)
	loud := 1.0
	if m.Restless > 0 && tick/perHour%2 == 1 {
		loud = m.Restless
	}
	drift := 1 - m.Drift*float64(tick)/float64(24*perHour)
	for i := range values {
		w.noise[i] = m.Phi*w.noise[i] + fresh*w.rng.NormFloat64()
		noise := w.noise[i]
		if m.White > 0 {
			noise += m.White * w.rng.NormFloat64()
		}
		v := w.level[i] * (1 + w.bias[i] + loud*w.loud[i]*noise) * drift
		if m.Dip.Every > 0 {
			v *= 1 - m.Dip.Depth*w.paused(tick, i)
		}
		if w.faulty[i] && tick >= w.begin && tick < w.end {
			loss := w.fault.Loss
			if w.fault.Drift {
				loss *= float64(tick-w.begin+1) / float64(perHour)
			}
			v *= 1 - min(loss, 1)
		}
		if m.Glitch > 0 && w.rng.Float64() < m.Glitch {
			v *= 1 - (0.1 + 0.5*w.rng.Float64())
		}
		values[i] = max(v, 0)
	}
}

// paused is the share of a node's 10 s that lies in a dip.
func (w *world) paused(tick, node int) float64 {
	every, length := float64(w.m.Dip.Every/Interval), float64(w.m.Dip.For/Interval)
	// The fleet's dips end in the middle of every period.
	at := math.Mod(float64(tick)+every/2, every)
	if !w.m.Dip.Skewed {
		if at >= every-length {
			return 1
		}
		return 0
	}
	begin := at + w.phase[node] - 1 // the node averages over [begin, begin+1)
	return max(0, min(begin+1, every)-max(begin, every-length)) + max(0, min(begin+1, 0)-begin)
}

func (w *world) more(node int, v *nodesignal.Values) {
	for k, o := range w.m.Others {
		v.Set(o.Signal, min(max(o.Level+w.others[k][node], 0), 1))
	}
}

func (w *world) truth() []bool { return w.faulty }

func (w *world) scoreScale() float64 { return 1 }

func (w *world) peers(node int) []string {
	if !w.m.Labelled {
		return nil
	}
	return jobNames[w.job[node]]
}

var jobNames = [][]string{{"job-a"}, {"job-b"}}

// random is the source of one run of one scenario.
func random(seed uint64, scenario string, run int) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(scenario)) // never fails
	return rand.New(rand.NewPCG(seed, h.Sum64()+uint64(run)))
}
