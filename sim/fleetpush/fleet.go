// SPDX-License-Identifier: Apache-2.0

// Package fleetpush pushes the reports of simulated nodes as their agents would:
// what the nvml receiver reports of the GPUs of sim/fleetsim, what the
// straggler processor adds to it, over OTLP, with the headers that bring
// thresholds back.
package fleetpush // import "github.com/gpu-collector/gpu-collector/sim/fleetpush"

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/detect/peergroup"
	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/platform/mistake"
	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/record"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
	"github.com/gpu-collector/gpu-collector/sim/ranks"
)

// Config of a Fleet.
type Config struct {
	Nodes, GPUs int // GPUs of each node; defaults 1 and 8
	// Cluster is the name of the one cluster, or what their names begin with.
	Cluster  string
	Clusters int
	// Jobs of each cluster, to which its nodes are dealt; a job's nodes are peers.
	// By default there is one for each 64 nodes.
	Jobs int
	// NodeName and JobName name the nodes, and the jobs of each cluster; by default
	// node-000000 and job-00000 are the first.
	NodeName, JobName func(nth int) string
	// Runs and Pause are how long training jobs run and their nodes rest between
	// them, as in fleetsim.JobConfig; with Runs 0 they last.
	Runs, Pause time.Duration
	Faults      []fleetsim.Fault
	Seed        uint64
	Step        time.Duration // between two reports of a node
	Raw         bool          // leaves out what an agent adds to its node's readings
	Ranks       bool          // adds what the ranks of training jobs report by NCCL's Inspector
	Start       time.Time     // when the counters began
}

const (
	maxNodes    = 1_000_000 // as many names as there are
	maxGPUs     = 64
	maxClusters = 100
	maxJobs     = 100_000
	jobNodes    = 64
)

func (c *Config) defaults() {
	c.Nodes, c.GPUs, c.Clusters = cmp.Or(c.Nodes, 1), cmp.Or(c.GPUs, 8), cmp.Or(c.Clusters, 1)
	c.Jobs = cmp.Or(c.Jobs, max(1, c.Nodes/max(1, c.Clusters)/jobNodes))
	c.Cluster, c.Step = cmp.Or(c.Cluster, "fleetsim"), cmp.Or(c.Step, 10*time.Second)
	if c.NodeName == nil {
		c.NodeName = NodeName
	}
	if c.JobName == nil {
		c.JobName = jobName
	}
}

// Validate returns all mistakes of a Config, in which 0 stands for a default.
func (c *Config) Validate() error {
	between := func(key string, v, least, most int) error {
		return mistake.If(v < least || v > most, "%s is %d, must be between %d and %d", key, v, least, most)
	}
	d := *c
	d.defaults()
	errs := []error{
		between("nodes", d.Nodes, 1, maxNodes),
		between("gpus", d.GPUs, 1, maxGPUs),
		between("clusters", d.Clusters, 1, min(maxClusters, max(1, d.Nodes))),
		between("jobs", d.Jobs, 1, min(maxJobs, max(1, d.Nodes/max(1, d.Clusters)))),
		mistake.If(!pushheaders.ValidName(d.Cluster) || len(d.Cluster) > 200, "cluster is %q, must be 1 to 200 printable ASCII characters", d.Cluster),
		mistake.If(d.Runs < 0, "runs is %s, must be 0s or more", d.Runs),
		mistake.If(d.Pause < 0, "pause is %s, must be 0s or more", d.Pause),
		mistake.If(d.Step < 0, "step is %s, must be more than 0s", d.Step),
	}
	for i := range d.Faults {
		x := &d.Faults[i]
		err := x.Validate(max(1, d.Nodes), d.GPUs)
		errs = append(errs, mistake.If(err != nil, "fault %s of %s: %w", x.Kind, x.Target(), err))
	}
	return errors.Join(errs...)
}

// Fleet is a number of simulated nodes with their agents. Different nodes may be
// used at the same time.
type Fleet struct {
	cfg       Config
	rubric    *gpuhealth.Rubric
	score     nodescore.Config
	plan      *nodescore.Plan
	model     string // of the GPUs, as a peer attribute
	nodes     []node
	groups    []group
	scratches sync.Pool // of *scratch
}

// node is one node. The lock of its group guards it.
type node struct {
	group     *group
	index     int // in the group
	sim       *fleetsim.Node
	ticks     int64
	history   record.History
	monitor   *gpuhealth.Monitor               // nil for a node without a fault, of which it has 100 kB
	xids      [][fleetsim.MaxXids]fleetsim.Xid // that the monitor has observed, by GPU
	score     *nodescore.Node                  // nil in a raw fleet
	received  threshold.Received
	reachable bool

	troubles []trouble
	slow     bool // by its own verdict
	wrong    int  // how often that began without a fault
}

// trouble is a fault of a node, in the node's own time.
type trouble struct {
	fault       int           // of the configuration
	from, until time.Duration // until is 0 for one that lasts
	// found is when the node began to take itself for a straggler, 0 for never, and
	// by what it judged itself by then.
	found time.Duration
	by    nodescore.Mode
}

// grace is for how many steps after a fault a verdict is still about it.
const grace = 12

// began attributes a verdict that begins to the faults that the node has at that time.
func (n *node) began(at, step time.Duration, by nodescore.Mode) {
	wrong := 1
	for i := range n.troubles {
		t := &n.troubles[i]
		if at < t.from || t.until != 0 && at > t.until+grace*step {
			continue
		}
		if wrong = 0; t.found == 0 {
			t.found, t.by = at, by
		}
	}
	n.wrong += wrong
}

