// SPDX-License-Identifier: Apache-2.0

// Package promql answers the questions about the past from a server that
// speaks PromQL and holds what the collector's Prometheus exporters wrote:
// Prometheus, Mimir, VictoriaMetrics.
package promql // import "github.com/gpu-collector/gpu-collector/internal/fleethistory/promql"

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/api"
	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/gpu-collector/gpu-collector/internal/fleethistory"
)

// Config of a source.
type Config struct {
	// Endpoint is the URL before /api/v1.
	Endpoint string
	// Client makes the requests; it brings TLS and authentication along.
	Client *http.Client
	// ClusterLabel, HostLabel and GPULabel are what the server calls them.
	ClusterLabel, HostLabel, GPULabel string
	// DefaultCluster is the cluster of series without that label.
	DefaultCluster string
	// QueryTimeout ends a question that takes too long.
	QueryTimeout time.Duration
	// MaxSamples is the most samples that are fetched for one answer.
	MaxSamples int
}

// Bounds of a question.
const (
	maxMetrics = 500
	maxGroups  = 10_000
	// maxExpression is below VictoriaMetrics' -search.maxQueryLen, 16 KiB.
	maxExpression = 12_000
	// timeSteps is how exactly First and Last are known: a hundredth of the
	// time that is asked about.
	timeSteps = 100
	// hostsPerQuery bounds the points of an answer to so many times timeSteps.
	hostsPerQuery = 100
)

// ours selects metrics where a question names none.
const ours = `__name__=~"(hw|gpu)_.+"`

// History asks a server. It writes nothing: the pipeline's exporters do.
type History struct {
	cfg Config
	api v1.API
	err atomic.Pointer[error]

	mu     sync.Mutex
	closed *bool // whether ranges include their left end; nil until known
}

var _ fleethistory.History = (*History)(nil)

// New returns a history.
func New(cfg Config) (*History, error) {
	transport := http.DefaultTransport
	if cfg.Client != nil && cfg.Client.Transport != nil {
		transport = cfg.Client.Transport
	}
	client, err := api.NewClient(api.Config{Address: cfg.Endpoint, RoundTripper: exact{transport}})
	if err != nil {
		return nil, err
	}
	return &History{cfg: cfg, api: v1.NewAPI(client)}, nil
}

// exact asks VictoriaMetrics for what was asked: it moves times to its cache's
// steps and hides the last 30 s otherwise. Others ignore the parameter.
// https://docs.victoriametrics.com/#prometheus-querying-api-enhancements
type exact struct{ next http.RoundTripper }

func (e exact) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	q := r.URL.Query()
	q.Set("nocache", "1")
	r.URL.RawQuery = q.Encode()
	return e.next.RoundTrip(r)
}

// Enabled implements fleethistory.History.
func (h *History) Enabled() bool { return false }

// Write implements fleethistory.History.
func (h *History) Write([]fleethistory.Sample) {}

// WriteEpisode implements fleethistory.History.
func (h *History) WriteEpisode(fleethistory.Episode) {}

// Episodes implements fleethistory.History: a metric store has none.
func (h *History) Episodes(context.Context, int) ([]fleethistory.Episode, error) { return nil, nil }

// Status implements fleethistory.History; the error is that of the last question.
func (h *History) Status() fleethistory.Status {
	out := fleethistory.Status{Storage: "prometheus"}
	if err := h.err.Load(); err != nil {
		out.Err = *err
	}
	return out
}

// ask runs f within the time for a question and turns errors of the server into
// those of a history.
func (h *History) ask(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.QueryTimeout)
	defer cancel()
	err := f(ctx)
	if err == nil {
		h.err.Store(nil)
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, fleethistory.ErrTooMuch) {
		return err
	}
	var e *v1.Error
	if errors.As(err, &e) {
		switch text := e.Msg + e.Detail; {
		case e.Type == v1.ErrTimeout:
			return fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
		// Prometheus, Mimir, VictoriaMetrics, in this order.
		case strings.Contains(text, "too many samples"), strings.Contains(text, "limit"), strings.Contains(text, "-search.max"):
			return fmt.Errorf("%w: the server said: %w", fleethistory.ErrTooMuch, err)
		}
	}
	err = fmt.Errorf("%w: `history::prometheus::http::endpoint` %s: %w", fleethistory.ErrUnavailable, h.cfg.Endpoint, err)
	h.err.Store(&err)
	return err
}

// span is the time after `after` until `until`, both Unix milliseconds.
type span struct{ after, until int64 }

