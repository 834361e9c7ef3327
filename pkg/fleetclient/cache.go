// SPDX-License-Identifier: Apache-2.0

// Package fleetclient is the client of the fleet view's API: one method per
// operation, generated from the API's OpenAPI document. A program that asks often
// and decides locally uses the Cache.
package fleetclient // import "github.com/gpu-collector/gpu-collector/pkg/fleetclient"

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Query selects what a Cache holds; the zero Query is the whole fleet without
// its GPUs. Values of one field are alternatives, fields narrow each other.
type Query struct {
	Clusters []string
	// Names of nodes; `abc*` stands for all names that begin with `abc`.
	Names  []string
	Groups []string
	// GPUs has the GPUs of each node told too.
	GPUs bool
}

// Cache is a copy of the fleet's state that is read without a network call.
// A program that decides in passes, as a scheduler does, refreshes it once per pass.
//
// All methods are safe for concurrent use. The caller must not change their
// results, which are shared; a refresh leaves them as they are.
type Cache struct {
	client ClientWithResponsesInterface
	// Now is the clock; time.Now by default. Set it before the first use.
	Now func() time.Time

	refreshing sync.Mutex
	fleet      atomic.Pointer[fleet]
}

// fleet is what one refresh brought; it does not change.
type fleet struct {
	at         time.Time
	nodes      []*Node // by cluster and name
	byName     map[string][]*Node
	stragglers []*Node // the most suspicious first
}

// NewCache returns a Cache that holds nothing before its first Refresh.
func NewCache(client ClientWithResponsesInterface) *Cache {
	return &Cache{client: client, Now: time.Now}
}

// pageSize is the most that the API gives at once.
const pageSize = 1000

// maxPages bounds what a server can make a client hold.
const maxPages = 1000

// Refresh asks for what the query selects and replaces what was there, all or
// nothing. When it fails, the Cache holds what it held, and the error says how
// old that is.
func (c *Cache) Refresh(ctx context.Context, query Query) error {
	// One at a time, or an older answer could replace a newer one.
	c.refreshing.Lock()
	defer c.refreshing.Unlock()
	at := c.Now()
	nodes, err := c.list(ctx, query)
	if err != nil {
		if age, ok := c.Age(); ok {
			return fmt.Errorf("the fleet view was not refreshed and is %s old: %w", age.Round(time.Millisecond), err)
		}
		return fmt.Errorf("the fleet view was not refreshed and is empty: %w", err)
	}
	c.fleet.Store(newFleet(at, nodes))
	return nil
}

// list collects the pages, one after the other, while nodes come and go. A node
// that moved to the next page meanwhile comes twice.
func (c *Cache) list(ctx context.Context, query Query) (map[nodeKey]*Node, error) {
	nodes := map[nodeKey]*Node{}
	params := ListNodesParams{
		Cluster: notEmpty(query.Clusters), Names: notEmpty(query.Names), Group: notEmpty(query.Groups),
		Gpus: &query.GPUs, Limit: new(int64),
	}
	*params.Limit = pageSize
	for page := int64(1); page <= maxPages; page++ {
		params.Page = &page
		resp, err := c.client.ListNodesWithResponse(ctx, &params)
		if err != nil {
			return nil, err
		}
		if resp.JSON200 == nil {
			return nil, AnswerError(resp.StatusCode(), resp.Body)
		}
		for i := range resp.JSON200.Nodes {
			n := &resp.JSON200.Nodes[i]
			nodes[nodeKey{n.Cluster, n.Node}] = n
		}
		if !resp.JSON200.More {
			return nodes, nil
		}
	}
	return nil, errors.New("the list of nodes does not end")
}

type nodeKey struct{ cluster, node string }

func newFleet(at time.Time, nodes map[nodeKey]*Node) *fleet {
	f := &fleet{at: at, nodes: make([]*Node, 0, len(nodes)), byName: make(map[string][]*Node, len(nodes))}
	for _, n := range nodes {
		f.nodes = append(f.nodes, n)
	}
	slices.SortFunc(f.nodes, func(a, b *Node) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Node, b.Node))
	})
	for _, n := range f.nodes {
		f.byName[n.Node] = append(f.byName[n.Node], n)
		if n.Straggler {
			f.stragglers = append(f.stragglers, n)
		}
	}
	slices.SortStableFunc(f.stragglers, func(a, b *Node) int { return cmp.Compare(value(b.Suspicion), value(a.Suspicion)) })
	return f
}

// Age is how long ago the last successful Refresh began; false before the first.
func (c *Cache) Age() (time.Duration, bool) {
	f := c.fleet.Load()
	if f == nil {
		return 0, false
	}
	return c.Now().Sub(f.at), true
}

// Stale reports whether what the Cache holds is older than that, or nothing.
func (c *Cache) Stale(after time.Duration) bool {
	age, ok := c.Age()
	return !ok || age > after
}

// Node returns the node of that name. It is false when there is none, and when
// several clusters have one: then NodeIn tells them apart.
func (c *Cache) Node(name string) (*Node, bool) {
	if f := c.fleet.Load(); f != nil && len(f.byName[name]) == 1 {
		return f.byName[name][0], true
	}
	return nil, false
}

// NodeIn returns the node of that name in a cluster.
func (c *Cache) NodeIn(cluster, name string) (*Node, bool) {
	if f := c.fleet.Load(); f != nil {
		for _, n := range f.byName[name] {
			if n.Cluster == cluster {
				return n, true
			}
		}
	}
	return nil, false
}

// Nodes returns the nodes that the filter takes, all without one, by cluster and name.
func (c *Cache) Nodes(filter func(*Node) bool) []*Node {
	f := c.fleet.Load()
	if f == nil {
		return nil
	}
	var nodes []*Node
	for _, n := range f.nodes {
		if filter == nil || filter(n) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// Stragglers returns the nodes that the gateway takes for stragglers, the most
// suspicious first.
func (c *Cache) Stragglers() []*Node {
	if f := c.fleet.Load(); f != nil {
		return slices.Clone(f.stragglers)
	}
	return nil
}

// NodeAge is how long ago a node of this Cache gave a sign of life: its age when
// it was told, and the time since then, whatever the difference of the clocks.
func (c *Cache) NodeAge(n *Node) time.Duration {
	age, _ := c.Age()
	return age + time.Duration(n.AgeSeconds*float64(time.Second))
}

func notEmpty(list []string) *[]string {
	if len(list) == 0 {
		return nil
	}
	values := make([]string, len(list))
	for i, v := range list {
		values[i] = listEscapes.Replace(v)
	}
	return &values
}

// listEscapes keeps a value with a comma from being taken for two.
var listEscapes = strings.NewReplacer(`\`, `\\`, ",", `\,`)

func value(p *float64) float64 {
	if p == nil {
		return 0
	}
	return *p
}
