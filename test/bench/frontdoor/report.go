// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.yaml.in/yaml/v3"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

const (
	// golden is what the nvml receiver reports of a node with one H100.
	golden = "receiver/nvmlreceiver/testdata/h100.yaml"
	gpus   = 8

	// stamp and node are what the template says where a push says its own.
	stamp    = 1_700_000_000_123_456_789
	nodeName = "gpu-node-00000"
	gpuID    = "GPU-00000000-0000-4000-8000-0000000000%02d"
)

// moving are the metrics that a busy GPU moves, by how much of them from poll to
// poll. What runs up does so in every poll.
var moving = map[string]float64{
	"hw.temperature": 0.01, "hw.gpu.temperature.margin": 0.02, "hw.power": 0.015,
	"hw.gpu.clock.frequency": 0.01, "hw.gpu.utilization": 0.02,
	"hw.gpu.memory.usage": 0.002, "hw.gpu.memory.utilization": 0.002,
}

// template is the report of a node, and where in it another node's, or another
// poll's, differs.
type template struct {
	msg           []byte
	points        int
	times         []int
	names, gpuIDs []int // of the digits
	values        []value
}

// value is a reading that moves.
type value struct {
	at      int
	base    float64
	percent float64 // of base; 0 for a counter
	isInt   bool
}

// newTemplate makes eight GPUs of the golden file's one.
func newTemplate() (*template, error) {
	md, err := readGolden()
	if err != nil {
		return nil, err
	}
	t := &template{}
	var marks []uint64
	for _, rm := range md.ResourceMetrics().All() {
		for _, name := range []string{gpusemconv.AttrHostName, gpusemconv.AttrHostID, gpusemconv.AttrK8sNodeName} {
			rm.Resource().Attributes().PutStr(name, nodeName)
		}
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				marks = t.fill(m, marks)
			}
		}
	}
	if t.msg, err = pmetricotlp.NewExportRequestFromMetrics(md).MarshalProto(); err != nil {
		return nil, err
	}
	t.times = t.find(binary.LittleEndian.AppendUint64(nil, stamp))
	t.names = t.find([]byte(nodeName))
	t.gpuIDs = t.find([]byte(gpuID[:len("GPU-")+8]))
	for i, mark := range marks {
		at := t.find(binary.LittleEndian.AppendUint64(nil, mark))
		if len(at) != 1 {
			return nil, errors.New("a value of the report is not found")
		}
		t.values[i].at = at[0]
	}
	if len(t.times) != t.points || len(t.names) != 3 || len(t.gpuIDs) == 0 || len(t.values) == 0 {
		return nil, fmt.Errorf("the report has another form: %d times for %d points", len(t.times), t.points)
	}
	return t, nil
}

// fill completes a metric for all GPUs and marks the values that move.
func (t *template) fill(m pmetric.Metric, marks []uint64) []uint64 {
	points := numbers(m)
	own := points.Len()
	for i := range own {
		if _, ok := points.At(i).Attributes().Get(gpusemconv.AttrHWID); !ok {
			continue
		}
		points.At(i).Attributes().PutStr(gpusemconv.AttrHWID, fmt.Sprintf(gpuID, 0))
		for gpu := 1; gpu < gpus; gpu++ {
			twin := points.AppendEmpty()
			points.At(i).CopyTo(twin)
			twin.Attributes().PutStr(gpusemconv.AttrHWID, fmt.Sprintf(gpuID, gpu))
		}
	}
	percent, gauge := moving[m.Name()]
	counter := m.Name() == "hw.energy" || m.Name() == "hw.gpu.io"
	for _, p := range points.All() {
		t.points++
		p.SetTimestamp(stamp)
		if m.Type() == pmetric.MetricTypeSum {
			p.SetStartTimestamp(pcommon.Timestamp(stamp - 3_600_000_000_000))
		}
		if !gauge && !counter {
			continue
		}
		v := value{percent: percent, isInt: p.ValueType() == pmetric.NumberDataPointValueTypeInt}
		mark := uint64(0x7e57_0000_0000_0000) + uint64(len(marks))
		marks = append(marks, mark)
		if v.isInt {
			v.base = float64(p.IntValue())
			p.SetIntValue(int64(mark))
		} else {
			v.base = p.DoubleValue()
			p.SetDoubleValue(math.Float64frombits(mark))
		}
		t.values = append(t.values, v)
	}
	return marks
}

