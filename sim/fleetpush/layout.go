// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/golden"
)

// The attributes of hw.gpu.info that gpusemconv does not name.
const (
	attrSerial = "hw.serial_number"
	attrPCIBus = "gpu.pci.bus_id"
)

// layout is the report of a node as the bytes of OTLP, in pieces: a point is
// copied when it is there, and its time, value and GPU are written over. All
// nodes of a fleet share one.
type layout struct {
	// before and after are what stands around the metrics in the scope, and
	// around the scope in the resource. names are the places of names in resource.
	scopeBefore, scopeAfter []byte
	before, after           []byte
	names                   []place
	metrics                 []metric
	// ofNode and ofGPU are what a node is scored by.
	ofNode, ofGPU []measure
	product       string // hw.model of the GPUs
	extras        *extras
}

// measure is a point that is an input of the node's score.
type measure struct {
	input    *nodescore.Input
	source   source
	facts    facts
	integer  bool
	constant float64 // of a fixed one
}

// place is where a name goes.
type place struct {
	name nameKind
	at   int
}

type nameKind uint8

const (
	nameNode nameKind = iota
	nameHostID
	nameCluster
	nameJob
)

// named are the attributes of a resource that tell the nodes apart.
var named = map[string]nameKind{
	gpusemconv.AttrHostName: nameNode, gpusemconv.AttrK8sNodeName: nameNode, gpusemconv.AttrHostID: nameHostID,
	gpusemconv.AttrClusterName: nameCluster, gpusemconv.AttrJobID: nameJob,
}

// metric is one metric around its points.
type metric struct {
	name                  string
	before, after         []byte           // around the gauge or sum
	number                protowire.Number // of the gauge or sum
	dataBefore, dataAfter []byte           // around the points
	node                  []point
	gpus                  [][]point
	extra                 extra
}

// point is a series of the report.
type point struct {
	bytes []byte // with tag and length
	// facts are what must hold of the GPU for the point to be there.
	facts facts
	// The places of what is written over, 0 for none.
	time, start, value, gpu, serial int
	source                          source
	integer                         bool
}

// compile makes the layout of a fleet's reports out of what the nvml receiver
// reports of a node with one GPU. like has names as long as all nodes' are.
func compile(gpus int, like *identity, plan *nodescore.Plan) (*layout, error) {
	md, err := readGolden(golden.H100)
	if err != nil {
		return nil, fmt.Errorf("the report of the nvml receiver: %w", err)
	}
	rm := md.ResourceMetrics().At(0)
	for attr, kind := range named {
		rm.Resource().Attributes().PutStr(attr, like.text(kind))
	}
	metrics := rm.ScopeMetrics().At(0).Metrics()
	addRare(metrics)
	l := &layout{extras: newExtras()}
	if err = l.frame(rm); err != nil {
		return nil, err
	}
	for _, m := range metrics.All() {
		if err := l.addMetric(m, gpus); err != nil {
			return nil, fmt.Errorf("metric %s: %w", m.Name(), err)
		}
		l.score(m, plan)
	}
	if err = l.addExtras(gpus); err != nil {
		return nil, err
	}
	slices.SortStableFunc(l.metrics, func(a, b metric) int { return strings.Compare(a.name, b.name) })
	for _, m := range metrics.All() {
		if m.Name() == gpusemconv.MetricGPUUp {
			err = l.addEnds(m, gpus)
		}
	}
	return l, err
}

