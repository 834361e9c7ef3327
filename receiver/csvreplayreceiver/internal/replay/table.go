// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	semconv "github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// TableSpec maps the columns of a wide table: one row per time and node, or
// per time and part of a node where attributes tell the parts apart.
type TableSpec struct {
	Time TimeSpec
	// Resource holds templates by attribute key; host.name must be among them.
	Resource map[string]string
	Metrics  []MetricSpec
}

// MetricSpec makes a point of a column.
type MetricSpec struct {
	Column string
	Metric Metric
	// Scale is a factor on the column's value.
	Scale float64
	// Attributes holds templates by attribute key.
	Attributes map[string]string
}

// maxTableNodes bounds the cache of rendered nodes, not the nodes.
const maxTableNodes = 65_536

// NewTable reads a wide table.
func NewTable(r io.Reader, spec TableSpec, opts Options) (*Reader, error) {
	return newReader(r, opts, func(h header) (format, error) { return bindTable(h, spec) })
}

type tableFormat struct {
	timeColumn int
	times      timeParser
	resource   []boundTemplate
	host       int
	metrics    []boundMetric

	// The decoded row.
	fields [][]byte
	values []float64
	has    []bool
	key    []byte
	series []byte

	nodes   map[string]*tableNode
	present []*tableNode
}

type boundTemplate struct {
	key      string
	template template
}

type boundMetric struct {
	column     int
	name       string
	metric     *Metric
	scale      float64
	attributes []boundTemplate
	// fixed are the attributes where none of them takes a column.
	fixed   []Attribute
	isFixed bool
}

type tableNode struct {
	attrs []Attribute
	rows  int
	// points and seen are per metric of the spec; seen finds a series by its attributes.
	points [][]Point
	seen   []map[string]int
	out    []Point
}

func bindTable(h header, spec TableSpec) (format, error) {
	f := &tableFormat{
		times: timeParser{spec: spec.Time},
		nodes: make(map[string]*tableNode),
		host:  -1,
	}
	var errs []error
	column := func(name string) int {
		i, err := h.column(name)
		errs = append(errs, err)
		return i
	}
	f.timeColumn = column(spec.Time.Column)
	bindAll := func(templates map[string]string) []boundTemplate {
		bound := make([]boundTemplate, 0, len(templates))
		for _, key := range slices.Sorted(maps.Keys(templates)) {
			t, err := parseTemplate(templates[key])
			if err == nil {
				err = t.bind(h)
			}
			errs = append(errs, err)
			bound = append(bound, boundTemplate{key, t})
		}
		return bound
	}
	f.resource = bindAll(spec.Resource)
	f.host = slices.IndexFunc(f.resource, func(t boundTemplate) bool { return t.key == semconv.AttrHostName })
	if f.host < 0 {
		errs = append(errs, fmt.Errorf("the resource has no %s", semconv.AttrHostName))
	}
	shared := make(map[string]*Metric)
	for _, m := range spec.Metrics {
		metric := shared[m.Metric.Name]
		if metric == nil {
			metric = &m.Metric
			shared[m.Metric.Name] = metric
		}
		b := boundMetric{
			column: column(m.Column), name: m.Column, metric: metric, scale: m.Scale,
			attributes: bindAll(m.Attributes), isFixed: true,
		}
		for _, a := range b.attributes {
			b.isFixed = b.isFixed && a.template.constant()
		}
		if b.isFixed {
			b.fixed = renderAll(b.attributes, nil)
		}
		f.metrics = append(f.metrics, b)
	}
	// Points of one metric are adjacent, see Node.Points.
	slices.SortStableFunc(f.metrics, func(a, b boundMetric) int {
		return bytes.Compare([]byte(a.metric.Name), []byte(b.metric.Name))
	})
	f.values = make([]float64, len(f.metrics))
	f.has = make([]bool, len(f.metrics))
	return f, errors.Join(errs...)
}

func renderAll(templates []boundTemplate, fields [][]byte) []Attribute {
	attrs := make([]Attribute, 0, len(templates))
	for _, t := range templates {
		// An attribute without a value is left out.
		if text := validText(t.template.render(nil, fields)); text != "" {
			attrs = append(attrs, Attribute{Key: t.key, Text: text})
		}
	}
	return attrs
}

