// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

const tagFleet = "fleet"

// NodePage is a page of nodes.
type NodePage struct {
	Page
	Nodes []Node `json:"nodes"`
}

// GPUPage is a page of GPUs.
type GPUPage struct {
	Page
	GPUs []NodeGPU `json:"gpus"`
}

// NodeGPUs holds the GPUs of a node.
type NodeGPUs struct {
	fleetstate.Key
	Sighting
	GPUs []GPU `json:"gpus"`
}

// StragglerList is a page of the ranking, the most suspect node first.
type StragglerList struct {
	Page
	At         time.Time   `json:"at"`
	Stragglers []Straggler `json:"stragglers" doc:"The most suspect nodes, named as stragglers or not. total counts the nodes with enough known values to be ranked"`
}

// EpisodePage is a page of episodes.
type EpisodePage struct {
	Page
	Episodes []Episode `json:"episodes"`
}

// GroupPage is a page of groups.
type GroupPage struct {
	Page
	Groups []Group `json:"groups"`
}

func (a *API) registerFleet() {
	get(a, "list-attention", "/api/v1/attention", tagFleet, "Items that need attention, the worst first: what is wrong, why, and what to do", a.listAttention)
	get(a, "list-nodes", "/api/v1/nodes", tagFleet, "Nodes, by cluster and name", a.listNodes)
	get(a, "get-node", "/api/v1/nodes/{node}", tagFleet, "A node with its GPUs", a.getNode)
	get(a, "get-node-gpus", "/api/v1/nodes/{node}/gpus", tagFleet, "The GPUs of a node", a.getNodeGPUs)
	get(a, "list-gpus", "/api/v1/gpus", tagFleet, "GPUs, by cluster and node", a.listGPUs)
	get(a, "list-stragglers", "/api/v1/stragglers", tagFleet, "The most suspect nodes, also while none is a straggler", a.listStragglers)
	get(a, "list-episodes", "/api/v1/episodes", tagFleet, "Episodes, the newest first", a.listEpisodes)
	get(a, "get-episode", "/api/v1/episodes/{id}", tagFleet, "An episode", a.getEpisode)
	get(a, "list-groups", "/api/v1/groups", tagFleet, "Peer groups, by cluster and name", a.listGroups)
	get(a, "get-summary", "/api/v1/stats/summary", tagFleet, "The fleet in numbers", a.getSummary)
	get(a, "get-health", healthPath, tagFleet, "How the server is", a.getHealth)
}

type listNodesInput struct {
	NodeParams
	ListParams
	GPUs bool `query:"gpus" doc:"With the GPUs of each node"`
}

func (a *API) listNodes(_ context.Context, in *listNodesInput) (*NodePage, error) {
	c := a.converter()
	f := in.filter()
	page, nodes, err := pageOf(a.o.Store.Each(&f, c.now), &in.ListParams, viewKey, func(v fleetstate.View) Node { return c.node(v, in.GPUs) })
	return &NodePage{page, nodes}, err
}

func viewKey(v fleetstate.View) []string { return []string{v.Cluster, v.Key.Node} }

// NodeParam names a node.
type NodeParam struct {
	Node    string `path:"node" maxLength:"253" doc:"Name of the node"`
	Cluster string `query:"cluster" maxLength:"253" doc:"Its cluster, where nodes of several clusters have that name"`
}

// find returns the node that a request names.
func (a *API) find(in *NodeParam, now time.Time) (fleetstate.View, error) {
	asked, text := a.o.Store.Clusters(), in.Node
	if in.Cluster != "" {
		asked, text = []string{in.Cluster}, text+" in cluster "+in.Cluster
	}
	var views []fleetstate.View
	for _, c := range asked {
		if v, ok := a.o.Store.Node(fleetstate.Key{Cluster: c, Node: in.Node}, now); ok {
			views = append(views, v)
		}
	}
	return theOne(views, func(v fleetstate.View) string { return v.Cluster }, "name", "no node "+text+" is known")
}

// theOne returns the only element of a list. Several are of clusters that share the name or ID.
func theOne[T any](list []T, cluster func(T) string, by, none string) (one T, err error) {
	if len(list) == 1 {
		return list[0], nil
	}
	if len(list) == 0 {
		return one, huma.Error404NotFound(none)
	}
	var clusters []string
	for _, v := range list {
		clusters = append(clusters, cluster(v))
	}
	return one, badParam("query.cluster", "", "several clusters have this %s, %s", by, choice(clusters))
}

func (a *API) getNode(_ context.Context, in *NodeParam) (*Node, error) {
	c := a.converter()
	v, err := a.find(in, c.now)
	if err != nil {
		return nil, err
	}
	n := c.node(v, true)
	n.Episode = c.openEpisodes(&fleetstate.EpisodeFilter{Clusters: []string{v.Cluster}, Nodes: []string{v.Key.Node}})[v.Key]
	return &n, nil
}

