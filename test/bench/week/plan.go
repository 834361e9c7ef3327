// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
)

// cause is a sort of failure, how often it was counted, and what the simulator has of it.
type cause struct {
	name  string
	count float64
	kinds []fleetsim.Kind
	xid   float64 // of kind xid
}

// causes are the unexpected interruptions of 54 days of Llama 3's training on 16,384 H100,
// by root cause: "The Llama 3 Herd of Models", arXiv 2407.21783, table 5. Of its 419 these
// have a model here. Software, maintenance, watchdogs and silent corruption end a job, or
// show nowhere. That study counts a faulty NVLink as a faulty GPU.
var causes = []cause{
	{name: "faulty GPU", count: 148, kinds: []fleetsim.Kind{fleetsim.LostGPU, fleetsim.NVLink}},
	{name: "HBM3", count: 72, kinds: []fleetsim.Kind{fleetsim.ECC}},
	{name: "network switch or cable", count: 35, kinds: []fleetsim.Kind{fleetsim.PortDown, fleetsim.PortFlaps}},
	{name: "SRAM", count: 19, kinds: []fleetsim.Kind{fleetsim.XidError}, xid: 48},
	{name: "GPU system processor", count: 17, kinds: []fleetsim.Kind{fleetsim.XidError}, xid: 119},
	{name: "network adapter", count: 7, kinds: []fleetsim.Kind{fleetsim.PortErrors, fleetsim.PortLoss}},
	{name: "thermal interface", count: 6, kinds: []fleetsim.Kind{fleetsim.ThermalThrottle}},
	{name: "SSD", count: 3, kinds: []fleetsim.Kind{fleetsim.Input}},
	{name: "power supply", count: 3, kinds: []fleetsim.Kind{fleetsim.Brake}},
	{name: "CPU", count: 2, kinds: []fleetsim.Kind{fleetsim.CPU}},
}

const studyGPUHours = 16_384 * 54 * 24

// Slow faults, by job: FALCON, arXiv 2410.12588. 40 % of its jobs had slow communication,
// 24 minutes in the mean, 2 % slow computing, 10 minutes.
const (
	slowLink, slowComputer = "slow link", "slow computing"

	slowLinks, slowLinkTime         = 0.40, 24 * time.Minute
	slowComputing, slowComputedTime = 0.02, 10 * time.Minute
)

const (
	jobNodes = 64 // as fleetsim deals them
	// Nobody is judged in the first hour, and what begins in the last cannot be told of.
	settle, tail = time.Hour, 30 * time.Minute
	// A node with a broken part is worked on for so long, at least and at most: our
	// judgement. Then it is as new.
	leastRepair, mostRepair = time.Hour, 4 * time.Hour
	// grace is for how long after a fault an alert is still about it, as in make eval.
	grace = 15 * time.Minute
)

// fault is one that is played.
type fault struct {
	fleetsim.Fault
	node  int
	cause string
}

// flag is the fault as fleetsim's -fault has it.
func (f *fault) flag() string {
	where := strconv.Itoa(f.node)
	if f.GPU != fleetsim.AllGPUs {
		where += ":" + strconv.Itoa(f.GPU)
	}
	text := fmt.Sprintf("%s:%s@%s-%s", f.Kind, where, f.From, f.Until)
	if f.Severity > 0 {
		text += "=" + strconv.FormatFloat(f.Severity, 'g', 4, 64)
	}
	return text
}

// roll is a restart of a tier.
type roll struct {
	at   time.Duration
	tier string
	kill bool // by SIGKILL, as a crash; else as an upgrade
}

// setup is the fleet and how long it runs.
type setup struct {
	Nodes, GPUs int
	Days        float64
	Rate        float64 // times the published rates per GPU-hour
	Runs        time.Duration
	Seed        uint64
}

func (s *setup) length() time.Duration { return time.Duration(s.Days * 24 * float64(time.Hour)) }

// draw makes the plan of a run: the faults by their begin, and the restarts.
func draw(s *setup) (faults []fault, rolls []roll) {
	r := rand.New(rand.NewPCG(s.Seed, 0x7765656b))
	room := s.length() - settle - tail
	busy := make([]time.Duration, s.Nodes) // until when the node has a fault
	add := func(f *fault) {
		// A node with two faults at once could not tell which one was found.
		if f.From > busy[f.node] {
			busy[f.node] = f.Until + grace
			faults = append(faults, *f)
		}
	}
	var all []fault
	hours := room.Hours() * float64(s.Nodes*s.GPUs)
	for _, c := range causes {
		for range poisson(r, s.Rate*c.count/studyGPUHours*hours) {
			f := fault{cause: c.name, node: r.IntN(s.Nodes)}
			f.Kind, f.Severity, f.GPU = c.kinds[r.IntN(len(c.kinds))], c.xid, r.IntN(s.GPUs)
			if f.Kind == fleetsim.Input || f.Kind == fleetsim.CPU {
				f.GPU = fleetsim.AllGPUs
			}
			f.From = settle + time.Duration(r.Float64()*float64(room))
			f.Until = f.From + leastRepair + time.Duration(r.Float64()*float64(mostRepair-leastRepair))
			all = append(all, f)
		}
	}
	jobs := room.Hours() / s.Runs.Hours() * float64(max(1, s.Nodes/jobNodes))
	slow := func(name string, share float64, mean time.Duration, kind fleetsim.Kind, least, most float64) {
		for range poisson(r, share*jobs) {
			f := fault{cause: name, node: r.IntN(s.Nodes)}
			f.Kind, f.GPU, f.Severity = kind, r.IntN(s.GPUs), least+r.Float64()*(most-least)
			if kind == fleetsim.SlowNode {
				f.GPU = fleetsim.AllGPUs
			}
			f.From = settle + time.Duration(r.Float64()*float64(room))
			f.Until = f.From + max(time.Minute, time.Duration(r.ExpFloat64()*float64(mean)))
			all = append(all, f)
		}
	}
	// Of a port 0.4 to 0.8 of its rate is 10 to 37 % of the node's speed.
	slow(slowLink, slowLinks, slowLinkTime, fleetsim.PortSlow, 0.4, 0.8)
	slow(slowComputer, slowComputing, slowComputedTime, fleetsim.SlowNode, 0.1, 0.4)
	slices.SortFunc(all, func(a, b fault) int { return cmp.Compare(a.From, b.From) })
	for i := range all {
		f := &all[i]
		f.From, f.Until = f.From.Truncate(time.Second), f.Until.Truncate(time.Second)
		add(f)
	}
	// A crash of the gateway each day, and one upgrade of all tiers: at least one of each.
	for range max(1, int(s.Days)) {
		rolls = append(rolls, roll{at: settle + time.Duration(r.Float64()*float64(room)), tier: "gateway", kill: true})
	}
	upgrade := settle + time.Duration(r.Float64()*float64(room))
	rolls = append(rolls, roll{at: upgrade, tier: "gateway"}, roll{at: upgrade + 5*time.Minute, tier: "shard"})
	slices.SortFunc(rolls, func(a, b roll) int { return cmp.Compare(a.at, b.at) })
	return faults, rolls
}

// poisson draws a number of events by its mean.
func poisson(r *rand.Rand, mean float64) (n int) {
	for at := r.ExpFloat64(); at < mean; at += r.ExpFloat64() {
		n++
	}
	return n
}
