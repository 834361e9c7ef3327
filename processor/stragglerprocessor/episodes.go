// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"cmp"
	"iter"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/hang"
	"github.com/gpu-collector/gpu-collector/internal/jobcost"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reason"
	"github.com/gpu-collector/gpu-collector/internal/slowlink"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

// episode is one event with what the nodes' facts add to it.
type episode struct {
	*straggler.Event
	// finding is why the node is slow, at the end why it was; nil where that is
	// not asked.
	finding *reason.Finding
	// cost is what the gap takes from a synchronous job, in GPU-hours per hour;
	// only read when hasCost.
	cost    float64
	hasCost bool
	// slowdown is S_w, by what factor the job's steps are longer, 0 where nobody waits.
	// lost are the GPU-hours since the episode began; only read when hasLost.
	slowdown float64
	lost     float64
	hasLost  bool
	// jobs are how many pay for an episode of a cluster.
	jobs int
	// link is of an episode about communicators, else nil.
	link *slowlink.Link
	// faulty is the node of the communicators that a fact of a port points at.
	faulty string
	// hang is of an episode about a job that stands still, else nil.
	hang *hang.Event
	// index is the driver's index of the GPU that is named; only read when hasIndex.
	index    int
	hasIndex bool
	// steps says that the throughput is in training steps per second.
	steps bool
	// page is the address of the node on the fleet view's page.
	page string
}

// told is what was said of an episode last.
type told struct {
	reason.Finding
	cluster string
	nodes   []string // that are slow, as many as are listed
	// rate is the GPU-hours lost per hour from at on, lost those before.
	rate, lost float64
	at         time.Time
	counts     bool
}

// explainer completes events by the facts of the nodes.
type explainer struct {
	facts   *factReader
	groupBy []string
	// told is what was said of the episodes that go on, by their ids: at the end
	// the facts may be gone.
	told map[string]told
	most int // in told
	page string
}

func newExplainer(cfg *Config, facts *factReader) *explainer {
	return &explainer{facts: facts, groupBy: cfg.GroupBy, told: make(map[string]told), most: cfg.bounded().MaxNodes, page: cfg.PageURL}
}

// episodes completes the events of a report.
func (x *explainer) episodes(r *straggler.Report) []episode {
	if len(r.Events) == 0 {
		return nil
	}
	all := make([]episode, len(r.Events))
	for i := range r.Events {
		all[i] = episode{Event: &r.Events[i]}
		switch ep := &all[i]; {
		case ep.slow():
			x.explain(ep, r)
		default:
			x.repeat(ep)
		}
		x.point(&all[i])
	}
	return all
}

// point adds where people find the node and its GPU.
func (x *explainer) point(ep *episode) {
	if ep.Subject != straggler.SubjectNode {
		return
	}
	if gpu := ep.gpu(); gpu != "" {
		ep.index, ep.hasIndex = x.facts.store.GPUIndex(ep.Cluster, ep.Node, gpu)
	}
	// A configuration may measure another throughput than that of steps.
	if told, known := x.facts.store.StepTime(ep.Cluster, ep.Node); known && ep.Signal == nodesignal.Throughput {
		ratio := ep.Value * told
		ep.steps = ratio > 0.5 && ratio < 2
	}
	if x.page != "" {
		ep.page = strings.TrimSuffix(x.page, "/") + "/#" + url.Values{"in": {ep.Cluster}, "node": {ep.Node}}.Encode()
	}
}

// gpu is the hw.id that is named: of the reason, else of the rank at fault.
func (ep *episode) gpu() string {
	if f := ep.finding; f != nil && f.GPU != "" {
		return f.GPU
	}
	return ep.Culprit.GPU
}

// repeat adds what was told last to an event that tells nothing of now.
func (x *explainer) repeat(ep *episode) {
	switch ep.Kind {
	case straggler.EventEnd:
		x.close(ep)
	case straggler.EventContinues:
		if last, known := x.told[ep.ID]; known {
			ep.finding = &last.Finding
			ep.lost, ep.hasLost = last.until(ep.At), last.counts
			ep.cost, ep.hasCost = last.rate, last.counts
		}
	default:
	}
}

// close adds to an end what was told last.
func (x *explainer) close(ep *episode) {
	if last, known := x.told[ep.ID]; known {
		ep.finding = &last.Finding
		ep.lost, ep.hasLost = last.until(ep.At), last.counts
		delete(x.told, ep.ID)
	}
}

// explain says why those whom ep is about are slow, and what it costs.
func (x *explainer) explain(ep *episode, r *straggler.Report) {
	since := ep.Since
	if !ep.sinceKnown() {
		since = time.Time{}
	}
	var f reason.Finding
	members := groupMembers(r.Nodes, ep.Cluster, ep.Group)
	switch ep.Subject {
	case straggler.SubjectNode:
		f = x.facts.store.Explain(ep.Cluster, ep.Node, workers(members, false), since, ep.At)
		if f.Reason == reason.Unexplained && ep.Culprit != (nodesignal.Subject{}) {
			f = reason.OfRank(ep.Culprit.GPU)
		}
	case straggler.SubjectCluster:
		groups := groupsOf(r.Nodes, ep.Cluster, ep.Nodes)
		f = x.facts.store.ExplainGroup(ep.Cluster, ep.Nodes, workersOf(groups), since, ep.At)
		ep.jobs, ep.cost, ep.hasCost = x.costs(groups)
	default:
		f = x.facts.store.ExplainGroup(ep.Cluster, ep.Nodes, workers(members, true), since, ep.At)
	}
	if f.Reason == reason.Unexplained && len(ep.Shared.Labels) > 0 {
		f = reason.OfPlace()
	}
	ep.finding = &f
	if ep.Subject != straggler.SubjectCluster {
		ep.cost, ep.hasCost = x.cost(ep.Event, members)
		if x.waits(ep.Event) {
			ep.slowdown = jobcost.Slowdown(ep.Gap)
		}
	}
	x.keep(ep)
}

