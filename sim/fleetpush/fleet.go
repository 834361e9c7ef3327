// SPDX-License-Identifier: Apache-2.0

// Package fleetpush pushes the reports of simulated nodes as their agents would:
// what the nvml receiver reports of the GPUs of sim/fleetsim, what the
// straggler processor adds to it, over OTLP, with the headers that bring
// thresholds back.
package fleetpush // import "github.com/gpu-collector/gpu-collector/sim/fleetpush"

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/peergroup"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
	"github.com/gpu-collector/gpu-collector/internal/wire"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/record"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
	"github.com/gpu-collector/gpu-collector/sim/ranks"
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
	// NodeName and JobName name the nodes, and the jobs of each cluster; by default
	// node-000000 and job-00000 are the first.
	NodeName, JobName func(nth int) string
	Load              fleetsim.Load
	// Runs and Pause are how long training jobs run and their nodes rest between
	// them, as in fleetsim.JobConfig; with Runs 0 they last.
	Runs, Pause time.Duration
	// Faults are what goes wrong, and where.
	Faults []Fault
	Seed   uint64
	// Step is the time between two reports of a node.
	Step time.Duration
	// Raw leaves out what an agent adds to its node's readings.
	Raw bool
	// Ranks adds what the ranks of training jobs tell by NCCL's Inspector.
	Ranks bool
	// Start is when the counters began.
	Start time.Time
}

// Fault is a fault of a node, or of a share of all.
type Fault struct {
	fleetsim.Target
	fleetsim.Fault
}

// who names who has the fault.
func (f *Fault) who() string {
	if f.Share != 0 {
		return fmt.Sprintf("%.4g %% of nodes", 100*f.Share)
	}
	return fmt.Sprintf("node %d", f.Node)
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
	if c.NodeName == nil {
		c.NodeName = NodeName
	}
	if c.JobName == nil {
		c.JobName = jobName
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
	if !wire.ValidName(d.Cluster) || len(d.Cluster) > 200 {
		errs = append(errs, fmt.Errorf("cluster is %q, must be 1 to 200 printable ASCII characters", d.Cluster))
	}
	for name, v := range map[string]time.Duration{"runs": d.Runs, "pause": d.Pause} {
		if v < 0 {
			errs = append(errs, fmt.Errorf("%s is %s, must be 0s or more", name, v))
		}
	}
	if d.Step < 0 {
		errs = append(errs, fmt.Errorf("step is %s, must be more than 0s", d.Step))
	}
	for i := range d.Faults {
		x := &d.Faults[i]
		for _, err := range []error{x.Target.Validate(max(1, d.Nodes)), x.Fault.Validate(d.GPUs)} {
			if err != nil {
				errs = append(errs, fmt.Errorf("fault %s of %s: %w", x.Kind, x.who(), err))
			}
		}
	}
	return errors.Join(errs...)
}

// Fleet is a number of simulated nodes with their agents. Different nodes may be
// used at the same time.
type Fleet struct {
	cfg    Config
	spec   *fleetsim.Spec
	rubric *gpuhealth.Rubric
	score  nodescore.Config
	plan   *nodescore.Plan
	model  string // of the GPUs, as a peer attribute
	nodes  []node
	groups []group
	// scratches are *scratch.
	scratches sync.Pool
}

// node is one node. Its lock is for those who ask about it.
type node struct {
	mu        sync.Mutex
	sim       *fleetsim.Node
	group     int32
	ticks     int64
	history   record.History
	health    *health // of a node with a fault
	score     *nodescore.Node
	received  threshold.Received
	reachable bool

	// The last report.
	at   time.Time
	res  nodescore.Result
	told bool // what it said of the gateway being reachable

	// wrong is how often it began to take itself for a straggler without a reason.
	troubles []trouble
	slow     bool
	wrong    int
}

// trouble is a fault of a node, in the node's own time.
type trouble struct {
	fault       int // of the configuration
	from, until time.Duration
	// found is when the node began to take itself for a straggler, 0 for never, and
	// by what it judged itself by then.
	found time.Duration
	by    nodescore.Mode
}

const (
	never = time.Duration(math.MaxInt64)
	// grace is for how many steps after a fault a verdict is still about it: what has
	// begun to be seen at its end.
	grace = 12
)

// began has a verdict that begins be about the faults that the node has at that
// time, if any.
func (n *node) began(at, step time.Duration) {
	wrong := true
	for i := range n.troubles {
		t := &n.troubles[i]
		if at < t.from || t.until != never && at > t.until+grace*step {
			continue
		}
		wrong = false
		if t.found == 0 {
			t.found, t.by = at, n.res.Mode
		}
	}
	if wrong {
		n.wrong++
	}
}

// group is the peers of one job.
type group struct {
	cluster, job, name string
	list               string // the name as a gpu-group header has it
	heard              atomic.Pointer[heard]

	// A training job moves all of its nodes at once.
	mu    sync.Mutex
	sim   *fleetsim.Job
	play  *ranks.Play // of its ranks
	first int         // node
	ticks int64
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
	f := &Fleet{
		cfg: cfg, spec: &fleetsim.H100, rubric: gpuhealth.DefaultRubric(), nodes: make([]node, cfg.Nodes),
		model: strings.Join(strings.Fields(product), "-"),
	}
	f.score = nodescore.DefaultConfig()
	f.score.Interval, f.score.ReadingTTL = cfg.Step, 5*cfg.Step
	f.plan = nodescore.NewPlan(&f.score.Measures)
	f.deal()
	if err := f.nameGroups(); err != nil {
		return nil, err
	}
	f.populate()
	return f, nil
}

// populate makes the nodes.
func (f *Fleet) populate() {
	c := &f.cfg
	if c.Load == fleetsim.Training {
		for from := 0; from < len(f.nodes); {
			to := from
			for to < len(f.nodes) && f.nodes[to].group == f.nodes[from].group {
				to++
			}
			g := &f.groups[f.nodes[from].group]
			g.sim = fleetsim.NewJob(f.spec, to-from, c.GPUs, fleetsim.JobConfig{
				Runs: c.Runs, Pause: c.Pause, Seed: c.Seed*maxJobs + uint64(from),
			})
			if g.first = from; c.Ranks {
				job := ranks.Typical(to-from, c.GPUs)
				g.play = ranks.New(&job, c.Seed+uint64(from))
			}
			for i, sim := range g.sim.Nodes() {
				f.nodes[from+i].sim = sim
			}
			from = to
		}
	}
	for i := range f.nodes {
		n := &f.nodes[i]
		if n.sim == nil {
			n.sim = fleetsim.NewNode(f.spec, c.GPUs, c.Load, c.Seed<<20+uint64(i)+1)
		}
		if !c.Raw {
			n.score = nodescore.NewNode(&f.score, f.plan)
		}
	}
	for i := range c.Faults {
		for _, node := range c.Faults[i].Nodes(len(f.nodes)) {
			n := &f.nodes[node]
			n.sim.Inject(c.Faults[i].Fault)
			t := trouble{fault: i, from: c.Faults[i].From, until: c.Faults[i].Until}
			if t.until == 0 {
				t.until = never
			}
			n.troubles = append(n.troubles, t)
			if n.health == nil {
				n.health = newHealth(f.rubric, c.GPUs)
			}
		}
	}
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
			f.groups = append(f.groups, group{cluster: name, job: c.JobName(job)})
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
		g.name = peergroup.Key([]string{g.job, "", f.model})
		var err error
		if g.list, err = wire.EncodeGroups([]string{g.name}); err != nil {
			return err
		}
	}
	return nil
}

