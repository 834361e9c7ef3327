// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	semconv "github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// maxXIDCodes bounds the Xid codes counted per GPU; NVIDIA's catalog has fewer than 200.
const maxXIDCodes = 256

// NewDCGM reads DCGM's long form: one row per time, GPU and metric, with the
// columns timestamp, metric_name, uuid, Hostname and value, and where they
// exist gpu_id, device and modelName. More columns are ignored.
func NewDCGM(r io.Reader, opts Options) (*Reader, error) {
	opts = opts.withDefaults()
	return newReader(r, opts, func(h header) (format, error) {
		f := &dcgmFormat{nodes: make(map[string]*dcgmNode), maxGPUs: opts.MaxGPUs}
		for _, c := range []struct {
			name string
			at   *int
		}{
			{"timestamp", &f.columns.time},
			{"metric_name", &f.columns.metric},
			{"uuid", &f.columns.uuid},
			{"Hostname", &f.columns.host},
			{"value", &f.columns.value},
		} {
			var err error
			if *c.at, err = h.column(c.name); err != nil {
				return nil, err
			}
		}
		f.columns.index = optionalColumn(h, "gpu_id")
		f.columns.device = optionalColumn(h, "device")
		f.columns.model = optionalColumn(h, "modelName")
		return f, nil
	})
}

func optionalColumn(h header, name string) int {
	if i, err := h.column(name); err == nil {
		return i
	}
	return -1
}

type dcgmFormat struct {
	columns struct{ time, metric, uuid, host, value, index, device, model int }
	times   timeParser
	fields  [][]byte
	field   int
	value   float64

	// Nodes and GPUs are kept over steps; their number is bounded by maxGPUs.
	nodes   map[string]*dcgmNode
	gpus    int
	maxGPUs int
	present []*dcgmNode
}

type dcgmNode struct {
	attrs   []Attribute
	gpus    map[string]*dcgmGPU
	present []*dcgmGPU
	rows    int
	points  []Point
}

type dcgmGPU struct {
	identity []Attribute
	info     []Attribute

	// The open step: a bit of have for each value that it holds.
	have   uint64
	values [64]float64

	lastXID float64
	seenXID bool
	xids    []xidCount
}

type xidCount struct {
	attrs []Attribute
	code  int64
	count int64
}

func (f *dcgmFormat) decode(fields [][]byte) (time.Duration, Reason, string) {
	c := &f.columns
	name := bytes.TrimSpace(fields[c.metric])
	i, ok := dcgmIndex[string(name)]
	if !ok {
		return 0, UnknownMetric, strings.ToValidUTF8(string(name), "\uFFFD")
	}
	at, ok := f.times.parse(fields[c.time])
	if !ok {
		return 0, BadTime, "column \"timestamp\" is " + quoteField(fields[c.time])
	}
	if len(bytes.TrimSpace(fields[c.host])) == 0 {
		return 0, NoNode, "column \"Hostname\" is empty"
	}
	if len(bytes.TrimSpace(fields[c.uuid])) == 0 {
		return 0, NoGPU, "column \"uuid\" is empty"
	}
	raw := bytes.TrimSpace(fields[c.value])
	if len(raw) == 0 {
		return 0, Empty, "column \"value\" is empty"
	}
	v, reason := parseNumber(raw)
	if reason != reasonNone {
		return 0, reason, "column \"value\" is " + quoteField(raw)
	}
	field := &dcgmFields[i]
	switch {
	case dcgmBlank(v), v == 0 && field.zeroIsBlank:
		return 0, Blank, ""
	case v < field.min || v > field.max:
		return 0, OutOfRange, fmt.Sprintf("%s is %v, outside %v to %v", field.name, v, field.min, field.max)
	}
	f.fields, f.field, f.value = fields, i, v
	return at, reasonNone, ""
}

func (f *dcgmFormat) add() Reason {
	host := bytes.TrimSpace(f.fields[f.columns.host])
	uuid := bytes.TrimSpace(f.fields[f.columns.uuid])
	node := f.nodes[string(host)]
	var gpu *dcgmGPU
	if node != nil {
		gpu = node.gpus[string(uuid)]
	}
	if gpu == nil {
		if f.gpus >= f.maxGPUs {
			return TooManyGPUs
		}
		f.gpus++
		if node == nil {
			node = &dcgmNode{attrs: attr(semconv.AttrHostName, validText(host)), gpus: make(map[string]*dcgmGPU)}
			f.nodes[string(host)] = node
		}
		gpu = &dcgmGPU{identity: attr(semconv.AttrHWID, validText(uuid))}
		node.gpus[string(uuid)] = gpu
	}
	if len(gpu.info) == 0 {
		gpu.info = f.describe()
	}
	if node.rows == 0 && len(node.present) == 0 {
		f.present = append(f.present, node)
	}
	if gpu.have == 0 {
		node.present = append(node.present, gpu)
	}
	bit := uint64(1) << f.field
	duplicate := gpu.have&bit != 0
	gpu.have |= bit
	gpu.values[f.field] = f.value
	if duplicate {
		return Duplicate
	}
	node.rows++
	return reasonNone
}

