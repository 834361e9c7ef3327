// SPDX-License-Identifier: Apache-2.0

// Package fleettop shows a fleet in a terminal, from the API of a gateway's
// fleet view.
package fleettop // import "github.com/gpu-collector/gpu-collector/internal/fleet/fleettop"

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

// Fleet is the state of the screen at one time.
type Fleet struct {
	At      time.Time
	Nodes   []*fleetclient.Node
	Summary fleetclient.Summary
	// Attention lists the items that need attention, the worst first.
	Attention fleetclient.AttentionList
	// Detail is the selected node with its GPUs, nil when the gateway has forgotten it.
	// Episodes are its open ones.
	Detail   *fleetclient.Node
	Episodes []fleetclient.Episode
}

// Key names a node.
type Key struct{ Cluster, Node string }

// Source loads the fleet; detail is the selected node, if any.
type Source interface {
	Load(ctx context.Context, detail *Key) (*Fleet, error)
}

// clientSource asks a gateway.
type clientSource struct {
	client   *fleetclient.Client
	clusters *[]string
}

// NewSource returns a Source that asks through the client; without clusters for all.
func NewSource(client *fleetclient.Client, clusters []string) Source {
	s := &clientSource{client: client}
	if len(clusters) > 0 {
		s.clusters = escaped(clusters...)
	}
	return s
}

// escaped marks commas in a value, which would separate two values.
func escaped(values ...string) *[]string {
	for i, v := range values {
		values[i] = strings.NewReplacer(`\`, `\\`, ",", `\,`).Replace(v)
	}
	return &values
}

const (
	maxItems = 1000 // the longest list of the API
	maxPages = 1000 // bounds the memory of the client
)

// answer reads the answer to a request.
func answer[T any](resp *http.Response, err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // it is read
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fleetclient.AnswerError(resp.StatusCode, body)
	}
	out := new(T)
	return out, json.Unmarshal(body, out)
}

// nodes collects the pages.
func (s *clientSource) nodes(ctx context.Context) (list []*fleetclient.Node, _ error) {
	var after *string
	for range maxPages {
		part, err := answer[fleetclient.NodePage](s.client.ListNodes(ctx, &fleetclient.ListNodesParams{
			Cluster: s.clusters, Limit: new(int64(maxItems)), After: after,
		}))
		if err != nil {
			return nil, err
		}
		for i := range part.Nodes {
			list = append(list, &part.Nodes[i])
		}
		if after = part.Next; after == nil {
			return list, nil
		}
	}
	return nil, errors.New("the list of nodes does not end")
}

// Load implements Source.
func (s *clientSource) Load(ctx context.Context, detail *Key) (*Fleet, error) {
	f := &Fleet{At: time.Now()}
	var err error
	if f.Nodes, err = s.nodes(ctx); err != nil {
		return nil, err
	}
	summary, err := answer[fleetclient.Summary](s.client.GetSummary(ctx, &fleetclient.GetSummaryParams{Cluster: s.clusters}))
	if err != nil {
		return nil, err
	}
	attention, err := answer[fleetclient.AttentionList](s.client.ListAttention(ctx, &fleetclient.ListAttentionParams{Cluster: s.clusters, Limit: new(int64(maxItems))}))
	if err != nil {
		return nil, err
	}
	f.Summary, f.Attention = *summary, *attention
	if detail == nil {
		return f, nil
	}
	f.Detail, err = answer[fleetclient.Node](s.client.GetNode(ctx, detail.Node, &fleetclient.GetNodeParams{Cluster: &detail.Cluster}))
	if gone := (*fleetclient.Error)(nil); err != nil && !errors.As(err, &gone) {
		return nil, err
	}
	episodes, err := answer[fleetclient.EpisodePage](s.client.ListEpisodes(ctx, &fleetclient.ListEpisodesParams{
		Cluster: escaped(detail.Cluster), Node: escaped(detail.Node), Open: new(true),
	}))
	if err != nil {
		return nil, err
	}
	f.Episodes = episodes.Episodes
	return f, nil
}

// about reports whether an item is about a node, alone or among others.
func about(i *fleetclient.AttentionItem, node Key) bool {
	return i.Cluster == node.Cluster && (or(i.Node, "") == node.Node || slices.Contains(or(i.Nodes, nil), node.Node))
}

// ranks are the indices of the first item about each node.
func (f *Fleet) ranks() map[Key]int {
	rank := map[Key]int{}
	for i := range f.Attention.Items {
		item := &f.Attention.Items[i]
		names := or(item.Nodes, nil)
		if item.Node != nil {
			names = []string{*item.Node}
		}
		for _, name := range names {
			key := Key{item.Cluster, name}
			if _, known := rank[key]; !known {
				rank[key] = i
			}
		}
	}
	return rank
}

// worst compares nodes by rank: nodes without an item come last.
func worst(rank map[Key]int, a, b *fleetclient.Node) int {
	at := func(n *fleetclient.Node) int {
		if i, ok := rank[Key{n.Cluster, n.Node}]; ok {
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

// sortKeys begin with the default: by rank, then by suspicion. The worst nodes come first, the
// unknown ones last.
var sortKeys = []sortKey{
	{"w", "attention", func(a, b *fleetclient.Node) int { return highest(a.Suspicion, b.Suspicion) }},
	{"s", "suspicion", func(a, b *fleetclient.Node) int { return highest(a.Suspicion, b.Suspicion) }},
	{"c", "score", func(a, b *fleetclient.Node) int { return lowest(a.Score, b.Score) }},
	{"t", "temperature", func(a, b *fleetclient.Node) int { return highest(a.MaxTemperatureCelsius, b.MaxTemperatureCelsius) }},
	{"h", "health", func(a, b *fleetclient.Node) int { return cmp.Compare(badness(b.Health), badness(a.Health)) }},
	{"u", "usage", func(a, b *fleetclient.Node) int { return highest(a.Utilization, b.Utilization) }},
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
func selected(nodes []*fleetclient.Node, filter string, by sortKey, reverse bool, rank map[Key]int) []*fleetclient.Node {
	filter = strings.ToLower(filter)
	var list []*fleetclient.Node
	for _, n := range nodes {
		text := strings.ToLower(strings.Join([]string{n.Node, n.Cluster, or(n.Group, ""), string(or(n.State, "")), string(n.Health)}, "\n"))
		if strings.Contains(text, filter) {
			list = append(list, n)
		}
	}
	if by.name != sortKeys[0].name {
		rank = nil
	}
	slices.SortStableFunc(list, func(a, b *fleetclient.Node) int {
		c := cmp.Or(worst(rank, a, b), by.compare(a, b), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Node, b.Node))
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

// printable replaces the control characters of a name from the network.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}
