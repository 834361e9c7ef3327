// SPDX-License-Identifier: Apache-2.0

// Package attention decides which parts of a fleet need a person, in which order, and in
// which words: stragglers, sick and lost GPUs, missing nodes, faults of groups. Page,
// terminal and demo show its list. Pure: time is an argument.
package attention // import "github.com/gpu-collector/gpu-collector/internal/attention"

import (
	"cmp"
	"net/url"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/unjudged"
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

// The severities, as episodes have them. Worse is greater.
const (
	minor = iota
	major
	critical
)

var severities = [...]string{"minor", "major", "critical"}

// GPU is one that an item is about.
type GPU struct {
	UUID  string
	Index int // NVML's, -1 when unknown
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
	GPUs []GPU
	// A sentence says what is wrong, one why, and one what to do next. Why may be empty.
	// Reason and Action are the names of the last two for programs.
	What, Why, Next, Reason, Action string
	// Since is zero where it is unknown. SinceBefore says that it began at that time or
	// earlier.
	Since       time.Time
	SinceBefore bool
	// CostPerHour is in GPU-hours per hour, nil where nobody can say. AtMost says that it
	// is a bound: a silent node may still work.
	CostPerHour *float64
	AtMost      bool
	// Confidence is the verdict's, in [0,1]; nil of a reading, which needs none.
	Confidence *float64
	// Updated is when a verdict's figures were taken, zero where they are of now.
	Updated time.Time
	// Episode is the ID of the open episode, empty for none.
	Episode string

	severity int
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
}

// List is what needs attention, the worst first.
type List struct {
	Items []Item
	// Counts are of stragglers, of GPUs that are lost or sick, of missing nodes, and of
	// faults of groups, in the selected clusters and groups.
	Counts map[Kind]int
	// Nodes is how many nodes were looked at.
	Nodes int
	// Waiting says what is not judged yet, and why, a sentence each.
	Waiting []string
}

// Of returns what needs attention now. A straggler is in one item: its own, or that of
// the many that are slow with it.
func Of(s *fleetstate.Store, f *Filter, now time.Time) *List {
	c := collector{
		store: s, list: &List{Counts: map[Kind]int{}},
		slow: map[fleetstate.Key]fleetstate.View{}, missing: map[fleetstate.Key]fleetstate.View{},
		unjudged: map[fleetstate.GroupKey]*[unjudged.Count]int{},
	}
	c.views(f, now)
	c.episodes(f, now)
	c.silent()
	c.wait()
	items := slices.DeleteFunc(c.list.Items, func(i Item) bool {
		return len(f.Kinds) > 0 && !slices.Contains(f.Kinds, i.Kind) || len(f.Nodes) > 0 && !i.names(f.Nodes)
	})
	for i := range items {
		items[i].Nodes = items[i].Nodes[:min(len(items[i].Nodes), MaxNodes)]
	}
	slices.SortFunc(items, worse)
	c.list.Items = items
	return c.list
}

func (i *Item) names(nodes []string) bool {
	return slices.ContainsFunc(nodes, func(n string) bool { return n == i.Node || slices.Contains(i.Nodes, n) })
}

// worse orders by severity, then by cost, then by age.
func worse(a, b Item) int {
	return cmp.Or(
		cmp.Compare(b.severity, a.severity), cmp.Compare(of(b.CostPerHour), of(a.CostPerHour)), older(a.Since, b.Since),
		cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Node, b.Node), cmp.Compare(a.ID, b.ID),
	)
}

// older puts what has no known age last.
func older(a, b time.Time) int {
	if a.IsZero() != b.IsZero() {
		return -a.Compare(b)
	}
	return a.Compare(b)
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
	list  *List
	// slow and missing are the nodes that no item tells of yet.
	slow, missing map[fleetstate.Key]fleetstate.View
	silences      []*fleetstate.Episode // open, of missing nodes
	unjudged      map[fleetstate.GroupKey]*[unjudged.Count]int
}

func (c *collector) add(severity int, i *Item) {
	i.severity, i.Severity = severity, severities[severity]
	c.list.Items = append(c.list.Items, *i)
}

// views looks at each node's view.
func (c *collector) views(f *Filter, now time.Time) {
	c.store.Each(&fleetstate.Filter{Clusters: f.Clusters, Groups: f.Groups}, now, func(v fleetstate.View) bool {
		c.list.Nodes++
		if v.State == gpusemconv.StateMissing {
			c.list.Counts[MissingNode]++
			c.missing[v.Key] = v // nothing else is known of it
			return true
		}
		if v.Straggler() {
			c.slow[v.Key] = v
		} else if why := v.Values.Get(reading.NodeUnjudged); why != nil && *why > 0 && *why < float64(unjudged.Count) {
			k := fleetstate.GroupKey{Cluster: v.Cluster, Group: v.Group}
			if c.unjudged[k] == nil {
				c.unjudged[k] = new([unjudged.Count]int)
			}
			c.unjudged[k][int(*why)]++
		}
		c.gpus(v)
		return true
	})
}

