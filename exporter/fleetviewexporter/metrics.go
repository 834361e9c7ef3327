// SPDX-License-Identifier: Apache-2.0

package fleetviewexporter

import (
	"hash/maphash"
	"math"
	"strconv"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
)

// fieldReader takes a point into a node's view. Its value is NaN where the
// series has ended, and where the value cannot be true.
type fieldReader func(u *fleetstate.Update, p *metricreading.Point)

// on reports whether the flag of one value of an attribute is set.
func on(p *metricreading.Point) bool { return p.Value >= 1 }

// gpu finds the point's GPU. A series that has ended makes no new GPU, nor does a
// point that may be of other hardware.
func gpu(u *fleetstate.Update, p *metricreading.Point) int {
	if math.IsNaN(p.Value) || p.Vague {
		return u.KnownGPU(p.ID)
	}
	return u.GPU(p.ID)
}

func nodeNumber(f reading.Field) fieldReader {
	return func(u *fleetstate.Update, p *metricreading.Point) { u.Set(f, p.Value) }
}

// verdict reads what the gateway says of a node as one of its group.
func verdict(f reading.Field) fieldReader {
	return func(u *fleetstate.Update, p *metricreading.Point) {
		group := attribute(p, gpusemconv.AttrPeerGroup)
		if math.IsNaN(p.Value) && group != u.Group() {
			// The node has moved, and this is the verdict from where it was.
			return
		}
		u.SetGroup(group)
		u.Set(f, p.Value)
	}
}

// ofGPU reads a point of a GPU that has a place in the view.
func ofGPU(read func(u *fleetstate.Update, i int, p *metricreading.Point)) fieldReader {
	return func(u *fleetstate.Update, p *metricreading.Point) {
		if i := gpu(u, p); i >= 0 {
			read(u, i, p)
		}
	}
}

func gpuNumber(f reading.Field) fieldReader {
	return ofGPU(func(u *fleetstate.Update, i int, p *metricreading.Point) { u.SetGPU(i, f, p.Value) })
}

// gpuState reads metrics with a flag for each value of an attribute.
func gpuState(set func(u *fleetstate.Update, i int, name string, on bool)) fieldReader {
	return ofGPU(func(u *fleetstate.Update, i int, p *metricreading.Point) { set(u, i, p.Texts[0], on(p)) })
}

var throttle = gpuState((*fleetstate.Update).SetThrottle)

func throttleTime(reason string) fieldReader {
	return ofGPU(func(u *fleetstate.Update, i int, p *metricreading.Point) { u.SetThrottleTime(i, reason, p.Value) })
}

// fieldReaders are the fields of the catalogue that the views show: numbers, and
// those that are read in a way of their own.
var fieldReaders = func() (list [reading.NumFields]fieldReader) {
	for _, f := range fleetstate.NodeNumbers {
		list[f] = nodeNumber(f)
	}
	for _, f := range fleetstate.GPUNumbers {
		list[f] = gpuNumber(f)
	}
	for _, f := range [...]reading.Field{
		reading.NodeStraggler, reading.NodeSuspicion, reading.NodeUnjudged, reading.NodeUnjudgedUntil,
		reading.RankShare, reading.RankShareMedian, reading.RankRate, reading.RankRateMedian,
	} {
		list[f] = verdict(f)
	}
	for f, read := range ownReaders {
		list[f] = read
	}
	return list
}()

var ownReaders = map[reading.Field]fieldReader{
	reading.NodeSignal: func(u *fleetstate.Update, p *metricreading.Point) {
		if s, err := nodesignal.Parse(p.Texts[0]); err == nil {
			u.SetSignal(s, p.Value)
		}
	},
	reading.NodeState: func(u *fleetstate.Update, p *metricreading.Point) { u.SetState(p.Texts[0], on(p)) },
	reading.AgentMode: func(u *fleetstate.Update, p *metricreading.Point) { u.SetMode(p.Texts[0], on(p)) },

	reading.NodeRank: nil, // it is said of a cluster, see rank

	reading.Info: ofGPU(readInfo),
	reading.Up:   ofGPU(readUp),
	reading.HealthState: gpuState(func(u *fleetstate.Update, i int, name string, on bool) {
		if h, ok := fleetstate.ParseHealth(name); ok {
			u.SetHealth(i, h, on)
		}
	}),
	reading.HealthReason: ofGPU(func(u *fleetstate.Update, i int, p *metricreading.Point) {
		u.SetReason(i, fleetstate.HealthReason{Reason: p.Texts[0], Action: attribute(p, gpusemconv.AttrAction)}, on(p))
	}),
	reading.Allocation:     ofGPU(func(u *fleetstate.Update, i int, p *metricreading.Point) { u.SetHolder(i, p.Holder(), on(p)) }),
	reading.RecoveryAction: gpuState((*fleetstate.Update).SetAction),
	reading.PowerBrake:     throttle, reading.HWThermal: throttle, reading.SWThermal: throttle,
	reading.HWSlowdown: throttle, reading.PowerCap: throttle, reading.OtherThrottle: throttle,
	reading.PowerBrakeTime: throttleTime("power_brake"), reading.HWThermalTime: throttleTime("hw_thermal"), reading.SWThermalTime: throttleTime("sw_thermal"),
	reading.Xid: readXid,

	reading.NetworkBandwidth: func(u *fleetstate.Update, p *metricreading.Point) { u.SetBandwidth(p.ID, p.Value) },
	reading.NetworkErrors: func(u *fleetstate.Update, p *metricreading.Point) {
		kind := [2]string{p.Texts[0], attribute(p, gpusemconv.AttrNetworkIODirection)}
		u.SetErrors(p.ID, maphash.Comparable(seed, kind)|1, p.Value)
	},
}