func (a *API) getNodeGPUs(_ context.Context, in *NodeParam) (*NodeGPUs, error) {
	c := a.converter()
	v, err := a.find(in, c.now)
	if err != nil {
		return nil, err
	}
	return &NodeGPUs{Key: v.Key, Sighting: c.sighting(v.Seen), GPUs: c.gpuList(v.Node)}, nil
}

type listGPUsInput struct {
	Cluster []string `query:"cluster,explode" maxItems:"100" doc:"Only of these clusters"`
	Node    []string `query:"node,explode" maxItems:"1000" doc:"Only of nodes of these names; abc* stands for all names that begin with abc"`
	Health  []string `query:"health,explode" enum:"unknown,healthy,degraded,unhealthy" doc:"Only GPUs in one of these states"`
	Job     []string `query:"job,explode" maxItems:"100" doc:"Only GPUs that one of these jobs or pods holds"`
	MinUtil float64  `query:"min_utilization" minimum:"0" maximum:"1" doc:"Least utilisation"`
	ListParams
}

// gpuView is a GPU of a node.
type gpuView struct {
	fleetstate.View
	gpu int
}

func (a *API) listGPUs(_ context.Context, in *listGPUsInput) (*GPUPage, error) {
	c := a.converter()
	selected := func(v fleetstate.View, g *fleetstate.GPU) bool {
		u := g.Live(reading.Utilization)
		return (len(in.Health) == 0 || slices.Contains(in.Health, g.Health.String())) && (len(in.Job) == 0 || v.Runs(in.Job, g.UUID)) &&
			(in.MinUtil <= 0 || v.State != gpusemconv.StateMissing && u != nil && *u >= in.MinUtil)
	}
	gpus := func(yield func(gpuView) bool) {
		for v := range a.o.Store.Each(&fleetstate.Filter{Clusters: in.Cluster, Nodes: in.Node}, c.now) {
			for _, i := range gpuOrder(v.Node) {
				if selected(v, &v.GPUs[i]) && !yield(gpuView{v, i}) {
					return
				}
			}
		}
	}
	page, list, err := pageOf(gpus, &in.ListParams,
		func(g gpuView) []string { return append(viewKey(g.View), gpuKey(&g.GPUs[g.gpu])) },
		func(g gpuView) NodeGPU {
			return NodeGPU{Key: g.Key, Sighting: c.sighting(g.Seen), GPU: c.gpu(g.Node, g.gpu)}
		})
	return &GPUPage{page, list}, err
}

type listStragglersInput struct {
	Cluster []string `query:"cluster,explode" maxItems:"100" doc:"Only of these clusters"`
	Group   []string `query:"group,explode" maxItems:"100" doc:"Only of these peer groups"`
	ListParams
}

func (a *API) listStragglers(_ context.Context, in *listStragglersInput) (*StragglerList, error) {
	c := a.converter()
	f := fleetstate.Filter{Clusters: in.Cluster, Groups: in.Group}
	open := c.openEpisodes(&fleetstate.EpisodeFilter{Clusters: in.Cluster})
	page, list, err := pageOf(slices.Values(a.o.Store.Stragglers(&f, c.now)), &in.ListParams,
		func(s fleetstate.Suspect) []string {
			return append([]string{descending(s.By[0]), descending(s.By[1]), descending(s.By[2])}, viewKey(s.View)...)
		},
		func(s fleetstate.Suspect) Straggler {
			out := Straggler{Place: s.Place, Node: c.node(s.View, false)}
			out.Episode = open[s.Key]
			return out
		})
	return &StragglerList{page, c.now.UTC(), list}, err
}

// openEpisodes returns the open episode of each node: its own, or else one of many nodes.
func (c *converter) openEpisodes(f *fleetstate.EpisodeFilter) map[fleetstate.Key]*Episode {
	f.Open = new(true)
	open := map[fleetstate.Key]*Episode{}
	own := map[fleetstate.Key]bool{}
	for _, e := range c.store.Episodes(f) {
		ep := c.episode(e)
		if e.Node != "" {
			k := fleetstate.Key{Cluster: e.Cluster, Node: e.Node}
			open[k], own[k] = &ep, true
		}
		for _, n := range e.Nodes {
			if k := (fleetstate.Key{Cluster: e.Cluster, Node: n}); !own[k] {
				open[k] = &ep
			}
		}
	}
	return open
}

type listEpisodesInput struct {
	Cluster []string       `query:"cluster,explode" maxItems:"100" doc:"Only of these clusters"`
	Node    []string       `query:"node,explode" maxItems:"100" doc:"Only of these nodes"`
	Open    optional[bool] `query:"open" doc:"Only open ones, or only those that are over"`
	Since   time.Time      `query:"since" doc:"Without those that ended before"`
	ListParams
}

