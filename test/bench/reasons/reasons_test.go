// SPDX-License-Identifier: Apache-2.0

// Package reasons measures how often the first reason that is given for a slow
// node is the right one. Faults are given to nodes of simulated jobs; reports,
// the agents' and the gateway's part are the real ones, time is simulated.
// `make bench-reasons` runs it in full and prints one figure to a line.
package reasons // import "github.com/gpu-collector/gpu-collector/test/bench/reasons"

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gpu-collector/gpu-collector/internal/reason"
	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

var (
	figures = flag.Bool("figures", false, "measure in full and print the figures")
	seed    = flag.Uint64("seed", 1, "which faults, where and when, and the noise")
	jobs    = flag.Int("jobs", 3, "jobs that a cause meets")
	each    = flag.Int("faults", 7, "faults that a cause gives to each job")
)

// minNamed is the promise: the share of episodes whose reason is right.
const minNamed = 0.95

const (
	nodesPerJob = 8
	many        = 3 // nodes: from there on it is an incident of their group
	gpusPerNode = 4

	warm  = 20 * time.Minute // until the gateway knows its nodes
	lasts = 12 * time.Minute // a fault
	calm  = 10 * time.Minute // after it, until the next of the job at least
	// grace is how long after its end an episode may still be the fault's: what
	// has begun to be seen at its end.
	grace = 2 * time.Minute
)

// cause is a kind of fault and how its reason is called.
type cause struct {
	kind fleetsim.Kind
	// low and high bound the severity, drawn evenly; codes are drawn instead
	// where there are some.
	low, high float64
	codes     []float64
	reasons   func(f *fleetsim.Fault) []reason.Reason
}

func always(r ...reason.Reason) func(*fleetsim.Fault) []reason.Reason {
	return func(*fleetsim.Fault) []reason.Reason { return r }
}

// causes cost from about 8 % of the speed, the least loss to be found, to most of
// it. fleetsim.ECCCorrected costs nothing and so has no episode to explain.
var causes = []cause{
	{kind: fleetsim.SlowNode, low: 0.08, high: 0.5, reasons: always(reason.Unexplained)},
	{kind: fleetsim.Drift, low: 0.5, high: 0.9, reasons: always(reason.Unexplained)},
	{kind: fleetsim.Flapping, low: 0.1, high: 0.5, reasons: always(reason.Unexplained)},
	{kind: fleetsim.ThermalThrottle, low: 0.5, high: 0.85, reasons: always("hw_thermal", "sw_thermal")},
	{kind: fleetsim.PowerLimit, low: 0.25, high: 0.6, reasons: always("sw_power_cap")},
	{kind: fleetsim.Brake, low: 0.1, high: 0.7, reasons: always("hw_power_brake")},
	{kind: fleetsim.ClockLock, low: 0.1, high: 0.6, reasons: always("sm_clock_low")},
	{kind: fleetsim.ECC, low: 0.1, high: 0.9, reasons: func(f *fleetsim.Fault) []reason.Reason {
		if f.Severity >= 0.8 { // a row that cannot be remapped
			return []reason.Reason{"row_remap_failed"}
		}
		return []reason.Reason{"gpu_memory_fault"}
	}},
	{kind: fleetsim.XidError, codes: []float64{46, 62, 95, 109, 119, 120, 140, 48, 94, 74, 145, 79}, reasons: ofXid},
	{kind: fleetsim.LostGPU, low: 1, high: 1, reasons: always("gpu_lost")},
	{kind: fleetsim.NVLink, low: 0.35, high: 1, reasons: always("nvlink_down")},
	{kind: fleetsim.NVLinkErrors, low: 0.35, high: 0.9, reasons: always("nvlink_errors")},
	{kind: fleetsim.PCIe, low: 0.3, high: 0.9, reasons: always("pcie_link_degraded")},
	{kind: fleetsim.PCIeSlow, low: 0.2, high: 0.8, reasons: always("pcie_link_degraded")},
	{kind: fleetsim.CPU, low: 0.2, high: 0.8, reasons: always("cpu_contention")},
	{kind: fleetsim.Steal, low: 0.2, high: 0.8, reasons: always("cpu_contention")},
	{kind: fleetsim.Input, low: 0.15, high: 0.8, reasons: always("input_starved")},
	{kind: fleetsim.PortDown, low: 0.35, high: 0.9, reasons: always("network_link_down")},
	{kind: fleetsim.PortSlow, low: 0.35, high: 0.9, reasons: always("network_link_slow")},
	{kind: fleetsim.PortFlaps, low: 0.35, high: 0.9, reasons: always("network_link_flap", "network_link_down")},
	{kind: fleetsim.PortErrors, low: 0.35, high: 0.9, reasons: always("network_errors")},
	{kind: fleetsim.PortLoss, low: 0.35, high: 0.9, reasons: always("network_retransmits")},
	{kind: fleetsim.Neighbour, low: 0.1, high: 0.6, reasons: always("noisy_neighbour")},
}

