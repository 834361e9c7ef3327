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

// shown is the subject of each field in the views, Other for all other fields.
var shown = func() (list [reading.NumFields]reading.Subject) {
	for f := range list {
		list[f] = reading.Other
	}
	for _, f := range append(fleetstate.NodeNumbers[:], reading.NodeSignal, reading.NodeState, reading.AgentMode) {
		list[f] = reading.Node
	}
	for _, f := range append(fleetstate.GPUNumbers[:], reading.Info, reading.HealthState, reading.HealthReason, reading.Allocation, reading.RecoveryAction, reading.Xid,
		reading.PowerBrake, reading.HWThermal, reading.SWThermal, reading.HWSlowdown, reading.PowerCap, reading.OtherThrottle,
		reading.PowerBrakeTime, reading.HWThermalTime, reading.SWThermalTime) {
		list[f] = reading.GPU
	}
	list[reading.NetworkBandwidth], list[reading.NetworkErrors] = reading.Network, reading.Network
	return list
}()

// show takes a point into a node's view. Its value is NaN where the series has ended, or the
// value was refused.
func show(u *fleetstate.Update, p *metricreading.Point) {
	switch shown[p.Field] {
	case reading.Node:
		showNode(u, p)
	case reading.GPU:
		// The end of a series makes no new GPU, nor does a point that may be of other hardware.
		var i int
		if math.IsNaN(p.Value) || p.Vague {
			i = u.KnownGPU(p.ID)
		} else {
			i = u.GPU(p.ID)
		}
		if i >= 0 {
			showGPU(u, i, p)
		}
	case reading.Network:
		if p.Field == reading.NetworkBandwidth {
			u.SetBandwidth(p.ID, p.Value)
		} else {
			kind := [2]string{p.Texts[0], attribute(p, gpusemconv.AttrNetworkIODirection)}
			u.SetErrors(p.ID, maphash.Comparable(seed, kind)|1, p.Value)
		}
	}
}

func showNode(u *fleetstate.Update, p *metricreading.Point) {
	switch on := p.Value >= 1; p.Field {
	case reading.NodeStraggler, reading.NodeSuspicion, reading.NodeUnjudged, reading.NodeUnjudgedUntil,
		reading.RankShare, reading.RankShareMedian, reading.RankRate, reading.RankRateMedian:
		// A gateway's verdict on the node in its group. When the node has moved, the end of the
		// former group's verdict ends no other.
		if group := attribute(p, gpusemconv.AttrPeerGroup); !math.IsNaN(p.Value) || group == u.Group() {
			u.SetGroup(group)
			u.Set(p.Field, p.Value)
		}
	case reading.NodeRank: // a cluster's resource has it, see rank
	case reading.NodeSignal:
		if s, err := nodesignal.Parse(p.Texts[0]); err == nil {
			u.SetSignal(s, p.Value)
		}
	case reading.NodeState:
		u.SetState(p.Texts[0], on)
	case reading.AgentMode:
		u.SetMode(p.Texts[0], on)
	default:
		u.Set(p.Field, p.Value)
	}
}

func showGPU(u *fleetstate.Update, i int, p *metricreading.Point) {
	switch on := p.Value >= 1; p.Field {
	case reading.Info:
		showInfo(u, i, p)
	case reading.Up:
		u.SetUp(i, p.Value, p.Texts[0])
		if p.Parent != "" {
			u.SetParent(i, p.Parent)
		}
	case reading.HealthState:
		if h, ok := fleetstate.ParseHealth(p.Texts[0]); ok {
			u.SetHealth(i, h, on)
		}
	case reading.HealthReason:
		u.SetReason(i, fleetstate.HealthReason{Reason: p.Texts[0], Action: attribute(p, gpusemconv.AttrAction)}, on)
	case reading.Allocation:
		u.SetHolder(i, p.Holder(), on)
	case reading.RecoveryAction:
		u.SetAction(i, p.Texts[0], on)
	case reading.PowerBrake, reading.HWThermal, reading.SWThermal, reading.HWSlowdown, reading.PowerCap, reading.OtherThrottle:
		u.SetThrottle(i, p.Texts[0], on)
	case reading.PowerBrakeTime:
		u.SetThrottleTime(i, "power_brake", p.Value)
	case reading.HWThermalTime:
		u.SetThrottleTime(i, "hw_thermal", p.Value)
	case reading.SWThermalTime:
		u.SetThrottleTime(i, "sw_thermal", p.Value)
	case reading.Xid:
		if code, ok := p.Xid(); ok && code == int(int32(code)) {
			u.SetXid(i, fleetstate.Xid{Code: code, Class: attribute(p, gpusemconv.AttrXIDClass), Count: int64(p.Value)}, !math.IsNaN(p.Value))
		}
	default:
		u.SetGPU(i, p.Field, p.Value)
	}
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

func showInfo(u *fleetstate.Update, i int, p *metricreading.Point) {
	if math.IsNaN(p.Value) {
		// Facts of a GPU outlive their series.
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

var heartbeat, _ = reading.Of(reading.Heartbeat)

// lives reports whether the metric is a sign of life of the node now. A gateway's verdict is
// none, and a heartbeat has its own time.
func lives(m *reading.Metric) bool { return m == nil || m != heartbeat && !m.Gateway }

// node takes a resource into its node's view, if there is room.
func (e *fleetExporter) node(rm pmetric.ResourceMetrics, s *scratch, facts fleetstate.Facts) {
	u, ok := e.state.Begin(s.of, s.now)
	if !ok {
		return
	}
	var seen time.Time
	alive := false
	take := func(p *metricreading.Point) {
		if p.Field == reading.Heartbeat {
			if at := time.UnixMilli(int64(p.Value * 1000)); p.Value > 0 && at.After(seen) {
				seen = at
			}
		} else {
			show(&u, p)
		}
	}
	s.vague = s.vague[:0]
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			known := reading.ByName(m.Name())
			alive = alive || lives(known)
			switch {
			case known == nil || known.For&reading.View == 0:
			case known.Vague():
				s.vague = append(s.vague, m) // the others name the GPUs
			default:
				s.each(known, m, take)
			}
		}
	}
	for _, m := range s.vague {
		s.each(reading.ByName(m.Name()), m, take)
	}
	clear(s.vague)
	if alive || !seen.IsZero() { // a verdict may be of a job that is over
		u.SetFacts(facts)
	}
	// Without a heartbeat the node's own metrics are a sign of life.
	if seen.IsZero() && alive {
		seen = s.now
	}
	u.Commit(seen)
}