func (a *API) listEpisodes(_ context.Context, in *listEpisodesInput) (*EpisodePage, error) {
	list := a.o.Store.Episodes(&fleetstate.EpisodeFilter{Clusters: in.Cluster, Nodes: in.Node, Open: in.Open.pointer(), Since: in.Since})
	page, part, err := pageOf(slices.Values(list), &in.ListParams, func(e *episode.Episode) []string {
		return []string{fmt.Sprintf("%019d", math.MaxInt64-e.Since.UnixNano()), e.ID, e.Cluster}
	}, a.converter().episode)
	return &EpisodePage{page, part}, err
}

type getEpisodeInput struct {
	ID      string `path:"id" maxLength:"253" doc:"ID of the episode"`
	Cluster string `query:"cluster" maxLength:"253" doc:"Its cluster, where episodes of several clusters have that ID"`
}

func (a *API) getEpisode(_ context.Context, in *getEpisodeInput) (*Episode, error) {
	f := fleetstate.EpisodeFilter{IDs: []string{in.ID}}
	if in.Cluster != "" {
		f.Clusters = []string{in.Cluster}
	}
	e, err := theOne(a.o.Store.Episodes(&f), func(e *episode.Episode) string { return e.Cluster }, "ID",
		"no episode "+in.ID+" is known: /api/v1/episodes lists those that are kept")
	if err != nil {
		return nil, err
	}
	return new(a.converter().episode(e)), nil
}

type listGroupsInput struct {
	ClusterParams
	ListParams
}

func (a *API) listGroups(_ context.Context, in *listGroupsInput) (*GroupPage, error) {
	page, part, err := pageOf(slices.Values(a.o.Store.Groups(in.Cluster...)), &in.ListParams,
		func(g *fleetstate.Group) []string { return []string{g.Cluster, g.Group} }, a.converter().groupView)
	return &GroupPage{page, part}, err
}

func (a *API) getSummary(_ context.Context, in *ClusterParams) (*Summary, error) {
	c := a.converter()
	out := &Summary{At: c.now.UTC(), NodesByState: map[string]int{}, GPUsByHealth: map[string]int{}}
	for h := fleetstate.HealthUnknown; h <= fleetstate.Unhealthy; h++ {
		out.GPUsByHealth[h.String()] = 0
	}
	clusters := map[string]struct{}{}
	users := 0
	// add adds a node's figure; NaN is unknown.
	add := func(sum **float64, x float64) bool {
		if math.IsNaN(x) {
			return false
		}
		if *sum == nil {
			*sum = new(float64)
		}
		**sum += x
		return true
	}
	for v := range a.o.Store.Each(&fleetstate.Filter{Clusters: in.Cluster}, c.now) {
		out.Nodes++
		clusters[v.Cluster] = struct{}{}
		out.NodesByState[cmp.Or(v.State, "unknown")]++
		out.MaxAge = max(out.MaxAge, c.age(v.Seen))
		if v.State == gpusemconv.StateMissing {
			continue // its last report does not count
		}
		if v.Straggler() {
			out.Stragglers++
		}
		if add(&out.Utilization, v.Utilization) {
			users++
		}
		add(&out.Power, v.Watts)
		for i := range v.GPUs {
			g := &v.GPUs[i]
			if !g.Board() {
				continue
			}
			out.GPUs++
			out.GPUsByHealth[g.Health.String()]++
			if g.Lost() {
				out.GPUsDown++
			}
		}
	}
	if users > 0 {
		*out.Utilization /= float64(users)
	}
	out.Clusters = len(clusters)
	for _, g := range a.o.Store.Groups(in.Cluster...) {
		if g.Group != "" {
			out.Groups++
		}
	}
	out.OpenEpisodes = len(a.o.Store.Episodes(&fleetstate.EpisodeFilter{Clusters: in.Cluster, Open: new(true)}))
	return out, nil
}

func (a *API) getHealth(context.Context, *struct{}) (*Health, error) {
	h := a.o.History.Status()
	out := &Health{
		Status: "ok", Version: a.o.Version, Started: a.started.UTC(), Now: a.o.Now().UTC(),
		Nodes: a.o.Store.Nodes(), Streams: a.o.Feed.Watchers(), Dropped: map[string]int64{},
		History: HistoryHealth{Storage: h.Storage, OK: h.Err == nil, Dropped: h.Dropped, Bytes: h.Bytes, Note: h.Note},
	}
	a.o.Store.Dropped(func(d fleetstate.Drop, n int64) { out.Dropped[d.String()] = n })
	if h.Err != nil {
		out.Status, out.History.Error = "degraded", h.Err.Error()
	}
	if !h.Oldest.IsZero() {
		out.History.Oldest = new(h.Oldest.UTC())
	}
	return out, nil
}
