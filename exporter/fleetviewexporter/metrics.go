// SPDX-License-Identifier: Apache-2.0

package fleetviewexporter

import (
	"math"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/rankattr"
)

// nodeReader takes a point of a metric into a node's view. NaN stands for a
// point without a value: the series has ended.
type nodeReader func(u *fleetstate.Update, p point)

// point is a number with its attributes.
type point struct {
	pmetric.NumberDataPoint
	v float64
}

func (p point) attr(name string) string {
	if v, ok := p.Attributes().Get(name); ok {
		return text(v)
	}
	return ""
}

// on reports whether the flag of one value of an attribute is set.
func (p point) on() bool { return p.v >= 1 }

// gpu finds the point's GPU; one that has ended makes no new one.
func (p point) gpu(u *fleetstate.Update) int {
	v, ok := p.Attributes().Get(gpusemconv.AttrHWID)
	if !ok {
		return -1
	}
	if math.IsNaN(p.v) {
		return u.KnownGPU(text(v))
	}
	return u.GPU(text(v))
}

func nodeNumber(f fleetstate.NodeField) nodeReader {
	return func(u *fleetstate.Update, p point) { u.Set(f, p.v) }
}

// verdict reads what the gateway says of a node as one of its group.
func verdict(f fleetstate.NodeField) nodeReader {
	return func(u *fleetstate.Update, p point) {
		group := p.attr(gpusemconv.AttrPeerGroup)
		if math.IsNaN(p.v) && group != u.Group() {
			// The node has moved, and this is the verdict from where it was.
			return
		}
		u.SetGroup(group)
		u.Set(f, p.v)
	}
}

// gpuNumber reads metrics with one series per GPU.
func gpuNumber(f fleetstate.GPUField) nodeReader {
	return func(u *fleetstate.Update, p point) {
		if i := p.gpu(u); i >= 0 {
			u.SetGPU(i, f, p.v)
		}
	}
}

// gpuNumbers reads metrics of which an attribute's value says which number it is.
func gpuNumbers(attr string, fields map[string]fleetstate.GPUField) nodeReader {
	return func(u *fleetstate.Update, p point) {
		f, ok := fields[p.attr(attr)]
		if !ok {
			return
		}
		if i := p.gpu(u); i >= 0 {
			u.SetGPU(i, f, p.v)
		}
	}
}

// gpuState reads metrics with a flag for each value of an attribute.
func gpuState(attr string, set func(u *fleetstate.Update, i int, name string, on bool)) nodeReader {
	return func(u *fleetstate.Update, p point) {
		if i := p.gpu(u); i >= 0 {
			set(u, i, p.attr(attr), p.on())
		}
	}
}

