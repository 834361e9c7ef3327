// SPDX-License-Identifier: Apache-2.0

package csvreplayreceiver

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/reading"
	semconv "github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/receiver/csvreplayreceiver/internal/metadata"
)

// table is a configuration bound to the columns of a file.
type table struct {
	time     TimeConfig
	at       []int // of the time
	header   []string
	columns  map[string]int // by name, without the unit in brackets
	resource []attr
	host     template
	measures []measure
	missing  []string // columns of metrics that the file does not have
	version  string   // of the scope
	began    time.Time
}

// measure is a column that makes points of a metric.
type measure struct {
	MetricConfig
	kind       reading.Kind
	unit       string
	known      *reading.Metric // nil for a metric that no component here reads
	sources    []source
	when       []condition
	attributes []attr
}

// source is a column that has values of a measure.
type source struct {
	at     int
	factor float64 // of a number without a unit of its own
}

// condition is what a row must have in a column.
type condition struct {
	at   []int
	want string
}

// newTable finds the columns. Sums begin at began.
func newTable(cfg *TableConfig, header []string, version string, began time.Time) (*table, error) {
	t := &table{time: cfg.Time, header: header, columns: map[string]int{}, version: version, began: began}
	for i, name := range slices.Backward(header) {
		short, _ := bare(name)
		t.columns[short] = i
	}
	t.at, _ = t.find(t.time.Column)
	t.resource, _ = t.bind(cfg.Resource)
	// Validate requires the attribute.
	t.host, _ = t.template(cfg.Resource[semconv.AttrHostName])
	required := t.missing
	t.missing = nil
	var errs []error
	for _, m := range cfg.Metrics {
		errs = append(errs, t.measure(m))
	}
	if len(t.measures) == 0 {
		required = append(required, t.missing...)
	}
	for _, name := range required {
		errs = append(errs, fmt.Errorf("no column %q; the file has: %s", name, strings.Join(header, ", ")))
	}
	return t, errors.Join(errs...)
}

// find returns the columns of a name, the alternatives of "a|b" in their order. One that
// is empty may be absent.
func (t *table) find(name string) (at []int, ok bool) {
	for one := range strings.SplitSeq(name, "|") {
		if i, known := t.columns[one]; known {
			at = append(at, i)
		}
		ok = ok || one == ""
	}
	if ok = ok || len(at) > 0; !ok && !slices.Contains(t.missing, name) {
		t.missing = append(t.missing, name)
	}
	return at, ok
}

// measure adds a metric, unless one of its columns is missing. What its configuration leaves
// out comes from the catalogue.
func (t *table) measure(cfg MetricConfig) (err error) {
	at, complete := t.find(cfg.Column)
	m := measure{MetricConfig: cfg, kind: metricTypes[cfg.Type], unit: cfg.Unit, known: reading.ByName(cfg.Name)}
	if m.known != nil {
		m.kind, m.unit = m.known.Kind, m.known.Unit
	}
	var ok bool
	m.attributes, ok = t.bind(cfg.Attributes)
	complete = complete && ok
	for column, want := range cfg.When {
		where, ok := t.find(column)
		m.when, complete = append(m.when, condition{where, want}), complete && ok
	}
	if !complete {
		return nil
	}
	for _, i := range at {
		from := source{at: i}
		_, unit := bare(t.header[i])
		m.unit = cmp.Or(m.unit, unit)
		if from.factor, err = m.factor(cmp.Or(unit, cfg.Unit)); err != nil {
			return fmt.Errorf("column %q: %w", t.header[i], err)
		}
		if unit == "" {
			from.factor *= cmp.Or(cfg.Scale, 1)
		}
		m.sources = append(m.sources, from)
	}
	t.measures = append(t.measures, m)
	return nil
}

// read reads the first cell of a measure that has a value, NaN where none has.
func (m *measure) read(header, fields []string) (float64, error) {
	for _, c := range m.when {
		if cell(fields, c.at) != c.want {
			return math.NaN(), nil
		}
	}
	for _, from := range m.sources {
		text := clean(fields[from.at])
		if text == "" {
			continue
		}
		v, err := m.parse(text, from.factor)
		if err != nil {
			return v, fmt.Errorf("column %q is %.64q: %w", header[from.at], text, err)
		}
		if !math.IsNaN(v) {
			return v, nil
		}
	}
	return math.NaN(), nil
}

// parse reads a time. A float64 holds Unix time to less than a microsecond.
func (t *TimeConfig) parse(text string) (time.Time, error) {
	if t.Unit == "" {
		return time.Parse(cmp.Or(t.Layout, time.RFC3339), text)
	}
	v, err := strconv.ParseFloat(text, 64)
	v *= float64(timeUnits[t.Unit])
	if err == nil && !(math.Abs(v) < 1<<62) {
		err = errors.New("it is no time of this century")
	}
	return time.Unix(0, int64(math.Round(v))), err
}

