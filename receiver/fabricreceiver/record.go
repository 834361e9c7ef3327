// SPDX-License-Identifier: Apache-2.0

package fabricreceiver

import (
	"context"
	"math"
	"slices"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpu-collector/gpu-collector/internal/fabric"
	"github.com/gpu-collector/gpu-collector/internal/hostfacts"
	"github.com/gpu-collector/gpu-collector/receiver/fabricreceiver/internal/metadata"
)

// host adds what the host does, as far as its kernel says it.
func (s *fabricScraper) host(ctx context.Context, ts pcommon.Timestamp) {
	proc := s.cfg.ProcPath
	gauge := func(enabled bool, what string, read func() (float64, error), record func(float64)) {
		if !enabled {
			return
		}
		v, err := read()
		if err != nil {
			s.fail(ctx, "host/"+what, fabric.Failure{File: what, Cause: fabric.Unreadable, Err: err},
				"the host does not say it, or `proc_path` is not the host's")
			return
		}
		record(v)
	}
	pressure := func(of hostfacts.Resource) func() (float64, error) {
		return func() (float64, error) { return hostfacts.Pressure(proc, of) }
	}
	on := &s.cfg.Metrics
	gauge(on.GpuNodeCPUPressure.Enabled, "pressure/cpu", pressure(hostfacts.CPU), func(v float64) { s.builder.RecordGpuNodeCPUPressureDataPoint(ts, v) })
	gauge(on.GpuNodeMemoryPressure.Enabled, "pressure/memory", pressure(hostfacts.Memory), func(v float64) { s.builder.RecordGpuNodeMemoryPressureDataPoint(ts, v) })
	gauge(on.GpuNodeIoPressure.Enabled, "pressure/io", pressure(hostfacts.IO), func(v float64) { s.builder.RecordGpuNodeIoPressureDataPoint(ts, v) })
	gauge(on.SystemCPULoadAverage1m.Enabled, "loadavg", func() (float64, error) { return hostfacts.Load(proc) }, func(v float64) { s.builder.RecordSystemCPULoadAverage1mDataPoint(ts, v) })
	gauge(on.SystemMemoryUtilization.Enabled, "meminfo", func() (float64, error) { return hostfacts.MemoryUsed(proc) }, func(v float64) {
		s.builder.RecordSystemMemoryUtilizationDataPoint(ts, v, metadata.AttributeSystemMemoryStateUsed)
	})
	if !on.SystemCPUUtilization.Enabled {
		return
	}
	shares, ok, err := s.times.Read(proc)
	if err != nil {
		s.fail(ctx, "host/stat", fabric.Failure{File: "stat", Cause: fabric.Unreadable, Err: err}, "the host does not say it, or `proc_path` is not the host's")
	}
	if ok {
		s.builder.RecordSystemCPUUtilizationDataPoint(ts, shares.User, metadata.AttributeCPUModeUser)
		s.builder.RecordSystemCPUUtilizationDataPoint(ts, shares.System, metadata.AttributeCPUModeSystem)
		s.builder.RecordSystemCPUUtilizationDataPoint(ts, shares.IOWait, metadata.AttributeCPUModeIowait)
		s.builder.RecordSystemCPUUtilizationDataPoint(ts, shares.Steal, metadata.AttributeCPUModeSteal)
	}
}