func spanOf(q *fleethistory.Query) span {
	after := q.Start.UnixMilli() - 1
	if q.Start.After(time.UnixMilli(after + 1)) {
		after++
	}
	return span{after, q.End.UnixMilli()}
}

// window is the range, in PromQL, that at `until` covers the span. Prometheus
// before 3.0 includes the left end of a range, later ones and VictoriaMetrics
// do not.
func (h *History) window(ctx context.Context, length int64) (string, error) {
	h.mu.Lock()
	closed := h.closed
	h.mu.Unlock()
	if closed == nil {
		v, _, err := h.api.Query(ctx, "count_over_time(vector(1)[2s:1s])", time.Unix(1_000_000_000, 0))
		if err != nil {
			return "", err
		}
		vec, ok := v.(model.Vector)
		if !ok || len(vec) != 1 {
			return "", errors.New("no answer to a query of constants: is this a server of the Prometheus API?")
		}
		three := vec[0].Value > 2
		closed = &three
		h.mu.Lock()
		h.closed = closed
		h.mu.Unlock()
	}
	if *closed {
		length--
	}
	return strconv.FormatInt(max(length, 1), 10) + "ms", nil
}

// matchers are the conditions of a question, without the metric.
func (h *History) matchers(q *fleethistory.Query, more ...string) string {
	var list []string
	oneOf := func(label string, values []string) {
		if len(values) == 0 {
			return
		}
		quoted := make([]string, len(values))
		for i, v := range values {
			quoted[i] = regexp.QuoteMeta(v)
		}
		list = append(list, label+"=~"+strconv.Quote(strings.Join(quoted, "|")))
	}
	clusters := q.Clusters
	if slices.Contains(clusters, h.cfg.DefaultCluster) {
		clusters = append([]string{""}, clusters...)
	}
	oneOf(h.cfg.ClusterLabel, clusters)
	oneOf(h.cfg.HostLabel, q.Hosts)
	oneOf(h.cfg.GPULabel, q.GPUs)
	return strings.Join(append(list, more...), ",")
}

// metrics returns the metrics, by their names in Prometheus, that a question is about.
func (h *History) metrics(ctx context.Context, q *fleethistory.Query, matchers string) ([]string, error) {
	if len(q.Metrics) > 0 {
		list := make([]string, len(q.Metrics))
		for i, name := range q.Metrics {
			list[i] = translate().metric(name)
		}
		slices.Sort(list)
		return slices.Compact(list), nil
	}
	values, _, err := h.api.LabelValues(ctx, "__name__", []string{"{" + join(ours, matchers) + "}"}, q.Start, q.End)
	if err != nil {
		return nil, err
	}
	if len(values) > maxMetrics {
		return nil, fmt.Errorf("%w (%d metrics)", fleethistory.ErrTooMuch, len(values))
	}
	var list []string
	for _, v := range values {
		if !strings.HasSuffix(string(v), "_bucket") {
			list = append(list, string(v))
		}
	}
	slices.Sort(list)
	return list, nil
}

func join(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
	return strings.Join(parts, ",")
}

// metricLabel names the metric in answers: functions over ranges drop its name,
// and for that reason refuse two metrics at a time.
const metricLabel = "fleet_view_metric"

// expressions ask for `aggregate by (labels)(function(metric{matchers}[window]))`
// of all metrics, each expression for as many as it may be long.
func expressions(metrics []string, matchers, window, function, aggregate string, labels ...string) []string {
	var out []string
	var b strings.Builder
	for _, m := range metrics {
		part := fmt.Sprintf("label_replace(%s by (%s) (%s(%s{%s}[%s])), %q, %q, \"\", \"\")",
			aggregate, strings.Join(labels, ","), function, m, matchers, window, metricLabel, m)
		if b.Len() > 0 && b.Len()+len(part) > maxExpression {
			out = append(out, b.String())
			b.Reset()
		}
		if b.Len() > 0 {
			b.WriteString(" or ")
		}
		b.WriteString(part)
	}
	if b.Len() > 0 {
		out = append(out, b.String())
	}
	return out
}

func (h *History) instant(ctx context.Context, expression string, at int64, f func(*model.Sample)) error {
	v, _, err := h.api.Query(ctx, expression, time.UnixMilli(at))
	if err != nil {
		return err
	}
	vec, ok := v.(model.Vector)
	if !ok {
		return fmt.Errorf("the answer is a %s, must be a vector", v.Type())
	}
	for _, s := range vec {
		if !math.IsNaN(float64(s.Value)) {
			f(s)
		}
	}
	return nil
}