var seed = maphash.MakeSeed()

// Attributes of hw.gpu.info that only the views read.
const (
	attrSerial = "hw.serial_number"
	attrDriver = "hw.driver_version"
	attrBusID  = "gpu.pci.bus_id"
)

func attribute(p *metricreading.Point, name string) string {
	if v, ok := p.Attributes().Get(name); ok {
		return metricreading.Text(v)
	}
	return ""
}

func readInfo(u *fleetstate.Update, i int, p *metricreading.Point) {
	if math.IsNaN(p.Value) {
		// Facts of a GPU outlive the series that said them: they are its own.
		return
	}
	in := fleetstate.Info{Index: -1}
	for name, v := range p.Attributes().All() {
		switch name {
		case gpusemconv.AttrGPUIndex:
			if i, err := strconv.ParseUint(metricreading.Text(v), 10, 31); err == nil {
				in.Index = int(i)
			}
		case gpusemconv.AttrHWModel:
			in.Model = metricreading.Text(v)
		case attrSerial:
			in.Serial = metricreading.Text(v)
		case attrDriver:
			in.Driver = metricreading.Text(v)
		case attrBusID:
			in.BusID = metricreading.Text(v)
		}
	}
	u.SetInfo(i, in)
	u.SetParent(i, p.Parent)
}

func readUp(u *fleetstate.Update, i int, p *metricreading.Point) {
	u.SetUp(i, p.Value, p.Texts[0])
	if p.Parent != "" {
		u.SetParent(i, p.Parent)
	}
}

func readXid(u *fleetstate.Update, p *metricreading.Point) {
	code, ok := p.Xid()
	if !ok || code < math.MinInt32 || code > math.MaxInt32 {
		return
	}
	if i := gpu(u, p); i >= 0 {
		u.SetXid(i, fleetstate.Xid{Code: code, Class: attribute(p, gpusemconv.AttrXIDClass), Count: p.Value})
	}
}

var heartbeat, _ = reading.Of(reading.Heartbeat)

// lives reports whether the metric is a sign of life of the node now. A verdict of a
// gateway is none, and a heartbeat has its own time.
func lives(m *reading.Metric) bool { return m == nil || m != heartbeat && !m.Gateway }

// node takes a resource into its node's view, if that has room for it.
func (e *fleetExporter) node(rm pmetric.ResourceMetrics, s *scratch, facts fleetstate.Facts) {
	u, ok := e.state.Begin(s.of, s.now)
	var seen time.Time
	alive := false
	s.hasGPU = func(uuid string) bool { return ok && u.KnownGPU(uuid) >= 0 }
	var take func(*metricreading.Point)
	if ok {
		take = func(p *metricreading.Point) {
			if p.Field == reading.Heartbeat {
				if at := time.UnixMilli(int64(p.Value * 1000)); p.Value > 0 && at.After(seen) {
					seen = at
				}
			} else if read := fieldReaders[p.Field]; read != nil {
				read(&u, p)
			}
		}
	}
	s.vague = s.vague[:0]
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			known := reading.ByName(m.Name())
			alive = alive || lives(known)
			switch {
			case known == nil:
				s.each(nil, m, nil)
			case known.Vague():
				s.vague = append(s.vague, m) // the others name the GPUs
			case known.For&reading.View == 0:
				s.each(known, m, nil)
			default:
				s.each(known, m, take)
			}
		}
	}
	for _, m := range s.vague {
		s.each(reading.ByName(m.Name()), m, take)
	}
	clear(s.vague)
	if !ok {
		return
	}
	if alive || !seen.IsZero() { // a verdict may be of a job that is over
		u.SetFacts(facts)
	}
	// A heartbeat says when; without one, what the node itself says is one.
	if seen.IsZero() && alive {
		seen = s.now
	}
	u.Commit(seen)
}
