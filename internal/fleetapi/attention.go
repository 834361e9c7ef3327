// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"context"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/attention"
)

// AttentionList is what needs a person, the worst first.
type AttentionList struct {
	At      time.Time       `json:"at"`
	Total   int             `json:"total" doc:"Items selected in all; the list may be shorter"`
	Counts  AttentionCounts `json:"counts"`
	Items   []AttentionItem `json:"items"`
	Waiting []string        `json:"waiting" doc:"What is not judged yet and why, a sentence each"`
}

// AttentionCounts count troubles of the selected clusters and groups.
type AttentionCounts struct {
	Nodes       int `json:"nodes" doc:"Nodes that were looked at"`
	Stragglers  int `json:"stragglers"`
	LostGPUs    int `json:"lost_gpus"`
	SickGPUs    int `json:"sick_gpus"`
	Missing     int `json:"missing_nodes"`
	GroupFaults int `json:"group_faults" doc:"Open faults of groups, communicators and jobs"`
}

// AttentionItem is one thing that needs attention.
type AttentionItem struct {
	ID          string         `json:"id" doc:"Stays the same while the trouble lasts"`
	Kind        string         `json:"kind" enum:"straggler,lost_gpu,sick_gpu,missing_node,group_fault" doc:"group_fault: many nodes, a communicator or a job"`
	Severity    string         `json:"severity" enum:"minor,major,critical"`
	Cluster     string         `json:"cluster"`
	Group       string         `json:"group,omitempty"`
	Node        string         `json:"node,omitempty" doc:"Absent for an item of many nodes"`
	Nodes       []string       `json:"nodes,omitempty" doc:"Of an item of many nodes, at most 100"`
	NodeCount   int64          `json:"node_count,omitempty"`
	Part        string         `json:"part,omitempty" doc:"The part of the node that is meant, such as rank 3 (GPU 5); absent: the whole node"`
	GPUs        []AttentionGPU `json:"gpus,omitempty"`
	What        string         `json:"what" doc:"What is wrong, a sentence"`
	Why         string         `json:"why,omitempty" doc:"Why, a sentence; absent where what says all"`
	Next        string         `json:"next" doc:"What to do, a sentence"`
	Reason      string         `json:"reason,omitempty" doc:"The same for programs"`
	Action      string         `json:"action,omitempty" doc:"The same for programs"`
	Since       *time.Time     `json:"since,omitempty" doc:"Absent while unknown"`
	SinceBefore bool           `json:"since_before,omitempty" doc:"It began at that time or earlier"`
	Duration    *float64       `json:"duration_seconds,omitempty"`
	LostPerHour *float64       `json:"gpu_hours_lost_per_hour,omitempty"`
	AtMost      bool           `json:"gpu_hours_lost_at_most,omitempty" doc:"gpu_hours_lost_per_hour is a bound: a silent node may still work"`
	Updated     *time.Time     `json:"updated,omitempty" doc:"When a verdict's figures were taken; absent where they are of now"`
	Confidence  *float64       `json:"confidence,omitempty" doc:"Of a verdict, 0 to 1; absent of what was read"`
	Episode     string         `json:"episode_id,omitempty" doc:"The open episode, where there is one"`
}

// AttentionGPU is a GPU that an item is about.
type AttentionGPU struct {
	UUID  string `json:"uuid"`
	Index *int   `json:"index,omitempty"`
}

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
	n := list.Counts
	out := &AttentionList{
		At: now.UTC(), Total: len(list.Items), Items: []AttentionItem{}, Waiting: append([]string{}, list.Waiting...),
		Counts: AttentionCounts{
			Nodes: list.Nodes, Stragglers: n[attention.Straggler], LostGPUs: n[attention.LostGPU],
			SickGPUs: n[attention.SickGPU], Missing: n[attention.MissingNode], GroupFaults: n[attention.GroupFault],
		},
	}
	for i := range list.Items[:min(len(list.Items), in.Limit)] {
		out.Items = append(out.Items, attentionItem(&list.Items[i], now))
	}
	return out, nil
}

func attentionItem(i *attention.Item, now time.Time) AttentionItem {
	out := AttentionItem{
		ID: i.ID, Kind: string(i.Kind), Severity: i.Severity, Cluster: i.Cluster, Group: i.Group, Node: i.Node, Nodes: i.Nodes, NodeCount: i.NodeCount,
		Part: i.Part, What: i.What, Why: i.Why, Next: i.Next, Reason: i.Reason, Action: i.Action, SinceBefore: i.SinceBefore,
		LostPerHour: i.CostPerHour, AtMost: i.AtMost, Confidence: i.Confidence, Episode: i.Episode,
	}
	if !i.Updated.IsZero() {
		updated := i.Updated.UTC()
		out.Updated = &updated
	}
	if !i.Since.IsZero() {
		since, seconds := i.Since.UTC(), max(0, now.Sub(i.Since).Seconds())
		out.Since, out.Duration = &since, &seconds
	}
	for _, g := range i.GPUs {
		gpu := AttentionGPU{UUID: g.UUID}
		if g.Index >= 0 {
			gpu.Index = &g.Index
		}
		out.GPUs = append(out.GPUs, gpu)
	}
	return out
}
