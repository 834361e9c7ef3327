// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

// gauges adds gauge metrics of one timestamp to a scope.
type gauges struct {
	metrics pmetric.MetricSlice
	ts      pcommon.Timestamp
}

func newGauges(rm pmetric.ResourceMetrics, ts pcommon.Timestamp) gauges {
	sm := rm.ScopeMetrics().AppendEmpty()
	sm.Scope().SetName(metadata.ScopeName)
	return gauges{sm.Metrics(), ts}
}

// metric starts a gauge and returns its points. Flags have no unit: with "1"
// Prometheus would call them a ratio.
func (g gauges) metric(name, unit, description string) pmetric.NumberDataPointSlice {
	m := g.metrics.AppendEmpty()
	m.SetName(name)
	m.SetUnit(unit)
	m.SetDescription(description)
	return m.SetEmptyGauge().DataPoints()
}

func (g gauges) point(to pmetric.NumberDataPointSlice) pmetric.NumberDataPoint {
	p := to.AppendEmpty()
	p.SetTimestamp(g.ts)
	return p
}

func (g gauges) double(to pmetric.NumberDataPointSlice, v float64) pmetric.NumberDataPoint {
	p := g.point(to)
	p.SetDoubleValue(v)
	return p
}

func (g gauges) flag(to pmetric.NumberDataPointSlice, on bool) pmetric.NumberDataPoint {
	p := g.point(to)
	if on {
		p.SetIntValue(1)
	} else {
		p.SetIntValue(0)
	}
	return p
}

// appendResult adds an agent's evaluation to a resource.
func appendResult(rm pmetric.ResourceMetrics, ts pcommon.Timestamp, res *nodescore.Result, reachable bool) {
	g := newGauges(rm, ts)
	// The state is a metric of its own: as an attribute of the score each change
	// would leave the old score standing beside the new one.
	states := g.metric(gpusemconv.MetricNodeState, "", "1 for the state of the node: active, idle or calibrating.")
	for _, s := range [...]straggler.State{straggler.StateActive, straggler.StateIdle, straggler.StateCalibrating} {
		g.flag(states, s == res.State).Attributes().PutStr(gpusemconv.AttrNodeState, s.String())
	}
	if res.HasScore {
		g.double(g.metric(gpusemconv.MetricNodeHealthScore, "1", "Health score of the node, 1 is as fast as its peers or its own best."), res.Score)
	}
	if res.Signals.Known != [nodescore.NumSignals]bool{} {
		signals := g.metric(gpusemconv.MetricNodeSignal, "1", "Input of the score: throughput in its own unit, the others as fractions.")
		for s := range nodescore.NumSignals {
			if res.Signals.Known[s] {
				g.double(signals, res.Signals.V[s]).Attributes().PutStr(gpusemconv.AttrSignal, s.String())
			}
		}
	}
	g.flag(g.metric(gpusemconv.MetricAgentStraggler, "", "1 while the node takes itself for a straggler."), res.Straggler)
	if res.Mode != nodescore.ModeNone {
		g.double(g.metric(gpusemconv.MetricAgentThreshold, "1", "Threshold that the node judges itself by."), res.Threshold)
	}
	modes := g.metric(gpusemconv.MetricAgentDetectionMode, "", "1 for what the node judges itself by: fleet, cached, local or none.")
	for m := range nodescore.NumModes {
		g.flag(modes, m == res.Mode).Attributes().PutStr(gpusemconv.AttrDetectionMode, m.String())
	}
	g.flag(g.metric(gpusemconv.MetricAgentGatewayReachable, "", "1 while the gateway answers the pushes."), reachable)
}

// reportMetrics turns a gateway's tick into one resource per cluster, with a
// point per peer group and one without group for the whole cluster, and one
// resource per node that reports.
func reportMetrics(r *straggler.Report, ids *identifier) pmetric.Metrics {
	md := pmetric.NewMetrics()
	ts := pcommon.NewTimestampFromTime(r.At)
	for from := 0; from < len(r.Groups); {
		to := from + 1
		for to < len(r.Groups) && r.Groups[to].Cluster == r.Groups[from].Cluster {
			to++
		}
		appendCluster(md, ts, r.Groups[from:to])
		from = to
	}
	for i := range r.Nodes {
		if n := &r.Nodes[i]; n.State != straggler.StateMissing {
			appendNode(md, ts, n, ids)
		}
	}
	return md
}

func appendCluster(md pmetric.Metrics, ts pcommon.Timestamp, groups []straggler.GroupReport) {
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr(gpusemconv.AttrClusterName, groups[0].Cluster)
	g := newGauges(rm, ts)
	threshold := g.metric(gpusemconv.MetricStragglerThreshold, "1", "Score below which a node is a straggler: median - max(k*1.4826*MAD, min_gap), smoothed.")
	median := g.metric(gpusemconv.MetricStragglerMedian, "1", "Median score of the active nodes.")
	mad := g.metric(gpusemconv.MetricStragglerMAD, "1", "Median absolute deviation of the active nodes' scores.")
	nodes := g.metric(gpusemconv.MetricStragglerNodes, "{node}", "Nodes by state.")
	quorum := g.metric(gpusemconv.MetricStragglerQuorumMet, "", "1 while enough nodes are active to compute a threshold.")
	coverage := g.metric(gpusemconv.MetricStragglerCoverageLow, "", "1 while too many of the known nodes are missing.")
	panicMode := g.metric(gpusemconv.MetricStragglerPanicMode, "", "1 while so many nodes are below the threshold that it is held instead.")
	count := g.metric(gpusemconv.MetricStragglerCount, "{node}", "Stragglers.")
	for i := range groups {
		gr := &groups[i]
		label := func(p pmetric.NumberDataPoint) {
			if gr.Group != "" {
				p.Attributes().PutStr(gpusemconv.AttrPeerGroup, gr.Group)
			}
		}
		if gr.Valid {
			label(g.double(threshold, gr.Threshold))
		}
		if gr.Quorum {
			label(g.double(median, gr.Median))
			label(g.double(mad, gr.MAD))
		}
		for s, n := range gr.Counts {
			p := g.point(nodes)
			p.SetIntValue(int64(n))
			p.Attributes().PutStr(gpusemconv.AttrNodeState, straggler.State(s).String())
			label(p)
		}
		label(g.flag(quorum, gr.Quorum))
		label(g.flag(coverage, gr.CoverageLow))
		label(g.flag(panicMode, gr.Panic))
		p := g.point(count)
		p.SetIntValue(int64(gr.Stragglers))
		label(p)
	}
	// A metric without points says nothing; receivers warn about it.
	g.metrics.RemoveIf(func(m pmetric.Metric) bool { return m.Gauge().DataPoints().Len() == 0 })
}

func appendNode(md pmetric.Metrics, ts pcommon.Timestamp, n *straggler.NodeReport, ids *identifier) {
	rm := md.ResourceMetrics().AppendEmpty()
	ids.stamp(rm.Resource().Attributes(), n.Cluster, n.Node, n.Peers)
	g := newGauges(rm, ts)
	p := g.flag(g.metric(gpusemconv.MetricNodeStraggler, "", "1 while the gateway takes the node for a straggler."), n.Straggler)
	p.Attributes().PutStr(gpusemconv.AttrPeerGroup, n.Group)
}

func timestampOrNow(ts pcommon.Timestamp, now time.Time) pcommon.Timestamp {
	if ts == 0 {
		return pcommon.NewTimestampFromTime(now)
	}
	return ts
}
