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
	// Detail is the node that is looked at, with its GPUs; nil when it is gone.
	Detail *fleetclient.Node
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

// maxEpisodes is a page of the API. No screen shows more open episodes; the API
// lists them all.
const maxEpisodes = 1000

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
	open, size := true, int64(maxEpisodes)
	episodes, err := s.client.ListEpisodesWithResponse(ctx, &fleetclient.ListEpisodesParams{Cluster: clusters, Open: &open, Limit: &size})
	switch {
	case err != nil:
		return nil, err
	case episodes.JSON200 == nil:
		return nil, fleetclient.AnswerError(episodes.StatusCode(), episodes.Body)
	}
	f.Episodes = episodes.JSON200.Episodes
	if detail != nil {
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
func selected(nodes []*fleetclient.Node, filter string, by sortKey, reverse bool) []*fleetclient.Node {
	filter = strings.ToLower(filter)
	var list []*fleetclient.Node
	for _, n := range nodes {
		text := strings.ToLower(strings.Join([]string{n.Node, n.Cluster, or(n.Group, ""), or(n.State, ""), string(n.Health)}, "\n"))
		if strings.Contains(text, filter) {
			list = append(list, n)
		}
	}
	slices.SortStableFunc(list, func(a, b *fleetclient.Node) int {
		c := cmp.Or(by.compare(a, b), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Node, b.Node))
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