// appendKey renders templates to a key that is unique for their values.
func appendKey(dst []byte, templates []boundTemplate, fields [][]byte) []byte {
	for _, t := range templates {
		start := len(dst)
		dst = t.template.render(dst, fields)
		// The length after the text keeps "a"+"bc" and "ab"+"c" apart.
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(dst)-start))
	}
	return dst
}

func (f *tableFormat) decode(fields [][]byte) (time.Duration, Reason, string) {
	at, ok := f.times.parse(fields[f.timeColumn])
	if !ok {
		return 0, BadTime, fmt.Sprintf("column %q is %s", f.times.spec.Column, quoteField(fields[f.timeColumn]))
	}
	f.key = f.resource[f.host].template.render(f.key[:0], fields)
	if len(f.key) == 0 {
		return 0, NoNode, "host.name comes out empty"
	}
	found := false
	for i := range f.metrics {
		m := &f.metrics[i]
		raw := bytes.TrimSpace(fields[m.column])
		if f.has[i] = len(raw) > 0; !f.has[i] {
			continue
		}
		v, reason := parseNumber(raw)
		if reason == reasonNone {
			v *= m.scale
			if v-v != 0 {
				reason = NotFinite
			}
		}
		if reason == reasonNone && v < 0 && m.metric.Kind == KindSum {
			reason = OutOfRange
		}
		if reason != reasonNone {
			return 0, reason, fmt.Sprintf("column %q is %s", m.name, quoteField(raw))
		}
		f.values[i] = v
		found = true
	}
	if !found {
		return 0, Empty, "all of its values are empty"
	}
	f.fields = fields
	f.key = appendKey(f.key[:0], f.resource, fields)
	return at, reasonNone, ""
}

func (f *tableFormat) add() Reason {
	node := f.nodes[string(f.key)]
	if node == nil {
		node = &tableNode{
			attrs:  renderAll(f.resource, f.fields),
			points: make([][]Point, len(f.metrics)),
			seen:   make([]map[string]int, len(f.metrics)),
		}
		f.nodes[string(f.key)] = node
	}
	if node.rows == 0 {
		f.present = append(f.present, node)
	}
	replaced := 0
	added := 0
	for i := range f.metrics {
		if !f.has[i] {
			continue
		}
		if node.put(f, i) {
			replaced++
		} else {
			added++
		}
	}
	// A row all of whose series were there already takes the place of an earlier row.
	if added == 0 && replaced > 0 {
		return Duplicate
	}
	node.rows++
	return reasonNone
}

// put sets the decoded value of metric i and reports whether it replaced one.
func (n *tableNode) put(f *tableFormat, i int) (replaced bool) {
	m := &f.metrics[i]
	at := -1
	if m.isFixed {
		if len(n.points[i]) > 0 {
			at = 0
		}
	} else {
		f.series = appendKey(f.series[:0], m.attributes, f.fields)
		if n.seen[i] == nil {
			n.seen[i] = make(map[string]int)
		}
		if found, ok := n.seen[i][string(f.series)]; ok {
			at = found
		} else {
			n.seen[i][string(f.series)] = len(n.points[i])
		}
	}
	if at >= 0 {
		n.points[i][at].Value = f.values[i]
		return true
	}
	attrs := m.fixed
	if !m.isFixed {
		attrs = renderAll(m.attributes, f.fields)
	}
	n.points[i] = append(n.points[i], Point{Metric: m.metric, Attributes: attrs, Value: f.values[i]})
	return false
}

func (f *tableFormat) finish(step *Step) {
	for _, n := range f.present {
		n.out = n.out[:0]
		for i := range n.points {
			n.out = append(n.out, n.points[i]...)
			n.points[i] = n.points[i][:0]
			clear(n.seen[i])
		}
		step.Nodes = append(step.Nodes, Node{Attributes: n.attrs, Rows: n.rows, Points: n.out})
		n.rows = 0
	}
	f.present = f.present[:0]
	if len(f.nodes) > maxTableNodes {
		clear(f.nodes)
	}
}
