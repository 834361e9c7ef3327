// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// Scenario is a model with a fault, and how much of it makes a sample.
type Scenario struct {
	ID, Name string
	Model    Model
	Fault    Fault
	Nodes    int
	// Length of one run; the fault comes at Begin and lasts For, or to the end
	// if that is 0.
	Length, Begin, For time.Duration
	// Warmup is counted apart: the scale, the autocorrelation and each node's
	// bias are still being learnt.
	Warmup time.Duration
	// Runs make a sample.
	Runs int
	// Recording takes the place of the model.
	Recording *Recording

	Promise Promise
}

// Promise is what the product's decider has to keep in a scenario. The zero
// value of a limit is no promise, but for Events and FalseOnsets.
type Promise struct {
	// FalseOnsets per node-day at most.
	FalseOnsets float64
	// Recall at least, of the faults found Within.
	Recall float64
	Within time.Duration
	// Delay50 is the median delay at most.
	Delay50 time.Duration
	// Events is the number of group incidents of each run.
	Events int
	// Gap says that the figures are a known gap: measured, published, and
	// without a limit.
	Gap bool
}

const (
	standardWarmup = time.Hour
	standardLength = 12 * time.Hour
	standardBegin  = 6 * time.Hour
	standardFor    = 3 * time.Hour
)

// promise10 is the promise for losses of 10 % and more, promiseMass for such losses of
// many nodes at once. promiseSlow is for losses that show slowly, promise5 for 5 %.
var (
	promise10   = Promise{FalseOnsets: 0.01, Recall: 0.99, Within: time.Hour, Delay50: time.Minute}
	promiseMass = Promise{FalseOnsets: 0.01, Recall: 0.99, Within: time.Hour, Delay50: time.Minute, Events: 1}
	promiseSlow = Promise{FalseOnsets: 0.01, Recall: 0.99, Within: time.Hour}
	promise5    = Promise{FalseOnsets: 0.01, Recall: 0.95, Within: 10 * time.Minute}
)

// standard is a scenario of 64 nodes: six of them lose a share for three hours.
func standard(id, name string, m Model, loss float64, p Promise) Scenario {
	return Scenario{
		ID: id, Name: name, Model: m, Fault: Fault{Nodes: 6, Loss: loss}, Promise: p,
		Nodes: 64, Warmup: standardWarmup, Length: standardLength, Begin: standardBegin, For: standardFor,
		Runs: 25,
	}
}

func (s Scenario) with(change func(*Scenario)) Scenario {
	change(&s)
	return s
}

// correlated is the noise of most scenarios: what a score over the last 60 s
// has when it is pushed each 10 s.
func correlated(sigma float64) Model { return Model{Sigma: sigma, Phi: 0.8} }

