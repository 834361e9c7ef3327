// SPDX-License-Identifier: Apache-2.0

// Package attention lists the parts of a fleet that need attention, the worst first, with
// reason and advice: stragglers, sick and lost GPUs, missing nodes, faults of groups. Page,
// terminal and demo show its list. Pure: time is an argument.
package attention // import "github.com/gpu-collector/gpu-collector/internal/verdict/attention"

import (
	"cmp"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode/words"
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

// Device is a GPU that an item is about.
type Device struct {
	UUID  string `json:"uuid"`
	Index *int   `json:"index,omitempty"` // NVML's, nil where it is unknown
}

// Item is one thing that needs attention.
type Item struct {
	ID       string           `json:"id" doc:"Stays the same while the trouble lasts"`
	Kind     Kind             `json:"kind" enum:"straggler,lost_gpu,sick_gpu,missing_node,group_fault" doc:"group_fault: many nodes, a communicator or a job"`
	Severity episode.Severity `json:"severity" enum:"minor,major,critical"`
	Cluster  string           `json:"cluster"`
	Group    string           `json:"group,omitempty"`
	// Node is empty for an item of many nodes. Nodes are those, at most MaxNodes, and
	// NodeCount counts all.
	Node      string   `json:"node,omitempty" doc:"Absent for an item of many nodes"`
	Nodes     []string `json:"nodes,omitempty" doc:"Of an item of many nodes, at most 100"`
	NodeCount int64    `json:"node_count,omitempty"`
	Part      string   `json:"part,omitempty" doc:"The part of the node that is meant, such as rank 3 (GPU 5); absent: the whole node"`
	GPUs      []Device `json:"gpus,omitempty"`
	// Reason and Action are Why and Next for programs.
	What   string `json:"what" doc:"What is wrong, a sentence"`
	Why    string `json:"why,omitempty" doc:"Why, a sentence; absent where what says all"`
	Next   string `json:"next" doc:"What to do, a sentence"`
	Reason string `json:"reason,omitempty" doc:"The same for programs"`
	Action string `json:"action,omitempty" doc:"The same for programs"`

	Since       time.Time `json:"since,omitzero" doc:"Absent while unknown"`
	SinceBefore bool      `json:"since_before,omitempty" doc:"It began at that time or earlier"`
	Duration    float64   `json:"duration_seconds,omitempty"`
	// CostPerHour is in GPU-hours per hour, nil where it is unknown.
	CostPerHour *float64  `json:"gpu_hours_lost_per_hour,omitempty"`
	AtMost      bool      `json:"gpu_hours_lost_at_most,omitempty" doc:"gpu_hours_lost_per_hour is a bound: a silent node may still work"`
	Updated     time.Time `json:"updated,omitzero" doc:"When a verdict's figures were taken; absent where they are of now"`
	Confidence  *float64  `json:"confidence,omitempty" doc:"Of a verdict, 0 to 1; absent of what was read"`
	Episode     string    `json:"episode_id,omitempty" doc:"The open episode, where there is one"`

	// Straggler is true of an item of any kind whose GPU is the cause of a slow node.
	Straggler bool `json:"straggler,omitempty" doc:"The node is slow for it"`
}

// Bounds of an item.
const (
	// MaxNodes bounds the names of an item.
	MaxNodes = 100
	// foldMissing missing nodes of one group are one item: a switch or a rack takes its nodes
	// with it.
	foldMissing = 4
)

// Filter selects items. The zero filter selects all.
type Filter struct {
	Clusters, Groups []string
	// Nodes selects what is about these nodes, alone or among others.
	Nodes []string
	Kinds []Kind
}

// Counts count troubles of the selected clusters and groups.
type Counts struct {
	Nodes       int `json:"nodes" doc:"Nodes that were looked at"`
	Stragglers  int `json:"stragglers"`
	LostGPUs    int `json:"lost_gpus"`
	SickGPUs    int `json:"sick_gpus"`
	Missing     int `json:"missing_nodes"`
	GroupFaults int `json:"group_faults" doc:"Open faults of groups, communicators and jobs"`
}

// List is what needs attention, the worst first.
type List struct {
	Items  []Item
	Counts Counts
	// Waiting has a sentence for each group that is not judged yet, with the reason.
	Waiting []string
}

// Of returns what needs attention now. A straggler is in one item: its own, or that of
// the many that are slow with it.
func Of(s *fleetstate.Store, f *Filter, now time.Time) *List {
	c := collector{
		store: s, list: &List{},
		hardware: map[fleetstate.Key][]int{}, slow: map[fleetstate.Key]fleetstate.View{}, missing: map[fleetstate.Key]fleetstate.View{},
		unjudged: map[fleetstate.GroupKey]*[unjudged.Count]int{},
	}
	c.views(f, now)
	c.episodes(f, now)
	c.missingNodes()
	c.wait()
	items := slices.DeleteFunc(c.list.Items, func(i Item) bool {
		asked := len(f.Kinds) == 0 || slices.Contains(f.Kinds, i.Kind) || i.Straggler && slices.Contains(f.Kinds, Straggler)
		return !asked || len(f.Nodes) > 0 && !i.names(f.Nodes)
	})
	for i := range items {
		item := &items[i]
		item.Nodes = item.Nodes[:min(len(item.Nodes), MaxNodes)]
		if item.Since, item.Updated = item.Since.UTC(), item.Updated.UTC(); !item.Since.IsZero() {
			item.Duration = max(0, now.Sub(item.Since).Seconds())
		}
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
		cmp.Compare(b.Severity, a.Severity), cmp.Compare(or(b.CostPerHour, 0), or(a.CostPerHour, 0)), older(a.Since, b.Since),
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

func or[T any](v *T, otherwise T) T {
	if v == nil {
		return otherwise
	}
	return *v
}

// collector gathers the items of one list.
type collector struct {
	store *fleetstate.Store
	list  *List
	// slow and missing are the nodes that have no item yet.
	slow, missing map[fleetstate.Key]fleetstate.View
	hardware      map[fleetstate.Key][]int // the items of a node's lost and sick GPUs
	gone          []*episode.Episode       // open, of missing nodes
	unjudged      map[fleetstate.GroupKey]*[unjudged.Count]int
}

func (c *collector) add(severity episode.Severity, i *Item) {
	i.Severity = severity
	c.list.Items = append(c.list.Items, *i)
}

// views reads each node's view.
func (c *collector) views(f *Filter, now time.Time) {
	for v := range c.store.Each(&fleetstate.Filter{Clusters: f.Clusters, Groups: f.Groups}, now) {
		c.list.Counts.Nodes++
		if v.State == gpusemconv.StateMissing {
			c.list.Counts.Missing++
			c.missing[v.Key] = v // nothing else is known of it
			continue
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
	}
}

// idOf is the same before and after the first record, and after a restart. The last parts are
// escaped, so that no slash in a name makes two IDs alike.
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
		count = max(count, int(*n)) // some may have no view
	}
	c.list.Counts.LostGPUs += count
	if count > 0 {
		i := c.hurt(&v, LostGPU, lost, (*fleetstate.GPU).Lost)
		i.CostPerHour = new(float64(count))
		if len(lost) < count {
			i.Part = words.Count(count, "GPU")
		}
		i.describeLost(v.Node, count)
		c.add(episode.SeverityCritical, i)
	}
	sick := gpusOf(v.Node, (*fleetstate.GPU).Sick)
	c.list.Counts.SickGPUs += len(sick)
	if len(sick) > 0 {
		i, severity := c.hurt(&v, SickGPU, sick, (*fleetstate.GPU).Sick), episode.SeverityMajor
		if i.describeSick(v.Node) == fleetstate.Unhealthy {
			severity = episode.SeverityCritical
		} else if i.Action == string(gpuhealth.ActionNone) {
			severity = episode.SeverityMinor
		}
		c.add(severity, i)
	}
}

// hurt is an item of bad GPUs of a node.
func (c *collector) hurt(v *fleetstate.View, k Kind, gpus []Device, bad func(*fleetstate.GPU) bool) *Item {
	i := about(v, k)
	i.GPUs, i.Part = gpus, gpuNames(gpus)
	for j := range v.GPUs {
		g := &v.GPUs[j]
		if at := time.Unix(int64(g.BadSince), 0); bad(g) && (i.Since.IsZero() || at.Before(i.Since)) {
			i.Since, i.SinceBefore = at, g.BadBefore
		}
	}
	c.hardware[v.Key] = append(c.hardware[v.Key], len(c.list.Items))
	return i
}

// cause returns the item of the GPU that makes a node slow, nil for none: the episode points at
// that GPU, or a GPU is lost.
func (c *collector) cause(e *episode.Episode) *Item {
	for _, at := range c.hardware[fleetstate.Key{Cluster: e.Cluster, Node: e.Node}] {
		i := &c.list.Items[at]
		if e.Reason != "" && e.Reason == i.Reason || slices.ContainsFunc(i.GPUs, func(d Device) bool { return d.UUID == e.GPU || d.UUID == e.Culprit.GPU }) {
			return i
		}
	}
	return nil
}

// join adds a slow node's item to the item of the GPU that causes it: one cause is one item,
// with one cost.
func (i *Item) join(slow *Item) {
	i.Straggler, i.Severity = true, max(i.Severity, slow.Severity)
	if slow.Since.Before(i.Since) {
		i.ID, i.Since, i.SinceBefore = slow.ID, slow.Since, slow.SinceBefore
	}
	if i.Action == string(gpuhealth.ActionNone) && slow.Reason != "" { // the GPU is only to be watched: the slow node's advice counts
		i.Reason, i.Action, i.Why, i.Next = slow.Reason, slow.Action, slow.Why, slow.Next
	}
	i.Episode, i.Confidence, i.Updated = slow.Episode, slow.Confidence, slow.Updated
	if or(slow.CostPerHour, 0) > or(i.CostPerHour, 0) {
		i.CostPerHour = slow.CostPerHour
	}
	if strings.HasPrefix(slow.Part, "rank ") && len(i.GPUs) == 1 {
		i.Part = slow.Part
	}
	i.What += " The node: " + strings.ToLower(slow.What[:1]) + slow.What[1:]
}

// missingNodes makes the items of missing nodes, those of an episode of many first.
func (c *collector) missingNodes() {
	recorded := map[fleetstate.Key]string{}
	for _, e := range c.gone {
		recorded[fleetstate.Key{Cluster: e.Cluster, Node: e.Node}] = e.ID
		var absent []fleetstate.View
		for _, name := range e.Nodes {
			if v, away := c.missing[fleetstate.Key{Cluster: e.Cluster, Node: name}]; away {
				absent = append(absent, v)
			}
		}
		// Fewer nodes have an item each, with their own time.
		if len(absent) >= foldMissing {
			i := item(e, MissingNode)
			i.Since, i.SinceBefore = time.Time{}, false
			c.away(i, absent)
		}
	}
	groups := map[fleetstate.GroupKey][]fleetstate.View{}
	for _, v := range c.missing {
		k := fleetstate.GroupKey{Cluster: v.Cluster, Group: v.Group}
		groups[k] = append(groups[k], v)
	}
	for k, list := range groups {
		if len(list) >= foldMissing {
			c.away(&Item{ID: idOf(MissingNode, k.Cluster, "", k.Group), Kind: MissingNode, Cluster: k.Cluster, Group: k.Group}, list)
			continue
		}
		for j := range list {
			i := about(&list[j], MissingNode)
			i.Episode = recorded[list[j].Key]
			c.away(i, list[j:j+1])
		}
	}
}

// away is of one missing node, or of many. They cost at most their GPUs, if none of them works.
func (c *collector) away(i *Item, list []fleetstate.View) {
	slices.SortFunc(list, func(a, b fleetstate.View) int { return a.Compare(b.Key) })
	gpus, severity := 0, episode.SeverityMajor
	for _, v := range list {
		delete(c.missing, v.Key)
		gpus += len(gpusOf(v.Node, (*fleetstate.GPU).Board))
		if i.Since.IsZero() || v.Seen.Before(i.Since) {
			i.Since = v.Seen
		}
		if i.Node == "" {
			severity, i.Nodes, i.NodeCount = episode.SeverityCritical, append(i.Nodes, v.Key.Node), int64(len(list))
		}
	}
	if gpus > 0 {
		i.CostPerHour, i.AtMost = new(float64(gpus)), true
	}
	i.describeMissing(gpus)
	c.add(severity, i)
}

// gpusOf are a node's GPUs of a kind, by index: of a GPU and its slices it is the GPU.
func gpusOf(n *fleetstate.Node, is func(*fleetstate.GPU) bool) (list []Device) {
	for j := range n.GPUs {
		g := &n.GPUs[j]
		d := Device{UUID: cmp.Or(g.Parent, g.UUID)}
		if !is(g) || slices.ContainsFunc(list, func(o Device) bool { return o.UUID == d.UUID }) {
			continue
		}
		if g.Index >= 0 {
			d.Index = &g.Index
		}
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b Device) int {
		return cmp.Or(cmp.Compare(or(a.Index, -1), or(b.Index, -1)), cmp.Compare(a.UUID, b.UUID))
	})
	return list
}
