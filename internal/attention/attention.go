// SPDX-License-Identifier: Apache-2.0

// Package attention decides which parts of a fleet need a person, in which order, and
// with which sentences: stragglers, sick and lost GPUs, missing nodes, faults of groups.
// The page and the terminal show its list. Pure: it reads the views of
// internal/fleetstate, and takes the time as an argument.
package attention // import "github.com/gpu-collector/gpu-collector/internal/attention"

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/people"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/straggler/unjudged"
)

// Kind is a sort of trouble.
type Kind string

// The kinds.
const (
	Straggler   Kind = "straggler"
	LostGPU     Kind = "lost_gpu"
	SickGPU     Kind = "sick_gpu"
	MissingNode Kind = "missing_node"
	// GroupFault is of many nodes, of a communicator or of a job.
	GroupFault Kind = "group_fault"
)

// Kinds are all kinds.
var Kinds = []Kind{Straggler, LostGPU, SickGPU, MissingNode, GroupFault}

// The severities, as episodes have them. Worse is greater.
const (
	minor = iota
	major
	critical
)

var severities = [...]string{"minor", "major", "critical"}

// Part is a GPU that an item is about.
type Part struct {
	UUID, Serial string
	Index        int // NVML's, -1 when unknown
}

// Item is one thing that needs attention.
type Item struct {
	// ID stays the same while the trouble lasts.
	ID       string
	Kind     Kind
	Severity string // minor, major or critical
	Cluster  string
	Group    string
	// Node is empty for an item of many nodes. Nodes are those, at most MaxNodes, and
	// NodeCount counts all.
	Node      string
	Nodes     []string
	NodeCount int64
	// Part names what of the node is meant, such as `rank 3 (GPU 5)`; empty for all of it.
	Part string
	GPUs []Part
	// Text says in one sentence what is wrong, Advice what to do. Reason and Action are
	// their names for programs.
	Text, Reason, Advice, Action string
	// Since is zero where it is unknown. SinceBefore says that it began at that time or
	// earlier: when the gateway first heard of it.
	Since       time.Time
	SinceBefore bool
	// CostPerHour is in GPU-hours per hour, Cost in GPU-hours so far; nil where nobody
	// can say. AtMost says that CostPerHour is a bound: a silent node may still work.
	CostPerHour, Cost *float64
	AtMost            bool
	// Episode is the ID of the open episode, empty for none.
	Episode string
	// Silenced is a person's word that this is known, nil for none. An item of many nodes is
	// silenced where its group, its job, or each of the nodes is.
	Silenced *people.Silence

	severity int
	job      string
}

// Bounds of an item.
const (
	// MaxNodes bounds the names of an item.
	MaxNodes = 100
	// foldMissing is from how many silent nodes of one group on they are one item: a
	// switch or a rack takes its nodes with it.
	foldMissing = 4
)

// Filter selects items. The zero filter selects all.
type Filter struct {
	Clusters, Groups []string
	// Nodes selects what is about these nodes, alone or among others.
	Nodes []string
	Kinds []Kind
	// Silenced asks for the silence of something, nil for none; nil asks nobody.
	Silenced func(people.Scope) *people.Silence
}

// List is what needs attention, the worst first, and what is silenced last.
type List struct {
	Items []Item
	// Counts are of stragglers, of GPUs that are lost or sick, of missing nodes, and of
	// faults of groups, whatever kinds the filter selects.
	Counts map[Kind]int
	// Nodes is how many nodes were looked at.
	Nodes int
	// Waiting says what is not judged yet, and why, a sentence each.
	Waiting []string
}

// Of returns what needs attention now.
func Of(s *fleetstate.Store, f *Filter, now time.Time) *List {
	c := collector{
		store: s, now: now, list: &List{Counts: map[Kind]int{}},
		named: map[fleetstate.Key]bool{}, told: map[fleetstate.Key]bool{}, missing: map[fleetstate.GroupKey][]fleetstate.View{},
	}
	for _, k := range Kinds {
		c.list.Counts[k] = 0
	}
	c.episodes(f)
	c.nodes(f)
	c.silent()
	c.wait()
	items := c.list.Items
	if len(f.Kinds) > 0 {
		items = slices.DeleteFunc(items, func(i Item) bool { return !slices.Contains(f.Kinds, i.Kind) })
	}
	if len(f.Nodes) > 0 {
		items = slices.DeleteFunc(items, func(i Item) bool { return !i.names(f.Nodes) })
	}
	for i := range items {
		items[i].Silenced = c.silence(&items[i], f)
	}
	slices.SortFunc(items, worse)
	c.list.Items = items
	return c.list
}