// count returns how many samples there are in a span.
func (h *History) count(ctx context.Context, metrics []string, matchers string, s span) (total int, err error) {
	window, err := h.window(ctx, s.until-s.after)
	if err != nil {
		return 0, err
	}
	for _, e := range expressions(metrics, matchers, window, "count_over_time", "sum") {
		if err := h.instant(ctx, "sum("+e+")", s.until, func(v *model.Sample) { total += int(v.Value) }); err != nil {
			return 0, err
		}
	}
	return total, nil
}

// Telemetry implements fleethistory.History. Where more samples are selected
// than are fetched, the time of the page is found by counting.
func (h *History) Telemetry(ctx context.Context, q *fleethistory.Query) (page []fleethistory.Sample, total int, err error) {
	err = h.ask(ctx, func(ctx context.Context) error {
		matchers := h.matchers(q)
		metrics, err := h.metrics(ctx, q, matchers)
		if err != nil || len(metrics) == 0 {
			return err
		}
		s := spanOf(q)
		if total, err = h.count(ctx, metrics, matchers, s); err != nil || q.Offset >= total {
			return err
		}
		skip := q.Offset
		if total > h.cfg.MaxSamples {
			if s, skip, err = h.narrow(ctx, metrics, matchers, s, q.Offset, q.Limit); err != nil {
				return err
			}
		}
		page, err = h.fetch(ctx, metrics, matchers, s)
		page = page[min(skip, len(page)):min(skip+q.Limit, len(page))]
		return err
	})
	return page, total, err
}

// narrow returns a span that holds the page and few samples besides, and how
// many of it are newer than the page. It bisects the time.
func (h *History) narrow(ctx context.Context, metrics []string, matchers string, all span, offset, limit int) (span, int, error) {
	slack := h.cfg.MaxSamples / 2
	// find returns a time with at least `least` and at most `most` samples after it.
	find := func(least, most int) (int64, int, error) {
		low, high := all.after, all.until // after low are too many, after high too few
		for high-low > 1 {
			mid := low + (high-low)/2
			n, err := h.count(ctx, metrics, matchers, span{mid, all.until})
			if err != nil {
				return 0, 0, err
			}
			switch {
			case n < least:
				high = mid
			case n > most:
				low = mid
			default:
				return mid, n, nil
			}
		}
		return 0, 0, fleethistory.ErrTooMuch
	}
	out, skipped := all, 0
	if offset > slack {
		until, n, err := find(offset-slack, offset)
		if err != nil {
			return span{}, 0, err
		}
		out.until, skipped = until, n
	}
	n, err := h.count(ctx, metrics, matchers, all)
	if err != nil {
		return span{}, 0, err
	}
	if n > offset+limit+slack {
		if out.after, _, err = find(offset+limit, offset+limit+slack); err != nil {
			return span{}, 0, err
		}
	}
	return out, offset - skipped, nil
}

// fetch returns the samples of a span, the newest first.
func (h *History) fetch(ctx context.Context, metrics []string, matchers string, s span) ([]fleethistory.Sample, error) {
	window := strconv.FormatInt(s.until-s.after, 10) + "ms"
	selector := "{" + join(`__name__=~"`+strings.Join(metrics, "|")+`"`, matchers) + "}"
	v, _, err := h.api.Query(ctx, selector+"["+window+"]", time.UnixMilli(s.until))
	if err != nil {
		return nil, err
	}
	matrix, ok := v.(model.Matrix)
	if !ok {
		return nil, fmt.Errorf("the answer is a %s, must be a matrix", v.Type())
	}
	var list []fleethistory.Sample
	for _, series := range matrix {
		p := h.sample(series.Metric)
		for _, pair := range series.Values {
			if at, value := int64(pair.Timestamp), float64(pair.Value); at > s.after && at <= s.until && !math.IsNaN(value) && !math.IsInf(value, 0) {
				p.At, p.Value = at, value
				list = append(list, p)
			}
		}
	}
	slices.SortFunc(list, func(a, b fleethistory.Sample) int {
		return cmp.Or(cmp.Compare(b.At, a.At), cmp.Compare(a.Node, b.Node), cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Metric, b.Metric),
			cmp.Compare(a.Attributes, b.Attributes), cmp.Compare(a.Cluster, b.Cluster))
	})
	return list, nil
}

