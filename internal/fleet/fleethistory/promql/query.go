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

	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
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

// learn finds out once whether ranges include their left end: those of Prometheus before 3.0
// do, those of later ones and of VictoriaMetrics do not.
func (h *History) learn(ctx context.Context) error {
	if h.closed.Load() != nil {
		return nil
	}
	vec, err := answer[model.Vector](h.api.Query(ctx, "count_over_time(vector(1)[2s:1s])", time.Unix(1_000_000_000, 0)))
	if err != nil {
		return err
	}
	if len(vec) != 1 {
		return errors.New("no answer to a query of constants: is this a server of the Prometheus API?")
	}
	h.closed.Store(new(vec[0].Value > 2))
	return nil
}

// window is the range, in PromQL, that at its end covers so many milliseconds.
func (h *History) window(length int64) string {
	if *h.closed.Load() {
		length--
	}
	return strconv.FormatInt(max(length, 1), 10) + "ms"
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
	for _, m := range metrics {
		part := fmt.Sprintf("label_replace(%s by (%s) (%s(%s{%s}[%s])), %q, %q, \"\", \"\")",
			aggregate, strings.Join(labels, ","), function, m, matchers, window, metricLabel, m)
		if last := len(out) - 1; last >= 0 && len(out[last])+len(part) <= maxExpression {
			out[last] += " or " + part
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

func (h *History) instant(ctx context.Context, expression string, at int64, f func(*model.Sample)) error {
	vec, err := answer[model.Vector](h.api.Query(ctx, expression, time.UnixMilli(at)))
	if err != nil {
		return err
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
	for _, e := range expressions(metrics, matchers, h.window(s.until-s.after), "count_over_time", "sum") {
		if err := h.instant(ctx, "sum("+e+")", s.until, func(v *model.Sample) { total += int(v.Value) }); err != nil {
			return 0, err
		}
	}
	return total, nil
}

// isAttribute reports whether a label is an attribute of a node's or GPU's point.
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
