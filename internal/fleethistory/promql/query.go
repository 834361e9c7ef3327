// SPDX-License-Identifier: Apache-2.0

package promql

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"github.com/gpu-collector/gpu-collector/internal/fleethistory"
)

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

// isAttribute reports whether a label is what the point of a node or GPU says of
// itself.
func (h *History) isAttribute(label string) bool {
	switch label {
	case h.cfg.ClusterLabel, h.cfg.HostLabel, h.cfg.GPULabel, metricLabel:
		return false
	default:
		return !noise(label)
	}
}

// attributes returns what Sample has of the labels.
func (h *History) attributes(labels model.Metric) string {
	var pairs []string
	for name, v := range labels {
		if label := string(name); v != "" && h.isAttribute(label) {
			pairs = append(pairs, fleethistory.Pair(translate().fromLabel(label), string(v)))
		}
	}
	return fleethistory.JoinAttributes(pairs)
}

func (h *History) label(labels model.Metric, name string) string {
	return string(labels[model.LabelName(name)])
}

func (h *History) cluster(labels model.Metric) string {
	return cmp.Or(h.label(labels, h.cfg.ClusterLabel), h.cfg.DefaultCluster)
}