// group is the peers of one job.
type group struct {
	mu                 sync.Mutex
	cluster, job, name string
	header             string // the name as a gpu-group header has it
	nodes              []node

	// The job moves all of its nodes at once.
	sim   *fleetsim.Job
	play  *ranks.Play // of its ranks
	ticks int64
}

// New makes a fleet.
func New(cfg Config) (*Fleet, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.defaults()
	f := &Fleet{
		cfg: cfg, rubric: gpuhealth.DefaultRubric(), score: nodescore.DefaultConfig(), nodes: make([]node, cfg.Nodes),
		groups: make([]group, cfg.Clusters*cfg.Jobs), model: strings.Join(strings.Fields(product), "-"),
	}
	f.score.Interval, f.score.ReadingTTL = cfg.Step, 5*cfg.Step
	f.plan = nodescore.NewPlan(&f.score.Measures)
	f.scratches.New = func() any {
		return &scratch{recorder: record.NewDefault(cfg.Start), reader: metricreading.New(zap.NewNop(), nil)}
	}
	first := 0
	for i := range f.groups {
		end := (i + 1) * cfg.Nodes / len(f.groups)
		if err := f.populate(i, first, end); err != nil {
			return nil, err
		}
		first = end
	}
	for i, x := range cfg.Faults {
		for _, at := range x.Nodes(cfg.Nodes) {
			n := &f.nodes[at]
			n.sim.Inject(x)
			if n.monitor == nil {
				n.monitor, n.xids = gpuhealth.NewMonitor(f.rubric), make([][fleetsim.MaxXids]fleetsim.Xid, cfg.GPUs)
			}
			n.troubles = append(n.troubles, trouble{fault: i, from: x.From, until: x.Until})
		}
	}
	return f, nil
}

// populate makes a group of the nodes from first to before end. Groups are named as the
// straggler processor does by default.
func (f *Fleet) populate(nth, first, end int) (err error) {
	c, g := &f.cfg, &f.groups[nth]
	if g.cluster = c.Cluster; c.Clusters > 1 {
		g.cluster = fmt.Sprintf("%s-%02d", c.Cluster, nth/c.Jobs)
	}
	g.job, g.nodes = c.JobName(nth%c.Jobs), f.nodes[first:end]
	g.name = peergroup.Key([]string{g.job, "", f.model})
	if g.header, err = pushheaders.EncodeGroups([]string{g.name}); err != nil {
		return err
	}
	g.sim = fleetsim.NewJob(len(g.nodes), c.GPUs, fleetsim.JobConfig{Runs: c.Runs, Pause: c.Pause, Seed: c.Seed*maxJobs + uint64(first)})
	if c.Ranks {
		job := ranks.Typical(len(g.nodes), c.GPUs)
		g.play = ranks.New(&job, c.Seed+uint64(first))
	}
	for i := range g.nodes {
		n := &g.nodes[i]
		n.group, n.index, n.sim = g, i, g.sim.Nodes()[i]
		if !c.Raw {
			n.score = nodescore.NewNode(&f.score, f.plan)
		}
	}
	return nil
}

// Nodes returns how many nodes there are.
func (f *Fleet) Nodes() int { return len(f.nodes) }

// Headers are what a node's push has about itself in the request.
type Headers struct{ Cluster, Node, Group string }

// Headers returns the values of the request headers of a node's push.
func (f *Fleet) Headers(i int) Headers {
	g := f.nodes[i].group
	return Headers{g.cluster, f.cfg.NodeName(i), g.header}
}

// Next moves a node on by so many steps and appends its report of now to dst:
// an ExportMetricsServiceRequest of OTLP.
func (f *Fleet) Next(i, steps int, now time.Time, dst []byte) ([]byte, error) {
	b, err := pmetricotlp.NewExportRequestFromMetrics(f.metrics(i, steps, now)).MarshalProto()
	return append(dst, b...), err
}

// metrics moves a node on by so many steps and returns its report of now.
func (f *Fleet) metrics(i, steps int, now time.Time) pmetric.Metrics {
	s := f.scratches.Get().(*scratch)
	defer f.scratches.Put(s)
	n := &f.nodes[i]
	g := n.group
	s.draw(f, i, now)
	g.mu.Lock()
	defer g.mu.Unlock()
	n.ticks += int64(steps)
	for ; g.ticks < n.ticks; g.ticks++ { // with the first node that is asked
		g.advance(f.cfg.Step, f.cfg.GPUs)
	}
	md := f.record(n, s)
	if seconds := n.sim.Host().StepSeconds; seconds > 0 {
		s.addStep(md, seconds)
		if g.play != nil {
			f.addRanks(n, md, s)
		}
	}
	if n.score != nil {
		f.judge(n, md, s)
	}
	return md
}

// Advance moves the nth job on, and its ranks if the fleet has such.
func (f *Fleet) Advance(nth int, by time.Duration) *ranks.Play {
	return f.groups[nth].advance(by, f.cfg.GPUs)
}

// advance moves a training job on. Its ranks are as fast as their GPUs: one that is lost
// stops all.
func (g *group) advance(by time.Duration, gpus int) *ranks.Play {
	if g.sim.Advance(by); g.play == nil {
		return nil
	}
	for r := range g.play.Ranks {
		g.play.Ranks[r].Speed = g.nodes[r/gpus].sim.Speed(r % gpus)
	}
	g.play.Advance(by.Seconds())
	return g.play
}