func (t *template) find(text []byte) (at []int) {
	for from := 0; ; {
		i := bytes.Index(t.msg[from:], text)
		if i < 0 {
			return at
		}
		at = append(at, from+i)
		from += i + len(text)
	}
}

// write replaces dst by the report of a node at its next poll.
func (t *template) write(dst []byte, node, poll int, now uint64) []byte {
	dst = append(dst[:0], t.msg...)
	for _, at := range t.times {
		binary.LittleEndian.PutUint64(dst[at:], now)
	}
	digits := fmt.Appendf(nil, "%05d", node)
	for _, at := range t.names {
		copy(dst[at+len("gpu-node-"):], digits)
	}
	for _, at := range t.gpuIDs {
		copy(dst[at+len("GPU-000"):], digits)
	}
	r := rand.New(rand.NewPCG(uint64(node), uint64(poll)))
	for _, v := range t.values {
		x := v.base
		if v.percent > 0 {
			x *= 1 + v.percent*r.NormFloat64()
		} else {
			x += float64(poll) * 7000 * (1 + r.Float64())
		}
		bits := math.Float64bits(x)
		if v.isInt {
			bits = uint64(int64(x))
		}
		binary.LittleEndian.PutUint64(dst[v.at:], bits)
	}
	return dst
}

func numbers(m pmetric.Metric) pmetric.NumberDataPointSlice {
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		return m.Gauge().DataPoints()
	case pmetric.MetricTypeSum:
		return m.Sum().DataPoints()
	default:
		return pmetric.NewNumberDataPointSlice()
	}
}

func readGolden() (pmetric.Metrics, error) {
	text, err := os.ReadFile(golden)
	if err != nil {
		return pmetric.Metrics{}, err
	}
	var tree any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		return pmetric.Metrics{}, err
	}
	if text, err = json.Marshal(tree); err != nil {
		return pmetric.Metrics{}, err
	}
	return (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics(text)
}

// newRandom is what `make bench-diff` pushes: 40 metrics of 8 GPUs, 320 points
// with values that do not compress, of which none moves.
func newRandom() (*template, error) {
	r := rand.New(rand.NewPCG(1, 1))
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	for _, name := range []string{gpusemconv.AttrHostName, gpusemconv.AttrHostID, gpusemconv.AttrK8sNodeName} {
		rm.Resource().Attributes().PutStr(name, nodeName)
	}
	sm := rm.ScopeMetrics().AppendEmpty()
	for i := range 40 {
		m := sm.Metrics().AppendEmpty()
		m.SetName(fmt.Sprintf("hw.gpu.metric_%02d", i))
		m.SetDescription("A metric of a GPU.")
		m.SetUnit("1")
		points := m.SetEmptyGauge().DataPoints()
		for gpu := range gpus {
			dp := points.AppendEmpty()
			dp.SetTimestamp(stamp)
			dp.SetDoubleValue(r.Float64())
			dp.Attributes().PutStr(gpusemconv.AttrHWID, fmt.Sprintf(gpuID, gpu))
			dp.Attributes().PutInt("gpu.index", int64(gpu))
		}
	}
	msg, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalProto()
	if err != nil {
		return nil, err
	}
	t := &template{msg: msg, points: 320}
	t.times = t.find(binary.LittleEndian.AppendUint64(nil, stamp))
	t.names = t.find([]byte(nodeName))
	t.gpuIDs = slices.Clone(t.find([]byte(gpuID[:len("GPU-")+8])))
	return t, nil
}