// ofLeaf are the causes that a switch, a rack's power or its cooling gives to many nodes.
func ofLeaf() (of []cause) {
	for i := range causes {
		switch causes[i].kind {
		case fleetsim.SlowNode, fleetsim.ThermalThrottle, fleetsim.Brake, fleetsim.PortSlow, fleetsim.PortErrors, fleetsim.PortLoss:
			of = append(of, causes[i])
		default:
		}
	}
	return of
}

// ofXid is by what NVIDIA asks for.
func ofXid(f *fleetsim.Fault) []reason.Reason {
	switch f.Severity {
	case 79:
		return []reason.Reason{"gpu_lost"}
	case 48, 94:
		return []reason.Reason{"gpu_memory_fault"}
	case 74, 145:
		return []reason.Reason{"nvlink_errors"}
	default:
		return []reason.Reason{"gpu_xid"}
	}
}

// draw makes one fault of the cause.
func (c *cause) draw(rng *rand.Rand, from time.Duration) fleetsim.Fault {
	f := fleetsim.Fault{Kind: c.kind, GPU: rng.IntN(gpusPerNode), From: from, Until: from + lasts}
	f.Severity = c.low + (c.high-c.low)*rng.Float64()
	if len(c.codes) > 0 {
		f.Severity = c.codes[rng.IntN(len(c.codes))]
	}
	// A fan or a setting is often one of all GPUs.
	all := rng.IntN(4) == 0 && c.kind != fleetsim.LostGPU && f.Severity != 79
	if all || f.Validate(gpusPerNode) != nil {
		f.GPU = fleetsim.AllGPUs
	}
	return f
}

// injection is a fault of one or more nodes of a job, with its truth.
type injection struct {
	nodes []int
	fault fleetsim.Fault
	want  []reason.Reason
	// right says whether an episode with that reason points at the right thing.
	right func(*onset) bool
	// got are the reasons of its episodes.
	got   []*onset
	delay time.Duration // of the first of them
}

// result of one cause, or of several.
type result struct {
	faults, raised, episodes, named int
	// told is how many faults had a right episode.
	told          int
	delays        []time.Duration
	wrong         map[string]int
	false, missed []string
	healthy       time.Duration // of all nodes
}

func (r *result) add(o *result) {
	r.faults, r.raised = r.faults+o.faults, r.raised+o.raised
	r.episodes, r.named = r.episodes+o.episodes, r.named+o.named
	r.delays = append(r.delays, o.delays...)
	r.false = append(r.false, o.false...)
	r.healthy += o.healthy
}

// explains reports whether the injection is what an episode is about.
func (in *injection) explains(o *onset) bool {
	if o.at <= in.fault.From || o.at > in.fault.Until+grace || len(o.nodes) == 0 {
		return false
	}
	return !slices.ContainsFunc(o.nodes, func(n int) bool { return !slices.Contains(in.nodes, n) })
}

// experiment gives the nodes of some jobs faults, one after the other to each
// job.
type experiment struct {
	name   string
	causes []cause // in turn
	// jobs and the faults of each; a fault hits atOnce nodes.
	jobs, faults, atOnce int
	noSteps              bool // jobs that do not push their step time
	// leaf gives the fault to the nodes of one leaf, but for those of one job. The jobs'
	// nodes with one place have one leaf.
	leaf bool
	seed uint64
}

// measure looks at what the gateway says.
func (e *experiment) measure(t *testing.T) *result {
	t.Helper()
	rng := rand.New(rand.NewPCG(e.seed, 7))
	cfg := fleetpush.Config{
		Nodes: e.jobs * nodesPerJob, GPUs: gpusPerNode, Ports: true, Jobs: e.jobs, Seed: e.seed, NoSteps: e.noSteps,
		Load: fleetsim.Training, Runs: 2 * time.Hour, Pause: 4 * time.Minute,
	}
	var injections []*injection
	end := warm
	for j := range e.jobs {
		if e.leaf && j > 0 {
			break // the first job's faults are those of all
		}
		var order []int // so that each node has its turn
		from := warm
		for i := range e.faults {
			from += time.Duration(rng.Int64N(int64(2 * time.Minute)))
			c := &e.causes[(j*e.faults+i)%len(e.causes)]
			in := &injection{fault: c.draw(rng, from)}
			in.want = c.reasons(&in.fault)
			if e.leaf {
				e.onLeaf(&cfg, in, rng.IntN(nodesPerJob))
				injections = append(injections, in)
				from += lasts + calm
				continue
			}
			if len(order) < e.atOnce {
				order = rng.Perm(nodesPerJob)
			}
			for _, n := range order[:e.atOnce] {
				in.nodes = append(in.nodes, j*nodesPerJob+n)
				cfg.Faults = append(cfg.Faults, fleetpush.Fault{Target: fleetsim.Target{Node: j*nodesPerJob + n}, Fault: in.fault})
			}
			order = order[e.atOnce:]
			injections = append(injections, in)
			from += lasts + calm
		}
		end = max(end, from)
	}
	f := newFleet(t, cfg)
	f.leaves = e.leaf
	f.run(t, end)
	f.shutdown(t)
	return f.judge(injections, end)
}

// onLeaf gives the fault to one leaf.
func (e *experiment) onLeaf(cfg *fleetpush.Config, in *injection, leaf int) {
	in.fault.GPU = fleetsim.AllGPUs
	for j := range e.jobs - 1 {
		n := j*nodesPerJob + leaf
		in.nodes = append(in.nodes, n)
		cfg.Faults = append(cfg.Faults, fleetpush.Fault{Target: fleetsim.Target{Node: n}, Fault: in.fault})
	}
	if in.want[0] == reason.Unexplained {
		in.want = []reason.Reason{reason.SharedPlace}
	}
	in.right = func(o *onset) bool { return o.leaf == "leaf="+leafName(leaf) }
}

// judge holds what was said against what was done.
func (f *fleet) judge(injections []*injection, end time.Duration) *result {
	r := &result{faults: len(injections), wrong: map[string]int{}}
	r.healthy = (end - warm) * time.Duration(f.nodes.Nodes())
	for i := range f.onsets {
		o := &f.onsets[i]
		i := slices.IndexFunc(injections, func(in *injection) bool { return in.explains(o) })
		if i < 0 {
			r.false = append(r.false, fmt.Sprintf("%+v", *o))
			continue
		}
		in := injections[i]
		if in.got == nil {
			in.delay = o.at - in.fault.From
		}
		in.got = append(in.got, o)
	}
	for _, in := range injections {
		r.healthy -= lasts * time.Duration(len(in.nodes))
		if len(in.got) > 0 {
			r.raised++
			r.delays = append(r.delays, in.delay)
		} else {
			r.missed = append(r.missed, fmt.Sprintf("%+v", in.fault))
		}
		told := r.named
		for _, got := range in.got {
			r.episodes++
			if slices.Contains(in.want, reason.Reason(got.reason)) && (in.right == nil || in.right(got)) {
				r.named++
			} else {
				r.wrong[fmt.Sprintf("%s of severity %.2f on GPU %d called %+v", in.fault.Kind, in.fault.Severity, in.fault.GPU, *got)]++
			}
		}
		if r.named > told {
			r.told++
		}
	}
	slices.Sort(r.delays)
	return r
}

