// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"context"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/verdict/attention"
)

// AttentionList is the list of items that need attention, the worst first.
type AttentionList struct {
	At      time.Time       `json:"at"`
	Total   int             `json:"total" doc:"Items selected in all; the list may be shorter"`
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
	Limit   int      `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Length of the list"`
}

func (a *API) listAttention(_ context.Context, in *listAttentionInput) (*AttentionList, error) {
	now := a.o.Now()
	f := attention.Filter{Clusters: in.Cluster, Groups: in.Group, Nodes: in.Node}
	for _, k := range in.Kind {
		f.Kinds = append(f.Kinds, attention.Kind(k))
	}
	list := attention.Of(a.o.Store, &f, now)
	out := &AttentionList{
		At: now.UTC(), Total: len(list.Items), Counts: AttentionCounts(list.Counts), Items: []AttentionItem{}, Waiting: append([]string{}, list.Waiting...),
	}
	for i := range list.Items[:min(len(list.Items), in.Limit)] {
		out.Items = append(out.Items, AttentionItem(list.Items[i]))
	}
	return out, nil
}