// port adds what a port has.
func (s *fabricScraper) port(ts pcommon.Timestamp, p *fabric.Port, route map[string]bool) {
	mb := s.builder
	var parent, named []metadata.MetricAttributeOption
	if p.PCI != "" {
		parent = append(parent, metadata.WithHwParentMetricAttribute(p.PCI))
	}
	named = slices.Clone(parent)
	if p.Interface != "" {
		named = append(named, metadata.WithHwNameMetricAttribute(p.Interface))
	}
	if p.UpKnown {
		mb.RecordHwNetworkUpDataPoint(ts, one(p.Up), p.ID, named...)
	}
	if p.Rate > 0 {
		mb.RecordHwNetworkBandwidthLimitDataPoint(ts, p.Rate, p.ID, named...)
	}
	if p.Highest > 0 {
		mb.RecordGpuNetworkBandwidthHighestDataPoint(ts, p.Highest, p.ID, parent...)
	}
	if p.Lanes > 0 {
		mb.RecordGpuNetworkLinkWidthDataPoint(ts, int64(p.Lanes), p.ID, parent...)
	}
	if p.PCIeRate > 0 {
		mb.RecordGpuNetworkPcieBandwidthDataPoint(ts, p.PCIeRate, p.ID, metadata.AttributeLimitKindCurrent, parent...)
	}
	if p.PCIeHighest > 0 {
		mb.RecordGpuNetworkPcieBandwidthDataPoint(ts, p.PCIeHighest, p.ID, metadata.AttributeLimitKindMax, parent...)
	}
	if route[p.Interface] {
		mb.RecordGpuNetworkDefaultRouteDataPoint(ts, 1, p.ID, parent...)
	}
	for i := range p.Counters {
		s.counter(ts, p, &p.Counters[i], parent)
	}
}

// counter adds a counter of traffic, and any other from the first count on: most never
// count anything.
func (s *fabricScraper) counter(ts pcommon.Timestamp, p *fabric.Port, c *fabric.Counter, parent []metadata.MetricAttributeOption) {
	mb, v := s.builder, int64(min(c.Value, math.MaxInt64))
	direction := metadata.MapAttributeNetworkIoDirection[c.Direction]
	switch c.Class {
	case fabric.Bytes:
		mb.RecordHwNetworkIoDataPoint(ts, v, p.ID, direction, parent...)
		return
	case fabric.Packets:
		mb.RecordHwNetworkPacketsDataPoint(ts, v, p.ID, direction, parent...)
		return
	case fabric.Errors, fabric.Retransmits, fabric.Congestion:
	}
	if s.from(series{p.ID, c.Kind, true}, c.Full()) {
		mb.RecordGpuNetworkCounterFullDataPoint(ts, one(c.Full()), p.ID, c.File, parent...)
	}
	if !s.from(series{p.ID, c.Kind, false}, v > 0) {
		return
	}
	switch c.Class {
	case fabric.Errors:
		mb.RecordHwErrorsDataPoint(ts, v, p.ID, metadata.AttributeHwTypeNetwork, c.File, parent...)
	case fabric.Retransmits:
		mb.RecordGpuNetworkRetransmitsDataPoint(ts, v, p.ID, c.File, parent...)
	case fabric.Congestion:
		mb.RecordGpuNetworkCongestionDataPoint(ts, v, p.ID, metadata.MapAttributeCongestionKind[c.File], parent...)
	case fabric.Bytes, fabric.Packets:
	}
}

// maxBegun bounds the series that have begun: all kinds of all ports of a node.
const maxBegun = 16_384

// from reports whether a series has a point: from its first time on.
func (s *fabricScraper) from(of series, holds bool) bool {
	if holds && len(s.begun) < maxBegun {
		s.begun[of] = true
	}
	return s.begun[of]
}

// relate adds the relation of a GPU, while its port is there.
func (s *fabricScraper) relate(ts pcommon.Timestamp, n *fabric.Near, ports []fabric.Port) {
	at := slices.IndexFunc(ports, func(p fabric.Port) bool { return p.ID == n.Port })
	if at < 0 {
		return
	}
	var parent []metadata.MetricAttributeOption
	if pci := ports[at].PCI; pci != "" {
		parent = append(parent, metadata.WithHwParentMetricAttribute(pci))
	}
	s.builder.RecordGpuNetworkNearDataPoint(ts, 1, n.Port, n.GPU, metadata.MapAttributeGpuNetworkDistance[n.Distance], parent...)
}

func one(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
