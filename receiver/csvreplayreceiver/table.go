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
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/receiver/csvreplayreceiver/internal/metadata"
)

// maxTime keeps the difference of any two times within a time.Duration; as
// Unix time it ends in 2116.
const maxTime = time.Duration(1) << 62

// table is a configuration bound to the columns of a file.
type table struct {
	time     TimeConfig
	at       []int // of the time
	header   []string
	columns  map[string]int // by name, with the unit in brackets and without
	resource []attr
	host     template
	measures []measure
	// used are the columns that have values, lacking those that the file lacks.
	used, lacking []string
}

// measure is a column that makes points of a metric.
type measure struct {
	MetricConfig
	kind       reading.Kind
	known      *reading.Metric // nil for a metric that nobody here reads
	factor     float64         // to the unit of known
	sources    []source
	when       []condition
	attributes []attr
}

// condition is what a row must have in a column.
type condition struct {
	at   []int
	want string
}

// row is a row that has been read. A value is NaN where the row has none.
type row struct {
	at     time.Duration
	fields []string
	values []float64
}

func newTable(cfg *TableConfig, header []string) (*table, error) {
	t := &table{time: cfg.Time, header: header, columns: map[string]int{}}
	for i, name := range header {
		if _, twice := t.columns[name]; twice && name != "" {
			return nil, fmt.Errorf("column %q occurs more than once", name)
		}
		t.columns[name] = i
	}
	for i, name := range header {
		if short, unit := bare(name); unit != "" {
			if j, twice := t.columns[short]; !twice {
				t.columns[short] = i
			} else if j < 0 || header[j] != short {
				t.columns[short] = -1 // whose name it is, is not certain
			}
		}
	}
	var errs []error
	need := func(name string, ok bool) {
		if !ok {
			errs = append(errs, fmt.Errorf("no column %q; the file has: %s", name, strings.Join(header, ", ")))
		}
	}
	var ok bool
	t.at, ok = t.find(t.time.Column)
	need(t.time.Column, ok)
	var missing string
	t.resource, missing = t.bind(cfg.Resource)
	need(missing, missing == "")
	// Validate has seen that it is there.
	t.host = t.resource[slices.IndexFunc(t.resource, func(a attr) bool { return a.key == semconv.AttrHostName })].value
	for _, m := range cfg.Metrics {
		missing, err := t.measure(m)
		if missing != "" && !slices.Contains(t.lacking, missing) {
			t.lacking = append(t.lacking, missing)
		}
		errs = append(errs, err)
	}
	if len(t.measures) == 0 {
		for _, name := range t.lacking {
			need(name, false)
		}
	}
	return t, errors.Join(errs...)
}

// find returns the columns of a name, the alternatives of "a|b" in their order. One that
// is empty may be absent.
func (t *table) find(name string) (at []int, ok bool) {
	if i, exact := t.columns[name]; exact && i >= 0 && name != "" {
		return []int{i}, true
	}
	for one := range strings.SplitSeq(name, "|") {
		one = strings.TrimSpace(one)
		if i, known := t.columns[one]; known && i >= 0 && one != "" {
			at = append(at, i)
		}
		ok = ok || one == ""
	}
	return at, ok || len(at) > 0
}

// bind finds the columns of templates, and names one that is missing.
func (t *table) bind(config map[string]string) (attrs []attr, missing string) {
	attrs, _ = parseAttributes(config) // Validate has said what is wrong with it
	for _, a := range attrs {
		for i := range a.value {
			var ok bool
			if a.value[i].at, ok = t.find(a.value[i].column); !ok {
				missing = a.value[i].column
			}
		}
	}
	return attrs, missing
}