func (h *History) sample(labels model.Metric) fleethistory.Sample {
	var pairs []string
	for name, v := range labels {
		switch label := string(name); {
		case label == h.cfg.ClusterLabel, label == h.cfg.HostLabel, label == h.cfg.GPULabel, noise(label), v == "":
		default:
			pairs = append(pairs, translate().fromLabel(label)+"="+strings.ReplaceAll(string(v), ",", ";"))
		}
	}
	slices.Sort(pairs)
	return fleethistory.Sample{
		Cluster: h.cluster(labels), Node: h.label(labels, h.cfg.HostLabel), GPU: h.label(labels, h.cfg.GPULabel),
		Metric: translate().fromMetric(string(labels["__name__"])), Attributes: strings.Join(pairs, ","),
	}
}

func (h *History) label(labels model.Metric, name string) string {
	return string(labels[model.LabelName(name)])
}

func (h *History) cluster(labels model.Metric) string {
	return cmp.Or(h.label(labels, h.cfg.ClusterLabel), h.cfg.DefaultCluster)
}

// place is a node, or a GPU of it.
type place struct{ cluster, host, gpu string }

func (h *History) place(labels model.Metric) place {
	return place{h.cluster(labels), h.label(labels, h.cfg.HostLabel), h.label(labels, h.cfg.GPULabel)}
}

type recorded struct {
	place
	first, last int64
	n           int64
}

// recorded counts the samples by labels, and finds the first and the last of
// those on the page.
func (h *History) recorded(ctx context.Context, q *fleethistory.Query, last string, labels ...string) (page []recorded, total int, err error) {
	err = h.ask(ctx, func(ctx context.Context) error {
		s := spanOf(q)
		matchers := h.matchers(q, last+`!=""`)
		metrics, err := h.metrics(ctx, q, matchers)
		if err != nil || len(metrics) == 0 {
			return err
		}
		window, err := h.window(ctx, s.until-s.after)
		if err != nil {
			return err
		}
		counts := map[place]int64{}
		for _, e := range expressions(metrics, matchers, window, "count_over_time", "sum", labels...) {
			if err := h.instant(ctx, "sum by ("+strings.Join(labels, ",")+") ("+e+")", s.until, func(v *model.Sample) {
				counts[h.place(v.Metric)] += int64(v.Value)
			}); err != nil {
				return err
			}
		}
		var list []recorded
		for p, n := range counts {
			list = append(list, recorded{place: p, n: n})
		}
		slices.SortFunc(list, func(a, b recorded) int {
			return cmp.Or(cmp.Compare(a.host, b.host), cmp.Compare(a.cluster, b.cluster), cmp.Compare(a.gpu, b.gpu))
		})
		total = len(list)
		page = list[min(q.Offset, total):min(q.Offset+q.Limit, total)]
		for part := range slices.Chunk(page, hostsPerQuery) {
			if err := h.times(ctx, q, s, metrics, part, last, labels); err != nil {
				return err
			}
		}
		return nil
	})
	return page, total, err
}

// times finds when there are samples, in steps of the time.
func (h *History) times(ctx context.Context, q *fleethistory.Query, s span, metrics []string, part []recorded, last string, labels []string) error {
	step := max((s.until-s.after+timeSteps-1)/timeSteps, 1000)
	window, err := h.window(ctx, step)
	if err != nil {
		return err
	}
	narrowed := *q
	rows := map[place]*recorded{}
	narrowed.Hosts, narrowed.GPUs = nil, nil
	for i := range part {
		rows[part[i].place] = &part[i]
		narrowed.Hosts = append(narrowed.Hosts, part[i].host)
		if part[i].gpu != "" {
			narrowed.GPUs = append(narrowed.GPUs, part[i].gpu)
		}
	}
	slices.Sort(narrowed.Hosts)
	narrowed.Hosts = slices.Compact(narrowed.Hosts)
	for _, e := range expressions(metrics, h.matchers(&narrowed, last+`!=""`), window, "count_over_time", "sum", labels...) {
		v, _, err := h.api.QueryRange(ctx, "sum by ("+strings.Join(labels, ",")+") ("+e+")", v1.Range{
			Start: time.UnixMilli(s.until - (timeSteps-1)*step), End: time.UnixMilli(s.until), Step: time.Duration(step) * time.Millisecond,
		})
		if err != nil {
			return err
		}
		matrix, ok := v.(model.Matrix)
		if !ok {
			return fmt.Errorf("the answer is a %s, must be a matrix", v.Type())
		}
		for _, series := range matrix {
			r := rows[h.place(series.Metric)]
			for _, pair := range series.Values {
				if at := int64(pair.Timestamp); r != nil && pair.Value > 0 {
					if r.first == 0 || at-step < r.first {
						r.first = max(at-step, s.after) + 1
					}
					r.last = max(r.last, at)
				}
			}
		}
	}
	return nil
}

