// SPDX-License-Identifier: Apache-2.0

package csvreplayreceiver

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	semconv "github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/receiver/csvreplayreceiver/internal/metadata"
)

// maxTime keeps the difference of any two times within a time.Duration; as
// Unix time it ends in 2116.
const maxTime = time.Duration(1) << 62

// table is a configuration bound to the columns of a file.
type table struct {
	time     TimeConfig
	columns  map[string]int
	resource []attr
	host     template
	measures []measure
}

// measure is a column that makes points of a metric.
type measure struct {
	MetricConfig
	kind       reading.Kind
	known      *reading.Metric // nil for a metric that nobody here reads
	factor     float64         // to the unit of known
	attributes []attr
}

// row is a row that has been read. A value is NaN where the row has none.
type row struct {
	at     time.Duration
	fields []string
	values []float64
}

func newTable(cfg *TableConfig, header []string) (*table, error) {
	t := &table{time: cfg.Time, columns: map[string]int{}}
	for i, name := range header {
		if _, twice := t.columns[name]; twice && name != "" {
			return nil, fmt.Errorf("column %q occurs more than once", name)
		}
		t.columns[name] = i
	}
	var errs []error
	need := func(name string) {
		if _, ok := t.columns[name]; !ok {
			errs = append(errs, fmt.Errorf("no column %q; the file has: %s", name, strings.Join(header, ", ")))
		}
	}
	bind := func(config map[string]string) []attr {
		attrs, err := parseAttributes(config)
		errs = append(errs, err)
		for _, a := range attrs {
			for _, p := range a.value {
				if p.column != "" {
					need(p.column)
				}
			}
		}
		return attrs
	}
	need(t.time.Column)
	t.resource = bind(cfg.Resource)
	for _, a := range t.resource {
		if a.key == semconv.AttrHostName {
			t.host = a.value
		}
	}
	for _, m := range cfg.Metrics {
		need(m.Column)
		for column := range m.When {
			need(column)
		}
		t.measures = append(t.measures, newMeasure(m, bind(m.Attributes)))
	}
	return t, errors.Join(errs...)
}

// newMeasure fills in what the configuration leaves out and the catalogue has.
func newMeasure(m MetricConfig, attrs []attr) measure {
	if m.Scale == 0 {
		m.Scale = 1
	}
	to := measure{MetricConfig: m, kind: metricKinds[m.Type], attributes: attrs}
	known := reading.ByName(m.Name)
	if known == nil {
		return to
	}
	if m.Description == "" {
		to.Description = known.About
	}
	if m.Type == "" {
		to.kind = known.Kind
	}
	if m.Unit == "" {
		to.Unit = known.Unit
	}
	to.known = known
	to.factor, _ = known.Factor(m.Unit)
	return to
}

func (t *table) cell(fields []string, column string) string {
	return strings.TrimSpace(fields[t.columns[column]])
}

func (t *table) render(value template, fields []string) string {
	var text strings.Builder
	for _, p := range value {
		text.WriteString(p.text)
		if p.column != "" {
			text.WriteString(t.cell(fields, p.column))
		}
	}
	return text.String()
}

// pairs are the keys and values of attributes, without the empty values.
func (t *table) pairs(attrs []attr, fields []string) []string {
	pairs := make([]string, 0, 2*len(attrs))
	for _, a := range attrs {
		if text := t.render(a.value, fields); text != "" {
			pairs = append(pairs, a.key, text)
		}
	}
	return pairs
}

// decode reads a row, or says why it cannot.
func (t *table) decode(fields []string) (row, reason, string) {
	r := row{fields: fields, values: make([]float64, len(t.measures))}
	text := t.cell(fields, t.time.Column)
	var ok bool
	if r.at, ok = t.time.parse(text); !ok {
		return r, badTime, fmt.Sprintf("column %q is %s", t.time.Column, quote(text))
	}
	if t.render(t.host, fields) == "" {
		return r, noNode, "host.name comes out empty"
	}
	found := false
	for i := range t.measures {
		m := &t.measures[i]
		r.values[i] = math.NaN()
		text := t.cell(fields, m.Column)
		if text == "" || !t.selects(m, fields) {
			continue
		}
		if refused, ok := t.whom(m, fields); !ok {
			return r, subject, refused.String()
		}
		var why reason
		if r.values[i], why = m.parse(text); why != "" {
			return r, why, fmt.Sprintf("column %q is %s", m.Column, quote(text))
		}
		found = true
	}
	if !found {
		return r, empty, "it has no value for any metric"
	}
	return r, "", ""
}

func (t *table) selects(m *measure, fields []string) bool {
	for column, want := range m.When {
		if t.cell(fields, column) != want {
			return false
		}
	}
	return true
}

// whom reports whether the point of a row says whose it is, as its readers demand.
func (t *table) whom(m *measure, fields []string) (refused reading.Refused, ok bool) {
	if m.known == nil {
		return refused, true
	}
	var id, hwType string
	var texts reading.Texts
	for _, a := range m.attributes {
		switch a.key {
		case semconv.AttrHWID:
			id = t.render(a.value, fields)
		case semconv.AttrHWType:
			hwType = t.render(a.value, fields)
		default:
			for i, key := range m.known.Keys {
				if a.key == key.Name || a.key == key.Alias {
					texts[i] = t.render(a.value, fields)
				}
			}
		}
	}
	_, of := m.known.Select(hwType, &texts)
	why := m.known.Whom(of, id, hwType, &texts)
	return reading.Refused{Metric: m.known, Why: why, ID: id, HWType: hwType}, why == reading.Accepted
}

