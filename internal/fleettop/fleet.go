// SPDX-License-Identifier: Apache-2.0

// Package fleettop shows a fleet in a terminal, from the API of a gateway's
// fleet view.
package fleettop // import "github.com/gpu-collector/gpu-collector/internal/fleettop"

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
	At       time.Time
	Nodes    []*fleetclient.Node
	Summary  fleetclient.Summary
	Episodes []fleetclient.Episode // open ones
	// Attention is what needs a person, the worst first.
	Attention fleetclient.AttentionList
	// Detail is the node that is looked at, with its GPUs; nil when it is gone.
	Detail *fleetclient.Node
	// Idle are the pods that hold GPUs and do not use them; nil when nobody asked.
	Idle *fleetclient.IdlePodPage
}

// Ask is what is looked at besides the fleet.
type Ask struct {
	Detail *Key // a node, if any
	Idle   bool // the pods that hold idle GPUs
}

// Key names a node.
type Key struct{ Cluster, Node string }

// Source loads the fleet.
type Source interface {
	Load(ctx context.Context, ask Ask) (*Fleet, error)
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

// maxEpisodes is a page of the API. No screen shows more open episodes; the API
// lists them all.
const maxEpisodes = 1000

// Load implements Source.
func (s *clientSource) Load(ctx context.Context, ask Ask) (*Fleet, error) {
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
	open, size := true, int64(maxEpisodes)
	episodes, err := s.client.ListEpisodesWithResponse(ctx, &fleetclient.ListEpisodesParams{Cluster: clusters, Open: &open, Limit: &size})
	switch {
	case err != nil:
		return nil, err
	case episodes.JSON200 == nil:
		return nil, fleetclient.AnswerError(episodes.StatusCode(), episodes.Body)
	}
	f.Episodes = episodes.JSON200.Episodes
	attention, err := s.client.ListAttentionWithResponse(ctx, &fleetclient.ListAttentionParams{Cluster: clusters})
	switch {
	case err != nil:
		return nil, err
	case attention.JSON200 == nil:
		return nil, fleetclient.AnswerError(attention.StatusCode(), attention.Body)
	}
	f.Attention = *attention.JSON200
	if ask.Idle {
		if f.Idle, err = s.idlePods(ctx, clusters); err != nil {
			return nil, err
		}
	}
	if detail := ask.Detail; detail != nil {
		node, err := s.client.GetNodeWithResponse(ctx, detail.Node, &fleetclient.GetNodeParams{Cluster: &detail.Cluster})
		if err != nil {
			return nil, err
		}
		f.Detail = node.JSON200
	}
	return f, nil
}

// sortKey is a column to sort by, and the key that chooses it.
type sortKey struct {
	key, name string
	compare   func(a, b *fleetclient.Node) int // the first shown is less
}

// sortKeys begin with the default. The nodes that need a look come first, the
// unknown nodes last.
var sortKeys = []sortKey{
	{"w", "attention", nil}, // by the list of what needs attention, then by suspicion
	{"s", "suspicion", func(a, b *fleetclient.Node) int { return highest(a.Suspicion, b.Suspicion) }},
	{"c", "score", func(a, b *fleetclient.Node) int { return lowest(a.Score, b.Score) }},
	{"t", "temperature", func(a, b *fleetclient.Node) int { return highest(a.MaxTemperatureCelsius, b.MaxTemperatureCelsius) }},
	{"h", "health", func(a, b *fleetclient.Node) int { return cmp.Compare(badness(b.Health), badness(a.Health)) }},
	{"u", "usage", func(a, b *fleetclient.Node) int { return highest(a.Usage, b.Usage) }},
	{"a", "age", func(a, b *fleetclient.Node) int { return cmp.Compare(b.AgeSeconds, a.AgeSeconds) }},
	{"n", "name", func(*fleetclient.Node, *fleetclient.Node) int { return 0 }},
}

// places are those of the nodes in the list of what needs attention.
func (f *Fleet) places() map[Key]int {
	place := map[Key]int{}
	for i := range f.Attention.Items {
		item := &f.Attention.Items[i]
		names := or(item.Nodes, nil)
		if item.Node != nil {
			names = []string{*item.Node}
		}
		for _, name := range names {
			if _, known := place[Key{item.Cluster, name}]; !known {
				place[Key{item.Cluster, name}] = i
			}
		}
	}
	return place
}

func placeOf(place map[Key]int, n *fleetclient.Node) int {
	if i, ok := place[Key{n.Cluster, n.Node}]; ok {
		return i
	}
	return math.MaxInt
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
	compare := by.compare
	if compare == nil {
		compare = func(a, b *fleetclient.Node) int {
			return cmp.Or(cmp.Compare(placeOf(place, a), placeOf(place, b)), highest(a.Suspicion, b.Suspicion))
		}
	}
	slices.SortStableFunc(list, func(a, b *fleetclient.Node) int {
		c := cmp.Or(compare(a, b), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Node, b.Node))
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
