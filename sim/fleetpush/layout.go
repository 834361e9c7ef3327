// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"
	"go.yaml.in/yaml/v3"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
)

// h100 is what the nvml receiver reports of a node with one H100, in the YAML of
// contrib's golden files. The receiver's tests hold it to that.
//
//go:embed h100.yaml
var h100 []byte

// The attributes of hw.gpu.info that gpusemconv does not name.
const (
	attrSerial = "hw.serial_number"
	attrPCIBus = "gpu.pci.bus_id"
)

// layout is which points the nodes of a fleet may report.
type layout struct {
	resource pmetric.ResourceMetrics // of the receiver's report, with its one scope
	metrics  []metric
	// ofNode and ofGPU are what a node is scored by.
	ofNode, ofGPU []measure
	product       string // hw.model of the GPUs
	rubric        *gpuhealth.Rubric
}

// metric is a metric with the points of the node and of one GPU.
type metric struct {
	pmetric.Metric
	points []point
	ends   bool // of series that end
}

// point is a series of the report.
type point struct {
	pmetric.NumberDataPoint
	ofGPU  bool
	source source
	facts  facts // that must hold for the point to be there
}

// measure is a point that is an input of the node's score.
type measure struct {
	input    *nodescore.Input
	source   source
	facts    facts
	integer  bool
	constant float64 // of a fixed one
}

// newLayout makes the layout out of what the nvml receiver reports of a node
// with one GPU.
func newLayout(report []byte, plan *nodescore.Plan) (*layout, error) {
	md, err := golden(report)
	if err != nil {
		return nil, fmt.Errorf("the report of the nvml receiver: %w", err)
	}
	l := &layout{resource: md.ResourceMetrics().At(0), rubric: gpuhealth.DefaultRubric()}
	metrics := l.resource.ScopeMetrics().At(0).Metrics()
	addRare(metrics)
	var ends []metric
	for _, m := range metrics.All() {
		if err := l.add(m, plan); err != nil {
			return nil, fmt.Errorf("the report of the nvml receiver: %w", err)
		}
		if m.Name() == gpusemconv.MetricGPUUp {
			ends = append(ends, endOf(m, gpuhealth.ReasonOK, wentDown), endOf(m, gpuhealth.ReasonLost, cameUp))
		}
	}
	slices.SortStableFunc(l.metrics, func(a, b metric) int { return strings.Compare(a.Name(), b.Name()) })
	l.metrics = append(l.metrics, ends...)
	return l, nil
}

// golden reads the YAML of contrib's pkg/golden, which is OTLP's JSON.
func golden(text []byte) (pmetric.Metrics, error) {
	var tree any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		return pmetric.Metrics{}, err
	}
	text, err := json.Marshal(tree)
	if err != nil {
		return pmetric.Metrics{}, err
	}
	md, err := (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics(text)
	if err == nil && (md.ResourceMetrics().Len() != 1 || md.ResourceMetrics().At(0).ScopeMetrics().Len() != 1) {
		err = errors.New("it has not one resource with one scope")
	}
	return md, err
}

// anyGPU stands in the layout for the GPU that a report names.
const anyGPU = "GPU"

// addRare adds the series that the receiver's report of a healthy GPU lacks, since
// they begin with a fault. It adds the metrics whose series have no names in advance.
func addRare(metrics pmetric.MetricSlice) {
	add := func(name string, attrs ...string) pmetric.Metric {
		at := -1
		for i, m := range metrics.All() {
			if m.Name() == name {
				at = i
			}
		}
		if at < 0 {
			at = metrics.Len()
			metrics.AppendEmpty().SetName(name)
		}
		m := metrics.At(at)
		if len(attrs) > 0 {
			if m.Type() == pmetric.MetricTypeEmpty {
				m.SetEmptyGauge()
			}
			p := points(m).AppendEmpty()
			p.SetIntValue(0)
			p.Attributes().PutStr(gpusemconv.AttrHWID, anyGPU)
			for i := 0; i < len(attrs); i += 2 {
				p.Attributes().PutStr(attrs[i], attrs[i+1])
			}
		}
		return m
	}
	m := add(gpusemconv.MetricGPUThrottleActive, gpusemconv.AttrReason, "power_cap")
	m.SetDescription("1 while the reason holds the clocks down, else 0. An idle GPU is not throttled.")
	m.SetUnit(reading.ByName(m.Name()).Unit)
	add(gpusemconv.MetricGPUThrottleActive, gpusemconv.AttrReason, "hw_slowdown")
	add(gpusemconv.MetricGPUNVLinkLinks, gpusemconv.AttrState, "down")
	add(gpusemconv.MetricGPUUp, gpusemconv.AttrReason, string(gpuhealth.ReasonLost))
	for _, state := range [...]gpuhealth.HardwareState{gpuhealth.HardwareDegraded, gpuhealth.HardwareFailed, gpuhealth.HardwarePredictedFailure} {
		add(gpusemconv.MetricHWStatus, gpusemconv.AttrHWType, "gpu", gpusemconv.AttrHWState, string(state))
	}
	m = add(gpusemconv.MetricGPUHealthReason)
	m.SetDescription("1 while the reason holds the score down, 0 once it no longer does; absent before.")
	m.SetUnit(reading.ByName(m.Name()).Unit)
	m.SetEmptyGauge()
	m = add(gpusemconv.MetricGPUXIDEvents)
	m.SetDescription("Xid errors that the driver reported since the receiver listens.")
	m.SetUnit(reading.ByName(m.Name()).Unit)
	m.SetEmptySum().SetIsMonotonic(true)
	m.Sum().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
}