func (i *Item) names(nodes []string) bool {
	return slices.ContainsFunc(nodes, func(n string) bool { return n == i.Node || slices.Contains(i.Nodes, n) })
}

// silence asks whether an item is silenced.
func (c *collector) silence(i *Item, f *Filter) *people.Silence {
	if f.Silenced == nil {
		return nil
	}
	of := func(node string) *people.Silence {
		scope := people.Scope{Cluster: i.Cluster, Node: node, Job: i.job, Group: i.Group}
		if v, known := c.store.Node(fleetstate.Key{Cluster: i.Cluster, Node: node}, c.now); node != "" && known {
			scope.Job, scope.Group = cmp.Or(v.JobID, i.job), cmp.Or(v.Group, i.Group)
		}
		return f.Silenced(scope)
	}
	if s := of(i.Node); s != nil || i.Node != "" || int64(len(i.Nodes)) < i.NodeCount || len(i.Nodes) == 0 {
		return s
	}
	// It is silenced for as long as all of its nodes are.
	var first *people.Silence
	for _, node := range i.Nodes {
		s := of(node)
		if s == nil {
			return nil
		}
		if first == nil || s.Until.Before(first.Until) {
			first = s
		}
	}
	return first
}

// worse orders by severity, then by cost, then by age. What is silenced comes last.
func worse(a, b Item) int {
	return cmp.Or(
		cmp.Compare(last(&a), last(&b)),
		cmp.Compare(b.severity, a.severity), cmp.Compare(of(b.CostPerHour), of(a.CostPerHour)),
		a.Since.Compare(b.Since), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Node, b.Node), cmp.Compare(a.ID, b.ID),
	)
}

func last(i *Item) int {
	if i.Silenced != nil {
		return 1
	}
	return 0
}

func of(v *float64) float64 {
	if v == nil {
		return 0
	}
	return *v
}

// collector gathers the items of one list.
type collector struct {
	store *fleetstate.Store
	now   time.Time
	list  *List
	// named are nodes whose slowness an episode tells, told those whose silence one does.
	named, told map[fleetstate.Key]bool
	missing     map[fleetstate.GroupKey][]fleetstate.View
	unjudged    [unjudged.Count]int
}

func (c *collector) add(severity int, i *Item) {
	i.severity, i.Severity = severity, severities[severity]
	c.list.Items = append(c.list.Items, *i)
}

// nodes looks at each node's view.
func (c *collector) nodes(f *Filter) {
	c.store.Each(&fleetstate.Filter{Clusters: f.Clusters, Groups: f.Groups, Names: f.Nodes}, c.now, func(v fleetstate.View) bool {
		c.list.Nodes++
		if v.State == gpusemconv.StateMissing {
			c.list.Counts[MissingNode]++
			if !c.told[v.Key] {
				k := fleetstate.GroupKey{Cluster: v.Cluster, Group: v.Group}
				c.missing[k] = append(c.missing[k], v)
			}
			return true
		}
		if v.Straggler() {
			c.list.Counts[Straggler]++
			if !c.named[v.Key] {
				c.slow(v)
			}
		} else if why := v.Values.Get(reading.NodeUnjudged); why != nil && *why > 0 && *why < float64(unjudged.Count) {
			c.unjudged[int(*why)]++
		}
		c.gpus(v)
		return true
	})
}

// slow is a straggler of which no episode is known.
func (c *collector) slow(v fleetstate.View) {
	i := &Item{
		ID: "straggler/" + v.Cluster + "/" + v.Node.Node, Kind: Straggler, Cluster: v.Cluster, Group: v.Group, Node: v.Node.Node,
		Part: part(v.Culprit, v.Node), GPUs: parts(v.Node, func(g *fleetstate.GPU) bool { return v.Culprit.GPU != "" && g.UUID == v.Culprit.GPU }),
		Text: "The node is slower than its peers.", Advice: advices["inspect_job"], Action: "inspect_job",
	}
	c.add(major, i)
}

// gpus looks for lost and sick GPUs, an item each per node.
func (c *collector) gpus(v fleetstate.View) {
	n := v.Node
	named, sick := 0, 0
	for i := range n.GPUs {
		switch g := &n.GPUs[i]; {
		case g.Lost():
			named++
		case g.Sick():
			sick++
		}
	}
	lost := named
	if count := n.Values.Get(reading.GPUsLost); count != nil {
		lost = max(lost, int(*count))
	}
	c.list.Counts[LostGPU] += lost
	c.list.Counts[SickGPU] += sick
	if lost > 0 {
		c.lost(v, lost)
	}
	if sick > 0 {
		c.sick(v)
	}
}