var nodeReaders = map[string]nodeReader{
	gpusemconv.MetricNodeHealthScore:       nodeNumber(fleetstate.NodeScore),
	gpusemconv.MetricAgentThreshold:        nodeNumber(fleetstate.NodeThreshold),
	gpusemconv.MetricAgentStraggler:        nodeNumber(fleetstate.NodeAgentStraggler),
	gpusemconv.MetricAgentGatewayReachable: nodeNumber(fleetstate.NodeGatewayReachable),
	gpusemconv.MetricNodeCPUPressure:       nodeNumber(fleetstate.NodeCPUPressure),
	gpusemconv.MetricNodeSignal: func(u *fleetstate.Update, p point) {
		if s, err := nodesignal.Parse(p.attr(gpusemconv.AttrSignal)); err == nil {
			u.SetSignal(s, p.v)
		}
	},
	gpusemconv.MetricNodeCulprit: func(u *fleetstate.Update, p point) {
		if of := rankattr.Subject(p.Attributes()); of != (nodesignal.Subject{}) || !math.IsNaN(p.v) {
			u.SetCulprit(of, p.on())
		}
	},
	gpusemconv.MetricNodeState: func(u *fleetstate.Update, p point) {
		u.SetState(p.attr(gpusemconv.AttrNodeState), p.on())
	},
	gpusemconv.MetricAgentDetectionMode: func(u *fleetstate.Update, p point) {
		u.SetMode(p.attr(gpusemconv.AttrDetectionMode), p.on())
	},
	gpusemconv.MetricNodeStraggler: verdict(fleetstate.NodeStraggler),
	gpusemconv.MetricNodeSuspicion: verdict(fleetstate.NodeSuspicion),
	gpusemconv.MetricGPUCount: func(u *fleetstate.Update, p point) {
		switch p.attr(gpusemconv.AttrState) {
		case "expected":
			u.Set(fleetstate.NodeGPUsExpected, p.v)
		case "found":
			u.Set(fleetstate.NodeGPUsFound, p.v)
		case "lost":
			u.Set(fleetstate.NodeGPUsLost, p.v)
		}
	},

	gpusemconv.MetricGPUInfo:        readInfo,
	gpusemconv.MetricGPUUp:          readUp,
	gpusemconv.MetricGPUHealthScore: gpuNumber(fleetstate.GPUHealthScore),
	gpusemconv.MetricGPUHealthState: gpuState(gpusemconv.AttrState, func(u *fleetstate.Update, i int, name string, on bool) {
		if h, ok := fleetstate.ParseHealth(name); ok {
			u.SetHealth(i, h, on)
		}
	}),
	gpusemconv.MetricGPUHealthReason: func(u *fleetstate.Update, p point) {
		if i := p.gpu(u); i >= 0 {
			u.SetReason(i, fleetstate.Reason{Reason: p.attr(gpusemconv.AttrReason), Action: p.attr(gpusemconv.AttrAction)}, p.on())
		}
	},
	gpusemconv.MetricGPURecoveryAction: gpuState(gpusemconv.AttrAction, (*fleetstate.Update).SetAction),
	gpusemconv.MetricGPUThrottleActive: gpuState(gpusemconv.AttrReason, (*fleetstate.Update).SetThrottle),
	gpusemconv.MetricGPUXIDEvents:      readXid,
	gpusemconv.MetricTemperature: gpuNumbers(gpusemconv.AttrSensorLocation, map[string]fleetstate.GPUField{
		"gpu": fleetstate.GPUTemperature, "memory": fleetstate.GPUMemoryTemperature,
	}),
	metricTemperatureLimit: func(u *fleetstate.Update, p point) {
		if p.attr(attrLimitType) != "throttled" || p.attr(gpusemconv.AttrSensorLocation) != "gpu" {
			return
		}
		if i := p.gpu(u); i >= 0 {
			u.SetGPU(i, fleetstate.GPUTemperatureLimit, p.v)
		}
	},
	metricTemperatureMargin:        gpuNumber(fleetstate.GPUTemperatureMargin),
	gpusemconv.MetricPower:         gpuNumber(fleetstate.GPUPower),
	gpusemconv.MetricGPUPowerLimit: gpuNumbers(gpusemconv.AttrLimit, map[string]fleetstate.GPUField{"enforced": fleetstate.GPUPowerLimit}),
	gpusemconv.MetricGPUUtilization: gpuNumbers(gpusemconv.AttrGPUTask, map[string]fleetstate.GPUField{
		"general": fleetstate.GPUUtilization, "": fleetstate.GPUUtilization,
	}),
	gpusemconv.MetricGPUActivity: gpuNumbers(gpusemconv.AttrActivityUnit, map[string]fleetstate.GPUField{
		"tensor": fleetstate.GPUTensorActivity, "sm": fleetstate.GPUSMActivity,
	}),
	gpusemconv.MetricGPUClock:       gpuNumbers(gpusemconv.AttrClock, map[string]fleetstate.GPUField{"sm": fleetstate.GPUSMClock}),
	gpusemconv.MetricGPUClockLimit:  gpuNumbers(gpusemconv.AttrClock, map[string]fleetstate.GPUField{"sm": fleetstate.GPUSMClockLimit}),
	gpusemconv.MetricGPUMemoryUsage: gpuNumber(fleetstate.GPUMemoryUsed),
	gpusemconv.MetricGPUMemoryLimit: gpuNumber(fleetstate.GPUMemoryLimit),
	gpusemconv.MetricErrors:         readErrors,
	gpusemconv.MetricGPURemappedRows: gpuNumbers(gpusemconv.AttrCause, map[string]fleetstate.GPUField{
		"corrected": fleetstate.GPURemappedCorrectable, "uncorrected": fleetstate.GPURemappedUncorrectable,
	}),
	gpusemconv.MetricGPUPCIeLinkWidth: gpuNumbers(gpusemconv.AttrKind, map[string]fleetstate.GPUField{
		"current": fleetstate.GPUPCIeWidth, "max": fleetstate.GPUPCIeWidthMax,
	}),
	gpusemconv.MetricGPUPCIeReplays: gpuNumbers(gpusemconv.AttrKind, map[string]fleetstate.GPUField{"replay": fleetstate.GPUPCIeReplays}),
}

// Names of the nvml receiver that only the view reads.
const (
	metricTemperatureLimit  = "hw.temperature.limit"
	metricTemperatureMargin = "hw.gpu.temperature.margin"
	attrLimitType           = "hw.limit_type"
	attrSerial              = "hw.serial_number"
	attrDriver              = "hw.driver_version"
	attrBusID               = "gpu.pci.bus_id"
)

func readInfo(u *fleetstate.Update, p point) {
	i := p.gpu(u)
	if i < 0 || math.IsNaN(p.v) {
		// Facts of a GPU outlive the series that said them: they are its own.
		return
	}
	in := fleetstate.Info{Index: -1}
	parent := ""
	for name, v := range p.Attributes().All() {
		switch name {
		case gpusemconv.AttrGPUIndex:
			if v.Type() == pcommon.ValueTypeInt && v.Int() >= 0 && v.Int() < math.MaxInt32 {
				in.Index = int(v.Int())
			}
		case gpusemconv.AttrHWModel:
			in.Model = text(v)
		case attrSerial:
			in.Serial = text(v)
		case attrDriver:
			in.Driver = text(v)
		case attrBusID:
			in.BusID = text(v)
		case gpusemconv.AttrHWParent:
			parent = text(v)
		}
	}
	u.SetInfo(i, in)
	u.SetParent(i, parent)
}

func readUp(u *fleetstate.Update, p point) {
	if i := p.gpu(u); i >= 0 {
		u.SetUp(i, p.v, p.attr(gpusemconv.AttrReason))
		if parent := p.attr(gpusemconv.AttrHWParent); parent != "" {
			u.SetParent(i, parent)
		}
	}
}

func readXid(u *fleetstate.Update, p point) {
	code, ok := p.Attributes().Get(gpusemconv.AttrXIDCode)
	if !ok || code.Type() != pcommon.ValueTypeInt || code.Int() < math.MinInt32 || code.Int() > math.MaxInt32 {
		return
	}
	if i := p.gpu(u); i >= 0 {
		u.SetXid(i, fleetstate.Xid{Code: int(code.Int()), Class: p.attr(gpusemconv.AttrXIDClass), Count: p.v})
	}
}

// readErrors takes the driver's own totals, not the shares of single memories.
func readErrors(u *fleetstate.Update, p point) {
	if location := p.attr(gpusemconv.AttrMemoryLocation); location != "all" && location != "" {
		return
	}
	f := fleetstate.GPUECCCorrected
	if p.attr(gpusemconv.AttrErrorType) == "uncorrected" {
		f = fleetstate.GPUECCUncorrected
	}
	if p.attr(gpusemconv.AttrECCCounter) == "aggregate" {
		f += fleetstate.GPUECCCorrectedTotal - fleetstate.GPUECCCorrected
	}
	if i := p.gpu(u); i >= 0 {
		u.SetGPU(i, f, p.v)
	}
}

// node takes a resource into its node's view.
func (e *fleetExporter) node(rm pmetric.ResourceMetrics, id *identity, now time.Time) {
	u, ok := e.state.Begin(id.Key, now)
	if !ok {
		return
	}
	u.SetFacts(id.Facts)
	var seen time.Time
	alive := false
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			name := m.Name()
			if name == gpusemconv.MetricNodeHeartbeat {
				if at := heartbeat(m); at.After(seen) {
					seen = at
				}
				continue
			}
			read, known := nodeReaders[name]
			alive = alive || !gpusemconv.IsVerdict(name)
			if !known {
				continue
			}
			points := numberPoints(m)
			for i := range points.Len() {
				p := points.At(i)
				read(&u, point{p, number(p)})
			}
		}
	}
	// A heartbeat says when; without one, what the node itself says is one.
	if seen.IsZero() && alive {
		seen = now
	}
	u.Commit(seen)
}

func heartbeat(m pmetric.Metric) time.Time {
	points := numberPoints(m)
	for i := points.Len() - 1; i >= 0; i-- {
		if v := number(points.At(i)); v > 0 && v < math.MaxInt32*8 {
			return time.UnixMilli(int64(v * 1000))
		}
	}
	return time.Time{}
}

// numberPoints returns the points of a gauge or a cumulative sum; views hold
// last values, which deltas are not.
func numberPoints(m pmetric.Metric) pmetric.NumberDataPointSlice {
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		return m.Gauge().DataPoints()
	case pmetric.MetricTypeSum:
		if m.Sum().AggregationTemporality() == pmetric.AggregationTemporalityCumulative {
			return m.Sum().DataPoints()
		}
	}
	return pmetric.NewNumberDataPointSlice()
}

func number(p pmetric.NumberDataPoint) float64 {
	switch {
	case p.Flags().NoRecordedValue():
		return math.NaN()
	case p.ValueType() == pmetric.NumberDataPointValueTypeInt:
		return float64(p.IntValue())
	case p.ValueType() == pmetric.NumberDataPointValueTypeDouble:
		return p.DoubleValue()
	default:
		return math.NaN()
	}
}