// step is the report of one time.
type step struct {
	at      time.Time
	md      pmetric.Metrics
	nodes   map[string]pmetric.MetricSlice
	metrics map[string]pmetric.NumberDataPointSlice
	points  map[string]pmetric.NumberDataPoint
}

func newStep(at time.Time) *step {
	return &step{
		at:      at,
		md:      pmetric.NewMetrics(),
		nodes:   map[string]pmetric.MetricSlice{},
		metrics: map[string]pmetric.NumberDataPointSlice{},
		points:  map[string]pmetric.NumberDataPoint{},
	}
}

// stamp sets the time of all points.
func (s *step) stamp(now time.Time) {
	for _, p := range s.points {
		p.SetTimestamp(pcommon.NewTimestampFromTime(now))
	}
}

// add puts a row into a step, and reports whether it has a value. Of a series that occurs twice
// the last row counts.
func (t *table) add(s *step, fields []string, lost func(error)) (found bool) {
	resource := render(t.resource, fields)
	for i := range t.measures {
		m := &t.measures[i]
		v, err := m.read(t.header, fields)
		if err != nil {
			lost(err)
		}
		if err == nil && !math.IsNaN(v) {
			t.point(s, resource, m, render(m.attributes, fields)).SetDoubleValue(v)
			found = true
		}
	}
	return found
}

// point returns the point of a series, a new one where the step has none.
func (t *table) point(s *step, resource []string, m *measure, attributes []string) pmetric.NumberDataPoint {
	node := fmt.Sprintf("%q", resource)
	metric := node + m.unit + " " + m.Name
	series := metric + fmt.Sprintf("%q", attributes)
	if p, ok := s.points[series]; ok {
		return p
	}
	if _, ok := s.nodes[node]; !ok {
		rm := s.md.ResourceMetrics().AppendEmpty()
		put(rm.Resource().Attributes(), resource)
		sm := rm.ScopeMetrics().AppendEmpty()
		sm.Scope().SetName(metadata.ScopeName)
		sm.Scope().SetVersion(t.version)
		s.nodes[node] = sm.Metrics()
	}
	if _, ok := s.metrics[metric]; !ok {
		s.metrics[metric] = m.points(s.nodes[node].AppendEmpty())
	}
	p := s.metrics[metric].AppendEmpty()
	put(p.Attributes(), attributes)
	if m.kind == reading.Counter {
		p.SetStartTimestamp(pcommon.NewTimestampFromTime(t.began))
	}
	s.points[series] = p
	return p
}

// points describes a metric and returns the slice of its points.
func (m *measure) points(to pmetric.Metric) pmetric.NumberDataPointSlice {
	to.SetName(m.Name)
	to.SetUnit(m.unit)
	if m.known != nil {
		to.SetDescription(m.known.About)
	}
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

// template is text with columns in braces: "dp{dp_rank}-pp{pp_rank}".
type template []templatePart

// templatePart is text and the columns behind it, if any.
type templatePart struct {
	text string
	at   []int
}

// attr is one whose value is a template.
type attr struct {
	key   string
	value template
}

var inBraces = regexp.MustCompile(`\{([^{}]+)\}`)

// template reads a template. It reports false where a column is missing.
func (t *table) template(text string) (parts template, ok bool) {
	last := 0
	ok = true
	for _, at := range inBraces.FindAllStringSubmatchIndex(text, -1) {
		columns, found := t.find(text[at[2]:at[3]])
		parts = append(parts, templatePart{text[last:at[0]], columns})
		last, ok = at[1], ok && found
	}
	return append(parts, templatePart{text: text[last:]}), ok
}

// bind reads templates by attribute key.
func (t *table) bind(config map[string]string) (attributes []attr, ok bool) {
	ok = true
	for _, key := range slices.Sorted(maps.Keys(config)) {
		value, complete := t.template(config[key])
		attributes, ok = append(attributes, attr{key, value}), ok && complete
	}
	return attributes, ok
}

func (t template) render(fields []string) string {
	var text strings.Builder
	for _, p := range t {
		text.WriteString(p.text)
		text.WriteString(cell(fields, p.at))
	}
	return text.String()
}

// render returns keys and values of attributes, without the empty values.
func render(attributes []attr, fields []string) []string {
	pairs := make([]string, 0, 2*len(attributes))
	for _, a := range attributes {
		if text := a.value.render(fields); text != "" {
			pairs = append(pairs, a.key, text)
		}
	}
	return pairs
}

// cell is the first text of some columns.
func cell(fields []string, at []int) string {
	for _, i := range at {
		if text := clean(fields[i]); text != "" {
			return text
		}
	}
	return ""
}