// groupsOf returns the members of each group that has one of the names.
func groupsOf(all []straggler.NodeReport, cluster string, names []string) (groups [][]straggler.NodeReport) {
	wanted := make(map[string]bool, len(names))
	for _, name := range names {
		wanted[name] = true
	}
	for i := range all {
		n := &all[i]
		if n.Cluster != cluster || !wanted[n.Node] {
			continue
		}
		if last := len(groups) - 1; last < 0 || groups[last][0].Group != n.Group {
			groups = append(groups, groupMembers(all, cluster, n.Group))
		}
	}
	return groups
}

// workersOf are the active nodes of groups that are no stragglers.
func workersOf(groups [][]straggler.NodeReport) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, members := range groups {
			for name := range workers(members, true) {
				if !yield(name) {
					return
				}
			}
		}
	}
}

// costs is how many jobs have stragglers in groups, and what the worst of each takes
// from them. It is known where that of all of them is.
func (x *explainer) costs(groups [][]straggler.NodeReport) (jobs int, hours float64, known bool) {
	known = true
	for _, members := range groups {
		worst := straggler.Event{Peers: members[0].Peers}
		for i := range members {
			if n := &members[i]; n.Straggler {
				worst.Gap = max(worst.Gap, n.Gap)
			}
		}
		if !x.waits(&worst) {
			continue
		}
		jobs++
		cost, ok := x.cost(&worst, members)
		hours, known = hours+cost, known && ok
	}
	return jobs, hours, known && jobs > 0
}

// keep notes what is told of an episode, and adds what it has cost so far.
func (x *explainer) keep(ep *episode) {
	f := ep.finding
	last, known := x.told[ep.ID]
	ep.lost, ep.hasLost = last.until(ep.At), last.counts
	if !known && ep.hasCost && ep.sinceKnown() {
		ep.lost, ep.hasLost = ep.cost*ep.duration().Hours(), true
	}
	if known || len(x.told) < x.most {
		x.told[ep.ID] = told{
			cluster: ep.Cluster, nodes: listed(ep.Event),
			Finding: reason.Finding{Reason: f.Reason, Observation: f.Observation, GPU: f.GPU},
			rate:    ep.cost, lost: ep.lost, at: ep.At, counts: ep.hasLost || ep.hasCost,
		}
	}
}

// until is what was lost up to a time.
func (t *told) until(at time.Time) float64 {
	if t.at.IsZero() {
		return 0
	}
	return t.lost + t.rate*max(at.Sub(t.at), 0).Hours()
}

// waits reports whether others of a job wait for whom an event is about.
func (x *explainer) waits(ev *straggler.Event) bool {
	job := slices.Index(x.groupBy, gpusemconv.AttrJobID)
	return ev.Gap > 0 && job >= 0 && job < len(ev.Peers) && ev.Peers[job] != ""
}

// slow reports whether the episode is about slow nodes that are so still.
func (ep *episode) slow() bool {
	switch ep.Subject {
	case straggler.SubjectNode, straggler.SubjectGroup, straggler.SubjectCluster:
		return ep.news()
	default:
		return false
	}
}

// news reports whether an event tells how it is now. Of what ends, or goes on after a
// restart, only that is told.
func (ep *episode) news() bool {
	return ep.Kind != straggler.EventEnd && ep.Kind != straggler.EventContinues
}

// groupMembers returns the part of nodes, which are in order, that is one group.
func groupMembers(nodes []straggler.NodeReport, cluster, group string) []straggler.NodeReport {
	at, _ := slices.BinarySearchFunc(nodes, group, func(n straggler.NodeReport, group string) int {
		return cmp.Or(cmp.Compare(n.Cluster, cluster), cmp.Compare(n.Group, group))
	})
	end := at
	for end < len(nodes) && nodes[end].Cluster == cluster && nodes[end].Group == group {
		end++
	}
	return nodes[at:end]
}

// workers are the names of the active nodes, without the stragglers where that is
// asked. A node that lacks work says nothing about a node that works.
func workers(nodes []straggler.NodeReport, healthy bool) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range nodes {
			n := &nodes[i]
			if n.State == straggler.StateActive && (!healthy || !n.Straggler) && !yield(n.Node) {
				return
			}
		}
	}
}

// cost is gap times GPUs: in a synchronous job, which steps together, all wait
// for the slowest (Greyhound, ATC '25). It is known when the nodes belong to a
// job and all active ones have told their number of GPUs.
func (x *explainer) cost(ev *straggler.Event, members []straggler.NodeReport) (float64, bool) {
	if !x.waits(ev) {
		return 0, false
	}
	gpus, known := activeGPUs(members, x.facts)
	return jobcost.Hours(ev.Gap, gpus, time.Hour), known && gpus > 0
}

// sinceKnown is false when the node was slow from the first comparison on.
func (ep *episode) sinceKnown() bool { return ep.Since.Unix() > 0 }

// duration of an episode that has ended, zero when its beginning is not known.
func (ep *episode) duration() time.Duration {
	if !ep.sinceKnown() {
		return 0
	}
	return max(ep.At.Sub(ep.Since), 0)
}