// describe reads the GPU's static facts from the current row.
func (f *dcgmFormat) describe() []Attribute {
	info := []Attribute{hwTypeGPU, {Key: semconv.AttrHWVendor, Text: "NVIDIA"}}
	for _, c := range []struct {
		key string
		at  int
	}{
		{semconv.AttrHWModel, f.columns.model},
		{semconv.AttrHWName, f.columns.device},
		{semconv.AttrGPUIndex, f.columns.index},
	} {
		if c.at < 0 {
			continue
		}
		if text := validText(bytes.TrimSpace(f.fields[c.at])); text != "" {
			info = append(info, Attribute{Key: c.key, Text: text})
		}
	}
	return info
}

func (f *dcgmFormat) finish(step *Step) {
	for _, n := range f.present {
		n.build()
		step.Nodes = append(step.Nodes, Node{Attributes: n.attrs, Rows: n.rows, Points: n.points})
		for _, g := range n.present {
			g.have = 0
		}
		n.present, n.rows = n.present[:0], 0
	}
	f.present = f.present[:0]
}

func (n *dcgmNode) build() {
	n.points = n.points[:0]
	for _, g := range n.present {
		n.put(metricInfo, g, g.info, 1)
	}
	for i := range dcgmFields {
		field := &dcgmFields[i]
		if field.metric == nil {
			continue
		}
		for _, g := range n.present {
			if g.have&(1<<i) != 0 {
				n.put(field.metric, g, field.attrs, g.values[i]*field.factor)
			}
		}
	}
	for _, g := range n.present {
		if limit, ok := g.memoryLimit(); ok {
			n.put(metricMemoryLimit, g, nil, limit)
		}
	}
	for _, g := range n.present {
		limit, ok := g.memoryLimit()
		used, hasUsed := g.bytes(iUsed)
		if ok && hasUsed && used <= limit {
			n.put(metricMemoryUtil, g, nil, used/limit)
		}
	}
	for _, g := range n.present {
		if g.have&(1<<iThrottle) == 0 {
			continue
		}
		mask := uint64(g.values[iThrottle])
		for _, t := range throttleBits {
			active := 0.0
			if mask&t.bit != 0 {
				active = 1
			}
			n.put(metricThrottle, g, t.attrs, active)
		}
	}
	for _, g := range n.present {
		if g.have&(1<<iXID) == 0 {
			continue
		}
		g.countXID()
		for i := range g.xids {
			n.put(metricXIDEvents, g, g.xids[i].attrs, float64(g.xids[i].count))
		}
	}
}

func (n *dcgmNode) put(m *Metric, g *dcgmGPU, attrs []Attribute, value float64) {
	if m.Integer {
		value = math.Round(value)
	}
	n.points = append(n.points, Point{Metric: m, Identity: g.identity, Attributes: attrs, Value: value})
}

func (g *dcgmGPU) bytes(i int) (float64, bool) {
	return g.values[i] * mebi, g.have&(1<<i) != 0
}

// memoryLimit is the total where it was recorded, else used + free + reserved:
// DCGM's used does not contain what the driver reserves.
func (g *dcgmGPU) memoryLimit() (float64, bool) {
	if total, ok := g.bytes(iTotal); ok {
		return total, true
	}
	used, hasUsed := g.bytes(iUsed)
	free, hasFree := g.bytes(iFree)
	reserved, hasReserved := g.bytes(iReserved)
	if !hasReserved {
		reserved = 0
	}
	limit := used + free + reserved
	return limit, hasUsed && hasFree && limit > 0
}

var xidCatalogue = gpuhealth.DefaultRubric()

// countXID makes events of a gauge that holds the last Xid: each change to
// another code is one event. A code that was there from the first row is of
// unknown age and no event; the same code twice in a row looks like one.
func (g *dcgmGPU) countXID() {
	v := math.Round(g.values[iXID])
	changed := g.seenXID && v != g.lastXID
	g.seenXID, g.lastXID = true, v
	if !changed || v == 0 {
		return
	}
	code := int64(v)
	for i := range g.xids {
		if g.xids[i].code == code {
			g.xids[i].count++
			return
		}
	}
	if len(g.xids) < maxXIDCodes {
		class := string(xidCatalogue.Xid(uint64(code)).Class)
		attrs := []Attribute{{Key: semconv.AttrXIDCode, Number: code}, {Key: semconv.AttrXIDClass, Text: class}}
		g.xids = append(g.xids, xidCount{attrs: attrs, code: code, count: 1})
	}
}

func validText(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }
