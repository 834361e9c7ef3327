// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
)

const tagHistory = "history"

// defaultRange is the range of a request without a start.
const defaultRange = time.Hour

// Sample is a point of the past.
type Sample struct {
	At         time.Time         `json:"at"`
	Cluster    string            `json:"cluster"`
	Host       string            `json:"host,omitempty"`
	GPU        string            `json:"gpu,omitempty"`
	Metric     string            `json:"metric"`
	Attributes map[string]string `json:"attributes,omitempty"`
	Value      float64           `json:"value"`
}

// SamplePage is a page of samples, the newest first.
type SamplePage struct {
	Page
	Start   time.Time `json:"since"`
	End     time.Time `json:"until"`
	Samples []Sample  `json:"samples"`
}

// HostPage is a page of nodes.
type HostPage struct {
	Page
	Hosts []fleethistory.Recorded `json:"hosts"`
}

// RecordedGPUPage is a page of GPUs.
type RecordedGPUPage struct {
	Page
	GPUs []fleethistory.Recorded `json:"gpus"`
}

// Aggregation is the statistics of a metric and one set of its attributes in one group.
type Aggregation struct {
	fleethistory.Aggregation
	Attributes map[string]string `json:"attributes,omitempty" doc:"Of the samples: those of other attributes are another row"`
}

// AggregationList holds the aggregations of a time range.
type AggregationList struct {
	Start        time.Time     `json:"since"`
	End          time.Time     `json:"until"`
	GroupBy      string        `json:"group_by"`
	Aggregations []Aggregation `json:"aggregations"`
}

func (a *API) registerTelemetry() {
	get(a, "list-telemetry", "/api/v1/telemetry", tagHistory, "Samples of the past, the newest first", a.listTelemetry)
	get(a, "list-telemetry-hosts", "/api/v1/telemetry/hosts", tagHistory, "Nodes with history", a.listTelemetryHosts)
	get(a, "list-telemetry-gpus", "/api/v1/telemetry/hosts/{host}/gpus", tagHistory, "GPUs of a node with history", a.listTelemetryGPUs)
	get(a, "get-node-past", pastPath, tagHistory, "A node's score and signals in the past, beside its peers'", a.getNodePast)
	get(a, "list-aggregations", "/api/v1/telemetry/aggregations", tagHistory, "Figures over samples of the past", a.listAggregations)
}

// TimeParams select a time range.
type TimeParams struct {
	Since time.Time `query:"since" doc:"From then on, RFC 3339 or so long ago, such as 24h; by default an hour before until"`
	Until time.Time `query:"until" doc:"Until then, RFC 3339 or so long ago; by default now"`
}

// span sets the time range of a query.
func (a *API) span(q *fleethistory.Query, t *TimeParams) error {
	q.Start, q.End = t.Since.UTC(), t.Until.UTC()
	if t.Until.IsZero() {
		q.End = a.o.Now().UTC()
	}
	if t.Since.IsZero() {
		q.Start = q.End.Add(-defaultRange)
	}
	if q.Start.After(q.End) {
		return badParam("query.since", t.Since.Format(time.RFC3339), "must not be after `until`, %s", q.End.Format(time.RFC3339))
	}
	return nil
}

// past sets the time range and the page of a query, and runs it.
func past[T any](a *API, q *fleethistory.Query, t *TimeParams, p *PageParams, ask func() ([]T, int, error)) ([]T, Page, error) {
	if err := a.span(q, t); err != nil {
		return nil, Page{}, err
	}
	q.Offset, q.Limit = p.offset(), p.Limit
	list, total, err := ask()
	if err != nil {
		return nil, Page{}, historyError(err)
	}
	if err := a.someCluster(q.Clusters, len(list)); err != nil {
		return nil, Page{}, err
	}
	page := p.page(len(list), total)
	if total < 0 {
		page.More = len(list) == p.Limit
	}
	return list, page, nil
}

type listTelemetryInput struct {
	Cluster []string `query:"cluster,explode" maxItems:"100" doc:"Only of these clusters"`
	Host    []string `query:"host,explode" maxItems:"100" doc:"Only of these nodes"`
	GPU     []string `query:"gpu,explode" maxItems:"1000" doc:"Only of these GPUs, by UUID"`
	Metric  []string `query:"metric,explode" maxItems:"100" doc:"Only of these metrics"`
	TimeParams
	PageParams
}

func (a *API) listTelemetry(ctx context.Context, in *listTelemetryInput) (*SamplePage, error) {
	q := fleethistory.Query{Clusters: in.Cluster, Hosts: in.Host, GPUs: in.GPU, Metrics: in.Metric}
	list, page, err := past(a, &q, &in.TimeParams, &in.PageParams, func() ([]fleethistory.Sample, int, error) { return fleethistory.Telemetry(ctx, a.o.History, &q) })
	if err != nil {
		return nil, err
	}
	out := &SamplePage{Page: page, Start: q.Start, End: q.End, Samples: make([]Sample, len(list))}
	for i, s := range list {
		out.Samples[i] = Sample{
			At: time.UnixMilli(s.At).UTC(), Cluster: s.Cluster, Host: s.Node, GPU: s.GPU,
			Metric: s.Metric, Attributes: fleethistory.SplitAttributes(s.Attributes), Value: s.Value,
		}
	}
	return out, nil
}

// recorded returns a page of the nodes or GPUs with history, by name.
func (a *API) recorded(ctx context.Context, q *fleethistory.Query, t *TimeParams, p *PageParams, gpus bool) (Page, []fleethistory.Recorded, error) {
	list, page, err := past(a, q, t, p, func() ([]fleethistory.Recorded, int, error) {
		return fleethistory.ListRecorded(ctx, a.o.History, q, gpus)
	})
	return page, append([]fleethistory.Recorded{}, list...), err
}

type listTelemetryHostsInput struct {
	ClusterParams
	TimeParams
	PageParams
}

func (a *API) listTelemetryHosts(ctx context.Context, in *listTelemetryHostsInput) (*HostPage, error) {
	page, list, err := a.recorded(ctx, &fleethistory.Query{Clusters: in.Cluster}, &in.TimeParams, &in.PageParams, false)
	return &HostPage{page, list}, err
}

type listTelemetryGPUsInput struct {
	Host    string   `path:"host" maxLength:"253" doc:"Name of the node"`
	Cluster []string `query:"cluster,explode" maxItems:"100" doc:"Only of these clusters"`
	TimeParams
	PageParams
}

func (a *API) listTelemetryGPUs(ctx context.Context, in *listTelemetryGPUsInput) (*RecordedGPUPage, error) {
	q := fleethistory.Query{Clusters: in.Cluster, Hosts: []string{in.Host}}
	page, list, err := a.recorded(ctx, &q, &in.TimeParams, &in.PageParams, true)
	return &RecordedGPUPage{page, list}, err
}

type listAggregationsInput struct {
	GroupBy string   `query:"group_by" enum:"cluster,host,gpu,metric" default:"host" doc:"The key of a row, besides the metric and its attributes"`
	Cluster []string `query:"cluster,explode" maxItems:"100" doc:"Only of these clusters"`
	Host    []string `query:"host,explode" maxItems:"100" doc:"Only of these nodes"`
	GPU     []string `query:"gpu,explode" maxItems:"1000" doc:"Only of these GPUs, by UUID"`
	Metric  []string `query:"metric,explode" maxItems:"100" doc:"Only of these metrics; by default all whose name does not end with .info, which are always 1"`
	TimeParams
}

func (a *API) listAggregations(ctx context.Context, in *listAggregationsInput) (*AggregationList, error) {
	q := fleethistory.Query{Clusters: in.Cluster, Hosts: in.Host, GPUs: in.GPU, Metrics: in.Metric}
	if err := a.span(&q, &in.TimeParams); err != nil {
		return nil, err
	}
	out := &AggregationList{Start: q.Start, End: q.End, GroupBy: in.GroupBy, Aggregations: []Aggregation{}}
	list, err := fleethistory.Aggregate(ctx, a.o.History, &q, fleethistory.GroupBy(in.GroupBy))
	if err != nil {
		return nil, historyError(err)
	}
	if err := a.someCluster(in.Cluster, len(list)); err != nil {
		return nil, err
	}
	for _, g := range list {
		g.Min, g.Max, g.Mean, g.Sum = finite(g.Min), finite(g.Max), finite(g.Mean), finite(g.Sum)
		out.Aggregations = append(out.Aggregations, Aggregation{g, fleethistory.SplitAttributes(g.Attributes)})
	}
	return out, nil
}

// finite bounds a number for JSON, which has no infinity: samples of any metric may have an
// infinite sum.
func finite(v float64) float64 {
	if math.IsNaN(v) {
		return 0
	}
	return min(max(v, -math.MaxFloat64), math.MaxFloat64)
}

// maxRange is longer than any history, and short enough for a time.Duration.
const maxRange = 10 * 365 * 24 * time.Hour

// historyError maps errors of the history to answers. A disabled history is not found.
func historyError(err error) error {
	switch {
	case errors.Is(err, fleethistory.ErrOff):
		return huma.Error404NotFound(err.Error())
	case errors.Is(err, fleethistory.ErrTooMuch):
		return huma.Error422UnprocessableEntity(err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return huma.Error503ServiceUnavailable("the question took too long: ask for a shorter time or for less")
	default:
		return retryLater(huma.Error503ServiceUnavailable(err.Error()))
	}
}