// All are the scenarios in the order of the table.
func All() []Scenario {
	biased := correlated(0.01)
	biased.Bias = 0.01
	two := func(share float64, labelled bool) Model {
		m := correlated(0.01)
		m.Jobs, m.Labelled = []Job{{share, 0.95}, {1 - share, 0.60}}, labelled
		return m
	}
	quantised := correlated(0.01)
	// Most values are 0.95 and some 0.90: more than half are tied.
	quantised.Quantum, quantised.Jobs = 0.05, []Job{{1, 0.935}}
	drifting := correlated(0.01)
	drifting.Drift = 0.20
	dips := correlated(0.01)
	dips.Dip = Dip{Every: 30 * time.Minute, For: time.Minute, Depth: 0.4}
	skewed := dips
	skewed.Dip.Skewed = true
	// Evaluation, data loading or a longer sequence: all do less for minutes.
	phases := correlated(0.01)
	phases.Dip = Dip{Every: 40 * time.Minute, For: 10 * time.Minute, Depth: 0.25}
	glitches := correlated(0.01)
	glitches.Glitch = 0.002
	windowed := Model{Sigma: 0.0245, Window: 6} // 1 % once averaged over six
	role := func(share float64) Model {
		m := correlated(0.01)
		m.RoleBias, m.RoleEvery = share, 8
		return m
	}
	labelled := correlated(0.01)
	labelled.Labelled = true
	restless := correlated(0.01)
	restless.Restless = 2
	hard := Model{Sigma: 0.015, Phi: 0.95, Bias: 0.01}

	// The fleets whose nodes are not alike.
	loud, unequal, apart, four := correlated(0.01), correlated(0.01), correlated(0.01), correlated(0.01)
	loud.Loud, loud.LoudEvery = 3, 8
	unequal.SigmaSpread = 0.5
	apart.Bias = 0.03
	four.Others = []Other{
		{Signal: nodesignal.Compute, Level: 0.93, Sigma: 0.01, Phi: 0.95},
		{Signal: nodesignal.CPU, Level: 0.95, Sigma: 0.03, Phi: 0.9},
		{Signal: nodesignal.Interconnect, Level: 1},
	}
	sample := func(s Scenario) Scenario {
		s.Runs = 15 // 400 node-days
		return s
	}

	// As many as leave no job with an incident.
	few := func(s Scenario) Scenario {
		s.Fault.Nodes, s.Runs = 2, 50
		return s
	}
	small := func(id, name string, nodes int, faulty float64, runs int) Scenario {
		return standard(id, name, labelled, 0.10, promise10).with(func(s *Scenario) {
			s.Nodes, s.Fault.Nodes, s.Runs = nodes, faulty, runs
		})
	}
	return []Scenario{
		standard("01", "iid noise 1 %, loss 10 %", Model{Sigma: 0.01}, 0.10, promise10),
		standard("02", "AR .8 noise 1 %, loss 10 %", correlated(0.01), 0.10, promise10),
		standard("03", "as 02, each node off by 1 %", biased, 0.10, promise10),
		// The hardest to promise both for, so the largest sample.
		standard("04", "AR .8 noise 2 %, loss 5 %", correlated(0.02), 0.05, promise5).with(func(s *Scenario) { s.Runs = 60 }),
		standard("05", "AR .8 noise 1 %, loss 20 %", correlated(0.01), 0.20, promise10),
		standard("06", "steps of 0.05, loss 10 %", quantised, 0.10, promise10),
		few(standard("07", "two jobs 50/50, no labels, loss 10 %", two(0.5, false), 0.10, promise10)),
		few(standard("07L", "as 07, jobs labelled", two(0.5, true), 0.10, promise10)),
		few(standard("08", "two jobs 70/30, no labels, loss 10 %", two(0.7, false), 0.10, promise10)),
		few(standard("08L", "as 08, jobs labelled", two(0.7, true), 0.10, promise10)),
		standard("09", "nodes drift 4 % an hour", correlated(0.01), 0.04, Promise{FalseOnsets: 0.01, Recall: 0.99, Within: 4 * time.Hour}).with(func(s *Scenario) {
			s.Fault.Drift, s.Fault.Nodes, s.For = true, 3, 0
		}),
		standard("10", "fleet drifts 20 % a day, loss 10 %", drifting, 0.10, promise10),
		standard("11", "checkpoint dips of 40 %, loss 10 %", dips, 0.10, promise10),
		standard("11s", "as 11, edges between pushes", skewed, 0.10, promise10),
		standard("12", "glitches .2 % of ticks, loss 15 %", glitches, 0.15, promise10),
		standard("13", "30 % of nodes lose 20 %", correlated(0.01), 0.20, promiseMass).with(func(s *Scenario) {
			s.Fault.Nodes = 0.30
		}),
		standard("13b", "55 % of nodes lose 20 %", correlated(0.01), 0.20, Promise{FalseOnsets: 0.01, Events: 1}).with(func(s *Scenario) {
			s.Fault.Nodes = 0.55
		}),
		small("14", "5 nodes, loss 10 %", 5, 1, 200),
		small("15", "8 nodes, loss 10 %", 8, 1, 150),
		small("16", "16 nodes, loss 10 %", 16, 2, 80),
		standard("17", "10,000 nodes, loss 10 %", correlated(0.01), 0.10, promise10).with(func(s *Scenario) {
			s.Nodes, s.Fault.Nodes, s.Runs = 10_000, 60, 2
			s.Length, s.Begin, s.For = 150*time.Minute, 105*time.Minute, 0
		}),
		standard("18", "AR .95 noise 1.5 %, each off by 1 %", hard, 0.10, Promise{FalseOnsets: 0.2, Recall: 0.99, Within: time.Hour}),
		standard("19", "mean over 60 s, loss 10 %", windowed, 0.10, promiseSlow),
		standard("20", "AR .8 noise 1 %, loss 5 %", correlated(0.01), 0.05, promise5),
		standard("21", "noise of 1 and 2 % by turns, loss 10 %", restless, 0.10, promiseSlow),
		standard("22", "AR .8 noise .3 %, loss 5 %", correlated(0.003), 0.05, promise5),
		standard("23", "each 8th rank does 3 % less by design", role(0.03), 0.10, Promise{Gap: true}),
		standard("24", "each 8th rank does 6 % less by design", role(0.06), 0.10, Promise{Gap: true}),
		sample(standard("25", "each 8th node has noise of 3 %, the others 1 %", loud, 0.10, promiseSlow)),
		sample(standard("26", "noise of 1 % in the median, log-normal", unequal, 0.10, promiseSlow)),
		sample(standard("27", "white and AR .98 noise of 1 % each", Model{Sigma: 0.01, Phi: 0.98, White: 0.01}, 0.10, promiseSlow)),
		sample(standard("28", "white noise 1.5 %, AR .99 1.2 %", Model{Sigma: 0.012, Phi: 0.99, White: 0.015}, 0.10, Promise{Gap: true})),
		sample(standard("29", "AR .98 noise 1.5 %", Model{Sigma: 0.015, Phi: 0.98}, 0.10, Promise{Gap: true})),
		sample(standard("30", "each node off by 3 %", apart, 0.10, Promise{Gap: true})),
		standard("31", "sticky load balancer: AR .97 noise 10 %, loss 60 %", Model{Sigma: 0.10, Phi: 0.97}, 0.60, promiseSlow).with(func(s *Scenario) {
			s.Nodes, s.Fault.Nodes, s.Runs = 16, 1, 80
		}),
		sample(standard("32", "four signals at once", four, 0.10, promise10)),
		sample(standard("33", "phases of 25 % for 10 min each 40, loss 10 %", phases, 0.10, promise10)),
	}
}

// faultTicks are the first tick of the fault and the one after its last.
func (s *Scenario) faultTicks() (begin, end int) {
	begin, end = int(s.Begin/Interval), int(s.Length/Interval)
	if s.For > 0 {
		end = begin + int(s.For/Interval)
	}
	return begin, end
}

// Quick is a short run of the scenario, for a test: two and a half hours
// instead of twelve, and 45 minutes with the fault; a drift has 90.
func (s Scenario) Quick(runs int) Scenario {
	s.Runs = runs
	if s.Length == standardLength {
		s.Length, s.Begin = 150*time.Minute, 90*time.Minute
		if s.For > 0 {
			s.For = 45 * time.Minute
		} else {
			s.Length += 30 * time.Minute
		}
	}
	return s
}
