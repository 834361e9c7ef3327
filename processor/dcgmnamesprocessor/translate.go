// SPDX-License-Identifier: Apache-2.0

package dcgmnamesprocessor

import (
	"context"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor/processorhelper"

	"github.com/gpu-collector/gpu-collector/internal/dcgmnames"
	semconv "github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/identity"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
)

// maxSeries bounds what is remembered of counters: 1,000 GPUs with three rates each, and
// their Xids by code.
const maxSeries = 1 << 14

// forget is for how long a counter is remembered that is not told any more.
const forget = 10 * time.Minute

// translator keeps the last values of the counters that dcgm-exporter has as rates.
type translator struct {
	keep  bool
	names map[string][]*dcgmnames.Name // by our metric

	mu    sync.Mutex
	last  map[string]reading
	xids  map[string]int64 // the last code, by GPU
	swept time.Time
}

type reading struct {
	value float64
	at    time.Time
}

func newTranslator(cfg *Config) *translator {
	t := &translator{keep: cfg.Keep, names: map[string][]*dcgmnames.Name{}, last: map[string]reading{}, xids: map[string]int64{}}
	for i := range dcgmnames.All {
		if n := &dcgmnames.All[i]; n.Metric != "" {
			t.names[n.Metric] = append(t.names[n.Metric], n)
		}
	}
	return t
}

// gpu is a GPU of a report: its labels, and what it tells by name.
type gpu struct {
	labels pcommon.Map
	values map[*dcgmnames.Name]float64
	limit  float64
	taken  float64 // of the memory
	memory int     // of limit, usage and reserved, those that are known
	at     pcommon.Timestamp
}

func (t *translator) translate(_ context.Context, md pmetric.Metrics) (pmetric.Metrics, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range md.ResourceMetrics().Len() {
		rm := md.ResourceMetrics().At(i)
		order, gpus := t.gpus(rm)
		t.read(rm, gpus)
		if !t.keep {
			rm.ScopeMetrics().RemoveIf(func(pmetric.ScopeMetrics) bool { return true })
		}
		if len(order) > 0 {
			write(rm.ScopeMetrics().AppendEmpty(), order, gpus)
		}
	}
	md.ResourceMetrics().RemoveIf(func(rm pmetric.ResourceMetrics) bool { return rm.ScopeMetrics().Len() == 0 })
	if md.ResourceMetrics().Len() == 0 {
		return md, processorhelper.ErrSkipProcessingData
	}
	return md, nil
}

// gpus are the whole GPUs that answer: hw.gpu.info is of those alone.
func (t *translator) gpus(rm pmetric.ResourceMetrics) (order []string, gpus map[string]*gpu) {
	gpus = map[string]*gpu{}
	names := identity.New(nil, false)
	metricreading.Identify(&names, rm.Resource().Attributes())
	host := names.Node()
	points(rm, func(name string, p pmetric.NumberDataPoint) {
		id := text(p.Attributes(), semconv.AttrHWID)
		if _, known := gpus[id]; name != semconv.MetricGPUInfo || id == "" || known || text(p.Attributes(), semconv.AttrHWParent) != "" {
			return
		}
		g := &gpu{labels: pcommon.NewMap(), values: map[*dcgmnames.Name]float64{}, at: p.Timestamp()}
		index := text(p.Attributes(), semconv.AttrGPUIndex)
		for _, label := range [...][2]string{
			{"gpu", index},
			{"UUID", id},
			{"pci_bus_id", text(p.Attributes(), semconv.AttrPCIBusID)},
			{"device", "nvidia" + index},
			{"modelName", text(p.Attributes(), semconv.AttrHWModel)},
			{"DCGM_FI_DRIVER_VERSION", text(p.Attributes(), semconv.AttrDriverVersion)},
			// The first is dcgm-exporter's until May 2026, the second its later one.
			{"Hostname", host},
			{"hostname", host},
		} {
			if label[1] != "" {
				g.labels.PutStr(label[0], label[1])
			}
		}
		order = append(order, id)
		gpus[id] = g
	})
	return order, gpus
}

