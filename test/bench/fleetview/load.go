// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"golang.org/x/sys/unix"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// fleetNode is what a gateway hands on of a node at a tick: its own report of
// eight GPUs, whose readings change, its score and signal, and the verdict.
func fleetNode(node, tick int) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr(gpusemconv.AttrClusterName, fmt.Sprint("cluster-", node%4))
	rm.Resource().Attributes().PutStr(gpusemconv.AttrHostName, fmt.Sprintf("node-%05d", node))
	rm.Resource().Attributes().PutStr(gpusemconv.AttrJobID, fmt.Sprint("job-", node%500))
	list := rm.ScopeMetrics().AppendEmpty().Metrics()
	points := func(name string) pmetric.NumberDataPointSlice {
		m := list.AppendEmpty()
		m.SetName(name)
		return m.SetEmptyGauge().DataPoints()
	}
	add := func(to pmetric.NumberDataPointSlice, v float64, attrs ...string) {
		p := to.AppendEmpty()
		p.SetDoubleValue(v)
		for i := 0; i < len(attrs); i += 2 {
			p.Attributes().PutStr(attrs[i], attrs[i+1])
		}
	}
	for _, m := range []struct {
		name, attr, value string
		v                 float64
	}{
		{gpusemconv.MetricTemperature, gpusemconv.AttrSensorLocation, "gpu", 50 + float64(tick%30)},
		{gpusemconv.MetricPower, gpusemconv.AttrHWType, "gpu", 600 + float64(tick%50)},
		{gpusemconv.MetricGPUUtilization, gpusemconv.AttrGPUTask, "general", float64(node%100) / 100},
		{gpusemconv.MetricGPUClock, gpusemconv.AttrClock, "sm", 1.9e9},
		{gpusemconv.MetricGPUMemoryUsage, gpusemconv.AttrHWType, "gpu", 70e9 + float64(tick)},
		{gpusemconv.MetricGPUHealthState, gpusemconv.AttrState, "healthy", 1},
		{gpusemconv.MetricGPUHealthScore, gpusemconv.AttrHWType, "gpu", 100},
		{gpusemconv.MetricGPUUp, gpusemconv.AttrReason, "ok", 1},
	} {
		dps := points(m.name)
		for g := range gpus {
			add(dps, m.v, gpusemconv.AttrHWID, fmt.Sprintf("GPU-%05d-%d", node, g), m.attr, m.value)
		}
	}
	group := fmt.Sprint("job-", node%500)
	straggler := 0.0
	if node%1000 == 0 {
		straggler = 1
	}
	add(points(gpusemconv.MetricNodeState), 1, gpusemconv.AttrNodeState, gpusemconv.StateActive)
	add(points(gpusemconv.MetricNodeHealthScore), 0.95+float64(tick%10)/1000)
	add(points(gpusemconv.MetricNodeSignal), 1+float64(tick%10)/1000, gpusemconv.AttrSignal, nodesignal.Throughput.String())
	add(points(gpusemconv.MetricNodeStraggler), straggler, gpusemconv.AttrPeerGroup, group)
	add(points(gpusemconv.MetricNodeSuspicion), float64((node+tick)%100)/200, gpusemconv.AttrPeerGroup, group)
	return md
}

// load reports for the nodes in turn, perSecond of them, until ctx ends, and
// returns the CPU time of each report: of decoding it, and in the exporter.
func load(ctx context.Context, e exporter.Metrics, nodes, perSecond int) (receive, view []time.Duration, err error) {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for n := 0; ; {
		select {
		case <-ctx.Done():
			return receive, view, nil
		case <-ticker.C:
		}
		for range perSecond / 100 {
			body, err := pmetricotlp.NewExportRequestFromMetrics(fleetNode(n%nodes, n/nodes+1)).MarshalProto()
			if err != nil {
				return nil, nil, err
			}
			req := pmetricotlp.NewExportRequest()
			before := threadTime()
			if err := req.UnmarshalProto(body); err != nil {
				return nil, nil, err
			}
			received := threadTime()
			if err := e.ConsumeMetrics(ctx, req.Metrics()); err != nil {
				return nil, nil, err
			}
			receive, view = append(receive, received-before), append(view, threadTime()-received)
			n++
		}
	}
}

// threadTime is the CPU time of the thread, to which the goroutine is locked.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(err) // cannot be on Linux
	}
	return time.Duration(ts.Nano())
}