// Nodes returns how many nodes there are.
func (f *Fleet) Nodes() int { return len(f.nodes) }

// Headers are what a node's push says about itself in the request.
type Headers struct{ Cluster, Node, Group string }

// Headers returns the values of the request headers of a node's push.
func (f *Fleet) Headers(i int) Headers {
	g := &f.groups[f.nodes[i].group]
	return Headers{g.cluster, f.cfg.NodeName(i), g.list}
}

// identity fills id for a node.
func (f *Fleet) identity(i int, id *identity) {
	g := &f.groups[f.nodes[i].group]
	id.node, id.cluster, id.job = f.cfg.NodeName(i), g.cluster, g.job
	id.draw(f.cfg.Seed, i, f.cfg.GPUs)
}

// scratch is what making a report needs.
type scratch struct {
	id       identity
	recorder *record.Recorder
	reader   *metricreading.Reader
	reading  nodescore.Reading
}

// Next moves a node on by so many steps and appends its report of now to dst:
// an ExportMetricsServiceRequest of OTLP.
func (f *Fleet) Next(i, steps int, now time.Time, dst []byte) ([]byte, error) {
	n := &f.nodes[i]
	n.mu.Lock()
	defer n.mu.Unlock()
	s, ok := f.scratches.Get().(*scratch)
	if !ok {
		s = &scratch{recorder: record.NewDefault(f.cfg.Start), reader: metricreading.New(zap.NewNop(), nil)}
	}
	defer f.scratches.Put(s)
	f.identity(i, &s.id)
	n.ticks += int64(steps)
	n.at, n.told = now, n.reachable
	b, err := pmetricotlp.NewExportRequestFromMetrics(f.metrics(i, steps, s)).MarshalProto()
	return append(dst, b...), err
}

