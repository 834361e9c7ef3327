// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

// Decider is one way of naming stragglers: the product's engine with settings.
type Decider struct {
	Name   string
	Config func() straggler.Config
	// Engine is the product's own: the families play it their clean forms too.
	Engine bool
}

// Deciders compared in every scenario, in the order of the table. The last is
// the product with its defaults.
func Deciders() []Decider {
	return []Decider{
		{Name: "threshold", Config: func() straggler.Config { return plain(0) }},
		// Ingero's agent enters on one tick and leaves at threshold + 0.02.
		{Name: "ingero-like", Config: func() straggler.Config { return plain(0.02) }},
		{Name: Product, Config: straggler.DefaultConfig, Engine: true},
	}
}

// Product is the name of the decider that the promises are about.
const Product = "cusum"

// plain is the published rule, score < EMA(median - 2*1.4826*MAD), on one tick
// and without the product's least gap and panic mode.
func plain(exitBand float64) straggler.Config {
	c := straggler.DefaultConfig()
	c.Decision = straggler.DecisionThreshold
	c.K, c.Alpha, c.MinGap = 2, 0.2, 0
	c.EnterTicks, c.LeaveTicks, c.ExitBand = 1, 1, exitBand
	c.PanicFraction = 1
	return c
}

// cluster of all the simulated nodes.
const cluster = "eval"

// lockstep is the reason for no verdict on nodes that all wait for the slowest.
const lockstep = "lockstep"

// epoch is when every simulation begins.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// driver feeds an engine as the gateway does: one observation per push, a tick
// per interval.
type driver struct {
	engine   *straggler.Engine
	interval time.Duration
	obs      []straggler.Observation
	lives    []uint32 // names that each node had before
	same     []bool   // nodes whose next push is a sign of life; may be nil
	from     fleet
	report   *straggler.Report
	// Nodes of which the last report says that they are in lockstep.
	lockstep int
	// Group incidents open, and the records of a log so far.
	incidents                 int
	nodeRecords, groupRecords int
}

// fleet is what a driver knows of the nodes besides their values.
type fleet interface {
	// more sets a node's signals besides the throughput.
	more(node int, v *nodesignal.Values)
	// peers are the values of a node's peer-group attributes.
	peers(node int) []string
	// scoreScale turns a value into a score.
	scoreScale() float64
}

func newDriver(cfg straggler.Config, nodes int, from fleet) *driver {
	return newDriverAt(cfg, Interval, nodes, from)
}

// newDriverAt is newDriver for nodes that push at another interval. The TTL is as
// many intervals as in the product.
func newDriverAt(cfg straggler.Config, interval time.Duration, nodes int, from fleet) *driver {
	cfg.TTL = cfg.TTL / Interval * interval
	d := &driver{
		engine: straggler.New(cfg), interval: interval, from: from,
		obs: make([]straggler.Observation, nodes), lives: make([]uint32, nodes),
	}
	for i := range d.obs {
		d.obs[i] = straggler.Observation{
			Cluster: cluster, Node: nodeName(i, 0), Peers: from.peers(i),
			State: nodesignal.StateActive, HasState: true,
		}
	}
	return d
}

func nodeName(i int, life uint32) string { return fmt.Sprintf("node-%05d-%d", i, life) }

// rename gives a node another name where it has begun another life.
func (d *driver) rename(lives []uint32) {
	for i, life := range lives {
		if d.lives[i] != life {
			d.lives[i], d.obs[i].Node = life, nodeName(i, life)
		}
	}
}

// nodeIndex is nodeName's inverse. It reports false for a name that its node had before.
func (d *driver) nodeIndex(name string) (int, bool) {
	node, life, _ := strings.Cut(name[len("node-"):], "-")
	i, err := strconv.Atoi(node)
	if err != nil {
		panic(err) // the name is ours
	}
	return i, life == strconv.FormatUint(uint64(d.lives[i]), 10)
}

// push tells the values of tick: as throughput, which the product compares,
// and as score, which the plain rules do. NaN is no push.
func (d *driver) push(tick int, values []float64) error {
	at := epoch.Add(time.Duration(tick) * d.interval)
	step := d.interval / time.Duration(len(values)+1)
	for i, v := range values {
		at = at.Add(step)
		switch {
		case math.IsNaN(v):
		case d.same != nil && d.same[i]:
			o := &d.obs[i]
			if err := d.engine.Observe(&straggler.Observation{Cluster: o.Cluster, Node: o.Node, Heartbeat: true}, at); err != nil {
				return err
			}
		default:
			if err := d.pushOne(i, v, at); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *driver) pushOne(i int, v float64, at time.Time) error {
	o := &d.obs[i]
	o.Score, o.HasScore = min(v*d.from.scoreScale(), 1), true
	o.Values.Set(nodesignal.Throughput, v)
	d.from.more(i, &o.Values)
	return d.engine.Observe(o, at)
}

// tick ends tick's interval, writes the verdicts to flagged and counts records.
func (d *driver) tick(tick int, flagged []bool) {
	d.report = d.engine.Tick(epoch.Add(time.Duration(tick+1) * d.interval))
	clear(flagged)
	d.lockstep = 0
	for i := range d.report.Nodes {
		n := &d.report.Nodes[i]
		if n.Unjudged.String() == lockstep {
			d.lockstep++
		}
		if n.Straggler {
			if at, alive := d.nodeIndex(n.Node); alive {
				flagged[at] = true
			}
		}
	}
	for i := range d.report.Events {
		switch e := &d.report.Events[i]; {
		case e.Subject == straggler.SubjectGroup && e.Kind == straggler.EventOnset:
			d.incidents++
			d.groupRecords++
		case e.Subject == straggler.SubjectGroup && e.Kind == straggler.EventEnd:
			d.incidents--
		case e.Subject == straggler.SubjectNode && e.Kind == straggler.EventOnset:
			d.nodeRecords++
		}
	}
}
