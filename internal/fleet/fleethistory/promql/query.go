// SPDX-License-Identifier: Apache-2.0

package promql

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
)

// span is the time after `after` until `until`, both Unix milliseconds.
type span struct{ after, until int64 }

// window is the range, in PromQL, that at its end covers the span.
func (s span) window() string { return strconv.FormatInt(s.until-s.after, 10) + "ms" }

func spanOf(q *fleethistory.Query) span {
	after := q.Start.UnixMilli() - 1
	if q.Start.After(time.UnixMilli(after + 1)) {
		after++
	}
	return span{after, q.End.UnixMilli()}
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

// counts are expressions for the samples of all metrics, each for as many as it may be long.
// Functions over ranges drop the metric's name, and for that reason refuse two at a time.
func counts(metrics []string, matchers, window string) []string {
	var out []string
	for _, m := range metrics {
		part := fmt.Sprintf("(sum(count_over_time(%s{%s}[%s])) or vector(0))", m, matchers, window)
		if last := len(out) - 1; last >= 0 && len(out[last])+len(part) <= maxExpression {
			out[last] += " + " + part
		} else {
			out = append(out, part)
		}
	}
	return out
}

// answer returns the answer to a question as what it must be, a vector or a matrix.
func answer[T model.Value](v model.Value, _ v1.Warnings, err error) (T, error) {
	out, ok := v.(T)
	if err == nil && !ok {
		err = fmt.Errorf("the answer is a %s, must be a %s", v.Type(), out.Type())
	}
	return out, err
}

// count returns how many samples there are in a span, and what its left end adds at some servers.
func (h *History) count(ctx context.Context, metrics []string, matchers string, s span) (total int, err error) {
	for _, e := range counts(metrics, matchers, s.window()) {
		vec, err := answer[model.Vector](h.api.Query(ctx, e, time.UnixMilli(s.until)))
		if err != nil {
			return 0, err
		}
		for _, v := range vec {
			total += int(v.Value)
		}
	}
	return total, nil
}

// isAttribute reports whether a label is an attribute of a node's or GPU's point.
func (h *History) isAttribute(label string) bool {
	switch label {
	case h.cfg.ClusterLabel, h.cfg.HostLabel, h.cfg.GPULabel:
		return false
	default:
		return !noise(label)
	}
}

// attributes returns what Sample has of the labels.
func (h *History) attributes(labels model.Metric) string {
	all := map[string]string{}
	for name, v := range labels {
		if label := string(name); v != "" && h.isAttribute(label) {
			all[translate().fromLabel(label)] = string(v)
		}
	}
	return fleethistory.JoinAttributes(all)
}

func (h *History) label(labels model.Metric, name string) string {
	return string(labels[model.LabelName(name)])
}

func (h *History) cluster(labels model.Metric) string {
	return cmp.Or(h.label(labels, h.cfg.ClusterLabel), h.cfg.DefaultCluster)
}
