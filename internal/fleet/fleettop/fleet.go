// SPDX-License-Identifier: Apache-2.0

// Package fleettop shows a fleet in a terminal, from the API of a gateway's
// fleet view.
package fleettop // import "github.com/gpu-collector/gpu-collector/internal/fleet/fleettop"

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

// Fleet is what is shown at one time.
type Fleet struct {
	At      time.Time
	Nodes   []*fleetclient.Node
	Summary fleetclient.Summary
	// Attention is what needs a person, the worst first.
	Attention fleetclient.AttentionList
	// Detail is the node that is looked at, with its GPUs; nil when it is gone. Episodes
	// are its open ones.
	Detail   *fleetclient.Node
	Episodes []fleetclient.Episode
}

// Key names a node.
type Key struct{ Cluster, Node string }

// Source loads the fleet; detail is the node that is looked at, if any.
type Source interface {
	Load(ctx context.Context, detail *Key) (*Fleet, error)
}

// clientSource asks a gateway.
type clientSource struct {
	client   *fleetclient.ClientWithResponses
	cache    *fleetclient.Cache
	clusters []string
}

// NewSource returns a Source that asks through the client; without clusters for all.
func NewSource(client *fleetclient.ClientWithResponses, clusters []string) Source {
	return &clientSource{client: client, cache: fleetclient.NewCache(client), clusters: clusters}
}

// maxItems is the longest list of the API.
const maxItems = 1000

// Load implements Source.
func (s *clientSource) Load(ctx context.Context, detail *Key) (*Fleet, error) {
	at := time.Now()
	if err := s.cache.Refresh(ctx, fleetclient.Query{Clusters: s.clusters}); err != nil {
		return nil, err
	}
	f := &Fleet{At: at, Nodes: s.cache.Nodes(nil)}
	var clusters *[]string
	if len(s.clusters) > 0 {
		clusters = &s.clusters
	}
	summary, err := s.client.GetSummaryWithResponse(ctx, &fleetclient.GetSummaryParams{Cluster: clusters})
	switch {
	case err != nil:
		return nil, err
	case summary.JSON200 == nil:
		return nil, fleetclient.AnswerError(summary.StatusCode(), summary.Body)
	}
	f.Summary = *summary.JSON200
	attention, err := s.client.ListAttentionWithResponse(ctx, &fleetclient.ListAttentionParams{Cluster: clusters, Limit: new(int64(maxItems))})
	switch {
	case err != nil:
		return nil, err
	case attention.JSON200 == nil:
		return nil, fleetclient.AnswerError(attention.StatusCode(), attention.Body)
	}
	f.Attention = *attention.JSON200
	if detail == nil {
		return f, nil
	}
	node, err := s.client.GetNodeWithResponse(ctx, detail.Node, &fleetclient.GetNodeParams{Cluster: &detail.Cluster})
	if err != nil {
		return nil, err
	}
	f.Detail = node.JSON200
	episodes, err := s.client.ListEpisodesWithResponse(ctx, &fleetclient.ListEpisodesParams{Cluster: &[]string{detail.Cluster}, Node: &[]string{detail.Node}, Open: new(true)})
	switch {
	case err != nil:
		return nil, err
	case episodes.JSON200 == nil:
		return nil, fleetclient.AnswerError(episodes.StatusCode(), episodes.Body)
	}
	f.Episodes = episodes.JSON200.Episodes
	return f, nil
}

// about reports whether an item is about a node, alone or among others.
func about(i *fleetclient.AttentionItem, node Key) bool {
	return i.Cluster == node.Cluster && (or(i.Node, "") == node.Node || slices.Contains(or(i.Nodes, nil), node.Node))
}

// places are the first items about each node, by their place in the list.
func (f *Fleet) places() map[Key]int {
	place := map[Key]int{}
	for i := range f.Attention.Items {
		item := &f.Attention.Items[i]
		names := or(item.Nodes, nil)
		if item.Node != nil {
			names = []string{*item.Node}
		}
		for _, name := range names {
			key := Key{item.Cluster, name}
			if _, known := place[key]; !known {
				place[key] = i
			}
		}
	}
	return place
}

// worst compares nodes by their places: nodes that no item is about come last.
func worst(place map[Key]int, a, b *fleetclient.Node) int {
	at := func(n *fleetclient.Node) int {
		if i, ok := place[Key{n.Cluster, n.Node}]; ok {
			return i
		}
		return math.MaxInt
	}
	return cmp.Compare(at(a), at(b))
}

// sortKey is a column to sort by, and the key that chooses it.
type sortKey struct {
	key, name string
	compare   func(a, b *fleetclient.Node) int // the first shown is less
}

// sortKeys begin with the default: as the list of what needs attention, then by suspicion.
// The nodes that need a look come first, the unknown nodes last.
var sortKeys = []sortKey{
	{"w", "attention", func(a, b *fleetclient.Node) int { return highest(a.Suspicion, b.Suspicion) }},
	{"s", "suspicion", func(a, b *fleetclient.Node) int { return highest(a.Suspicion, b.Suspicion) }},
	{"c", "score", func(a, b *fleetclient.Node) int { return lowest(a.Score, b.Score) }},
	{"t", "temperature", func(a, b *fleetclient.Node) int { return highest(a.MaxTemperatureCelsius, b.MaxTemperatureCelsius) }},
	{"h", "health", func(a, b *fleetclient.Node) int { return cmp.Compare(badness(b.Health), badness(a.Health)) }},
	{"u", "usage", func(a, b *fleetclient.Node) int { return highest(a.Usage, b.Usage) }},
	{"a", "age", func(a, b *fleetclient.Node) int { return cmp.Compare(b.AgeSeconds, a.AgeSeconds) }},
	{"n", "name", func(*fleetclient.Node, *fleetclient.Node) int { return 0 }},
}

func highest(a, b *float64) int {
	unknown := math.Inf(-1)
	return cmp.Compare(or(b, unknown), or(a, unknown))
}

func lowest(a, b *float64) int {
	unknown := math.Inf(1)
	return cmp.Compare(or(a, unknown), or(b, unknown))
}

func badness(h fleetclient.NodeHealth) int {
	return slices.Index([]fleetclient.NodeHealth{
		fleetclient.NodeHealthHealthy, fleetclient.NodeHealthUnknown, fleetclient.NodeHealthDegraded, fleetclient.NodeHealthUnhealthy,
	}, h)
}

// selected returns the nodes with the text in name, group, cluster or state.
func selected(nodes []*fleetclient.Node, filter string, by sortKey, reverse bool, place map[Key]int) []*fleetclient.Node {
	filter = strings.ToLower(filter)
	var list []*fleetclient.Node
	for _, n := range nodes {
		text := strings.ToLower(strings.Join([]string{n.Node, n.Cluster, or(n.Group, ""), or(n.State, ""), string(n.Health)}, "\n"))
		if strings.Contains(text, filter) {
			list = append(list, n)
		}
	}
	if by.name != sortKeys[0].name {
		place = nil
	}
	slices.SortStableFunc(list, func(a, b *fleetclient.Node) int {
		c := cmp.Or(worst(place, a, b), by.compare(a, b), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Node, b.Node))
		if reverse {
			return -c
		}
		return c
	})
	return list
}

func or[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// printable makes a name from the network harmless to a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}