// endOf is a series of hw.gpu.up that ends when the GPU is lost, or is back: a
// point without a value, in a metric of its own behind all others.
func endOf(up pmetric.Metric, reason gpuhealth.Reason, when facts) metric {
	to := metric{Metric: up, ends: true}
	p := point{NumberDataPoint: pmetric.NewNumberDataPoint(), ofGPU: true, facts: when}
	p.SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
	p.Attributes().PutStr(gpusemconv.AttrHWID, "")
	p.Attributes().PutStr(gpusemconv.AttrReason, string(reason))
	to.points = append(to.points, p)
	return to
}

// add takes a metric, and takes the points off it. It fails where the readers of the
// product would refuse one.
func (l *layout) add(m pmetric.Metric, plan *nodescore.Plan) error {
	known := reading.ByName(m.Name())
	if known == nil {
		return fmt.Errorf("the catalogue has no metric %s", m.Name())
	}
	var from metricreading.Resource
	from.Begin(metricreading.New(zap.NewNop(), nil), pcommon.NewMap(), "", "")
	list, ok := from.Open(known, m)
	if !ok {
		return fmt.Errorf("metric %s has another unit or type than in the catalogue", m.Name())
	}
	to := metric{Metric: m}
	var p metricreading.Point
	for _, dp := range list.All() {
		if why := from.Read(dp, &p); why != reading.Accepted {
			return fmt.Errorf("the catalogue refuses a point of metric %s: %s", m.Name(), why)
		}
		own := point{NumberDataPoint: pmetric.NewNumberDataPoint()}
		dp.CopyTo(own.NumberDataPoint)
		_, own.ofGPU = dp.Attributes().Get(gpusemconv.AttrHWID)
		own.source, own.facts = meaning(&p)
		to.points = append(to.points, own)
		l.score(&own, &p, plan.Known(known))
	}
	list.RemoveIf(func(pmetric.NumberDataPoint) bool { return true })
	l.metrics = append(l.metrics, to)
	return nil
}

// score takes what a point adds to the node's score, as the straggler processor
// selects it.
func (l *layout) score(own *point, p *metricreading.Point, inputs []nodescore.Input) {
	if v, ok := own.Attributes().Get(gpusemconv.AttrHWModel); ok {
		l.product = v.Str()
	}
	of := &l.ofNode
	if p.Subject != reading.Node {
		of = &l.ofGPU
	}
	for i := range inputs {
		if in := &inputs[i]; in.Field == p.Field {
			*of = append(*of, measure{
				input: in, source: own.source, facts: own.facts,
				integer: own.ValueType() == pmetric.NumberDataPointValueTypeInt, constant: p.Value,
			})
		}
	}
}

// value is what the report shows.
func (s *measure) value(v *values) float64 {
	switch {
	case s.source == fixed:
		return s.constant
	case s.integer:
		return float64(int64(v.v[s.source]))
	default:
		return v.v[s.source]
	}
}

// sheet is a report of a node, over which the next one is written.
type sheet struct {
	md    pmetric.Metrics
	cells []cell
}

// cell is a point of a sheet.
type cell struct {
	pmetric.NumberDataPoint
	of         int // the GPU, or how many there are for the node
	source     source
	integer    bool
	ends       bool
	id, serial *pcommon.Value
}

// ordinary reports whether the GPUs have the points of healthy ones and no others,
// so that one sheet serves all such nodes.
func ordinary(gpus []values) bool {
	return !slices.ContainsFunc(gpus, func(v values) bool {
		return v.facts != up|scored || len(v.reasons) > 0 || slices.ContainsFunc(v.xids[:], func(x xid) bool { return x.Count > 0 })
	})
}

