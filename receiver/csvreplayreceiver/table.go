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
	missing  []string // columns of metrics that the file does not have
}

// measure is a column that makes points of a metric.
type measure struct {
	MetricConfig
	kind       reading.Kind
	known      *reading.Metric // nil for a metric that no component here reads
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

// row is a row that has been read. values and series are by measure: NaN and "" for none.
type row struct {
	at     time.Duration
	fields []string
	node   string // its resource's attributes, quoted
	values []float64
	series []string // node, metric and attributes, quoted
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
			if _, twice := t.columns[short]; !twice {
				t.columns[short] = i
			}
		}
	}
	t.at, _ = t.find(t.time.Column)
	t.resource, _ = t.bind(cfg.Resource)
	// Validate requires the attribute.
	t.host = t.resource[slices.IndexFunc(t.resource, func(a attr) bool { return a.key == semconv.AttrHostName })].value
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
	if i, exact := t.columns[name]; exact && name != "" {
		return []int{i}, true
	}
	for one := range strings.SplitSeq(name, "|") {
		one = strings.TrimSpace(one)
		if i, known := t.columns[one]; known && one != "" {
			at = append(at, i)
		}
		ok = ok || one == ""
	}
	if ok = ok || len(at) > 0; !ok {
		t.miss(name)
	}
	return at, ok
}

func (t *table) miss(column string) {
	if !slices.Contains(t.missing, column) {
		t.missing = append(t.missing, column)
	}
}

// bind finds the columns of templates. It reports false where one is missing.
func (t *table) bind(config map[string]string) (attrs []attr, ok bool) {
	attrs, _ = parseAttributes(config) // Validate has reported its errors
	ok = true
	for _, a := range attrs {
		for i := range a.value {
			at, found := t.find(a.value[i].column)
			a.value[i].at, ok = at, ok && found
		}
	}
	return attrs, ok
}

// measure adds a metric, unless one of its columns is missing. What its configuration leaves
// out comes from the catalogue.
func (t *table) measure(cfg MetricConfig) error {
	attrs, complete := t.bind(cfg.Attributes)
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
		m.when, complete = append(m.when, condition{at, want}), complete && ok
	}
	at, _ := t.find(cfg.Column)
	if len(at) == 0 {
		t.miss(cfg.Column)
	}
	if len(at) == 0 || !complete {
		return nil
	}
	for _, i := range at {
		from, err := m.bind(i, t.header[i])
		if err != nil {
			return err
		}
		m.sources = append(m.sources, from)
	}
	t.measures = append(t.measures, m)
	return nil
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

// decode reads a row. It reports false for a row that is left out, with the reason, and else
// returns the cells that are left out.
func (t *table) decode(fields []string) (r row, lost []loss, ok bool) {
	r = row{fields: fields, values: make([]float64, len(t.measures)), series: make([]string, len(t.measures))}
	text := cell(fields, t.at)
	if r.at, ok = t.time.parse(text); !ok {
		return r, []loss{{false, badTime, fmt.Sprintf("column %q is %s", t.time.Column, quote(text))}}, false
	}
	if render(t.host, fields) == "" {
		return r, []loss{{false, noNode, "host.name comes out empty"}}, false
	}
	ok, r.node = false, fmt.Sprintf("%q", pairs(t.resource, fields))
	for i := range t.measures {
		m := &t.measures[i]
		v, bad := m.read(fields)
		if bad.why != "" {
			lost = append(lost, bad)
		}
		if r.values[i] = v; !math.IsNaN(v) {
			r.series[i], ok = fmt.Sprintf("%s%s%q", r.node, m.Name, pairs(m.attributes, fields)), true
		}
	}
	switch {
	case ok:
		return r, lost, true
	case len(lost) == 0:
		return r, []loss{{false, empty, "it has no value for any metric"}}, false
	default:
		return r, []loss{{false, lost[0].why, lost[0].detail}}, false
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
		v, why := m.parse(text, from)
		if why != "" {
			return v, loss{true, why, fmt.Sprintf("column %q is %s", from.column, quote(text))}
		}
		if !math.IsNaN(v) {
			return v, loss{}
		}
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

// step is the rows of one time, which make one report.
type step struct {
	at     time.Duration
	rows   []row
	bytes  int             // of the rows
	series map[string]bool // of the rows, by name
}

func (s *step) add(r row) {
	if len(s.rows) == 0 {
		s.at, s.series = r.at, map[string]bool{}
	}
	s.rows = append(s.rows, r)
	for _, f := range r.fields {
		s.bytes += len(f)
	}
	for _, name := range r.series {
		s.series[name] = true
	}
}

// report makes the report of a step, with all points at now and sums since began. Of a series
// that occurs twice the last row counts.
func (t *table) report(s *step, cluster, version string, now, began time.Time) pmetric.Metrics {
	md, nodes := pmetric.NewMetrics(), map[string]pmetric.MetricSlice{}
	metrics, points := map[string]pmetric.NumberDataPointSlice{}, map[string]pmetric.NumberDataPoint{}
	for _, r := range s.rows {
		if _, ok := nodes[r.node]; !ok {
			rm := md.ResourceMetrics().AppendEmpty()
			put(rm.Resource().Attributes(), pairs(t.resource, r.fields))
			if cluster != "" {
				rm.Resource().Attributes().PutStr(semconv.AttrClusterName, cluster)
			}
			sm := rm.ScopeMetrics().AppendEmpty()
			sm.Scope().SetName(metadata.ScopeName)
			sm.Scope().SetVersion(version)
			nodes[r.node] = sm.Metrics()
		}
		for i, name := range r.series {
			if name == "" {
				continue
			}
			m := &t.measures[i]
			p, ok := points[name]
			if !ok {
				metric := r.node + m.Name
				if _, ok := metrics[metric]; !ok {
					metrics[metric] = m.points(nodes[r.node].AppendEmpty())
				}
				p = metrics[metric].AppendEmpty()
				put(p.Attributes(), pairs(m.attributes, r.fields))
				p.SetTimestamp(pcommon.NewTimestampFromTime(now))
				if m.kind == reading.Counter {
					p.SetStartTimestamp(pcommon.NewTimestampFromTime(began))
				}
				points[name] = p
			}
			if m.known != nil && m.known.Integer && m.factor == 1 {
				p.SetIntValue(int64(math.Round(r.values[i])))
			} else {
				p.SetDoubleValue(r.values[i])
			}
		}
	}
	return md
}

// points describes a metric and returns the slice of its points.
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

// attr is an attribute whose value is a template.
type attr struct {
	key   string
	value template
}

// parseAttributes reads templates by attribute key.
func parseAttributes(config map[string]string) (attrs []attr, err error) {
	for _, key := range slices.Sorted(maps.Keys(config)) {
		text, a, last := config[key], attr{key: key}, 0
		if strings.ContainsAny(inBraces.ReplaceAllString(text, ""), "{}") {
			err = errors.Join(err, fmt.Errorf("%s: template %q has a brace too many: a pair of them must stand around the name of a column", key, text))
		}
		for _, at := range inBraces.FindAllStringSubmatchIndex(text, -1) {
			a.value = append(a.value, templatePart{text: text[last:at[0]], column: text[at[2]:at[3]]})
			last = at[1]
		}
		a.value = append(a.value, templatePart{text: text[last:]})
		attrs = append(attrs, a)
	}
	return attrs, err
}