// idOf is the same whether a record tells of it yet, and after a restart. No
// slash in a name makes two alike: the last parts have none.
func idOf(k Kind, cluster, node, other string) string {
	return string(k) + "/" + cluster + "/" + url.PathEscape(node) + "/" + url.PathEscape(other)
}

// about is an item of one node.
func about(v *fleetstate.View, k Kind) *Item {
	return &Item{ID: idOf(k, v.Cluster, v.Key.Node, ""), Kind: k, Cluster: v.Cluster, Group: v.Group, Node: v.Key.Node}
}

// gpus makes an item of a node's lost GPUs, and one of its sick ones.
func (c *collector) gpus(v fleetstate.View) {
	lost := gpusOf(v.Node, (*fleetstate.GPU).Lost)
	count := len(lost)
	if n := v.Values.Get(reading.GPUsLost); n != nil {
		count = max(count, int(*n)) // some may be gone without a trace
	}
	c.list.Counts[LostGPU] += count
	if count > 0 {
		i, cost := about(&v, LostGPU), float64(count)
		i.GPUs, i.CostPerHour = lost, &cost
		i.Part = gpuNames(lost)
		if len(lost) < count {
			i.Part = countOf(count, "GPU")
		}
		i.Since, i.SinceBefore = began(v.Node, (*fleetstate.GPU).Lost)
		i.sayLost(v.Node, count)
		c.add(critical, i)
	}
	sick := gpusOf(v.Node, (*fleetstate.GPU).Sick)
	c.list.Counts[SickGPU] += len(sick)
	if len(sick) > 0 {
		i := about(&v, SickGPU)
		i.GPUs, i.Part = sick, gpuNames(sick)
		i.Since, i.SinceBefore = began(v.Node, (*fleetstate.GPU).Sick)
		health := i.saySick(v.Node)
		switch {
		case health == fleetstate.Unhealthy:
			c.add(critical, i)
		case i.Action == string(gpuhealth.ActionNone):
			c.add(minor, i)
		default:
			c.add(major, i)
		}
	}
}

// silent makes the items of missing nodes, those of an episode of many first.
func (c *collector) silent() {
	told := map[fleetstate.Key]string{}
	for _, e := range c.silences {
		told[fleetstate.Key{Cluster: e.Cluster, Node: e.Node}] = e.ID
		c.away(e)
	}
	groups := map[fleetstate.GroupKey][]fleetstate.View{}
	for _, v := range c.missing {
		k := fleetstate.GroupKey{Cluster: v.Cluster, Group: v.Group}
		groups[k] = append(groups[k], v)
	}
	for k, list := range groups {
		if len(list) >= foldMissing {
			c.silentMany(&Item{ID: idOf(MissingNode, k.Cluster, "", k.Group), Cluster: k.Cluster, Group: k.Group}, list)
			continue
		}
		for i := range list {
			item := about(&list[i], MissingNode)
			item.Since, item.Episode = list[i].Seen, told[list[i].Key]
			item.bound(list[i : i+1])
			item.saySilent(len(list[i].GPUs))
			c.add(major, item)
		}
	}
}

func (c *collector) silentMany(i *Item, list []fleetstate.View) {
	slices.SortFunc(list, func(a, b fleetstate.View) int { return a.Compare(b.Key) })
	i.Kind, i.NodeCount = MissingNode, int64(len(list))
	for _, v := range list {
		delete(c.missing, v.Key)
		if i.Since.IsZero() || v.Seen.Before(i.Since) {
			i.Since = v.Seen
		}
		i.Nodes = append(i.Nodes, v.Key.Node)
	}
	i.bound(list)
	i.saySilentMany()
	c.add(critical, i)
}

// bound says what silent nodes may cost at most: their GPUs, if none of them works.
func (i *Item) bound(list []fleetstate.View) {
	gpus := 0.0
	for _, v := range list {
		gpus += float64(len(gpusOf(v.Node, func(g *fleetstate.GPU) bool { return g.Parent == "" })))
	}
	if gpus > 0 {
		i.CostPerHour, i.AtMost = &gpus, true
	}
}

// began is when the first of the bad GPUs became so.
func began(n *fleetstate.Node, bad func(*fleetstate.GPU) bool) (since time.Time, before bool) {
	for j := range n.GPUs {
		g := &n.GPUs[j]
		if at := time.Unix(int64(g.BadSince), 0); bad(g) && (since.IsZero() || at.Before(since)) {
			since, before = at, g.BadBefore
		}
	}
	return since, before
}

// gpusOf are a node's GPUs of a kind, by index.
func gpusOf(n *fleetstate.Node, is func(*fleetstate.GPU) bool) (list []GPU) {
	for j := range n.GPUs {
		if g := &n.GPUs[j]; is(g) {
			list = append(list, GPU{g.UUID, g.Index})
		}
	}
	slices.SortFunc(list, func(a, b GPU) int { return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID)) })
	return list
}