// sheet makes a report with the points that v calls for: of GPUs, then of the node.
func (l *layout) sheet(v []values) *sheet {
	s := &sheet{md: pmetric.NewMetrics()}
	rm := s.md.ResourceMetrics().AppendEmpty()
	l.resource.Resource().CopyTo(rm.Resource())
	rm.SetSchemaUrl(l.resource.SchemaUrl())
	from := l.resource.ScopeMetrics().At(0)
	sm := rm.ScopeMetrics().AppendEmpty()
	from.Scope().CopyTo(sm.Scope())
	sm.SetSchemaUrl(from.SchemaUrl())
	node := len(v) - 1
	for i := range l.metrics {
		m := &l.metrics[i]
		to := sm.Metrics().AppendEmpty()
		m.CopyTo(to)
		for p := range m.points {
			if !m.points[p].ofGPU {
				s.add(to, m, &m.points[p], v, node)
			}
		}
		for gpu := range node {
			for p := range m.points {
				if m.points[p].ofGPU {
					s.add(to, m, &m.points[p], v, gpu)
				}
			}
			switch m.Name() {
			case gpusemconv.MetricGPUHealthReason:
				for _, r := range v[gpu].reasons {
					c := s.extra(to, gpu, int64(flag(r.holds)))
					c.Attributes().PutStr(gpusemconv.AttrReason, r.reason)
					c.Attributes().PutStr(gpusemconv.AttrAction, r.action)
				}
			case gpusemconv.MetricGPUXIDEvents:
				for _, x := range v[gpu].xids {
					if x.Count > 0 {
						c := s.extra(to, gpu, int64(x.Count))
						c.Attributes().PutInt(gpusemconv.AttrXIDCode, int64(x.Code))
						c.Attributes().PutStr(gpusemconv.AttrXIDClass, string(l.rubric.Xid(x.Code).Class))
					}
				}
			}
		}
	}
	sm.Metrics().RemoveIf(func(m pmetric.Metric) bool { return points(m).Len() == 0 })
	for i := range s.cells {
		c := &s.cells[i]
		if id, ok := c.Attributes().Get(gpusemconv.AttrHWID); ok {
			c.id = &id
		}
		if serial, ok := c.Attributes().Get(attrSerial); ok {
			c.serial = &serial
			c.Attributes().PutInt(gpusemconv.AttrGPUIndex, int64(c.of))
			c.Attributes().PutInt(gpusemconv.AttrModuleID, int64(c.of)+1)
			c.Attributes().PutStr(attrPCIBus, fmt.Sprintf("00000000:%02X:00.0", 0x1b+c.of))
		}
	}
	return s
}

// add adds a point where it is to be there.
func (s *sheet) add(to pmetric.Metric, m *metric, p *point, v []values, of int) {
	if v[of].facts&p.facts != p.facts {
		return
	}
	c := cell{NumberDataPoint: points(to).AppendEmpty(), of: of, source: p.source, ends: m.ends}
	p.CopyTo(c.NumberDataPoint)
	c.integer = p.ValueType() == pmetric.NumberDataPointValueTypeInt
	s.cells = append(s.cells, c)
}

// extra adds a point that is not in the layout.
func (s *sheet) extra(to pmetric.Metric, gpu int, value int64) *cell {
	c := cell{NumberDataPoint: points(to).AppendEmpty(), of: gpu}
	c.SetIntValue(value)
	c.Attributes().PutStr(gpusemconv.AttrHWID, "")
	s.cells = append(s.cells, c)
	return &s.cells[len(s.cells)-1]
}

// fill writes what is a report's own: names, times and values.
func (s *sheet) fill(id *identity, now, start time.Time, v []values) {
	nth := 0
	s.md.ResourceMetrics().RemoveIf(func(pmetric.ResourceMetrics) bool { nth++; return nth > 1 })
	id.name(s.md.ResourceMetrics().At(0).Resource(), gpusemconv.AttrHostName, gpusemconv.AttrK8sNodeName, gpusemconv.AttrHostID,
		gpusemconv.AttrClusterName, gpusemconv.AttrJobID)
	at, since := pcommon.NewTimestampFromTime(now), pcommon.NewTimestampFromTime(start)
	for i := range s.cells {
		c := &s.cells[i]
		c.SetTimestamp(at)
		if !c.ends {
			c.SetStartTimestamp(since)
		}
		switch x := v[c.of].v[c.source]; {
		case c.source == fixed:
		case c.integer:
			c.SetIntValue(int64(x))
		default:
			c.SetDoubleValue(x)
		}
		if c.id != nil {
			c.id.SetStr(id.gpus[c.of].uuid)
		}
		if c.serial != nil {
			c.serial.SetStr(id.gpus[c.of].serial)
		}
	}
}

func points(m pmetric.Metric) pmetric.NumberDataPointSlice {
	if m.Type() == pmetric.MetricTypeSum {
		return m.Sum().DataPoints()
	}
	return m.Gauge().DataPoints()
}