// read takes the values of all names.
func (t *translator) read(rm pmetric.ResourceMetrics, gpus map[string]*gpu) {
	for id, g := range gpus {
		for _, n := range t.names[semconv.MetricGPUXIDEvents] {
			if n.Use == dcgmnames.UseLastXID {
				g.values[n] = float64(t.xids[id])
			}
		}
	}
	points(rm, func(name string, p pmetric.NumberDataPoint) {
		g := gpus[text(p.Attributes(), semconv.AttrHWID)]
		if g == nil || p.Flags().NoRecordedValue() {
			return
		}
		v := number(p)
		switch name {
		case semconv.MetricGPUMemoryLimit:
			g.limit, g.memory = v, g.memory+1
		case semconv.MetricGPUMemoryUsage, "hw.gpu.memory.reserved":
			g.taken, g.memory = g.taken+v, g.memory+1
		}
		for _, n := range t.names[name] {
			if matches(n, p.Attributes()) {
				t.take(n, g, p, v)
			}
		}
	})
	for _, g := range gpus {
		for _, n := range t.names[semconv.MetricGPUMemoryLimit] {
			if n.Use == dcgmnames.UseFree && g.memory == 3 {
				g.values[n] = max(g.limit-g.taken, 0) * n.Factor
			}
		}
	}
}

func (t *translator) take(n *dcgmnames.Name, g *gpu, p pmetric.NumberDataPoint, v float64) {
	id := text(p.Attributes(), semconv.AttrHWID)
	switch n.Use {
	case dcgmnames.UseFree:
	case dcgmnames.UseRate:
		key := id + "\x00" + n.DCGM + "\x00" + text(p.Attributes(), semconv.AttrNetworkIODirection)
		if before, now, known := t.exchange(key, v, p.Timestamp().AsTime()); known && v >= before.value {
			g.values[n] += (v - before.value) / now.Sub(before.at).Seconds() * n.Factor
		}
	case dcgmnames.UseLastXID:
		code := text(p.Attributes(), semconv.AttrXIDCode)
		before, _, known := t.exchange(id+"\x00"+code, v, p.Timestamp().AsTime())
		if c, err := strconv.ParseInt(code, 10, 64); err == nil && v > 0 && (!known || v > before.value) && (len(t.xids) < maxSeries || t.xids[id] != 0) {
			t.xids[id] = c
			g.values[n] = float64(c)
		}
	default:
		g.values[n] = v * n.Factor
	}
}

// exchange remembers a counter's value, and returns the one before. It is not known the
// first time, and where no time has passed.
func (t *translator) exchange(key string, v float64, now time.Time) (before reading, at time.Time, known bool) {
	if now.Sub(t.swept) > forget {
		t.swept = now
		for k, r := range t.last {
			if now.Sub(r.at) > forget {
				delete(t.last, k)
			}
		}
	}
	before, known = t.last[key]
	if known && !now.After(before.at) {
		return before, now, false
	}
	if known || len(t.last) < maxSeries {
		t.last[key] = reading{v, now}
	}
	return before, now, known
}

// write has all as gauges: the Prometheus exporter would give a counter's name a suffix.
func write(sm pmetric.ScopeMetrics, order []string, gpus map[string]*gpu) {
	for i := range dcgmnames.All {
		n := &dcgmnames.All[i]
		var points pmetric.NumberDataPointSlice
		for _, id := range order {
			g := gpus[id]
			v, known := g.values[n]
			if !known {
				continue
			}
			if points == (pmetric.NumberDataPointSlice{}) {
				m := sm.Metrics().AppendEmpty()
				m.SetName(n.DCGM)
				m.SetDescription(n.Help + " (" + n.Unit + ").")
				points = m.SetEmptyGauge().DataPoints()
			}
			p := points.AppendEmpty()
			p.SetTimestamp(g.at)
			p.SetDoubleValue(v)
			g.labels.CopyTo(p.Attributes())
		}
	}
}

func matches(n *dcgmnames.Name, of pcommon.Map) bool {
	for _, a := range n.Attributes {
		if text(of, a.Key) != a.Value {
			return false
		}
	}
	return true
}

func points(rm pmetric.ResourceMetrics, do func(name string, p pmetric.NumberDataPoint)) {
	for i := range rm.ScopeMetrics().Len() {
		metrics := rm.ScopeMetrics().At(i).Metrics()
		for j := range metrics.Len() {
			m := metrics.At(j)
			var all pmetric.NumberDataPointSlice
			switch m.Type() {
			case pmetric.MetricTypeGauge:
				all = m.Gauge().DataPoints()
			case pmetric.MetricTypeSum:
				all = m.Sum().DataPoints()
			default:
				continue
			}
			for k := range all.Len() {
				do(m.Name(), all.At(k))
			}
		}
	}
}

func number(p pmetric.NumberDataPoint) float64 {
	if p.ValueType() == pmetric.NumberDataPointValueTypeInt {
		return float64(p.IntValue())
	}
	return p.DoubleValue()
}

func text(of pcommon.Map, key string) string {
	if v, ok := of.Get(key); ok {
		return v.AsString()
	}
	return ""
}