func (c *collector) lost(v fleetstate.View, count int) {
	bad := (*fleetstate.GPU).Lost
	i := &Item{
		ID: "lost_gpu/" + v.Cluster + "/" + v.Node.Node, Kind: LostGPU, Cluster: v.Cluster, Group: v.Group, Node: v.Node.Node,
		GPUs: parts(v.Node, bad), Reason: "gpu_lost", Action: "drain_and_reboot", Advice: advices["drain_and_reboot"],
	}
	i.Part = gpuNames(i.GPUs)
	i.Since, i.SinceBefore = began(v.Node, bad)
	if len(i.GPUs) == 0 {
		i.Part = countOf(count, "GPU")
	}
	i.Text = lostText(v.Node, count)
	cost := float64(count)
	i.CostPerHour = &cost
	if !i.Since.IsZero() {
		so := cost * max(0, c.now.Sub(i.Since).Hours())
		i.Cost = &so
	}
	c.add(critical, i)
}

func (c *collector) sick(v fleetstate.View) {
	n, bad := v.Node, (*fleetstate.GPU).Sick
	i := &Item{
		ID: "sick_gpu/" + v.Cluster + "/" + n.Node, Kind: SickGPU, Cluster: v.Cluster, Group: v.Group, Node: n.Node, GPUs: parts(n, bad),
	}
	i.Part = gpuNames(i.GPUs)
	i.Since, i.SinceBefore = began(n, bad)
	i.Text, i.Reason, i.Action = sickText(n)
	i.Advice = advices[i.Action]
	severity := major
	if n.Health == fleetstate.Unhealthy {
		severity = critical
	}
	c.add(severity, i)
}

// silent makes the items of missing nodes that no episode tells of.
func (c *collector) silent() {
	for k, list := range c.missing {
		if len(list) >= foldMissing {
			c.silentMany(k, list)
			continue
		}
		for _, v := range list {
			i := &Item{
				ID: "missing_node/" + v.Cluster + "/" + v.Node.Node, Kind: MissingNode, Cluster: v.Cluster, Group: v.Group, Node: v.Node.Node,
				Text: missingText(len(v.GPUs)), Action: "check_agent", Advice: advices["check_agent"], Since: v.Seen,
			}
			c.bound(i, list[:0], v)
			c.add(major, i)
		}
	}
}

func (c *collector) silentMany(k fleetstate.GroupKey, list []fleetstate.View) {
	i := &Item{
		ID: "missing_node/" + k.Cluster + "//" + k.Group, Kind: MissingNode, Cluster: k.Cluster, Group: k.Group, NodeCount: int64(len(list)),
		Action: "check_shared", Advice: "Look for what the nodes share, such as their switch, rack or power, and whether the gateway can be reached from them.",
	}
	for _, v := range list {
		if i.Since.IsZero() || v.Seen.Before(i.Since) {
			i.Since = v.Seen
		}
		if len(i.Nodes) < MaxNodes {
			i.Nodes = append(i.Nodes, v.Node.Node)
		}
	}
	i.Text = countOf(len(list), "node") + " of the group are silent."
	c.bound(i, list)
	c.add(critical, i)
}

// bound says what silent nodes may cost at most: their GPUs, if none of them works.
func (c *collector) bound(i *Item, list []fleetstate.View, more ...fleetstate.View) {
	gpus := 0.0
	for _, views := range [...][]fleetstate.View{list, more} {
		for _, v := range views {
			gpus += float64(len(parts(v.Node, func(g *fleetstate.GPU) bool { return g.Parent == "" })))
		}
	}
	if gpus > 0 {
		i.CostPerHour, i.AtMost = &gpus, true
	}
}

// began is when the first of the bad GPUs became so.
func began(n *fleetstate.Node, bad func(*fleetstate.GPU) bool) (since time.Time, before bool) {
	for j := range n.GPUs {
		g := &n.GPUs[j]
		if !bad(g) || g.BadSince == 0 {
			continue
		}
		if at := time.UnixMilli(g.BadSince); since.IsZero() || at.Before(since) {
			since, before = at, g.BadBefore
		}
	}
	return since, before
}

func parts(n *fleetstate.Node, is func(*fleetstate.GPU) bool) (list []Part) {
	for j := range n.GPUs {
		if g := &n.GPUs[j]; is(g) {
			list = append(list, Part{g.UUID, g.Serial, g.Index})
		}
	}
	slices.SortFunc(list, func(a, b Part) int { return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID)) })
	return list
}