func (m *measure) parse(text string) (float64, reason) {
	v, err := strconv.ParseFloat(text, 64)
	v *= m.Scale
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return 0, notFinite
	case err != nil:
		return 0, badNumber
	case v < 0 && m.kind == reading.Counter, m.known != nil && m.known.Judge(v*m.factor) != reading.Accepted:
		return 0, outOfRange
	}
	return v, ""
}

// parse reads a time. A float64 holds Unix time to less than a microsecond.
func (t *TimeConfig) parse(text string) (time.Duration, bool) {
	if t.Unit != "" {
		v, err := strconv.ParseFloat(text, 64)
		v *= float64(timeUnits[t.Unit])
		return time.Duration(math.Round(v)), err == nil && math.Abs(v) < float64(maxTime)
	}
	layout := t.Layout
	if layout == "" {
		layout = time.RFC3339
	}
	at, err := time.Parse(layout, text)
	// Outside these years UnixNano has no defined result.
	if err != nil || at.Year() < 1830 || at.Year() > 2110 {
		return 0, false
	}
	return time.Duration(at.UnixNano()), true
}

// report makes the report of a step, with all points at now and sums since
// began. It counts the rows that set no series of their own: the last counts.
func (t *table) report(rows []row, cluster, version string, now, began time.Time) (md pmetric.Metrics, duplicates int64) {
	md = pmetric.NewMetrics()
	at, start := pcommon.NewTimestampFromTime(now), pcommon.NewTimestampFromTime(began)
	nodes := map[string]pmetric.MetricSlice{}
	metrics := map[string]pmetric.NumberDataPointSlice{}
	series := map[string]pmetric.NumberDataPoint{}
	for i := range rows {
		r := &rows[i]
		resource := t.pairs(t.resource, r.fields)
		node := fmt.Sprintf("%q", resource)
		if _, ok := nodes[node]; !ok {
			rm := md.ResourceMetrics().AppendEmpty()
			put(rm.Resource().Attributes(), resource)
			if cluster != "" {
				rm.Resource().Attributes().PutStr(semconv.AttrClusterName, cluster)
			}
			sm := rm.ScopeMetrics().AppendEmpty()
			sm.Scope().SetName(metadata.ScopeName)
			sm.Scope().SetVersion(version)
			nodes[node] = sm.Metrics()
		}
		added := false
		for j, v := range r.values {
			if math.IsNaN(v) {
				continue
			}
			m := &t.measures[j]
			metric := node + m.Name
			if _, ok := metrics[metric]; !ok {
				metrics[metric] = m.points(nodes[node].AppendEmpty())
			}
			attrs := t.pairs(m.attributes, r.fields)
			id := fmt.Sprintf("%s%q", metric, attrs)
			p, ok := series[id]
			if !ok {
				p = metrics[metric].AppendEmpty()
				p.SetTimestamp(at)
				if m.kind == reading.Counter {
					p.SetStartTimestamp(start)
				}
				put(p.Attributes(), attrs)
				series[id], added = p, true
			}
			if m.known != nil && m.known.Integer && m.factor == 1 {
				p.SetIntValue(int64(math.Round(v)))
			} else {
				p.SetDoubleValue(v)
			}
		}
		if !added {
			duplicates++
		}
	}
	return md, duplicates
}

// points describes a metric and returns the place of its points.
func (m *measure) points(to pmetric.Metric) pmetric.NumberDataPointSlice {
	to.SetName(m.Name)
	to.SetDescription(m.Description)
	to.SetUnit(m.Unit)
	if m.kind == reading.Gauge {
		return to.SetEmptyGauge().DataPoints()
	}
	sum := to.SetEmptySum()
	sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	sum.SetIsMonotonic(m.kind == reading.Counter)
	return sum.DataPoints()
}

func put(to pcommon.Map, pairs []string) {
	for i := 0; i < len(pairs); i += 2 {
		to.PutStr(pairs[i], pairs[i+1])
	}
}

// quote shows a field in a log line, cut to a sensible length.
func quote(text string) string { return fmt.Sprintf("%.64q", text) }

// template is text with columns in braces: "dp{dp_rank}-pp{pp_rank}".
type template []templatePart

// templatePart is text and the column behind it, if any.
type templatePart struct{ text, column string }

func parseTemplate(text string) (template, error) {
	var t template
	for rest := text; rest != ""; {
		literal, after, isColumn := strings.Cut(rest, "{")
		if strings.Contains(literal, "}") {
			return nil, fmt.Errorf("template %q has a `}` that closes nothing", text)
		}
		p := templatePart{text: literal}
		rest = ""
		if isColumn {
			var closed bool
			p.column, rest, closed = strings.Cut(after, "}")
			switch {
			case !closed || strings.Contains(p.column, "{"):
				return nil, fmt.Errorf("template %q has a `{` that is not closed", text)
			case strings.TrimSpace(p.column) == "":
				return nil, fmt.Errorf("template %q has no column name between `{` and `}`", text)
			}
		}
		t = append(t, p)
	}
	return t, nil
}

// attr is an attribute whose value is a template.
type attr struct {
	key   string
	value template
}

// parseAttributes reads templates by attribute key.
func parseAttributes(config map[string]string) ([]attr, error) {
	var attrs []attr
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(config)) {
		t, err := parseTemplate(config[key])
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
		attrs = append(attrs, attr{key, t})
	}
	return attrs, errors.Join(errs...)
}
