// SPDX-License-Identifier: Apache-2.0

// Package fleetpush pushes the reports of simulated nodes as their agents would:
// what the nvml receiver reports of the GPUs of internal/fleetsim, what the
// straggler processor adds to it, over OTLP, with the headers by which
// thresholds come back.
package fleetpush // import "github.com/gpu-collector/gpu-collector/internal/fleetpush"

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"

	"github.com/gpu-collector/gpu-collector/internal/fleetsim"
	"github.com/gpu-collector/gpu-collector/internal/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
)

// Config of a Fleet.
type Config struct {
	// Nodes of GPUs each; defaults 1 and 8.
	Nodes, GPUs int
	// Cluster is the name of the one cluster, or what their names begin with.
	Cluster  string
	Clusters int
	// Jobs of each cluster, to which its nodes are dealt; a job's nodes are peers.
	// By default there is one for each 64 nodes.
	Jobs int
	Load fleetsim.Load
	Seed uint64
	// Step is the time between two reports of a node.
	Step time.Duration
	// Raw leaves out what an agent adds to its node's readings.
	Raw bool
	// Start is when the counters began.
	Start time.Time
}

const (
	maxNodes    = 1_000_000 // as many names as there are
	maxGPUs     = 64
	maxClusters = 100
	maxJobs     = 100_000
	jobNodes    = 64
)

// defaults fills what was left out.
func (c *Config) defaults() {
	def := func(v *int, to int) {
		if *v == 0 {
			*v = to
		}
	}
	def(&c.Nodes, 1)
	def(&c.GPUs, 8)
	def(&c.Clusters, 1)
	def(&c.Jobs, max(1, c.Nodes/max(1, c.Clusters)/jobNodes))
	if c.Cluster == "" {
		c.Cluster = "fleetsim"
	}
	if c.Step == 0 {
		c.Step = 10 * time.Second
	}
}

// Validate returns all mistakes of a Config, in which 0 stands for a default.
func (c *Config) Validate() error {
	var errs []error
	check := func(key string, v, least, most int) {
		if v < least || v > most {
			errs = append(errs, fmt.Errorf("%s is %d, must be between %d and %d", key, v, least, most))
		}
	}
	d := *c
	d.defaults()
	check("nodes", d.Nodes, 1, maxNodes)
	check("gpus", d.GPUs, 1, maxGPUs)
	check("clusters", d.Clusters, 1, min(maxClusters, max(1, d.Nodes)))
	check("jobs", d.Jobs, 1, min(maxJobs, max(1, d.Nodes/max(1, d.Clusters))))
	if !threshold.ValidName(d.Cluster) || len(d.Cluster) > 200 {
		errs = append(errs, fmt.Errorf("cluster is %q, must be 1 to 200 printable ASCII characters", d.Cluster))
	}
	if d.Step < 0 {
		errs = append(errs, fmt.Errorf("step is %s, must be more than 0s", d.Step))
	}
	return errors.Join(errs...)
}

// Fleet is a number of simulated nodes with their agents. Different nodes may be
// used at the same time.
type Fleet struct {
	cfg      Config
	spec     *fleetsim.Spec
	layout   *layout
	verdicts verdicts
	score    nodescore.Config
	plan     *nodescore.Plan
	gpuNames []string
	nodes    []node
	groups   []group
}

// node is one node. Its lock is for those who ask for its last report.
type node struct {
	mu        sync.Mutex
	sim       *fleetsim.Node
	group     int32
	had       []facts
	ticks     int64
	score     *nodescore.Node
	received  threshold.Received
	reachable bool

	// The last report.
	at       time.Time
	res      nodescore.Result
	told     bool // what it said of the gateway being reachable
	accepted bool
}

// group is the peers of one job.
type group struct {
	cluster, job, name string
	list               string // the name as a gpu-group header has it
	heard              atomic.Pointer[heard]
}

// heard is what an answer said, so that it is read once for all nodes of a group.
type heard struct {
	text   string
	values []threshold.Value
	err    error
}

// New makes a fleet.
func New(cfg Config) (*Fleet, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.defaults()
	f := &Fleet{cfg: cfg, spec: &fleetsim.H100, nodes: make([]node, cfg.Nodes)}
	f.score = nodescore.DefaultConfig()
	f.score.Interval, f.score.ReadingTTL = cfg.Step, 5*cfg.Step
	f.plan = nodescore.NewPlan(&f.score.Measures)
	f.deal()
	like := f.identity(0, new(identity))
	var err error
	if f.layout, err = compile(cfg.GPUs, like, f.plan); err != nil {
		return nil, err
	}
	if err := f.nameGroups(); err != nil {
		return nil, err
	}
	f.verdicts = verdicts{like: like, model: f.model()}
	for g := range cfg.GPUs {
		f.gpuNames = append(f.gpuNames, strconv.Itoa(g))
	}
	for i := range f.nodes {
		n := &f.nodes[i]
		n.sim = fleetsim.NewNode(f.spec, cfg.GPUs, cfg.Load, cfg.Seed+uint64(i)+1)
		n.had = make([]facts, cfg.GPUs)
		if !cfg.Raw {
			n.score = nodescore.NewNode(&f.score, f.plan)
		}
	}
	return f, nil
}

// deal gives each node its cluster and job: in order, as many to each.
func (f *Fleet) deal() {
	c := &f.cfg
	for cluster := range c.Clusters {
		name := c.Cluster
		if c.Clusters > 1 {
			name = fmt.Sprintf("%s-%02d", name, cluster)
		}
		for job := range c.Jobs {
			f.groups = append(f.groups, group{cluster: name, job: jobName(job)})
		}
	}
	for i := range f.nodes {
		f.nodes[i].group = int32(int64(i) * int64(len(f.groups)) / int64(len(f.nodes)))
	}
}

// nameGroups names the groups as the straggler processor does by default.
func (f *Fleet) nameGroups() error {
	for i := range f.groups {
		g := &f.groups[i]
		g.name = straggler.GroupKey([]string{g.job, "", f.model()})
		var err error
		if g.list, err = threshold.EncodeGroups([]string{g.name}); err != nil {
			return err
		}
	}
	return nil
}

// model is the GPUs' as a peer attribute.
func (f *Fleet) model() string { return strings.Join(strings.Fields(f.layout.product), "-") }

// Nodes returns how many nodes there are.
func (f *Fleet) Nodes() int { return len(f.nodes) }

// Step returns the time between two reports of a node.
func (f *Fleet) Step() time.Duration { return f.cfg.Step }

// Headers are what a node's push says about itself in the request.
type Headers struct{ Cluster, Node, Group string }

// Headers returns the values of the request headers of a node's push.
func (f *Fleet) Headers(i int) Headers {
	g := &f.groups[f.nodes[i].group]
	return Headers{g.cluster, NodeName(i), g.list}
}

// identity fills id for a node.
func (f *Fleet) identity(i int, id *identity) *identity {
	g := &f.groups[f.nodes[i].group]
	id.node, id.cluster, id.job = NodeName(i), g.cluster, g.job
	id.draw(f.cfg.Seed, i, f.cfg.GPUs)
	return id
}

// scratch is what making a report needs.
type scratch struct {
	id      identity
	node    values
	gpus    []values
	reading nodescore.Reading
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// Next moves a node on by so many steps and appends its report of now to dst:
// an ExportMetricsServiceRequest of OTLP.
func (f *Fleet) Next(i, steps int, now time.Time, dst []byte) ([]byte, error) {
	n := &f.nodes[i]
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sim.Advance(time.Duration(steps) * f.cfg.Step)
	n.ticks += int64(steps)
	n.at, n.told, n.accepted = now, n.reachable, false
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	f.read(n, s)
	if n.score != nil {
		f.evaluate(n, s)
	}
	return f.write(i, s, dst)
}

// read takes the readings of a node's GPUs.
func (f *Fleet) read(n *node, s *scratch) {
	if cap(s.gpus) < f.cfg.GPUs {
		s.gpus = make([]values, f.cfg.GPUs)
	}
	s.gpus = s.gpus[:f.cfg.GPUs]
	s.node = values{}
	for g := range s.gpus {
		s.gpus[g].read(n.sim.Reading(g), f.spec, n.had[g])
		n.had[g] = s.gpus[g].facts
		if s.gpus[g].facts&up != 0 {
			s.node.v[gpusFound]++
		}
	}
}

// evaluate is what the straggler processor does with a push in mode agent.
func (f *Fleet) evaluate(n *node, s *scratch) {
	s.reading.Reset()
	for j := range f.layout.ofNode {
		p := &f.layout.ofNode[j]
		s.reading.Add(p.input, "", p.value(&s.node))
	}
	for g := range s.gpus {
		for j := range f.layout.ofGPU {
			if p := &f.layout.ofGPU[j]; s.gpus[g].facts&p.facts == p.facts {
				s.reading.Add(p.input, f.gpuNames[g], p.value(&s.gpus[g]))
			}
		}
	}
	n.score.Observe(&s.reading, n.at)
	n.res = n.score.Evaluate(n.at, n.received, !n.received.At.IsZero())
}

// write appends the last report.
func (f *Fleet) write(i int, s *scratch, dst []byte) ([]byte, error) {
	n := &f.nodes[i]
	id := f.identity(i, &s.id)
	at := moment{nanos(n.at), nanos(f.cfg.Start)}
	dst = f.layout.write(dst, id, at, &s.node, s.gpus)
	if n.score == nil {
		return dst, nil
	}
	return f.verdicts.write(dst, id, at.now, &n.res, n.told)
}

// Last returns a node's last report, and whether it was accepted.
func (f *Fleet) Last(i int) (md pmetric.Metrics, accepted bool, err error) {
	n := &f.nodes[i]
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.at.IsZero() {
		return pmetric.NewMetrics(), false, nil
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	f.read(n, s)
	b, err := f.write(i, s, nil)
	if err != nil {
		return pmetric.NewMetrics(), false, err
	}
	request := pmetricotlp.NewExportRequest()
	err = request.UnmarshalProto(b)
	return request.Metrics(), n.accepted, err
}