func share(n, of int) float64 {
	return float64(n) / float64(of) // NaN is short
}

func (r *result) print(name string) {
	figure.Print("reasons_"+name+"_named", share(r.named, r.episodes), "1", minNamed, false)
	figure.FprintOnly(os.Stdout, "reasons_"+name+"_episodes", float64(r.episodes), "{episode}")
	figure.FprintOnly(os.Stdout, "reasons_"+name+"_raised", share(r.raised, r.faults), "1")
	if n := len(r.delays); n > 0 {
		figure.FprintOnly(os.Stdout, "reasons_"+name+"_delay_p50", r.delays[n/2].Seconds(), "s")
		figure.FprintOnly(os.Stdout, "reasons_"+name+"_delay_p90", r.delays[n*9/10].Seconds(), "s")
	}
}

// TestReasons is the measurement, in full with -figures.
func TestReasons(t *testing.T) {
	if !*figures {
		few := []cause{causes[3], causes[4], causes[7], causes[9]}
		e := &experiment{causes: few, jobs: 1, faults: len(few), atOnce: 1, seed: *seed}
		synctest.Test(t, func(t *testing.T) {
			r := e.measure(t)
			assert.Equal(t, len(few), r.raised)
			assert.Empty(t, r.wrong)
			assert.Empty(t, r.false)
		})
		return
	}
	var all []*experiment
	for i := range causes {
		all = append(all, &experiment{name: string(causes[i].kind), causes: causes[i : i+1], atOnce: 1})
	}
	all = append(all,
		&experiment{name: "mass", causes: causes, atOnce: many},
		&experiment{name: "leaf", causes: ofLeaf(), atOnce: 1, leaf: true},
		&experiment{name: "without_steps", causes: causes, atOnce: 1, noSteps: true})
	results := make([]*result, len(all))
	t.Run("experiments", func(t *testing.T) {
		for i, e := range all {
			e.jobs, e.faults, e.seed = *jobs, *each, *seed*100+uint64(i)
			if e.leaf {
				e.jobs, e.faults = nodesPerJob, *jobs**each/2
			}
			t.Run(e.name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { results[i] = e.measure(t) })
			})
		}
		for i, name := range slices.Sorted(maps.Keys(lockstepCauses)) {
			all, results = append(all, &experiment{name: name}), append(results, nil)
			at := len(results) - 1
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					results[at] = measureLockstep(t, lockstepCauses[name], *jobs**each, *seed*1000+uint64(i))
				})
			})
		}
	})
	report(all, results)
}

func report(all []*experiment, results []*result) {
	pooled := &result{}
	for i, r := range results {
		if r == nil { // left out by -run
			continue
		}
		r.print(all[i].name)
		if all[i].leaf {
			figure.Print("reasons_leaf_faults_named", share(r.told, r.faults), "1", 1, false)
		}
		for _, wrong := range slices.Sorted(maps.Keys(r.wrong)) {
			fmt.Printf("wrong: %d x %s\n", r.wrong[wrong], wrong)
		}
		for _, missed := range r.missed {
			fmt.Println("missed:", all[i].name, missed)
		}
		for _, o := range r.false {
			fmt.Println("false:", all[i].name, o)
		}
		if !all[i].noSteps {
			pooled.add(r)
		}
	}
	slices.Sort(pooled.delays)
	pooled.print("all")
	figure.FprintOnly(os.Stdout, "reasons_healthy_time", pooled.healthy.Hours()/24, "{node}.d")
	figure.Print("reasons_false_episodes", float64(len(pooled.false)), "{episode}", 0, true)
}