// readGolden reads the YAML of contrib's pkg/golden, which is OTLP's JSON.
func readGolden(text []byte) (pmetric.Metrics, error) {
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

// frame takes what stands around the metrics.
func (l *layout) frame(rm pmetric.ResourceMetrics) error {
	md := pmetric.NewMetrics()
	to := md.ResourceMetrics().AppendEmpty()
	rm.Resource().CopyTo(to.Resource())
	to.SetSchemaUrl(rm.SchemaUrl())
	from := rm.ScopeMetrics().At(0)
	sm := to.ScopeMetrics().AppendEmpty()
	from.Scope().CopyTo(sm.Scope())
	sm.SetSchemaUrl(from.SchemaUrl())
	sm.Metrics().AppendEmpty()

	resource, err := encode(md)
	if err != nil {
		return err
	}
	var scope []byte
	if l.before, scope, l.after, err = cut(resource, fieldScopeMetrics); err != nil {
		return err
	}
	if l.scopeBefore, _, l.scopeAfter, err = cut(scope, fieldMetrics); err != nil {
		return err
	}
	// pdata writes a message's fields from the last to the first.
	l.names, err = names(l.after)
	return err
}

// names finds the names in the resource of a message.
func names(msg []byte) (found []place, err error) {
	before, resource, _, err := cut(msg, fieldResource)
	if err != nil {
		return nil, err
	}
	from := len(before) + head(len(resource))
	err = texts(resource, fieldAttributes, func(key string, at int) {
		if kind, ok := named[key]; ok {
			found = append(found, place{kind, from + at})
		}
	})
	return found, err
}

// encode returns the bytes of the one resource of md.
func encode(md pmetric.Metrics) ([]byte, error) {
	request, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalProto()
	if err != nil {
		return nil, err
	}
	_, resource, _, err := cut(request, fieldResourceMetrics)
	return resource, err
}

// addMetric takes a metric whose points are of one GPU, or of the node.
func (l *layout) addMetric(m pmetric.Metric, gpus int) error {
	out := metric{name: m.Name()}
	for i := range points(m).Len() {
		// A message of its own for each point, which is cut out of it.
		md := pmetric.NewMetrics()
		alone := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
		m.CopyTo(alone)
		nth := -1
		points(alone).RemoveIf(func(pmetric.NumberDataPoint) bool { nth++; return nth != i })
		dp := points(alone).At(0)
		dp.SetTimestamp(1)
		if !dp.Flags().NoRecordedValue() {
			dp.SetStartTimestamp(1)
		}
		if _, ofGPU := dp.Attributes().Get(gpusemconv.AttrHWID); !ofGPU {
			p, err := out.take(md)
			if err != nil {
				return err
			}
			out.node = append(out.node, p)
			continue
		}
		if out.gpus == nil {
			out.gpus = make([][]point, gpus)
		}
		for gpu := range gpus {
			personalize(dp.Attributes(), gpu)
			p, err := out.take(md)
			if err != nil {
				return err
			}
			out.gpus[gpu] = append(out.gpus[gpu], p)
		}
	}
	l.metrics = append(l.metrics, out)
	return nil
}

// score takes what a metric adds to the node's score, as the straggler processor
// selects it.
func (l *layout) score(m pmetric.Metric, plan *nodescore.Plan) {
	inputs := plan.Inputs(m.Name())
	for _, dp := range points(m).All() {
		attrs := dp.Attributes()
		if v, ok := attrs.Get(gpusemconv.AttrHWModel); ok {
			l.product = v.Str()
		}
		of := &l.ofNode
		if _, ok := attrs.Get(gpusemconv.AttrHWID); ok {
			of = &l.ofGPU
		}
		for i := range inputs {
			in := &inputs[i]
			if slices.ContainsFunc(in.Attributes, func(a nodescore.Attribute) bool {
				v, ok := attrs.Get(a.Key)
				return ok && v.AsString() != a.Value
			}) {
				continue
			}
			s := measure{input: in, integer: dp.ValueType() == pmetric.NumberDataPointValueTypeInt}
			s.source, s.facts = meaning(m.Name(), attrs)
			if s.constant = dp.DoubleValue(); s.integer {
				s.constant = float64(dp.IntValue())
			}
			*of = append(*of, s)
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

// personalize gives a point the facts that tell the GPUs of a node apart, but
// for the names, which are of no length of their own.
func personalize(attrs pcommon.Map, gpu int) {
	attrs.PutStr(gpusemconv.AttrHWID, strings.Repeat("0", gpuIDSize))
	if _, ok := attrs.Get(attrSerial); ok {
		attrs.PutStr(attrSerial, strings.Repeat("0", serialSize))
		attrs.PutInt(gpusemconv.AttrGPUIndex, int64(gpu))
		attrs.PutStr(attrPCIBus, fmt.Sprintf("00000000:%02X:00.0", 0x1b+gpu))
	}
}

// take cuts the one point out of md, and what stands around it.
func (m *metric) take(md pmetric.Metrics) (point, error) {
	source := md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0)
	dp := points(source).At(0)
	p := point{integer: dp.ValueType() == pmetric.NumberDataPointValueTypeInt}
	p.source, p.facts = meaning(source.Name(), dp.Attributes())

	msg, err := encode(md)
	if err != nil {
		return p, err
	}
	m.number = fieldGauge
	if source.Type() == pmetric.MetricTypeSum {
		m.number = fieldSum
	}
	for _, number := range [...]protowire.Number{fieldScopeMetrics, fieldMetrics} {
		if _, msg, _, err = cut(msg, number); err != nil {
			return p, err
		}
	}
	if m.before, msg, m.after, err = cut(msg, m.number); err != nil {
		return p, err
	}
	if m.dataBefore, msg, m.dataAfter, err = cut(msg, fieldDataPoints); err != nil {
		return p, err
	}
	p.bytes = append(appendHead(nil, fieldDataPoints, len(msg)), msg...)
	from := len(p.bytes) - len(msg)
	err = fields(msg, func(f field) {
		switch f.number {
		case fieldTime:
			p.time = from + f.content
		case fieldStart:
			p.start = from + f.content
		case fieldDouble, fieldInt:
			p.value = from + f.content
		}
	})
	if err != nil {
		return p, err
	}
	err = texts(msg, fieldLabels, func(key string, at int) {
		switch key {
		case gpusemconv.AttrHWID:
			p.gpu = from + at
		case attrSerial:
			p.serial = from + at
		}
	})
	return p, err
}

func points(m pmetric.Metric) pmetric.NumberDataPointSlice {
	if m.Type() == pmetric.MetricTypeSum {
		return m.Sum().DataPoints()
	}
	return m.Gauge().DataPoints()
}
