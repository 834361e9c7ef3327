// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/verdict/attention"
)

// AttentionList is the list of items that need attention, the worst first.
type AttentionList struct {
	Page
	At      time.Time       `json:"at"`
	Counts  AttentionCounts `json:"counts"`
	Items   []AttentionItem `json:"items"`
	Waiting []string        `json:"waiting" doc:"What is not judged yet and why, a sentence each"`
}

// AttentionCounts count troubles of the selected clusters and groups.
type AttentionCounts attention.Counts

// AttentionItem is one thing that needs attention.
type AttentionItem attention.Item

type listAttentionInput struct {
	Cluster []string `query:"cluster,explode" maxItems:"100" doc:"Only of these clusters"`
	Group   []string `query:"group,explode" maxItems:"100" doc:"Only of these peer groups"`
	Node    []string `query:"node,explode" maxItems:"100" doc:"Only what is about these nodes, alone or among others"`
	Kind    []string `query:"kind,explode" enum:"straggler,lost_gpu,sick_gpu,missing_node,group_fault" doc:"Only of these kinds"`
	ListParams
}

func (a *API) listAttention(_ context.Context, in *listAttentionInput) (*AttentionList, error) {
	now := a.o.Now()
	f := attention.Filter{Clusters: in.Cluster, Groups: in.Group, Nodes: in.Node}
	for _, k := range in.Kind {
		f.Kinds = append(f.Kinds, attention.Kind(k))
	}
	list := attention.Of(a.o.Store, &f, now)
	page, items, err := pageOf(slices.Values(list.Items), &in.ListParams, attentionKey, func(i attention.Item) AttentionItem { return AttentionItem(i) })
	return &AttentionList{page, now.UTC(), AttentionCounts(list.Counts), items, append([]string{}, list.Waiting...)}, err
}

// attentionKey sorts as attention.Of does: by severity, by cost, by age.
func attentionKey(i attention.Item) []string {
	cost, since := 0., int64(math.MaxInt64)
	if i.CostPerHour != nil {
		cost = *i.CostPerHour
	}
	if !i.Since.IsZero() {
		since = i.Since.UnixNano()
	}
	return []string{descending(float64(i.Severity)), descending(cost), fmt.Sprintf("%019d", since), i.Cluster, i.Node, i.ID}
}