// measure adds a metric, unless the file lacks one of its columns. What its configuration
// leaves out is the catalogue's.
func (t *table) measure(cfg MetricConfig) (missing string, err error) {
	attrs, missing := t.bind(cfg.Attributes)
	cfg.Scale = cmp.Or(cfg.Scale, 1)
	m := measure{MetricConfig: cfg, kind: metricTypes[cfg.Type].kind, known: reading.ByName(cfg.Name), attributes: attrs}
	if known := m.known; known != nil {
		m.factor, _ = known.Factor(cfg.Unit)
		m.Unit, m.Description = cmp.Or(cfg.Unit, known.Unit), cmp.Or(cfg.Description, known.About)
		if cfg.Type == "" {
			m.kind = known.Kind
		}
	}
	for column, want := range cfg.When {
		at, ok := t.find(column)
		if !ok {
			missing = column
		}
		m.when = append(m.when, condition{at, want})
	}
	at, _ := t.find(cfg.Column)
	if len(at) == 0 {
		missing = cfg.Column
	}
	if missing != "" {
		return missing, nil
	}
	for _, i := range at {
		from, err := m.bind(i, t.header[i])
		if err != nil {
			return "", err
		}
		m.sources = append(m.sources, from)
		if !slices.Contains(t.used, from.column) {
			t.used = append(t.used, from.column)
		}
	}
	t.measures = append(t.measures, m)
	return "", nil
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

func render(value template, fields []string) string {
	var text strings.Builder
	for _, p := range value {
		text.WriteString(p.text)
		text.WriteString(cell(fields, p.at))
	}
	return text.String()
}

// pairs are the keys and values of attributes, without the empty values.
func pairs(attrs []attr, fields []string) []string {
	list := make([]string, 0, 2*len(attrs))
	for _, a := range attrs {
		if text := render(a.value, fields); text != "" {
			list = append(list, a.key, text)
		}
	}
	return list
}

// decode reads a row. Not ok, it is lost, which says why; ok, what is lost are cells of it.
func (t *table) decode(fields []string) (r row, lost []loss, ok bool) {
	r = row{fields: fields, values: make([]float64, len(t.measures))}
	text := cell(fields, t.at)
	if r.at, ok = t.time.parse(text); !ok {
		return r, []loss{{"", badTime, fmt.Sprintf("column %q is %s", t.time.Column, quote(text))}}, false
	}
	if render(t.host, fields) == "" {
		return r, []loss{{"", noNode, "host.name comes out empty"}}, false
	}
	ok = false
	for i := range t.measures {
		v, bad := t.measures[i].read(fields)
		if bad.why != "" {
			lost = append(lost, bad)
		}
		r.values[i], ok = v, ok || !math.IsNaN(v)
	}
	switch {
	case ok:
		return r, lost, true
	case len(lost) == 0:
		return r, []loss{{"", empty, "it has no value for any metric"}}, false
	default:
		return r, []loss{{"", lost[0].why, lost[0].detail}}, false
	}
}

// read reads the first cell of a measure that has a value, NaN where none has.
func (m *measure) read(fields []string) (float64, loss) {
	for i := range m.sources {
		from := &m.sources[i]
		text := clean(fields[from.at])
		if text == "" || !m.selects(fields) {
			continue
		}
		v, why, detail := m.parse(text, from)
		if why == "" && math.IsNaN(v) {
			continue
		}
		if refused, ok := m.whom(fields); !ok {
			v, why, detail = math.NaN(), subject, refused.String()
		}
		return v, loss{from.column, why, detail}
	}
	return math.NaN(), loss{}
}

func (m *measure) selects(fields []string) bool {
	for _, c := range m.when {
		if cell(fields, c.at) != c.want {
			return false
		}
	}
	return true
}

// whom reports whether the point of a row says whose it is, as its readers demand.
func (m *measure) whom(fields []string) (refused reading.Refused, ok bool) {
	if m.known == nil {
		return refused, true
	}
	var id, hwType string
	var texts reading.Texts
	for _, a := range m.attributes {
		switch a.key {
		case semconv.AttrHWID:
			id = render(a.value, fields)
		case semconv.AttrHWType:
			hwType = render(a.value, fields)
		default:
			for i, key := range m.known.Keys {
				if a.key == key.Name || a.key == key.Alias {
					texts[i] = render(a.value, fields)
				}
			}
		}
	}
	_, of := m.known.Select(hwType, &texts)
	why := m.known.Whom(of, id, hwType, &texts)
	return reading.Refused{Metric: m.known, Why: why, ID: id, HWType: hwType}, why == reading.Accepted
}

// parse reads a time. A float64 holds Unix time to less than a microsecond.
func (t *TimeConfig) parse(text string) (time.Duration, bool) {
	if t.Unit != "" {
		v, err := strconv.ParseFloat(text, 64)
		v *= float64(timeUnits[t.Unit])
		return time.Duration(math.Round(v)), err == nil && math.Abs(v) < float64(maxTime)
	}
	at, err := time.Parse(cmp.Or(t.Layout, time.RFC3339), text)
	// Outside these years UnixNano has no defined result.
	if err != nil || at.Year() < 1830 || at.Year() > 2110 {
		return 0, false
	}
	return time.Duration(at.UnixNano()), true
}

// series names the node of a row and the series that the row has values of, by measure.
func (t *table) series(r *row) (node string, names []string) {
	node, names = fmt.Sprintf("%q", pairs(t.resource, r.fields)), make([]string, len(r.values))
	for i, v := range r.values {
		if m := &t.measures[i]; !math.IsNaN(v) {
			names[i] = fmt.Sprintf("%s%s%q", node, m.Name, pairs(m.attributes, r.fields))
		}
	}
	return node, names
}

// step is the report of all rows of one time.
type step struct {
	at               time.Duration
	rows, duplicates int64 // of the rows those that set no series of their own: the last counts
	bytes            int   // of the rows
	md               pmetric.Metrics
	nodes            map[string]pmetric.MetricSlice
	metrics          map[string]pmetric.NumberDataPointSlice
	series           map[string]pmetric.NumberDataPoint
}

func newStep() *step {
	return &step{
		md: pmetric.NewMetrics(), nodes: map[string]pmetric.MetricSlice{},
		metrics: map[string]pmetric.NumberDataPointSlice{}, series: map[string]pmetric.NumberDataPoint{},
	}
}

// add adds a row to a step.
func (t *table) add(s *step, r *row) {
	if s.rows == 0 {
		s.at = r.at
	}
	s.rows++
	for _, f := range r.fields {
		s.bytes += len(f)
	}
	node, names := t.series(r)
	if _, ok := s.nodes[node]; !ok {
		rm := s.md.ResourceMetrics().AppendEmpty()
		put(rm.Resource().Attributes(), pairs(t.resource, r.fields))
		s.nodes[node] = rm.ScopeMetrics().AppendEmpty().Metrics()
	}
	before := len(s.series)
	for j, name := range names {
		if name == "" {
			continue
		}
		m := &t.measures[j]
		p, ok := s.series[name]
		if !ok {
			metric := node + m.Name
			if _, ok := s.metrics[metric]; !ok {
				s.metrics[metric] = m.points(s.nodes[node].AppendEmpty())
			}
			p = s.metrics[metric].AppendEmpty()
			put(p.Attributes(), pairs(m.attributes, r.fields))
			s.series[name] = p
		}
		if m.known != nil && m.known.Integer && m.factor == 1 {
			p.SetIntValue(int64(math.Round(r.values[j])))
		} else {
			p.SetDoubleValue(r.values[j])
		}
	}
	if len(s.series) == before {
		s.duplicates++
	}
}

// stamp completes the report, with all points at now and sums since began.
func (s *step) stamp(cluster, version string, now, began time.Time) pmetric.Metrics {
	for _, rm := range s.md.ResourceMetrics().All() {
		if cluster != "" {
			rm.Resource().Attributes().PutStr(semconv.AttrClusterName, cluster)
		}
		sm := rm.ScopeMetrics().At(0)
		sm.Scope().SetName(metadata.ScopeName)
		sm.Scope().SetVersion(version)
		for _, m := range sm.Metrics().All() {
			for _, p := range metricreading.Points(m).All() {
				p.SetTimestamp(pcommon.NewTimestampFromTime(now))
				if m.Type() == pmetric.MetricTypeSum && m.Sum().IsMonotonic() {
					p.SetStartTimestamp(pcommon.NewTimestampFromTime(began))
				}
			}
		}
	}
	return s.md
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

// templatePart is text and the column behind it, if any, which a table finds.
type templatePart struct {
	text, column string
	at           []int
}

var inBraces = regexp.MustCompile(`\{([^{}]*[^{} ][^{}]*)\}`)

func parseTemplate(text string) (template, error) {
	if strings.ContainsAny(inBraces.ReplaceAllString(text, ""), "{}") {
		return nil, fmt.Errorf("template %q has a brace too many: a pair of them must stand around the name of a column", text)
	}
	var t template
	last := 0
	for _, at := range inBraces.FindAllStringSubmatchIndex(text, -1) {
		t = append(t, templatePart{text: text[last:at[0]], column: text[at[2]:at[3]]})
		last = at[1]
	}
	return append(t, templatePart{text: text[last:]}), nil
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