// Hosts implements fleethistory.History. First and Last are rounded outwards to
// a hundredth of the time asked about.
func (h *History) Hosts(ctx context.Context, q *fleethistory.Query) ([]fleethistory.Host, int, error) {
	list, total, err := h.recorded(ctx, q, h.cfg.HostLabel, h.cfg.ClusterLabel, h.cfg.HostLabel)
	var page []fleethistory.Host
	for _, r := range list {
		page = append(page, fleethistory.Host{Cluster: r.cluster, Host: r.host, First: time.UnixMilli(r.first), Last: time.UnixMilli(r.last), Samples: r.n})
	}
	return page, total, err
}

// GPUs implements fleethistory.History, as Hosts does.
func (h *History) GPUs(ctx context.Context, q *fleethistory.Query) ([]fleethistory.GPU, int, error) {
	list, total, err := h.recorded(ctx, q, h.cfg.GPULabel, h.cfg.ClusterLabel, h.cfg.HostLabel, h.cfg.GPULabel)
	var page []fleethistory.GPU
	for _, r := range list {
		page = append(page, fleethistory.GPU{Cluster: r.cluster, Host: r.host, GPU: r.gpu, First: time.UnixMilli(r.first), Last: time.UnixMilli(r.last), Samples: r.n})
	}
	return page, total, err
}

// figures are the parts of an aggregation, and how series are put together.
var figures = []struct {
	function, aggregate string
	set                 func(*fleethistory.Aggregation, float64)
}{
	{"count_over_time", "sum", func(a *fleethistory.Aggregation, v float64) { a.Count = int64(v) }},
	{"sum_over_time", "sum", func(a *fleethistory.Aggregation, v float64) { a.Sum = v }},
	{"min_over_time", "min", func(a *fleethistory.Aggregation, v float64) { a.Min = v }},
	{"max_over_time", "max", func(a *fleethistory.Aggregation, v float64) { a.Max = v }},
}

// Aggregations implements fleethistory.History.
func (h *History) Aggregations(ctx context.Context, q *fleethistory.AggregationQuery) (list []fleethistory.Aggregation, err error) {
	err = h.ask(ctx, func(ctx context.Context) error {
		s := spanOf(&q.Query)
		var labels, more []string
		switch q.GroupBy {
		case fleethistory.ByCluster:
			labels = []string{h.cfg.ClusterLabel}
		case fleethistory.ByHost:
			labels, more = []string{h.cfg.ClusterLabel, h.cfg.HostLabel}, []string{h.cfg.HostLabel + `!=""`}
		case fleethistory.ByGPU:
			labels, more = []string{h.cfg.ClusterLabel, h.cfg.HostLabel, h.cfg.GPULabel}, []string{h.cfg.GPULabel + `!=""`}
		}
		matchers := h.matchers(&q.Query, more...)
		metrics, err := h.metrics(ctx, &q.Query, matchers)
		if err != nil || len(metrics) == 0 {
			return err
		}
		window, err := h.window(ctx, s.until-s.after)
		if err != nil {
			return err
		}
		type group struct {
			place
			metric string
		}
		rows := map[group]*fleethistory.Aggregation{}
		for _, f := range figures {
			for _, e := range expressions(metrics, matchers, window, f.function, f.aggregate, labels...) {
				if err := h.instant(ctx, e, s.until, func(v *model.Sample) {
					g := group{metric: translate().fromMetric(string(v.Metric[metricLabel]))}
					if len(labels) > 0 {
						g.place = h.place(v.Metric)
					}
					a := rows[g]
					if a == nil {
						a = &fleethistory.Aggregation{Cluster: g.cluster, Host: g.host, GPU: g.gpu, Metric: g.metric}
						rows[g] = a
					}
					f.set(a, float64(v.Value))
				}); err != nil {
					return err
				}
				if len(rows) > maxGroups {
					return fleethistory.ErrTooMuch
				}
			}
		}
		for _, a := range rows {
			if a.Count > 0 {
				a.Mean = a.Sum / float64(a.Count)
				list = append(list, *a)
			}
		}
		slices.SortFunc(list, func(a, b fleethistory.Aggregation) int {
			return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Host, b.Host), cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Metric, b.Metric))
		})
		return nil
	})
	return list, err
}
