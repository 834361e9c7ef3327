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

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/detect/peergroup"
	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/platform/mistake"
	"github.com/gpu-collector/gpu-collector/internal/platform/wire"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
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
		mistake.If(!wire.ValidName(d.Cluster) || len(d.Cluster) > 200, "cluster is %q, must be 1 to 200 printable ASCII characters", d.Cluster),
		mistake.If(d.Runs < 0, "runs is %s, must be 0s or more", d.Runs),
		mistake.If(d.Pause < 0, "pause is %s, must be 0s or more", d.Pause),
		mistake.If(d.Step < 0, "step is %s, must be more than 0s", d.Step),
	}
	for i := range d.Faults {
		x := &d.Faults[i]
		for _, err := range []error{x.Target.Validate(max(1, d.Nodes)), x.Fault.Validate(d.GPUs)} {
			errs = append(errs, mistake.If(err != nil, "fault %s of %s: %w", x.Kind, x.who(), err))
		}
	}
	return errors.Join(errs...)
}

// Fleet is a number of simulated nodes with their agents. Different nodes may be
// used at the same time.
type Fleet struct {
	cfg    Config
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
	fault       int           // of the configuration
	from, until time.Duration // until is 0 for one that lasts
	// found is when the node began to take itself for a straggler, 0 for never, and
	// by what it judged itself by then.
	found time.Duration
	by    nodescore.Mode
}

// grace is for how many steps after a fault a verdict is still about it: what has begun to be
// seen at its end.
const grace = 12

// began has a verdict that begins be about the faults that the node has at that
// time, if any.
func (n *node) began(at, step time.Duration) {
	wrong := true
	for i := range n.troubles {
		t := &n.troubles[i]
		if at < t.from || t.until != 0 && at > t.until+grace*step {
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
	first, size        int    // of its nodes
	list               string // the name as a gpu-group header has it

	// A training job moves all of its nodes at once.
	mu    sync.Mutex
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
		cfg: cfg, rubric: gpuhealth.DefaultRubric(), nodes: make([]node, cfg.Nodes),
		model: strings.Join(strings.Fields(product), "-"),
	}
	f.score = nodescore.DefaultConfig()
	f.score.Interval, f.score.ReadingTTL = cfg.Step, 5*cfg.Step
	f.plan = nodescore.NewPlan(&f.score.Measures)
	if err := f.deal(); err != nil {
		return nil, err
	}
	f.populate()
	return f, nil
}

// populate makes the nodes.
func (f *Fleet) populate() {
	c := &f.cfg
	if c.Load == fleetsim.Training {
		for k := range f.groups {
			g := &f.groups[k]
			g.sim = fleetsim.NewJob(g.size, c.GPUs, fleetsim.JobConfig{
				Runs: c.Runs, Pause: c.Pause, Seed: c.Seed*maxJobs + uint64(g.first),
			})
			if c.Ranks {
				job := ranks.Typical(g.size, c.GPUs)
				g.play = ranks.New(&job, c.Seed+uint64(g.first))
			}
			for i, sim := range g.sim.Nodes() {
				f.nodes[g.first+i].sim = sim
			}
		}
	}
	for i := range f.nodes {
		n := &f.nodes[i]
		if n.sim == nil {
			n.sim = fleetsim.NewNode(c.GPUs, c.Load, c.Seed<<20+uint64(i)+1)
		}
		if !c.Raw {
			n.score = nodescore.NewNode(&f.score, f.plan)
		}
	}
	for i := range c.Faults {
		for _, node := range c.Faults[i].Nodes(len(f.nodes)) {
			n := &f.nodes[node]
			n.sim.Inject(c.Faults[i].Fault)
			n.troubles = append(n.troubles, trouble{fault: i, from: c.Faults[i].From, until: c.Faults[i].Until})
			if n.health == nil {
				n.health = &health{gpuhealth.NewMonitor(f.rubric), make([][fleetsim.MaxXids]fleetsim.Xid, c.GPUs)}
			}
		}
	}
}

// deal gives each node its cluster and job: in order, as many to each. Groups are named as the
// straggler processor does by default.
func (f *Fleet) deal() error {
	c := &f.cfg
	for cluster := range c.Clusters {
		in := c.Cluster
		if c.Clusters > 1 {
			in = fmt.Sprintf("%s-%02d", in, cluster)
		}
		for nth := range c.Jobs {
			job := c.JobName(nth)
			name := peergroup.Key([]string{job, "", f.model})
			list, err := wire.EncodeGroups([]string{name})
			if err != nil {
				return err
			}
			f.groups = append(f.groups, group{cluster: in, job: job, name: name, list: list})
		}
	}
	for i := range f.nodes {
		at := int64(i) * int64(len(f.groups)) / int64(len(f.nodes))
		g := &f.groups[at]
		if f.nodes[i].group = int32(at); g.size == 0 {
			g.first = i
		}
		g.size++
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
	b, err := pmetricotlp.NewExportRequestFromMetrics(f.metrics(i, steps, now)).MarshalProto()
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
		sample, verdict := r.Sample(s.id.gpus[gpu]), healthy
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

// metrics moves a node on by so many steps and returns its report of now.
func (f *Fleet) metrics(i, steps int, now time.Time) pmetric.Metrics {
	n := &f.nodes[i]
	n.mu.Lock()
	defer n.mu.Unlock()
	s, ok := f.scratches.Get().(*scratch)
	if !ok {
		s = &scratch{recorder: record.NewDefault(f.cfg.Start), reader: metricreading.New(zap.NewNop(), nil)}
	}
	defer f.scratches.Put(s)
	g := &f.groups[n.group]
	s.id.node, s.id.cluster, s.id.job = f.cfg.NodeName(i), g.cluster, g.job
	s.id.draw(f.cfg.Seed, i, f.cfg.GPUs)
	n.ticks += int64(steps)
	n.at, n.told = now, n.reachable
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