// advance moves a node on and returns what the nvml receiver reports of it, and the seconds of
// a training step. The nodes of a job move together, with the first of them that is asked.
func (f *Fleet) advance(n *node, steps int, s *scratch) (md pmetric.Metrics, seconds float64) {
	g := &f.groups[n.group]
	if g.sim == nil {
		n.sim.Advance(time.Duration(steps) * f.cfg.Step)
	} else {
		g.mu.Lock()
		defer g.mu.Unlock()
		for ; g.ticks < n.ticks; g.ticks++ {
			f.Advance(int(n.group), f.cfg.Step)
		}
	}
	s.recorder.Begin(pcommon.NewTimestampFromTime(n.at), &n.history)
	census := record.Census{Expected: f.cfg.GPUs}
	for gpu := range f.cfg.GPUs {
		r := n.sim.Reading(gpu)
		sample, verdict := r.Sample(s.id.gpus[gpu], f.spec), healthy
		if n.health != nil {
			verdict = n.health.judge(&r, &sample, n.at)
		}
		if r.Up {
			census.Found++
		} else {
			census.Lost++
		}
		s.recorder.Sample(&sample)
		s.recorder.Verdict(&verdict)
		for _, x := range r.Xids {
			if x.Count > 0 {
				s.recorder.Xids(sample.UUID, "", x.Code, f.rubric.Xid(x.Code).Class, int64(x.Count))
			}
		}
	}
	host := n.sim.Host()
	s.recorder.Node(census, gpuhealth.Some(host.CPUPressure))
	resource := pcommon.NewResource()
	s.id.name(resource, hostAttrs...)
	s.id.name(resource, gpusemconv.AttrJobID)
	return s.recorder.Emit(resource), host.StepSeconds
}

// evaluate is what the straggler processor does with a push in mode agent.
func (f *Fleet) evaluate(n *node, md pmetric.Metrics, s *scratch) {
	s.reading.Reset()
	var from metricreading.Resource
	var p metricreading.Point
	for _, rm := range md.ResourceMetrics().All() {
		from.Begin(s.reader, rm.Resource().Attributes(), "", "")
		for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
			known := reading.ByName(m.Name())
			inputs := f.plan.Known(known)
			if inputs == nil {
				continue
			}
			list, _ := from.Open(known, m)
			for _, dp := range list.All() {
				if from.Read(dp, &p) != reading.Accepted || p.Ended {
					continue
				}
				for i := range inputs {
					if inputs[i].Field == p.Field {
						s.reading.Add(&inputs[i], nodesignal.Subject{GPU: p.ID}, p.Value)
					}
				}
			}
		}
	}
	n.score.Observe(&s.reading, n.at)
	n.res = n.score.Evaluate(n.at, s.id.node, n.received, !n.received.At.IsZero())
	if n.res.Straggler && !n.slow {
		n.began(time.Duration(n.ticks)*f.cfg.Step, f.cfg.Step)
	}
	n.slow = n.res.Straggler
}

// metrics moves a node on and returns its report.
func (f *Fleet) metrics(i, steps int, s *scratch) pmetric.Metrics {
	n := &f.nodes[i]
	md, seconds := f.advance(n, steps, s)
	works := f.cfg.Load == fleetsim.Training && seconds > 0
	if works {
		addStep(md, &s.id, n.at, seconds)
	}
	if n.score != nil {
		f.evaluate(n, md, s)
	}
	if works && f.cfg.Ranks {
		f.addRanks(md, &s.id, i)
	}
	if n.score != nil {
		addVerdict(md, &s.id, f.model, n.at, &n.res, n.told)
	}
	return md
}

// health is the nvml receiver's judgement of the GPUs of a node. Only nodes with a
// fault have one: nothing is wrong with the others.
type health struct {
	monitor *gpuhealth.Monitor
	xids    [][fleetsim.MaxXids]fleetsim.Xid // that were observed, by GPU
}

func newHealth(rubric *gpuhealth.Rubric, gpus int) *health {
	return &health{monitor: gpuhealth.NewMonitor(rubric), xids: make([][fleetsim.MaxXids]fleetsim.Xid, gpus)}
}

// healthy is the verdict on a GPU without a fault.
var healthy = gpuhealth.Verdict{
	Score: gpuhealth.Some(100), State: gpuhealth.StateHealthy, Hardware: gpuhealth.HardwareOK,
}

// judge judges a GPU by one reading more.
func (h *health) judge(r *fleetsim.Reading, s *gpuhealth.Sample, now time.Time) gpuhealth.Verdict {
	for i, x := range r.Xids {
		if x.Count > h.xids[s.Index][i].Count {
			h.monitor.ObserveXid(gpuhealth.XidEvent{UUID: s.UUID, Code: x.Code, Time: now})
		}
	}
	h.xids[s.Index] = r.Xids
	return h.monitor.Observe(s, now)
}
